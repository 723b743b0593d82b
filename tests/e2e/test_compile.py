"""torch.compile against eager mode, end to end: the same recordings, the same training."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, Collector, Finished, run_command

EXAMPLE = ROOT / "examples" / "frameworks" / "compile.py"


@dataclass
class Runs:
    """Trainings of the example, each once."""

    collector: Collector
    cache: Path  # where inductor keeps what it compiled
    done: dict[str, Finished]

    def __call__(self, run: str, *arguments: str) -> Finished:
        if run not in self.done:
            self.done[run] = run_command(
                [sys.executable, str(EXAMPLE), "--run", run, "--steps", "3", "--micro-batches", "2", *arguments],
                env=self.collector.environment(TORCHINDUCTOR_CACHE_DIR=str(self.cache)),
                timeout=400,
            )
        assert self.done[run].code == 0, self.done[run].err
        return self.done[run]

    def eager(self) -> Finished:
        return self("eager", "--backend", "none")


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(shared_collector, tmp_path_factory.mktemp("inductor"), {})


def line(done: Finished, start: str) -> str:
    return next(text for text in done.out.splitlines() if text.startswith(start))


def test_a_compiled_run_is_identical_to_the_eager_one(runs: Runs) -> None:
    eager, compiled = runs.eager(), runs("compiled", "--backend", "aot_eager")
    assert line(compiled, "loss") == line(eager, "loss"), "other losses or weights"
    assert line(compiled, "graphs") == "graphs 1, graph breaks 0"
    assert line(compiled, "records") == line(eager, "records")
    assert ", 0 dropped" in line(compiled, "records")
    found = runs.collector.diff("eager", "compiled", "--exact")
    assert found["verdict"] == "identical", found
    assert found["unmatched"] == {"only_a": [], "only_b": []}
    assert found["compared"]["records"] > 800


def test_a_fault_in_a_compiled_run_is_found_at_its_place(runs: Runs) -> None:
    runs.eager()
    runs("faulty", "--backend", "aot_eager", "--bug")
    found = runs.collector.diff("eager", "faulty")
    assert found["verdict"] == "diverged"
    first = found["first"]
    # The attention's output is scaled behind blocks.1.out: the next module that sees it is the second normalization.
    assert (first["step"], first["stage"], first["activation"], first["kind"]) == (0, "forward", "blocks.1.ln2", "output")


def test_inductor_is_within_tolerance_and_trains_as_without_us(runs: Runs) -> None:
    runs.eager()
    compiled = runs("inductor", "--backend", "inductor")
    unwatched = runs("unwatched", "--backend", "inductor", "--no-agent")
    assert line(compiled, "graphs") == line(unwatched, "graphs") == "graphs 1, graph breaks 0"
    losses = [float(line(done, "loss").split()[1].rstrip(",")) for done in (compiled, unwatched)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    found = runs.collector.diff("eager", "inductor")
    assert found["verdict"] in ("identical", "within_tolerance"), found["first"]
    assert found["unmatched"] == {"only_a": [], "only_b": []}
