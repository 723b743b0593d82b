"""Experts of a mixture, found by their structure: which modules see a set of tokens, and their names among all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._torch import parts
from . import megatron
from .data_parallel import all_ranks

_LISTS = frozenset(("ModuleList", "ModuleDict"))


@dataclass(frozen=True)
class _Mixture:
    """A list of experts beside a router, a module with one row of weights for each expert of all ranks."""

    experts: list[tuple[str, Any]]  # of this rank, with their keys
    total: int  # of all ranks

    def first(self) -> int | None:
        """The global number of the first one here. None: not known."""
        rank, size = all_ranks() or (0, 1)
        here = len(self.experts)
        if self.total == here or {key for key, _ in self.experts} != {f"{i}" for i in range(here)}:
            return 0  # all of them, or keys that are global already
        return rank * here if self.total == here * size else None


def keys(model: Any) -> dict[int, str]:
    """By id of a module, its key among all ranks' modules, where its parent has another."""
    found = {
        id(expert): f"{first + int(key)}"
        for mixture in _mixtures(model)
        for first in (mixture.first(),)
        if first
        for key, expert in mixture.experts
    }
    return found | megatron.keys(model)


def inside(model: Any) -> set[int]:
    """Ids of the modules whose rows are a set of tokens: experts that have the same name on all ranks, and what is in them."""
    return {
        id(module)
        for mixture in _mixtures(model)
        if mixture.first() is not None
        for _, expert in mixture.experts
        for module in parts.all_modules(expert)
    }


def settings(model: Any) -> dict[str, str]:
    """Over how many ranks each mixture is spread, as the collector reads it (docs/ranks.md)."""
    spread = {mixture.total // len(mixture.experts) for mixture in _mixtures(model)} | {size for _, size in fused(model).values()}
    return {"parallel.ep": f"{max(spread)}"} if max(spread, default=1) > 1 else {}


def fused(model: Any) -> dict[int, tuple[int, int]]:
    """By id of a parameter that holds several experts along its first dimension, which part this rank has of all, and how many there are."""
    rank, size = all_ranks() or (0, 1)
    found: dict[int, tuple[int, int]] = {}
    for module in parts.all_modules(model) if size > 1 else ():
        for _, child in parts.children(module):
            weights = [parameter for _, parameter in parts.parameters(child)]
            shapes = [tuple(weight.shape) for weight in weights]
            here = {shape[0] if shape else 0 for shape in shapes}
            widths = {n for shape in shapes if len(shape) == 3 for n in shape[1:]}
            total = _experts_of_router(module, child, max(here), widths) if len(here) == 1 and widths else None
            if total is not None and total == size * max(here):
                found.update((id(weight), (rank, size)) for weight in weights)
    return found


def _mixtures(model: Any) -> Iterator[_Mixture]:
    for module in parts.all_modules(model):
        around = [child for _, child in parts.children(module)]
        lists = [(child, child) for child in around if _is_list(child)]
        # The router may stand beside the module that has the list.
        lists += [
            (child, inner) for child in around if not _is_list(child) for _, inner in parts.children(child) if _is_list(inner)
        ]
        for child, each in lists:
            experts = [(f"{key}", child) for key, child in parts.children(each)]
            if not _are_alike([child for _, child in experts]):
                continue
            widths = {shape[-1] for shape in _sizes_of(experts[0][1]) if len(shape) == 2}
            total = _experts_of_router(module, child, len(experts), widths)
            if total is not None:
                yield _Mixture(experts, total)


def _is_list(module: Any) -> bool:
    return any(base.__name__ in _LISTS for base in type(module).__mro__)


def _are_alike(modules: list[Any]) -> bool:
    """Whether they are of one class, with parameters of the same shapes."""
    return bool(modules) and len({type(module) for module in modules}) == 1 and len(set(map(_sizes_of, modules))) == 1


def _sizes_of(module: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(parameter.shape) for parameter in parts.all_parameters(module))


def _experts_of_router(module: Any, experts: Any, here: int, widths: set[int]) -> int | None:
    """How many experts a router in this module chooses from, if it has one beside `experts`: a matrix that takes what they take. `here`: those of
    this rank; `widths`: sizes of what they take."""
    _, ranks = all_ranks() or (0, 1)
    beside = [child for _, child in parts.children(module) if child is not experts]
    owners = [module, *(child for child in beside if "Embedding" not in type(child).__name__)]
    totals = set()
    for shape in (tuple(parameter.shape) for owner in owners for _, parameter in parts.parameters(owner)):
        if len(shape) != 2 or shape[1] not in widths or not 0 < here <= shape[0]:
            continue
        if shape[0] % here == 0 and ranks % (shape[0] // here) == 0:
            totals.add(shape[0])
    return totals.pop() if len(totals) == 1 and max(totals) > 1 else None
