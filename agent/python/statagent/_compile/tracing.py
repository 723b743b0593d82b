"""Whether torch.compile traces the code that asks. Needs no torch until `prepare` is called."""

from __future__ import annotations

import sys
from typing import Any

compiled: Any = None  # the module of that name, once prepare() has been called


def active() -> bool:
    """True in code that torch.compile traces into a graph. Such code may only call what `compiled` offers. Call it as tracing.active():
    prepare() replaces the function with torch's own, which torch.compile recognises."""
    return False


def exporting() -> bool:
    """True while torch.export or another tracer runs the code with tensors that have no data."""
    return compiled is not None and bool(compiled.exporting())


def prepare() -> None:
    """Makes hooks traceable. Precondition: torch can be imported."""
    global active, compiled
    if compiled is None:
        from . import compiled as module

        compiled = module
    active = compiled.is_tracing()


def prepare_if_torch() -> None:
    """As prepare, if the program has imported torch."""
    if "torch" in sys.modules:
        prepare()


def trace_padded(kind: str, value: Any, pad: Any) -> None:
    """An input of an embedding or a loss, in a function that torch.compile puts into its graph without tracing it."""
    if compiled is not None and compiled.available():
        compiled.trace_padded(kind, value, pad)
