"""Hugging Face Transformers' Trainer and Accelerate, with a GPT-2 made from a configuration."""

from __future__ import annotations

import re
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

STEPS = 7


@pytest.fixture(scope="module")
def trainer(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("trainer")
    more = ["--steps", str(STEPS)]
    jobs = [["--run-name", run, *more] for run in ("hf", "hf_again")]
    jobs += [["--run-name", "hf_off", *more, "--no-agent"], ["--run-name", "hf_bug", *more, "--bug-step", "4"]]
    # Stopped behind the checkpoint of step 5, and gone on with: the same run, a second attempt; and the same without the agent.
    for run, off in (("hf_resumed", []), ("hf_resumed_off", ["--no-agent"])):
        output = ["--output", str(folder / run)]
        jobs += [["--run-name", run, "--steps", "5", *output, *off], ["--run-name", run, *more, *output, "--resume", *off]]
    return train(shared_collector, folder, "hf_trainer", *jobs)


def test_trainer_is_the_same_with_and_without_the_agent(trainer: dict[str, Trained]) -> None:
    check_same_training_with_and_without(trainer, "hf", "hf_off")
    assert trainer["hf_resumed"].same_training(trainer["hf_resumed_off"])


def test_trainer_records_updates_and_micro_batches(
    shared_collector: Collector, trainer: dict[str, Trained], tmp_path: Path
) -> None:
    rows = observations(shared_collector, "hf", tmp_path)
    every = [(0, step, micro_batch) for step in range(STEPS) for micro_batch in (0, 1)]
    for module in ("transformer.wte", "transformer.h.0.attn.c_attn", "transformer.h.1.ln_2", "lm_head"):
        assert places(rows, "output", module) == places(rows, "grad_output", module) == every, module
    parameters = names(rows, "weight", mode="init")
    assert "transformer.h.1.mlp.c_fc.weight" in parameters
    assert sorted(names(rows, "weight_grad")) == sorted(names(rows, "optimizer_state")) == sorted(parameters)
    assert places(rows, "weight", "transformer.wte.weight") == [(0, step, 0) for step in range(STEPS)]
    assert places(rows, "batch", "input_ids") == places(rows, "batch", "labels") == every
    # The evaluations after steps 5 and 7 are not there.
    assert {row["mode"] for row in rows} == {"init", "train"}
    events = shared_collector.json("events", "hf")["records"]
    assert not [event for event in events if event["kind"] == "not_recorded"], events


def test_what_the_trainer_logs_becomes_scalars_of_its_step(shared_collector: Collector, trainer: dict[str, Trained]) -> None:
    assert [at[0] for at in scalars(shared_collector, "hf", "loss")] == list(range(STEPS))
    assert [at[0] for at in scalars(shared_collector, "hf", "grad_norm_before_clipping")] == list(range(STEPS))
    assert [at[2] for at in scalars(shared_collector, "hf", "learning_rate")] == [0.01] * STEPS
    assert [at[0] for at in scalars(shared_collector, "hf", "eval_loss")] == [4, STEPS - 1]
    logged = [float(loss) for step, loss in trainer["hf"].losses[0]]
    assert all(value in logged for _, _, value in scalars(shared_collector, "hf", "loss"))
    every = {record["name"] for record in shared_collector.json("scalars", "hf")["records"]}
    assert not [name for name in every if re.search("runtime|per_second|flos", name)]


def test_training_resumed_from_a_checkpoint_goes_on_in_its_run(
    shared_collector: Collector, trainer: dict[str, Trained], tmp_path: Path
) -> None:
    assert trainer["hf_resumed"].weights == trainer["hf"].weights
    rows = observations(shared_collector, "hf_resumed", tmp_path)
    assert places(rows, "weight", "lm_head.weight") == places(rows, "weight", "transformer.h.0.ln_1.weight")[:0]  # tied to wte
    assert places(rows, "weight", "transformer.wte.weight") == [(0, step, 0) for step in range(STEPS)]
    run = next(r for r in shared_collector.json("runs")["runs"] if r["run"] == "hf_resumed")
    assert run["attempts"] == 2, run
    report = shared_collector.diff("hf", "hf_resumed", "--kinds", "output,grad_output,weight_grad,optimizer_state,batch")
    assert report["verdict"] == "identical", report


def test_equal_trainer_runs_are_identical_and_a_fault_is_found(shared_collector: Collector, trainer: dict[str, Trained]) -> None:
    check_identical(shared_collector, "hf", "hf_again")
    assert first_difference(shared_collector, "hf", "hf_bug") == (4, "forward", "output", "transformer.h.1.ln_2")


# --- Accelerate ---


@pytest.fixture(scope="module")
def accelerate(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    more = ["--steps", "5"]
    runs = {"acc": [], "acc_again": [], "acc_off": ["--no-agent"], "acc_bug": ["--bug-step", "2"]}
    jobs = [["--run-name", run, *more, *arguments] for run, arguments in runs.items()]
    return train(shared_collector, tmp_path_factory.mktemp("accelerate"), "accelerate_loop", *jobs)


def test_accelerate_is_the_same_with_and_without_the_agent(accelerate: dict[str, Trained]) -> None:
    check_same_training_with_and_without(accelerate, "acc", "acc_off")


def test_a_step_of_accelerate_is_an_update(shared_collector: Collector, accelerate: dict[str, Trained], tmp_path: Path) -> None:
    rows = observations(shared_collector, "acc", tmp_path)
    every = [(0, step, micro_batch) for step in range(5) for micro_batch in (0, 1)]
    for module in ("emb", "blocks.1.ln", "head", "Tiny"):
        assert places(rows, "output", module) == places(rows, "grad_output", module) == every, module
    assert places(rows, "weight", "head.weight") == places(rows, "weight_grad", "head.weight") == [(0, s, 0) for s in range(5)]
    assert places(rows, "batch", "tokens") == every


def test_equal_accelerate_runs_are_identical_and_a_fault_is_found(
    shared_collector: Collector, accelerate: dict[str, Trained]
) -> None:
    check_identical(shared_collector, "acc", "acc_again")
    assert first_difference(shared_collector, "acc", "acc_bug") == (2, "forward", "output", "blocks.1.ln")
