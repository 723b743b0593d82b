"""Frameworks' trainers without a line of ours: what the callbacks record, and the same training."""

from __future__ import annotations

import importlib.util

import pytest
from auto_runs import assert_same, bare, by_hand, lines, program, record, scalars, summary
from conftest import Collector


def needs(framework: str) -> None:
    """Without an import: some change the environment of the tests."""
    package = framework.split("_")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def arguments(collector: Collector, run: str) -> dict[str, str]:
    """The trainer's, as settings of the run."""
    return {item["key"]: item["a"] for item in collector.json("config", run)["items"] if item["key"].startswith("trainer.")}


@pytest.mark.parametrize("framework", ["transformers", "lightning", "accelerate", "trl_dpo", "trl_grpo", "timm"])
def test_a_trainer_is_recorded_as_with_its_callback(collector: Collector, framework: str) -> None:
    needs(framework)
    without = bare(*program("trainers.py", framework))
    hand = by_hand(collector, "hand", *program("trainers.py", framework, "--hand"))
    auto = record(collector, "auto", *program("trainers.py", framework))
    assert without.code == hand.code == auto.code == 0, auto.err
    assert auto.out == without.out == hand.out, auto.out
    assert_same(collector, "hand", "auto")
    assert scalars(collector, "auto", "loss") == scalars(collector, "hand", "loss") != []
    assert [line[:20] for line in lines(auto)] == ["recording run 'auto'", "run 'auto': 4 steps,"], auto.err
    assert arguments(collector, "auto") == arguments(collector, "hand")
    assert bool(arguments(collector, "auto")) == (framework in ("transformers", "trl_dpo", "trl_grpo"))


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_a_trainer_with_our_callback_gets_no_second_one(collector: Collector, framework: str) -> None:
    needs(framework)
    auto = record(collector, "auto", *program("trainers.py", framework, "--hand"))
    hand = by_hand(collector, "hand", *program("trainers.py", framework, "--hand"))
    assert auto.code == 0 and auto.out == hand.out, auto.err
    assert_same(collector, "hand", "auto")


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_a_trainer_ends_after_the_steps_that_are_asked_for(collector: Collector, framework: str) -> None:
    needs(framework)
    auto = record(collector, "auto", *program("trainers.py", framework), STATAGENT_STOP_AFTER="2")
    assert auto.code == 0 and "weights" not in auto.out, auto.err
    assert summary(collector, "auto")["steps"] == 2 and "run 'auto': 2 steps, " in auto.err


def test_a_run_that_cannot_begin_does_not_stop_a_trainer(collector: Collector) -> None:
    needs("transformers")
    auto = record(collector, "bad name!", *program("trainers.py", "transformers"))
    assert auto.code == 0 and auto.out == bare(*program("trainers.py", "transformers")).out
    (line,) = lines(auto)
    assert line.startswith("cannot record this training: InvalidArgumentError: ") and line.endswith("; it goes on"), line
