"""Wheels and Debian packages of the build that is tested."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release"))
MAKER = os.environ.get("STATCOLLECT_WHEEL_PYTHON", sys.executable)


def make(script: str, out: Path, *arguments: str) -> list[Path]:
    """What a script of scripts/ has made in a folder; skips the test if this machine cannot make any."""
    command = [MAKER, str(ROOT / "scripts" / script), "--build", str(BUILD), "--out", str(out), *arguments]
    quick = {**os.environ, "DPKG_DEB_COMPRESSOR_LEVEL": "1"}  # the packages are a seventh larger, in a third of the time
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=quick)
    if done.returncode and "run scripts/setup.sh --for wheel" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


def wheels(factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name; made once for all workers. For reading only."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made_wheels"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            make("make_wheels.py", folder)
            (folder / "complete").touch()
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}
