"""A real statcollectord on a free port with its own folder, for the duration of a block."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from machine import BUILD

STOP_SECONDS = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Collector:
    """Starts on entry; stops and removes its data on exit. Agents connect to `address`."""

    address: str
    http: str

    def __init__(
        self, parent: Path | None = None, data_dir: Path | None = None, options: Sequence[str] = (), build: Path = BUILD
    ) -> None:
        """`data_dir`: an existing folder, which is kept; by default, a new folder in `parent`. `options`: further ones of the program.
        `build`: the folder of the build that it is from."""
        self._build = build
        self._parent = parent
        self._data_dir = data_dir
        self._options = options

    def __enter__(self) -> Collector:
        binary = self._build / "bin" / "statcollectord"
        if not binary.is_file():
            raise FileNotFoundError(
                f"start a collector: {binary} is missing; build it (scripts/build.sh), or set STATCOLLECT_BUILD_DIR"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="statcollect-bench-", dir=self._parent))
        self._errors = open(self._folder / "errors.txt", "w", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(binary), "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *self._options],
            stdout=subprocess.PIPE, stderr=self._errors, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        found = re.search(r"grpc (\S+:\d+)", ready)
        http = re.search(r"http (\S+:\d+)", ready)
        if found is None or http is None:
            said = (self._folder / "errors.txt").read_text(encoding="utf-8")
            self._stop()
            raise RuntimeError(f"start {binary}: expected a line with its address; found: {ready}{said}")
        self.address, self.http = found.group(1), http.group(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def data_dir(self) -> Path:
        return self._data_dir or self._folder / "data"

    @property
    def pid(self) -> int:
        return self._process.pid

    def disk_bytes(self) -> int:
        """Space that its data takes."""
        total = 0
        for file in self.data_dir.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # the store removes files all the time
                total += file.stat().st_blocks * 512
        return total

    def cpu_seconds(self) -> float:
        """Processor time that the collector has used so far, in seconds."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
