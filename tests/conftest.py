"""Holds every test file to leaving the environment as it found it: the files of one worker share it, and which they are differs between runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


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
