"""The fixture `statcollect` of pytest: a golden is compared with what a function records (docs/golden.md).

pytest loads this module by its entry point as soon as the wheel is installed, so it imports nothing heavy. A test without the fixture
costs nothing; the first test with it starts a collector of the session's own, unless --statcollect-collector names one."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import golden as goldens
from . import local
from .errors import QueryError

WRITTEN = "statcollect.written"
DELIVERY_SECONDS = 60.0
NAME_MAX = 80


class Recorder:
    """The value of the fixture: records runs and compares them with goldens."""

    def __init__(self, collector: str, test: str, folder: Path, update: bool, properties: list[tuple[str, object]]) -> None:
        self.collector = collector  # gRPC address, HOST:PORT
        self._test, self._folder, self._update, self._properties = test, folder, update, properties

    def new_run(self) -> str:
        """A name for a run of this test that no other run has."""
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", self._test).lstrip("_.-")[:NAME_MAX]
        return f"{readable or 'test'}-{secrets.token_hex(4)}"

    def environment(self, run: str) -> dict[str, str]:
        """This process's environment, with which `statagent.init()` in another process records `run` into the fixture's collector."""
        return {**os.environ, **self._settings(run)}

    def record(self, function: Callable[[], object], *, init: bool = True) -> str:
        """Calls the function while an agent records, and returns the run's name. With init=False it calls `statagent.init()` itself.

        Raises what the function raises, and QueryError if it recorded nothing or not everything arrived."""
        import statagent

        run = self.new_run()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._settings(run).items():
                patch.setenv(name, value)
            if init:
                statagent.init()
            try:
                function()
            finally:
                delivered = statagent.close(timeout=DELIVERY_SECONDS)
        counts = statagent.counters()
        if counts["produced"] == 0:
            raise QueryError(
                f"record run '{run}': {_name(function)} recorded nothing; expected tensors; call statagent.watch(model) or "
                "statagent.inspect(...) in it, with STATAGENT_DISABLE unset",
                0, "no_answer",
            )  # fmt: skip
        if not delivered or counts["acked"] != counts["produced"]:
            raise QueryError(
                f"record run '{run}': the collector at {self.collector} has {counts['acked']} of {counts['produced']} records "
                f"({counts}); expected all; record fewer steps, or raise STATAGENT_BUFFER_RECORDS_MAX",
                0, "no_answer",
            )  # fmt: skip
        return run

    def assert_matches(
        self,
        golden: str | Path,
        run: str | Callable[[], object],
        *,
        tolerance: float | None = None,
        exact: bool = False,
        options: Sequence[str] = (),
        init: bool = True,
        steps: str | None = None,
    ) -> str:
        """Returns the verdict if what `run` recorded equals the golden; raises AssertionError with the comparison if it changed.

        golden: file of `statctl golden save`, relative to the test's folder. --statcollect-update writes it instead of comparing.
        run: a function to call while an agent records, or the name of a run in the fixture's collector.
        tolerance: relative L2 distance to ignore (default: by dtype, f32 1e-4). exact: any difference counts.
        options: further ones of `statctl diff`. init: False if the function calls `statagent.init()` itself.
        steps: those that an update keeps, such as "0-9" (default: all).

        Raises QueryError if there is no answer, such as without the golden."""
        __tracebackhide__ = True
        path = self._folder / golden
        name = run if isinstance(run, str) else self.record(run, init=init)
        self._properties += [("statcollect.golden", str(golden)), ("statcollect.run", name)]
        if self._update:
            said = goldens.save(path, name, collector=self.collector, steps=steps)
            self._properties.append((WRITTEN, f"{path}: {said}"))
            return said
        if not path.is_file():
            raise QueryError(
                f"compare run '{name}' with {path}: there is no such file; expected a golden; write it with pytest --statcollect-update",
                0, "no_answer",
            )  # fmt: skip
        how = [] if tolerance is None else ["--tolerance", repr(float(tolerance))]
        how += ["--exact"] if exact else []
        try:
            verdict = goldens.assert_matches(path, name, collector=self.collector, options=[*how, *options])
        except AssertionError as changed:
            self._properties.append(("statcollect.verdict", str(changed).partition("\n")[0]))
            accept = "To accept the change, write the golden again: pytest --statcollect-update"
            raise AssertionError(f"{changed}\n{accept}") from None
        self._properties.append(("statcollect.verdict", verdict))
        return verdict

    def _settings(self, run: str) -> dict[str, str]:
        return {"STATAGENT_RUN": run, "STATAGENT_COLLECTOR": self.collector, "STATAGENT_REQUIRED": "1"}


def _name(function: Callable[[], object]) -> str:
    return getattr(function, "__name__", repr(function))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("statcollect", "statcollect: goldens of training runs")
    group.addoption("--statcollect-update", action="store_true", help="write the goldens instead of comparing with them")
    group.addoption(
        "--statcollect-collector", metavar="HOST:PORT", help="gRPC address of a collector (default: one of the session's own)"
    )


@pytest.fixture(scope="session")
def statcollect_collector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """gRPC address of the collector that the fixture `statcollect` uses."""
    given = request.config.getoption("--statcollect-collector")
    if given:
        yield str(given)
        return
    # What a run leaves is gone with pytest's temporary folder, so it need not survive a power failure.
    with local.collector(tmp_path_factory.mktemp("statcollect"), "--durability", "process") as started:
        yield started.grpc


@pytest.fixture
def statcollect(request: pytest.FixtureRequest, statcollect_collector: str) -> Recorder:
    """Compares what a function records with a golden: statcollect.assert_matches("golden.scg", train)."""
    update = bool(request.config.getoption("--statcollect-update"))
    node: Any = request.node
    return Recorder(statcollect_collector, node.name, request.path.parent, update, node.user_properties)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for each in terminalreporter.stats.values() for report in each if hasattr(report, "user_properties")]
    lines = {str(text) for report in reports for name, text in report.user_properties if name == WRITTEN}
    if lines:
        terminalreporter.section("statcollect goldens written")
        for line in sorted(lines):
            terminalreporter.write_line(line)
