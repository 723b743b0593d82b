"""Facts about the machine for the result files, without names or addresses."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", REPOSITORY / "build" / "release"))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def facts() -> dict[str, Any]:
    """Processor, cores, memory, versions, and the load of the machine before the measurement."""
    found: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.__version__
        found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return found


def _cpu_model() -> str:
    flags, model = "", platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = " ".join(value.split())
        if key.strip() == "flags":
            flags = value
    for extension in ("avx512f", "avx2"):
        if f" {extension} " in f"{flags} ":
            return f"{model} ({extension})"
    return model


def commit() -> str:
    """The measured commit, with "+" if tracked files have changes; "" outside of a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=10", "HEAD")
    return head + "+" if head and git("status", "--porcelain", "--untracked-files=no") else head


def today() -> str:
    """The date in UTC, which is part of the result files' names."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()
