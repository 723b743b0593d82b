"""Frameworks on two ranks, each started as its users start it: `accelerate launch`, torchrun, Lightning's own subprocesses."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Collector, torchrun
from framework_runs import (
    Trained,
    check_identical,
    check_same_training_with_and_without,
    first_difference,
    observations,
    places,
    train,
)

STEPS, RANKS = 4, 2
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", f"--num_processes={RANKS}", "--num_machines=1",
              "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]  # fmt: skip


@dataclass
class Launched:
    """The runs `NAME`, `NAME_again`, `NAME_off` (without the agent) and `NAME_bug` of one example under one launcher."""

    name: str
    runs: dict[str, Trained]


@dataclass(frozen=True)
class Way:
    """A launcher, the example that it starts, two of its modules, and where its runs are fed from."""

    launcher: list[str]
    example: str
    more: list[str]
    module: str
    planted: str  # the module of --bug-step
    batch: str


WAYS = {
    "accelerate": Way(ACCELERATE, "accelerate_loop", [], "emb", "blocks.1.ln", "tokens"),
    "trainer": Way(torchrun(RANKS), "hf_trainer", [], "transformer.wte", "transformer.h.1.ln_2", "input_ids"),
    "lightning": Way([sys.executable], "lightning_trainer", [f"--devices={RANKS}"], "model.emb", "model.blocks.1.ln", "batch"),
}


@pytest.fixture(scope="module", params=WAYS)
def launched(request: pytest.FixtureRequest, shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    name, way = f"{request.param}_ranks", WAYS[request.param]
    runs = {"": [], "_again": [], "_off": ["--no-agent"], "_bug": ["--bug-step", "2"]}
    jobs = [["--run-name", name + run, "--steps", str(STEPS), *way.more, *arguments] for run, arguments in runs.items()]
    folder = tmp_path_factory.mktemp(request.param)
    return Launched(request.param, train(shared_collector, folder, way.example, *jobs, launcher=way.launcher))


def test_training_on_ranks_is_the_same_with_and_without_the_agent(launched: Launched) -> None:
    run = f"{launched.name}_ranks"
    check_same_training_with_and_without(launched.runs, run, f"{run}_off", ranks=RANKS)
    assert launched.runs[run].weights[0] == launched.runs[run].weights[1]
    assert launched.runs[run].losses[0] != launched.runs[run].losses[1] or launched.name == "trainer"


def test_ranks_of_a_launch_are_the_ranks_of_one_run(shared_collector: Collector, launched: Launched, tmp_path: Path) -> None:
    way, name = WAYS[launched.name], f"{launched.name}_ranks"
    (run,) = [found for found in shared_collector.json("runs")["runs"] if found["run"] == name]
    assert (run["attempts"], run["ranks"], run["world_size"]) == (1, RANKS, RANKS), run
    rows = observations(shared_collector, name, tmp_path)
    every = [(rank, step, micro_batch) for rank in range(RANKS) for step in range(STEPS) for micro_batch in (0, 1)]
    for module in (way.module, way.planted):
        assert places(rows, "output", module) == places(rows, "grad_output", module) == every, module
    fed = [{row["hash"] for row in rows if (row["kind"], row["activation"], row["rank"]) == ("batch", way.batch, str(rank))}
           for rank in range(RANKS)]  # fmt: skip
    assert fed[0] and fed[1] and not fed[0] & fed[1], "each rank has batches of its own"
    check = shared_collector.json("ranks", name)
    assert check["verdict"] == "consistent" and check["compared"]["records"] > 50, check


def test_equal_launches_are_identical_and_a_fault_is_found(shared_collector: Collector, launched: Launched) -> None:
    name = f"{launched.name}_ranks"
    check_identical(shared_collector, name, f"{name}_again")
    assert first_difference(shared_collector, name, f"{name}_bug") == (2, "forward", "output", WAYS[launched.name].planted)
