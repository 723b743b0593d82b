"""Sets of steps, as "0-9,20,100-" or "0-99,every=10"."""

from __future__ import annotations

import ctypes

from .._native import library
from .._native.arguments import encode


class Steps:
    """The steps of an argument of `watch`; None means all. Raises InvalidArgumentError for text that is not a set of steps."""

    def __init__(self, text: str | None, argument: str) -> None:
        self.asked = text is not None  # steps that were asked for by name are recorded whatever an overhead budget says
        self._steps = ctypes.c_void_p()
        if text is not None:
            library.check(library.load().statagent_steps_parse(encode(f"watch: {argument}", text), self._steps))

    def __contains__(self, step: int) -> bool:
        return not self._steps or bool(library.load().statagent_steps_contains(self._steps, step))

    def __del__(self) -> None:
        if self._steps:
            library.load().statagent_steps_free(self._steps)
