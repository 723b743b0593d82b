"""Trains a small model under a layout while it is watched, on every rank of layouts_ranks, and keeps what reached the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import statagent
from statagent._native import library as _library

from .layouts_ranks import Found
from .support import Recording


@contextmanager
def watched(found: Found, label: str) -> Iterator[None]:
    """What an agent records within, under the label."""
    load = _library.load
    recording = Recording(load())
    _library.load = lambda: recording  # type: ignore[assignment]
    try:
        statagent.init(run=label.replace(" ", "-"), collector="127.0.0.1:1", connect_timeout=0)
        yield
    finally:
        statagent.close(timeout=0)
        _library.load = load
    found.facts[label] = {
        "records": recording.records, "refusals": recording.refusals, "events": recording.events, "config": recording.config
    }  # fmt: skip


def check(name: str, run: Callable[[Found, int, int], None]) -> Any:
    """A check of layouts_ranks under that name."""

    def named(found: Found, rank: int, ranks: int) -> None:
        run(found, rank, ranks)

    named.__name__ = name
    return named
