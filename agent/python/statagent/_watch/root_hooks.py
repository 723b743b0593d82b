"""Hooks of what begins passes: a model's root and its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._compile import tracing
from .._compile.inert_hook import InertHook
from .._torch.modules import INERT_COPY
from .passes import DECIDE, Passes


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


class PartHook:
    """Before the forward pass of a part of the root: outside of other passes, the part's own call is one. A hook after it is added only where
    that happens, because most parts are always called by the root."""

    def __init__(self, passes: Passes, part: Any) -> None:
        self._passes, self._depth = passes, 0  # calls of the part within the pass: it may call itself
        self._removables = [part.register_forward_pre_hook(self)]

    def remove(self) -> None:
        for each in self._removables:
            each.remove()

    def __reduce__(self) -> Any:
        return INERT_COPY

    def __call__(self, part: Any, _: Any) -> None:
        if tracing.active():
            return
        passes = self._passes
        if passes.state == DECIDE or passes.uncounted:
            self._enter(part)
        elif self._depth:
            self._depth += 1

    def _enter(self, part: Any) -> None:
        try:
            self._depth = 0
            if tracing.exporting() or not self._passes.enter_part(part):
                return
            self._depth = 1
            if len(self._removables) == 1:
                self._removables.append(part.register_forward_hook(InertHook(self._leave), always_call=True))
        except Exception as error:
            self._passes.agent.refuse(f"pass of a part: {error}", type(part).__name__, "output")

    def _leave(self, part: Any, _: Any, output: Any) -> None:
        if self._depth:
            self._depth -= 1
            if not self._depth:
                self._passes.leave(part, _, output)
