"""Hooks of a model's root, and what all hooks have in common: copies and pickles of a hooked module are not watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._compile import tracing
from .._torch.modules import INERT_COPY


class InertHook:
    """A hook that does nothing in a copy or pickle of its module, and leaves nothing in a traced graph."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        if not tracing.active():
            self._function(*args)

    def __reduce__(self) -> Any:
        return INERT_COPY


class InputsHook(InertHook):
    """Before the root's forward pass: calls the function with its arguments (args, kwargs). In a graph the key stands for the function."""

    def __init__(self, function: Callable[..., None], key: Any, names: list[str]) -> None:
        super().__init__(function)
        self._key, self._names = key, names

    def __call__(self, _: Any, args: Any, kwargs: Any) -> None:
        if tracing.active():
            tracing.compiled.trace_inputs(self._key, self._names, args, kwargs)
        elif not tracing.exporting():
            self._function(args, kwargs)


class RootHook(InertHook):
    """Before or after the root's forward pass."""

    def __init__(self, function: Callable[..., None], key: Any, entering: bool) -> None:
        super().__init__(function)
        self._key, self._entering = key.tensor, entering

    def __call__(self, *args: Any) -> None:
        if tracing.active():
            tracing.compiled.trace_mark(self._key, self._entering, args[-1])
        else:
            self._function(*args)
