"""Lightning's Trainer, under both of its package names. It runs forward, backward and clipping inside of optimizer.step()."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Collector
from framework_runs import (
    Trained,
    check_identical,
    check_same_training_with_and_without,
    first_difference,
    names,
    observations,
    places,
    scalars,
    train,
)

STEPS = 6


@pytest.fixture(scope="module", params=["lightning.pytorch", "pytorch_lightning"])
def lightning(
    request: pytest.FixtureRequest, shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Trained]]:
    """A prefix of the runs' names, and the runs."""
    prefix = request.param.replace(".", "_")
    more = ["--steps", str(STEPS), "--package", request.param]
    runs = {"": [], "_again": [], "_off": ["--no-agent"], "_bug": ["--bug-step", "3"]}
    jobs = [["--run-name", prefix + run, *more, *arguments] for run, arguments in runs.items()]
    folder = tmp_path_factory.mktemp(prefix)
    resumed, package, saved = f"{prefix}_resumed", more[2:], str(folder / "saved.ckpt")
    jobs += [["--run-name", resumed, "--steps", "3", *package, "--save", saved]]
    jobs += [["--run-name", resumed, "--steps", str(STEPS), *package, "--resume", saved]]
    return prefix, train(shared_collector, folder, "lightning_trainer", *jobs)


def test_lightning_is_the_same_with_and_without_the_agent(lightning: tuple[str, dict[str, Trained]]) -> None:
    prefix, runs = lightning
    check_same_training_with_and_without(runs, prefix, f"{prefix}_off")


def test_lightning_records_updates_and_micro_batches(
    shared_collector: Collector, lightning: tuple[str, dict[str, Trained]], tmp_path: Path
) -> None:
    prefix, _ = lightning
    rows = observations(shared_collector, prefix, tmp_path)
    every = [(0, step, micro_batch) for step in range(STEPS) for micro_batch in (0, 1)]
    for module in ("model", "model.emb", "model.blocks.1.ln", "model.head"):
        assert places(rows, "output", module) == places(rows, "grad_output", module) == every, module
    assert places(rows, "batch", "batch") == sorted(every * 2)  # tokens and targets
    updates = [(0, step, 0) for step in range(STEPS)]
    parameters = names(rows, "weight", mode="init")
    assert len(parameters) == 15
    for parameter in parameters:
        assert places(rows, "weight", parameter) == places(rows, "weight_grad", parameter) == updates, parameter
    # The gradients are those that the update was made with: clipped to a norm of 0.5.
    for step in range(STEPS):
        squares = [float(r["l2"]) ** 2 for r in rows if (r["kind"], r["step"]) == ("weight_grad", str(step))]
        assert sum(squares) ** 0.5 == pytest.approx(0.5, rel=1e-3)
    events = shared_collector.json("events", prefix)["records"]
    assert not [event for event in events if event["kind"] == "not_recorded"], events


def test_what_lightning_logs_becomes_scalars_of_its_step(
    shared_collector: Collector, lightning: tuple[str, dict[str, Trained]]
) -> None:
    prefix, runs = lightning
    losses = [float(loss) for _, loss in runs[prefix].losses[0]]
    assert [at[2] for at in scalars(shared_collector, prefix, "loss")] == losses
    assert [at[0] for at in scalars(shared_collector, prefix, "head_norm")] == list(range(STEPS))
    assert [at[0] for at in scalars(shared_collector, prefix, "val_loss")] == [1, 3, 5]


def test_training_resumed_from_a_checkpoint_goes_on_in_its_run(
    shared_collector: Collector, lightning: tuple[str, dict[str, Trained]], tmp_path: Path
) -> None:
    prefix, runs = lightning
    rows = observations(shared_collector, f"{prefix}_resumed", tmp_path)
    assert places(rows, "weight", "model.head.weight") == [(0, step, 0) for step in range(STEPS)]
    assert [int(step) for step, _ in runs[f"{prefix}_resumed"].losses[0]] == [step for step in range(STEPS) for _ in (0, 1)]
    (run,) = [found for found in shared_collector.json("runs")["runs"] if found["run"] == f"{prefix}_resumed"]
    assert run["attempts"] == 2, run
    # Both got the same batches up to the checkpoint; after it the Trainer starts the epoch again.
    report = shared_collector.diff(prefix, f"{prefix}_resumed", "--steps", "0-2", "--kinds", "output,grad_output,weight_grad")
    assert report["verdict"] == "identical", report


def test_equal_lightning_runs_are_identical_and_a_fault_is_found(
    shared_collector: Collector, lightning: tuple[str, dict[str, Trained]]
) -> None:
    prefix, _ = lightning
    check_identical(shared_collector, prefix, f"{prefix}_again")
    assert first_difference(shared_collector, prefix, f"{prefix}_bug") == (3, "forward", "output", "model.blocks.1.ln")
