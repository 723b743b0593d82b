"""The modules of a language model whose tensors have one row for each token, found by its structure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .._torch import parts
from .._torch.modules import Named, unwrap


class Place(Enum):
    """What of a module is recorded."""

    INPUT = "input"  # of the first layer of a stack: the residual stream before it, however a program has made it
    BLOCK = "block"  # the output of a layer: the residual stream
    PART = "part"  # the output of any other


@dataclass(frozen=True)
class Tap:
    name: str
    module: Any
    place: Place


def find_taps(modules: list[Named]) -> list[Tap]:
    """The layers of each stack that is not inside of another, what the first of them gets, their parts that are more than a norm (attention,
    MLP), and what has parameters beside the stack (last norm), except tables and the head: one program scales a table's rows in the
    table's module, another after it. An engine may have repacked its matrices away."""
    by_id = {id(named.value): named for named in modules}
    by_name = {named.name: named for named in modules}
    chosen: dict[int, Place] = {}
    first: list[Tap] = []
    inside: set[int] = set()
    for named in modules:
        if id(named.value) in inside:
            continue
        layers = _layers(named.value)
        if not layers:
            continue
        inside.update(id(module) for layer in layers for module in parts.all_modules(layer))
        if id(layers[0]) in by_id:
            first.append(Tap(f"{by_id[id(layers[0])].name}.input", layers[0], Place.INPUT))
        for layer in layers:
            chosen[id(layer)] = Place.BLOCK
            chosen.update((id(part), Place.PART) for part in _children(layer) if parts.children(part) or _has_matrix(part))
        chosen.update((id(each), Place.PART) for each in _around(named, by_name))
    return first + [Tap(by_id[key].name, by_id[key].value, place) for key, place in chosen.items() if key in by_id]


def _layers(container: Any) -> list[Any]:
    """The layers of a container that holds them by number."""
    entries = parts.children(container)
    if not entries or not all(f"{key}".isdigit() for key, _ in entries):
        return []
    return [child for child in (unwrap(child) for _, child in entries) if parts.children(child)]


def _children(module: Any) -> list[Any]:
    return [unwrap(child) for _, child in parts.children(module)]


def _around(stack: Named, by_name: dict[str, Named]) -> Iterable[Any]:
    """What has parameters beside the stack, and beside what contains the stack."""
    within, parent = stack, by_name.get(stack.parent)
    while parent is not None:
        for child in _children(parent.value):
            if (
                child is not within.value
                and parts.all_parameters(child)
                and not _is_lookup_or_head(child)
                and not _has_layers(child)
            ):
                yield child
        within, parent = parent, by_name.get(parent.parent) if parent.parent else None


def _is_lookup_or_head(module: Any) -> bool:
    """Whether it is a matrix alone: a table, or what makes logits, which are not of the size of the model."""
    return hasattr(module, "num_embeddings") or (not parts.children(module) and _has_matrix(module))


def _has_layers(module: Any) -> bool:
    return any(_layers(each) for each in parts.all_modules(module))


def _has_matrix(module: Any) -> bool:
    return any(_dimensions(parameter) >= 2 for parameter in parts.all_parameters(module))


def _dimensions(parameter: Any) -> int:
    try:
        return int(parameter.dim())
    except Exception:  # of a lazy module, not initialised yet
        return 0
