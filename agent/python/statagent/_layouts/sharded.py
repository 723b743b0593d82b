"""Optimizers that update their own tensors instead of a model's parameters, and which parts of the parameters these hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._torch.modules import Named
from . import slices
from .slices import Slice

_PACKAGES = ("deepspeed.", "megatron.")


@dataclass(frozen=True)
class Wrapper:
    """An optimizer of DeepSpeed or Megatron-Core around optimizers of torch, whose step() is the update."""

    outer: Any
    inner: tuple[Any, ...]

    def settings(self) -> dict[str, str]:
        """The settings that the collector reads (docs/ranks.md)."""
        sharded = any(hasattr(each, "model_param_gbuf_map") for each in _parts(self.outer))
        return {"parallel.distributed_optimizer": "true"} if sharded else {}

    def slices(self) -> slices.Slices:
        found: slices.Slices = {}
        for each in _parts(self.outer):
            found |= slices.deepspeed(each) or slices.megatron(each)
        return found


def wrapper_of(optimizer: Any) -> Wrapper | None:
    """None: not an optimizer of DeepSpeed or Megatron-Core, or one that contains no optimizer of torch."""
    if not any(base.__module__.startswith(_PACKAGES) for base in type(optimizer).__mro__) or not hasattr(optimizer, "step"):
        return None
    inner = [getattr(each, "optimizer", None) for each in _parts(optimizer)]
    inner = [each for each in inner if hasattr(each, "register_step_pre_hook") and each is not optimizer]
    return Wrapper(optimizer, tuple(inner)) if inner else None


def wrapper_in(model: Any, optimizer: Any) -> Wrapper | None:
    """The wrapper that DeepSpeed's engine has made around the program's own optimizer."""
    if type(model).__name__ != "DeepSpeedEngine":
        return None
    found = wrapper_of(getattr(model, "optimizer", None))
    return found if found is not None and any(each is optimizer for each in found.inner) else None


def _parts(optimizer: Any) -> list[Any]:
    """The optimizers in Megatron's ChainedOptimizer."""
    return list(getattr(optimizer, "chained_optimizers", None) or [optimizer])


class Shards:
    """Parts of a model's parameters that this rank holds in other tensors: those of the optimizers, of ZeRO 3, and of
    FullyShardedDataParallel with use_orig_params=False. Threads: any, after construction."""

    def __init__(self, model: Any, parameters: list[Named], wrappers: list[Wrapper], prefix: str = "") -> None:
        self._of_tensor: dict[int, list[tuple[Named, Slice]]] = {}
        self._of_name: dict[str, Slice] = {}
        self._flat: set[str] = set()  # names whose weight is a slice of the parameter
        self._zero3: set[str] = set()
        names = {named.name: named for named in parameters}
        ids = {id(named.value): named for named in parameters}
        for tensor, parts in slices.flat_parameters(model, prefix).items():
            found = [(names[part.parameter], part) for part in parts if part.parameter in names]
            self._flat.update(named.name for named, _ in found)
            self._add(tensor, found)
        for wrapper in wrappers:
            for tensor, parts in wrapper.slices().items():
                self._add(tensor, [(ids[id(part.parameter)], part) for part in parts if id(part.parameter) in ids])
        for named in parameters:
            if hasattr(named.value, "ds_tensor") and hasattr(named.value, "ds_process_group"):
                self._zero3.add(named.name)
                self._of_name.setdefault(
                    named.name, Slice(named.value, tuple(named.value.ds_shape), 0, *slices.zero3_range(named.value))
                )

    def _add(self, tensor: int, found: list[tuple[Named, Slice]]) -> None:
        self._of_tensor[tensor] = found
        self._of_name.update((named.name, part) for named, part in found)

    def of_name(self, name: str) -> Slice | None:
        """The part of a parameter that is here. None: it is not split in this way."""
        return self._of_name.get(name)

    def in_tensor(self, tensor: Any) -> list[tuple[Named, Slice]]:
        """Parts of the model's parameters in an optimizer's tensor."""
        return self._of_tensor.get(id(tensor), [])

    def weight(self, named: Named) -> Any | None:
        """This rank's part of the parameter as the model uses it. None: nothing at the moment."""
        if named.name in self._zero3:
            part = self._of_name[named.name]
            local = named.value.ds_tensor.detach().view(-1)
            return local.narrow(0, 0, part.stop - part.start) if local.numel() >= part.stop - part.start else None
        return self.of_flat(named, named.value)

    def of_flat(self, named: Named, tensor: Any) -> Any | None:
        """The parameter's part of a tensor that is like its flat parameter; the tensor itself if the parameter is not flattened."""
        return self._of_name[named.name].of(tensor) if named.name in self._flat else tensor
