"""Holds every test file to leaving the environment as it found it: the files of one worker share it, and which they are differs between runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

# A shell without job control starts `pytest &` with SIGINT ignored, and programs that a test interrupts would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of torch in these processes, more of them than cores, wait for each other without spinning. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")


def _environment() -> dict[str, str]:
    """Without pytest's own, and without those that libraries (torch, polars) keep for themselves."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTEST_CURRENT_TEST" and not name.startswith(("_", "TORCHINDUCTOR_"))
    }


@pytest.fixture(scope="module", autouse=True)
def unchanged_environment() -> Iterator[None]:
    """Fails the last test of a file that changed os.environ, and restores it for the next one."""
    before = _environment()
    yield
    after = _environment()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not changed, f"tests of this file, or modules that they imported, left these variables changed: {', '.join(changed)}"
