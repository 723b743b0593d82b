"""Experts of a mixture, found by their structure: which modules see a set of tokens, and their names among all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
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


@dataclass
class Experts:
    """Those of one model. Threads: any, after `find`."""

    # By id of a module, its key among all ranks' modules, where its parent has another.
    keys: dict[int, str] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)  # ids of modules whose rows are a set of tokens: named alike on all ranks
    # By id of a parameter that holds several experts along its first dimension, which part this rank has of all, and how many there are.
    fused: dict[int, tuple[int, int]] = field(default_factory=dict)
    spread: int = 1  # over how many ranks

    def settings(self) -> dict[str, str]:
        """As the collector reads them (docs/ranks.md)."""
        return {"parallel.ep": f"{self.spread}"} if self.spread > 1 else {}


def find(model: Any) -> Experts:
    """Also the keys of layers that Megatron-Core numbers in each pipeline stage."""
    found = Experts()
    for module in parts.all_modules(model):
        if megatron.is_megatron(module):
            found.keys.update(megatron.keys_in(module))
            of_tokens = [module] if megatron.holds_experts(module) else []
        else:
            of_tokens = _add(found, module)
        found.inside.update(id(each) for expert in of_tokens for each in parts.all_modules(expert))
    return found


def _add(found: Experts, module: Any) -> list[Any]:
    """Adds the experts in a module. Returns those whose numbers are known."""
    known = []
    for mixture in _mixtures(module):
        found.spread = max(found.spread, mixture.total // len(mixture.experts))
        first = mixture.first()
        if first is not None:
            known += [expert for _, expert in mixture.experts]
        if first:
            found.keys.update((id(expert), f"{first + int(key)}") for key, expert in mixture.experts)
    for parameter, part in _fused(module):
        found.fused[id(parameter)] = part
        found.spread = max(found.spread, part[1])
    return known


def _fused(module: Any) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Parameters of a module's children that hold several experts along their first dimension, where ranks share them."""
    rank, size = all_ranks() or (0, 1)
    for _, child in parts.children(module) if size > 1 else ():
        weights = [parameter for _, parameter in parts.parameters(child)]
        shapes = [tuple(weight.shape) for weight in weights]
        here = {shape[0] if shape else 0 for shape in shapes}
        widths = {n for shape in shapes if len(shape) == 3 for n in shape[1:]}
        total = _experts_of_router(module, child, max(here), widths) if len(here) == 1 and widths else None
        if total is not None and total == size * max(here):
            yield from ((weight, (rank, size)) for weight in weights)


def _mixtures(module: Any) -> Iterator[_Mixture]:
    """Lists of experts in a module, and in its children, beside which its router stands."""
    around = [child for _, child in parts.children(module)]
    lists = [(child, child) for child in around if _is_list(child)]
    lists += [(child, inner) for child in around if not _is_list(child) for _, inner in parts.children(child) if _is_list(inner)]
    for child, each in lists:
        experts = [(f"{key}", expert) for key, expert in parts.children(each)]
        if not _are_alike([expert for _, expert in experts]):
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
