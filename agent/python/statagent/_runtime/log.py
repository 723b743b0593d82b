"""Lines on standard error, rate-limited: the package never writes more than one line a minute about one thing."""

from __future__ import annotations

import sys
import threading
import time

INTERVAL_SECONDS = 60.0

_lock = threading.Lock()
_last: dict[str, float] = {}


def warn(topic: str, text: str, interval: float = INTERVAL_SECONDS) -> None:
    """Writes "statagent: TEXT" unless it wrote about this topic within the interval. Never raises."""
    try:
        now = time.monotonic()
        with _lock:
            last = _last.get(topic)
            if last is not None and now - last < interval:
                return
            _last[topic] = now
        sys.stderr.write(f"statagent: {text}\n")
    except Exception:
        # A closed or absent stderr must not stop the training.
        return


def warn_once(topic: str, text: str) -> None:
    warn(topic, text, float("inf"))


def forget() -> None:
    """Begins anew, as in a fresh process."""
    with _lock:
        _last.clear()
