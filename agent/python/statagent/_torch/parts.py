"""The parts of modules, read from the dictionaries in which torch keeps them. Nothing here raises, whatever a module's own methods and
attributes do: what is not a module or a tensor, or cannot be read, is left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def children(module: Any) -> list[tuple[Any, Any]]:
    """Keys and modules."""
    return _entries(module, "_modules", sys.modules["torch"].nn.Module)


def parameters(module: Any) -> list[tuple[Any, Any]]:
    """Keys and parameters of the module itself."""
    return _entries(module, "_parameters", sys.modules["torch"].Tensor)


def buffers(module: Any) -> list[tuple[Any, Any]]:
    """Keys and buffers of the module itself."""
    return _entries(module, "_buffers", sys.modules["torch"].Tensor)


def live_children(module: Any) -> dict[Any, Any]:
    """The dictionary of children itself, to be compared later; an empty one if there is none."""
    try:
        found = module._modules
    except Exception:
        return {}
    return found if isinstance(found, dict) else {}


def named_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Path and module, each once, parents first; the model's path is "". Modules are told apart by identity."""
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        inside = [(f"{path}.{key}" if path else f"{key}", child) for key, child in children(module)]
        waiting.extend(reversed(inside))


def named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Path and parameter, once for each module that has it."""
    for path, module in named_modules(model):
        for key, parameter in parameters(module):
            yield (f"{path}.{key}" if path else f"{key}"), parameter


def all_modules(model: Any) -> Iterator[Any]:
    return (module for _, module in named_modules(model))


def all_parameters(model: Any) -> list[Any]:
    """Each once."""
    return _distinct(value for module in all_modules(model) for _, value in parameters(module))


def all_buffers(model: Any) -> list[Any]:
    """Each once."""
    return _distinct(value for module in all_modules(model) for _, value in buffers(module))


def _distinct(tensors: Iterator[Any]) -> list[Any]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _entries(module: Any, attribute: str, kind: type) -> list[tuple[Any, Any]]:
    try:
        return [(key, value) for key, value in list(getattr(module, attribute).items()) if isinstance(value, kind)]
    except Exception:
        return []
