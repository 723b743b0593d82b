"""Where the tools' answers come from: a collector over HTTP, and statctl for what only it can say."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from typing import TypeVar

from .. import client, programs
from ..errors import ArgumentError, CollectorUnavailableError, QueryError
from .shown import printable, quoted

T = TypeVar("T")

ARGUMENT_MAX = 4096  # characters of an argument
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
QUERY_SECONDS = 600.0  # the collector's own limit


def checked(**arguments: str | None) -> None:
    """Refuses arguments that are too long. Raises ArgumentError."""
    for name, value in arguments.items():
        if value is not None and len(value) > ARGUMENT_MAX:
            raise ArgumentError(f"{name}: found {len(value)} characters; expected {ARGUMENT_MAX} at most")


def run_name(name: str) -> str:
    """The name, which is then no option of a command. Raises ArgumentError."""
    if not RUN_NAME.fullmatch(name):
        raise ArgumentError(
            f"run {quoted(name)}: expected a letter or digit, then letters, digits, '.', '_' or '-', 200 at most; "
            "the tool `runs` lists them"
        )
    return name


class Source:
    """Connects when it is asked, and again after the collector was away. Thread-safe."""

    def __init__(self, address: str | None, statctl: str | None) -> None:
        """address: as statcollect.connect takes it; statctl: path of that program."""
        self._address, self._statctl = address, statctl
        self._connected: client.Collector | None = None

    def ask(self, query: Callable[[client.Collector], T]) -> T:
        """The answer to a query. Raises the errors of statcollect.errors."""
        try:
            connected = self._connected or client.connect(self._address, timeout=QUERY_SECONDS)
            self._connected = connected
            return query(connected)
        except CollectorUnavailableError as error:
            self._connected = None
            raise CollectorUnavailableError(
                f"{error}; start it and call again, or start this server again in the folder that has statcollect-data"
            ) from error

    def statctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command that only reads, with this process's STATCTL_ variables."""
        command = [self._statctl or str(programs.find("statctl")), "--quiet", *words]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=QUERY_SECONDS, check=False,
                stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise QueryError(f"run statctl {printable(' '.join(words))}: {error}", 0, "no_answer") from error
