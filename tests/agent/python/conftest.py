"""Fixtures of the tests that go through the real library: what crosses the C interface, recorded on the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "agent" / "python"), str(ROOT / "tests" / "e2e")]  # the latter for warm_python
if "STATCOLLECT_BUILD_DIR" in os.environ and "STATAGENT_LIBRARY" not in os.environ:
    os.environ["STATAGENT_LIBRARY"] = str(Path(os.environ["STATCOLLECT_BUILD_DIR"]) / "lib" / "libstatagent.so")

import statagent  # noqa: E402
from statagent._native import library as _library  # noqa: E402
from statagent._runtime import current  # noqa: E402
from statagent._runtime import log as _log  # noqa: E402

from .support import Recording  # noqa: E402
from .token_rows import Rows  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def built_library() -> Path:
    """The built library. Missing, it fails every test: without it nothing here would be tested."""
    try:
        return _library.find()
    except statagent.LibraryNotFoundError as error:
        pytest.fail(
            f"{error} (ninja -C build/NAME statagent builds it; STATCOLLECT_BUILD_DIR names the build folder)", pytrace=False
        )


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No agent, nothing logged yet, no launcher or statagent variables except where the library is, and whether hooks use the extension."""
    for name in list(os.environ):
        ours = name.startswith("STATAGENT_") and name not in ("STATAGENT_LIBRARY", "STATAGENT_EXTENSION")
        if ours or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") or name.startswith(("OMPI_", "PMI_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STATAGENT_QUIET", "1")  # standard error has warnings only: tests count those
    _log.forget()
    yield
    statagent.close(timeout=0)
    current.set_current_agent(None)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Everything that goes through the C interface from now on; it goes through to the real library, too."""
    found = Recording(_library.load())
    monkeypatch.setattr(_library, "load", lambda: found)
    return found


@pytest.fixture
def agent(recording: Recording) -> statagent.Agent:
    """A running agent whose collector does not exist, recorded."""
    return statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0)


@pytest.fixture
def rows(agent: statagent.Agent, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rows]:
    """The rows of tokens that are recorded."""
    found, record = Rows(), statagent.Agent.record_rows

    def recorded(
        self: statagent.Agent, tap: str, values: Any, keys: Any, positions: Any, *, index: Any = None, **where: int
    ) -> None:
        found.add(tap, values if index is None else values[index], keys, positions, where["step"], where["call"])
        record(self, tap, values, keys, positions, index=index, **where)

    monkeypatch.setattr(statagent.Agent, "record_rows", recorded)
    yield found
    assert "dropped_refused" not in agent.counters()
