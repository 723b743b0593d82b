"""Output paths of tensors in nested values."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

DEPTH_MAX = 16
VISITED_MAX = 65536


def _is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def flatten(value: Any, is_tensor: Callable[[Any], bool] = _is_torch_tensor) -> list[tuple[str, Any]]:
    """All tensors in `value` as (path, tensor), in order.

    The path of a bare tensor is "0". Items of sequences are numbered from "0"; mappings go by key, dataclasses and ModelOutputs of
    Hugging Face by field. Nested paths are joined with dots: "past_key_values.3.1". Other values are ignored, and so is what lies deeper
    than DEPTH_MAX levels, beyond VISITED_MAX values, or in a container inside of itself. `is_tensor` decides what counts as a tensor
    (default: torch tensors). Never raises for containers of the standard library. Cost: proportional to the number of values."""
    if is_tensor(value):
        return [("0", value)]
    walk = _Walk(is_tensor)
    walk.visit("", value, 0)
    return walk.found


class _Walk:
    def __init__(self, is_tensor: Callable[[Any], bool]) -> None:
        self.found: list[tuple[str, Any]] = []
        self._is_tensor = is_tensor
        self._visited = 0
        self._open: set[int] = set()  # ids of the containers around the current value

    def visit(self, path: str, value: Any, depth: int) -> None:
        self._visited += 1
        if self._visited > VISITED_MAX:
            return
        if self._is_tensor(value):
            self.found.append((path, value))
            return
        if depth >= DEPTH_MAX or id(value) in self._open:
            return
        children = children_of(value)
        if children is None:
            return
        self._open.add(id(value))
        prefix = path + "." if path else ""
        for key, child in children:
            if self._visited > VISITED_MAX:
                break
            self.visit(prefix + str(key), child, depth + 1)
        self._open.discard(id(value))


def children_of(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Keys and values of a container; None for other values. A ModelOutput is a mapping of those of its fields that are set."""
    if isinstance(value, (tuple, list, collections.deque)):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return None
