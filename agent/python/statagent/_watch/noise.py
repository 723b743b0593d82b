"""The noise of a twin, where it is put: outputs of modules that have no parts, their gradients, gradients of parameters; or the weights
once. docs/decisions/0055-twins.md says why there."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .._layouts import dtensor
from .._layouts.layouts import ModelLayouts
from .._layouts.sharded import Shards, Wrapper
from .._layouts.slices import Slice
from .._native.noise import Part
from .._runtime.agent import Agent
from .._runtime.log import warn_once
from .._runtime.perturbation import EVENT, Noise, Perturbation
from .._torch.modules import Named
from ..errors import TensorTypeError
from .noise_hooks import NoiseHook, ParameterNoise
from .noise_parts import parts_of

_REFUSED_MAX = 20
_RANK_FACTOR = 0x9E3779B97F4A7C15


class NoiseHooks:
    """The noise in all models that a twin's process watches. Belongs to the run: it stays when a watch is removed, and it is there in every step,
    recorded or not. A model that several watches share is perturbed once. Threads: those that run the models."""

    def __init__(self, agent: Agent, perturbation: Perturbation) -> None:
        """Precondition: torch is imported."""
        self.noise = Noise(perturbation)
        self.active = True
        self.in_graph = False  # hooks are part of a compiled graph that has run
        self.tensor_type: Any = sys.modules["torch"].Tensor
        self._plain_types = (self.tensor_type, sys.modules["torch"].nn.Parameter)
        self._agent = agent
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._known: dict[int, list[_Known]] = {}  # by id of the parameter, or of the flat one that contains it
        self._refused: set[tuple[str, str]] = set()
        self._removables: list[Any] = []
        agent.clock.step_listeners.append(self._step_changed)
        self._step_changed()

    def attach(
        self, modules: list[Named], unreachable: set[int], parameters: list[Named], places: ModelLayouts | None, shards: Shards,
        wrappers: list[Wrapper],
    ) -> None:  # fmt: skip
        """Perturbs a model from now on. `unreachable`: ids of modules that call no hooks. Call it before other hooks are attached, which then see
        the values with noise."""
        new = [_Known(named, places, shards) for named in parameters if id(named.value) not in self._known]
        for known in new:
            self._known.setdefault(id(known.named.value), []).append(known)
        if self.noise.perturbation.once:
            copies = _copies_of(wrappers, shards)
            for known in new:
                try:
                    self._perturb_weight(known, copies.get(known.named.name, []))
                except Exception as error:
                    self.refuse(known.named.name, "weight", error)
            return
        hooked: set[int] = set()  # several parameters may be parts of one flat one
        for known in new:
            if id(known.named.value) not in hooked:
                hooked.add(id(known.named.value))
                self._follow_gradient(known)
        for named in modules:
            module = named.value
            if _computes(module) and id(module) not in unreachable and module not in self._modules:
                self._modules.add(module)
                hook = NoiseHook(self, named)
                self._removables += [hook.key, module.register_forward_hook(hook, with_kwargs=True)]

    def before_update(self, optimizer: Any) -> None:
        """Perturbs gradients that no hook has seen: those of parameters that fully_shard and FullyShardedDataParallel hold. Never raises."""
        if not self.active or self.noise.perturbation.once:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known = self._known.get(id(parameter), ())
                if parameter.grad is not None and not any(each.seen for each in known):
                    for each in known:
                        self._perturb_gradient(each, parameter.grad)
                for each in known:
                    each.seen = False

    def remove(self) -> None:
        """Nothing is perturbed any more."""
        self.active = False
        for removable in self._removables:
            removable.remove()
        self._removables.clear()
        self._known.clear()
        self._agent.clock.step_listeners.remove(self._step_changed)

    def _step_changed(self) -> None:
        self.noise.step = self._agent.current_step()

    # --- values and gradients

    def perturbed(self, tensor: Any, key: int) -> Any:
        """The tensor with noise; the tensor itself if there is none for its type. Raises StatagentError."""
        noise = self.noise
        if not noise.takes(tensor):
            return tensor
        if type(tensor) in self._plain_types and tensor.layout is _torch().strided:
            return noise.noisy(tensor, key)
        if hasattr(tensor, "_local_tensor"):
            return self._perturbed_shard(tensor, key)
        if hasattr(tensor, "trigger_wait"):  # the result of a collective that may still run
            return tensor + noise.difference(tensor.trigger_wait(), key)
        if tensor.layout is _torch().sparse_coo:
            return self._perturbed_sparse(tensor, key)
        raise TensorTypeError(
            f"found a tensor of type {type(tensor).__name__} and layout {tensor.layout}; expected a plain one or a DTensor"
        )

    def _perturbed_shard(self, tensor: Any, key: int) -> Any:
        local, placement = _waited(tensor._local_tensor), dtensor.placement_of(tensor)
        if placement is None or placement.partial:  # each rank has a sum, or a part, of its own
            key = _of_rank(key, self._agent.rank())
        difference = self.noise.difference(local, key, parts_of(placement, tuple(local.shape)))
        return tensor + type(tensor)(difference, tensor._spec, requires_grad=False)

    def _perturbed_sparse(self, tensor: Any, key: int) -> Any:
        tensor = tensor.coalesce()
        values = self.noise.noisy(tensor.values(), key)
        return _torch().sparse_coo_tensor(tensor.indices(), values, tensor.shape, check_invariants=False, is_coalesced=True)

    # --- parameters

    def _follow_gradient(self, known: _Known) -> None:
        parameter = known.named.value
        if parameter.requires_grad:
            hook = ParameterNoise(self, known.named.name, self.noise.key(known.named.name, "weight_grad"), known)
            self._removables.append(parameter.register_hook(hook))

    def _perturb_weight(self, known: _Known, copies: list[tuple[Any, Slice]]) -> None:
        """Perturbs a weight, and what optimizers keep of it in higher precision."""
        named = known.named
        weight = known.shards.weight(named)
        local = None if weight is None else _waited(getattr(weight, "_local_tensor", weight))
        if local is None or not self.noise.takes(local):
            return
        before = local.detach().clone() if copies else None
        self.noise.add(local, self.noise.key(named.name, "weight"), known.parts("weight", weight, local))
        if before is None:
            return
        with _torch().no_grad():
            change, begin = (local.detach().double() - before.double()).view(-1), known.begin(local)
            for tensor, part in copies:
                kept = tensor.detach().view(-1).narrow(0, part.at, part.stop - part.start)
                kept.add_(change.narrow(0, part.start - begin, part.stop - part.start).to(kept.dtype))

    def _perturb_gradient(self, known: _Known, gradient: Any) -> None:
        named = known.named
        try:
            here = known.shards.of_flat(named, gradient)
            local = None if here is None else _waited(getattr(here, "_local_tensor", here))
            if local is not None and local.layout is _torch().strided and self.noise.takes(local):
                self.noise.add(local, self.noise.key(named.name, "weight_grad"), known.parts("weight_grad", here, local))
        except Exception as error:
            self.refuse(named.name, "weight_grad", error)

    def refuse(self, name: str, kind: str, error: Exception) -> None:
        """Something could not be perturbed: a line on standard error and an event of the run, once for each name. Never raises."""
        if (name, kind) in self._refused or len(self._refused) >= _REFUSED_MAX:
            return
        self._refused.add((name, kind))
        text = f"{kind} of '{name}' is not perturbed: {error}"
        warn_once(f"{EVENT} {name} {kind}", f"twin: {text}")
        self._agent.log_event(EVENT, text, {"name": name, "kind": kind, "reason": f"{error}"})


class _Known:
    """A parameter of a watched model."""

    def __init__(self, named: Named, places: ModelLayouts | None, shards: Shards) -> None:
        self.named, self.shards, self._places = named, shards, places
        self.seen = False  # a hook has perturbed its gradient since the last update

    def parts(self, kind: str, tensor: Any, local: Any) -> tuple[Part, ...]:
        """Where the local part lies in the logical tensor."""
        placement = None if self._places is None else self._places.place(self.named.name, kind, "", 0, tensor)
        return parts_of(placement, tuple(local.shape))

    def begin(self, local: Any) -> int:
        """The first element of the flattened parameter that is in its local part."""
        part = self.shards.of_name(self.named.name)
        return part.start if part is not None and tuple(local.shape) == (part.stop - part.start,) != part.shape else 0


def _copies_of(wrappers: list[Wrapper], shards: Shards) -> dict[str, list[tuple[Any, Slice]]]:
    """By name of the parameter, what the optimizers of DeepSpeed and Megatron-Core keep of it in tensors of their own."""
    found: dict[str, list[tuple[Any, Slice]]] = {}
    for wrapper in wrappers:
        for optimizer in wrapper.inner:
            for tensor in (each for group in optimizer.param_groups for each in group["params"]):
                for named, part in shards.in_tensor(tensor):
                    if tensor is not named.value:
                        found.setdefault(named.name, []).append((tensor, part))
    return found


def _computes(module: Any) -> bool:
    """Whether a module computes its output itself. MultiheadAttention reads the weights of its part, and does not call it."""
    return all(child is None for child in module._modules.values()) or isinstance(module, _torch().nn.MultiheadAttention)


def _of_rank(key: int, rank: int) -> int:
    return (key ^ (rank + 1) * _RANK_FACTOR) & ((1 << 64) - 1)


def _waited(tensor: Any) -> Any:
    """The result of a collective, which may still run."""
    return tensor.trigger_wait() if hasattr(tensor, "trigger_wait") else tensor


def _torch() -> Any:
    return sys.modules["torch"]
