"""Rate-limited lines on standard error: at most one line a minute for each topic."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from .forking import SharedLock

INTERVAL_SECONDS = 60.0

_lock = SharedLock()
_last: dict[str, float] = {}


def warn(topic: str, text: str, interval: float = INTERVAL_SECONDS) -> None:
    """Writes "statagent: TEXT", unless a line of this topic was written within the interval, in seconds, or STATAGENT_LOG leaves warnings
    out. Never raises."""
    try:
        if os.environ.get("STATAGENT_LOG") in ("off", "error"):
            return
        now = time.monotonic()
        with _lock:
            last = _last.get(topic)
            if last is not None and now - last < interval:
                return
            _last[topic] = now
        write(text)
    except Exception:
        # A closed or absent stderr must not stop the training.
        return


def write(text: str) -> None:
    """Writes "statagent: TEXT" at once. Never raises."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"statagent: {text}\n")
        sys.stderr.flush()


def warn_once(topic: str, text: str) -> None:
    """As warn, once a process for each topic."""
    warn(topic, text, float("inf"))


def forget() -> None:
    """Forgets what was written, as in a new process."""
    with _lock:
        _last.clear()
