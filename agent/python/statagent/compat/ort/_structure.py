"""Tensors in nested values, in the order of ONNX Runtime's hooks: sequences in order, mappings by sorted key."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

DEPTH_MAX = 16


def tensors_of(value: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """All tensors in the value. Other values are ignored, and so is what lies deeper than DEPTH_MAX levels or in a
    container inside of itself."""
    found: list[Any] = []

    def visit(part: Any, around: tuple[int, ...]) -> None:
        if is_tensor(part):
            found.append(part)
        elif len(around) < DEPTH_MAX and id(part) not in around:
            for _, child in _children(part):
                visit(child, (*around, id(part)))

    visit(value, ())
    return found


def with_tensors(value: Any, tensors: list[Any], is_tensor: Callable[[Any], bool]) -> Any:
    """The value with these tensors in place of those that `tensors_of` finds. Containers without changes stay the same objects; the others
    become copies of the same type and order."""
    left = iter(tensors)

    def visit(part: Any, around: tuple[int, ...]) -> Any:
        if is_tensor(part):
            return next(left)
        if len(around) >= DEPTH_MAX or id(part) in around:
            return part
        changed = {}
        for key, child in _children(part):
            new = visit(child, (*around, id(part)))
            if new is not child:
                changed[key] = new
        return _with_children(part, changed) if changed else part

    return visit(value, ())


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, (tuple, list, collections.deque)):
        return enumerate(value)
    if isinstance(value, Mapping):
        return [(key, value[key]) for key in _sorted(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return ()


def _sorted(keys: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several types cannot be compared
        return sorted(keys, key=lambda key: (type(key).__name__, str(key)))


def _with_children(value: Any, changed: dict[Any, Any]) -> Any:
    if isinstance(value, tuple):
        items = [changed.get(index, item) for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    made = copy.copy(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, Mapping):
        for name, child in changed.items():
            object.__setattr__(made, name, child)
        return made
    for key, child in changed.items():
        made[key] = child
    return made
