"""What hooks of modules have in common: copies and pickles of a hooked module are not watched, and traced graphs have nothing of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._torch.modules import INERT_COPY
from . import tracing


class InertHook:
    """A hook that does nothing in a copy or pickle of its module, and leaves nothing in a traced graph."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        if not tracing.active():
            self._function(*args)

    def __reduce__(self) -> Any:
        return INERT_COPY
