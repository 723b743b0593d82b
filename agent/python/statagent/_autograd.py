"""What autograd is doing in this thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_graph_task_id: Callable[[], int] | None = None
_looked_up = False


def in_backward() -> bool:
    """Whether a backward pass runs in this thread: then an activation checkpoint computes forward a second time."""
    global _graph_task_id, _looked_up
    if not _looked_up:
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        _graph_task_id = getattr(torch._C, "_current_graph_task_id", None)
        _looked_up = True
    return _graph_task_id is not None and _graph_task_id() != -1


class GradientHook:
    """Tensor hook that hands one gradient on. A second backward pass through the graph is not another observation."""

    __slots__ = ("_fired", "_record")

    def __init__(self, record: Callable[[Any], None]) -> None:
        self._record, self._fired = record, False

    def __call__(self, gradient: Any) -> None:
        if not self._fired:
            self._fired = True
            self._record(gradient)
