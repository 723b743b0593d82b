"""Whether torch.compile reads our code instead of running it. Needs no torch until a hook is there that could be read."""

from __future__ import annotations

import sys
from typing import Any

compiled: Any = None  # the module _compiled, once prepare() has been called


def tracing() -> bool:
    """True in code that torch.compile reads for a graph: it may then call what `compiled` offers, and nothing else of ours. Call it as
    _tracing.tracing(): prepare() replaces it by torch's own function."""
    return False


def exporting() -> bool:
    """True while torch.export or another tracer runs our code with tensors that have no data."""
    return compiled is not None and bool(compiled.exporting())


def prepare() -> None:
    """Lets hooks be read. Precondition: torch can be imported."""
    global compiled, tracing
    if compiled is None:
        from . import _compiled

        compiled = _compiled
    tracing = compiled.tracing()


def prepare_if_torch() -> None:
    if "torch" in sys.modules:
        prepare()


def trace_padded(kind: str, value: Any, pad: Any) -> None:
    """An input of an embedding or a loss, in a function that torch.compile puts into its graph without reading it."""
    if compiled is not None and compiled.available():
        compiled.trace_padded(kind, value, pad)
