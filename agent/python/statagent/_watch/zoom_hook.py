"""Hooks of a zoom on a module."""

from __future__ import annotations

from typing import Any

from .._compile import tracing
from .._torch.modules import INERT_COPY


class Hook:
    """Does nothing in a copy or pickle of its module, and leaves nothing in a traced graph."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        if not tracing.active():
            self._function(*args)

    def __reduce__(self) -> Any:
        return INERT_COPY
