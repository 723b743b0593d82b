"""Functions that hooks call once torch is imported: `tracing.compiled`. Imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .dynamo import exporting, forget_graphs, new_site
from .operators import available
from .registry import Key
from .traced import read_schema, trace, trace_inputs, trace_inspect, trace_mark, trace_noise, trace_padded, trace_schema

__all__ = [
    "Key",
    "available",
    "exporting",
    "forget_graphs",
    "is_tracing",
    "new_site",
    "read_schema",
    "trace",
    "trace_inputs",
    "trace_inspect",
    "trace_mark",
    "trace_noise",
    "trace_padded",
    "trace_schema",
]


def is_tracing() -> Callable[[], bool]:
    """The function that returns whether the code that calls it is being traced. Call it directly: tracing replaces it."""
    return torch.compiler.is_dynamo_compiling if available() else _never


def _never() -> bool:
    return False
