"""Inputs of embeddings and losses that compiled graphs hand over. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# kind ("embed" or "label"), the whole numbers, the number that is padding
Listener = Callable[[str, Any, int], None]

_listener: Listener | None = None


def report_to(listener: Listener) -> None:
    """Reports to this listener from now on, and to no other. It must not raise."""
    global _listener
    _listener = listener


def notify(kind: str, value: Any, pad: int) -> None:
    if _listener is not None:
        _listener(kind, value, pad)
