"""Experts of a mixture, found by their structure: which modules see a set of tokens, and their names among all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .._torch import parts
from . import megatron
from .data_parallel import all_ranks

_LISTS = frozenset(("ModuleList", "ModuleDict"))
# What programs call the number of experts that each token goes to.
_CHOSEN = (
    "top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_router_topk", "router_topk", "moe_k",
    "num_selected_experts", "n_activated_experts", "experts_per_token", "k",
)  # fmt: skip


@dataclass(frozen=True)
class Router:
    """What chooses the experts of a token."""

    matrix: Any  # the module that has a row of weights for each expert, whose output is a token's logits
    chooser: Any  # that module, or the one around it that stands beside the experts
    experts: int
    chosen: int | None  # None: not known


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
    for _, experts, router in _lists(module):
        mixture = _Mixture(experts, router.experts)
        found.spread = max(found.spread, mixture.total // len(mixture.experts))
        first = mixture.first()
        if first is not None:
            known += [expert for _, expert in mixture.experts]
        if first:
            found.keys.update((id(expert), f"{first + int(key)}") for key, expert in mixture.experts)
    rank, size = all_ranks() or (0, 1)
    for _, weights, router in _fused(module) if size > 1 else ():
        if router.experts == size * weights[0].shape[0]:
            found.fused.update((id(weight), (rank, size)) for weight in weights)
            found.spread = max(found.spread, size)
    return known


def routers(model: Any) -> list[Router]:
    """Those that are a module of their own, in the model's order."""
    modules = list(parts.all_modules(model))
    by_matrix = {
        id(router.matrix): replace(router, chosen=_chosen(router, module, child))
        for find_in in (_lists, _fused)
        for module in modules
        for child, _, router in find_in(module)
        if router.matrix is not module
    }
    return [by_matrix[id(module)] for module in modules if id(module) in by_matrix]


def _chosen(router: Router, module: Any, experts: Any) -> int | None:
    for owner in (router.matrix, router.chooser, module, experts):
        for place in (owner, _attribute(owner, "config"), _attribute(owner, "args")):
            for name in _CHOSEN:
                value = _attribute(place, name)
                if isinstance(value, int) and not isinstance(value, bool) and 0 < value < router.experts:
                    return value
    return None


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # a property of the program's
        return None


def _fused(module: Any) -> Iterator[tuple[Any, list[Any], Router]]:
    """Children that hold several experts along the first dimension of their parameters, these, and the router beside each."""
    for _, child in parts.children(module):
        weights = [parameter for _, parameter in parts.parameters(child)]
        shapes = [tuple(weight.shape) for weight in weights]
        here = {shape[0] if shape else 0 for shape in shapes}
        widths = {n for shape in shapes if len(shape) == 3 for n in shape[1:]}
        router = _beside(module, child, max(here), widths) if len(here) == 1 and widths else None
        if router is not None:
            yield child, weights, router


def _lists(module: Any) -> Iterator[tuple[Any, list[tuple[str, Any]], Router]]:
    """Children that are or have a list of modules of one shape, these with their keys, and the router beside each child."""
    around = [child for _, child in parts.children(module)]
    lists = [(child, child) for child in around if _is_list(child)]
    lists += [(child, inner) for child in around if not _is_list(child) for _, inner in parts.children(child) if _is_list(inner)]
    for child, each in lists:
        experts = [(f"{key}", expert) for key, expert in parts.children(each)]
        if not _are_alike([expert for _, expert in experts]):
            continue
        widths = {shape[-1] for shape in _sizes_of(experts[0][1]) if len(shape) == 2}
        router = _beside(module, child, len(experts), widths)
        beside = around if child is each else [*around, *(other for _, other in parts.children(child))]
        beside = [other for other in beside if other is not child and other is not each]
        if router is not None and not _is_layer(experts[0][1], beside, widths):
            yield child, experts, router


def _is_layer(member: Any, beside: list[Any], widths: set[int]) -> bool:
    """Whether members of a list follow each other rather than share the tokens, so that a matrix with as many rows beside them is the model's
    head: they hold mixtures themselves, or they normalise, and something beside them makes rows of another width, or of tokens."""
    if any(True for module in parts.all_modules(member) for _ in _lists(module)):
        return True
    own = [[tuple(parameter.shape) for _, parameter in parts.parameters(module)] for module in parts.all_modules(member)]
    normalises = any(shapes and all(len(shape) == 1 for shape in shapes) for shapes in own)
    return normalises and any(_makes_rows(other, widths) for other in beside)


def _makes_rows(module: Any, widths: set[int]) -> bool:
    if any("Embedding" in type(each).__name__ for each in parts.all_modules(module)):
        return True
    matrices = [shape for shape in _sizes_of(module) if len(shape) > 1]
    return bool(matrices) and matrices[0][1] not in widths


def _is_list(module: Any) -> bool:
    return any(base.__name__ in _LISTS for base in type(module).__mro__)


def _are_alike(modules: list[Any]) -> bool:
    """Whether they are of one class, with parameters of the same shapes."""
    return bool(modules) and len({type(module) for module in modules}) == 1 and len(set(map(_sizes_of, modules))) == 1


def _sizes_of(module: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(parameter.shape) for parameter in parts.all_parameters(module))


def _beside(module: Any, experts: Any, here: int, widths: set[int]) -> Router | None:
    """The router in this module, if it has one beside `experts`: a matrix that takes what they take. `here`: how many this rank has; `widths`:
    sizes of what they take."""
    beside = [child for _, child in parts.children(module) if child is not experts and "Embedding" not in type(child).__name__]
    owners = [(module, module), *((child, child) for child in beside)]
    # Inside of a module whose only matrix it is: others compute something else of their input, such as a shared expert.
    nested = [
        (owner, child)
        for child in beside
        if sum(len(shape) == 2 for shape in _sizes_of(child)) == 1
        for owner in parts.all_modules(child)
        if owner is not child
    ]
    for candidates in (owners, nested):
        found = [
            (owner, chooser, parameter.shape[0])
            for owner, chooser in candidates
            for _, parameter in parts.parameters(owner)
            if _may_be_router(tuple(parameter.shape), here, widths)
        ]
        totals = {total for _, _, total in found}
        if totals:
            owner, chooser, total = found[0]
            return Router(owner, chooser, total, None) if len(totals) == 1 and total > 1 else None
    return None


def _may_be_router(shape: tuple[int, ...], here: int, widths: set[int]) -> bool:
    _, ranks = all_ranks() or (0, 1)
    if len(shape) != 2 or shape[1] not in widths or not 0 < here <= shape[0]:
        return False
    return shape[0] % here == 0 and ranks % (shape[0] // here) == 0
