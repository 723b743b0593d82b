"""Tells the library where each observed tensor lies in a logical tensor, as far as the layouts of the watched models know."""

from __future__ import annotations

from typing import Any

from .._layouts.layouts import Layouts
from .._native.library import Tensor
from .._native.placement import put


class Placing:
    """Keeps the last answer for each identity: in every step, the tensor is usually like that of the step before. Threads: any."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self._changes = -1
        # handle -> spec of the last tensor if it was distributed, else its shape; its placement as a C structure, and that one's address
        self._last: dict[int, tuple[Any, Any, int | None]] = {}

    def put(self, structure: Tensor, handle: int, identity: tuple[str, str, str, int], tensor: Any) -> None:
        """Adds the tensor's placement to its structure. `identity`: the handle's name, kind, path and micro-batch."""
        if self._changes != self.layouts.changes:
            self._last.clear()
            self._changes = self.layouts.changes
        spec = getattr(tensor, "_spec", None)  # of a DTensor
        last = self._last.get(handle)
        if last is not None and (last[0] is spec if spec is not None else last[0] == tensor.shape):
            structure.placed, structure.placement = last[1], last[2]
            return
        put(structure, self.layouts.place(*identity, tensor))
        if identity[1] != "batch":  # from which the layouts also learn how many samples there are
            self._last[handle] = (tensor.shape if spec is None else spec, structure.placed, structure.placement)
