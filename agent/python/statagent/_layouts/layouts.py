"""Where each recorded tensor of a rank lies in the model's logical tensor: what the user says first, then what torch's own objects know.

What is not known is None; the collector takes tensors of unknown place that are the same bits on all ranks as replicas."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .._native.placement import structure_of
from .._torch.modules import Named
from ..errors import InvalidArgumentError
from . import dtensor
from .data_parallel import data_parallel, replicates
from .fsdp1 import FlatShards
from .placement import Placement, whole
from .user import Rules

_OF_PARAMETERS = frozenset(("weight", "weight_grad", "optimizer_state"))
_OF_OUTPUTS = frozenset(("output", "grad_output"))


class ModelLayouts:
    """Layouts of one watched model's tensors, asked by name and kind. Threads: any, after construction."""

    def __init__(self, model: Any, modules: Iterable[Named], parameters: Iterable[Named], rules: Rules) -> None:
        self._rules = rules
        self._modules = {named.name: named.value for named in modules}
        self._parameters = {named.name: named for named in parameters}
        self._piece = data_parallel(model)
        self._replicates = replicates(model)
        self._flat = FlatShards(model)

    def names(self) -> Iterable[str]:
        return self._modules.keys() | self._parameters.keys()

    def place(self, name: str, kind: str, tensor: Any) -> Placement | None:
        """None: not known. Raises InvalidArgumentError if the user's layout does not fit the tensor."""
        shape = tuple(_local(tensor).shape)
        if kind in _OF_PARAMETERS:
            return self._of_parameter(name, shape, tensor)
        if kind == "buffer":
            rule = self._rules.find(name)
            return None if rule is None else rule.place(shape)
        placed = self._of_activation(name, kind, shape, tensor)
        if self._piece is None or self._piece[1] == 1:
            return placed
        # The rest of the batch is on other ranks, in an order that is not known.
        if placed is None and not self._is_cut_by_tensors():
            placed = whole(shape)
        return None if placed is None else replace(placed, piece=self._piece[0], pieces=self._piece[1])

    def _of_parameter(self, name: str, shape: tuple[int, ...], tensor: Any) -> Placement | None:
        rule = self._rules.find(name)
        if rule is not None:
            return rule.place(shape)
        if hasattr(tensor, "device_mesh"):
            return dtensor.placement_of(tensor)
        named = self._parameters.get(name)
        if named is None:
            return None
        if hasattr(named.value, "device_mesh"):  # an update computed from its local parts
            mine = dtensor.placement_of(named.value)
            return mine if mine is not None and mine.boxes[0][1] == shape else None
        return self._flat.place(named.value, shape) or (whole(shape) if self._replicates else None)

    def _of_activation(self, name: str, kind: str, shape: tuple[int, ...], tensor: Any) -> Placement | None:
        rule = self._rules.find(name) if kind in _OF_OUTPUTS else None
        if rule is not None:
            return rule.place(shape)
        if hasattr(tensor, "device_mesh"):
            return dtensor.placement_of(tensor)
        module = self._modules.get(name)
        if module is None or kind not in _OF_OUTPUTS:
            return None
        style = dtensor.output_layout(module)
        return None if style is None else dtensor.placement_under(*style, shape, _features(module))

    def _is_cut_by_tensors(self) -> bool:
        """Whether a part of the model is cut over other ranks than those of the batch, so that a plain activation may be a part."""
        sizes = {p.value.device_mesh.size() for p in self._parameters.values() if hasattr(p.value, "device_mesh")}
        return any(self._piece is not None and size != self._piece[1] for size in sizes)


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


def _features(module: Any) -> int | None:
    """Of a linear layer's whole output."""
    weight = getattr(module, "weight", None)
    if weight is None or type(module).__name__ != "Linear" or not hasattr(weight, "device_mesh"):
        return None
    return int(weight.shape[0])


class Layouts:
    """Layouts of all watched models of an agent. `address` never raises."""

    def __init__(self) -> None:
        self._models: dict[int, ModelLayouts] = {}
        self._by_name: dict[str, ModelLayouts] = {}
        self.refusals: list[str] = []

    def add(self, key: int, model: ModelLayouts) -> None:
        self._models[key] = model
        self._by_name.update(dict.fromkeys(model.names(), model))

    def remove(self, key: int) -> None:
        gone = self._models.pop(key, None)
        self._by_name = {name: model for name, model in self._by_name.items() if model is not gone}

    def address(self, name: str, kind: str, tensor: Any) -> int | None:
        """Of the C structure statagent_placement; None: not known, or not the layout that the user said."""
        model = self._by_name.get(name)
        if model is None and kind == "batch" and len(self._models) == 1:
            model = next(iter(self._models.values()))
        if model is None:
            return None
        try:
            placement = model.place(name, kind, tensor)
        except InvalidArgumentError as error:
            self.refusals.append(str(error))
            return None
        return None if placement is None else structure_of(placement)


def layouts_of(model: Any, modules: list[Named], parameters: list[Named], layouts: Any) -> ModelLayouts | None:
    """None for a process without others: each tensor is whole. Raises InvalidArgumentError."""
    rules = Rules(layouts)
    found = ModelLayouts(model, modules, parameters, rules)
    unused = rules.unused(list(found.names()))
    if unused:
        raise InvalidArgumentError(
            f"watch: the pattern {unused[0]!r} of layouts matches nothing; expected one that matches some of: "
            + ", ".join(sorted(found.names())[:12])
        )
    distributed = sys.modules.get("torch.distributed")
    alone = distributed is None or not distributed.is_available() or not distributed.is_initialized()
    return None if alone and not layouts else found
