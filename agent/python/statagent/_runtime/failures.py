"""Reports uncaught exceptions. One in the main thread ends the process and leaves the run interrupted."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from .._native import library

MESSAGE_MAX = 500  # characters
_READ_MAX = 20 * MESSAGE_MAX
KIND = "exception"

# Arguments: a sentence, fields for programs, and whether the process ends.
Report = Callable[[str, Mapping[str, str], bool], None]

_report: Report | None = None
_installed = False


def redact(name: str, value: str) -> str:
    """A setting's value as it is stored, or a text if `name` is empty, for sentences that quote it."""
    return library.redact(name, value)


def report_to(report: Report) -> None:
    """Reports uncaught exceptions from now on. `report` must not raise. Exception hooks that were installed before are still called."""
    global _report, _installed
    _report = report
    if _installed:
        return
    _installed = True
    before, before_in_thread = sys.excepthook, threading.excepthook

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not (hasattr(sys, "ps1") or sys.flags.interactive):  # at a prompt the process continues
            _send(kind, error, trace, "")
        before(kind, error, trace)

    def uncaught_in_thread(args: Any) -> None:
        if args.exc_type is not SystemExit:
            _send(args.exc_type, args.exc_value, args.exc_traceback, args.thread.name if args.thread is not None else "unknown")
        before_in_thread(args)

    sys.excepthook, threading.excepthook = uncaught, uncaught_in_thread


def _send(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, thread: str) -> None:
    try:
        # Without secrets before it is cut: half a secret may not look like one.
        message = redact("", str(error)[:_READ_MAX])[:MESSAGE_MAX]
        fields = {"type": kind.__name__, "message": message}
        frames = traceback.extract_tb(trace)
        if frames:
            fields["at"] = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
        text = f"{kind.__name__}: {message}" if message else kind.__name__
        if thread:
            fields["thread"] = thread
            text = f"in thread '{thread}': {text}"
        if _report is not None:
            _report(text, fields, not thread)
    except Exception:
        # An error in reporting must not hide the program's own exception.
        return
