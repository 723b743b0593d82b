"""Fingerprints of the random generators, a step."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import statagent
from statagent import Agent

from .models import Net, data, seeded
from .support import Recording, python


def fingerprints(recording: Recording, name: str) -> list[tuple[int, float]]:
    return [(step, value) for step, found, value, _ in recording.scalars if found == name]


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


DRAWS = {
    "rng/cpu": lambda: torch.rand(1),
    "rng/python": random.random,
    "rng/numpy": np.random.rand,
}


@pytest.mark.parametrize("name", DRAWS)
def test_fingerprint_changes_with_each_draw_and_with_nothing_else(agent: Agent, recording: Recording, name: str) -> None:
    net = seeded(Net)
    statagent.watch(net)
    seed(1)
    for step in range(4):
        if step == 2:
            DRAWS[name]()
        if step == 3:
            seed(1)
        net(data()).sum().backward()
        net(data())  # once a step
        statagent.step()
    for each in DRAWS:
        steps, values = zip(*fingerprints(recording, each))
        assert steps == (0, 1, 2, 3)
        assert values[0] == values[1] == values[3]
        assert (values[2] == values[0]) == (each != name)
        assert all(value == int(value) and 0 <= value < 2**53 for value in values)
    assert not fingerprints(recording, "rng/cuda0") or torch.cuda.is_available()


def test_nothing_is_drawn(agent: Agent) -> None:
    net = seeded(Net)
    statagent.watch(net)
    seed(2)
    expected = [draw() for draw in DRAWS.values()]
    seed(2)
    net(data())
    assert [draw() for draw in DRAWS.values()] == expected


def test_only_recorded_training_steps_have_one_and_it_can_be_left_out(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    first = statagent.watch(net, steps="1-")
    second = statagent.watch(seeded(Net), name="second", steps="1-")
    for _ in range(2):
        with torch.no_grad():
            net(data())
        net(data())
        statagent.step()
    assert [step for step, _ in fingerprints(recording, "rng/cpu")] == [1]
    first.remove()
    second.remove()
    statagent.watch(net, random_states=False)
    net(data())
    assert len(fingerprints(recording, "rng/cpu")) == 1


def test_fingerprints_are_the_same_in_another_process_and_numpy_is_not_imported() -> None:
    script = """
import random, sys, torch
from statagent._watch.random_states import _cpu, _numpy, _python
torch.manual_seed(5); random.seed(5)
found = [_cpu(), _python()]
if "numpy.random" not in sys.modules:
    assert _numpy() is None
import numpy
numpy.random.seed(5)
print([*found, _numpy()])
"""
    one, two = (python(script, PYTHONHASHSEED=number).stdout for number in "12")
    assert one == two and one.count("rng/") == 3


# --- whether the program has seeded the generators ---------------------------------------------------------------------------

SEEDED = """
import random, sys
import numpy.random, torch
from statagent._settings.environment import random_state
exec(PROGRAM)
print(" ".join(random_state()[f"random.{name}.seeded"] for name in ("torch", "numpy", "python")))
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("", "false false unknown"),
        ("numpy.random.rand(5000), random.random(), torch.rand(9)", "false false unknown"),
        ("torch.manual_seed(7)", "true false unknown"),
        ("numpy.random.seed(123456789); numpy.random.rand(5000)", "false true unknown"),
        ("numpy.random.set_state(numpy.random.RandomState(5).get_state())", "false unknown unknown"),
        ("random.seed(42); [random.random() for _ in range(99)]", "false false true"),
        ("torch.manual_seed(3); numpy.random.seed(3); random.seed(3)", "true true true"),
    ],
)
def test_whether_the_program_has_seeded_its_generators_is_told_where_it_can_be(program: str, expected: str) -> None:
    assert python(f"PROGRAM = {program!r}\n{SEEDED}").stdout.strip() == expected


def test_seeds_that_are_set_after_the_watch_and_before_the_first_step_are_recorded(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    statagent.watch(net)
    seed(5)
    net(data()).sum().backward()
    found = {name: recording.config[f"random.{name}.seed"] for name in ("torch", "numpy", "python")}
    assert found == {"torch": "5", "numpy": "5", "python": "5"}
    assert {recording.config[f"random.{name}.seeded"] for name in found} == {"true"}


def test_a_seed_that_was_known_stays_known_after_many_draws(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    seed(42)
    statagent.watch(net)
    for _ in range(5000):
        random.random(), np.random.rand()
    net(data()).sum().backward()
    assert {recording.config[f"random.{name}.seed"] for name in ("torch", "numpy", "python")} == {"42"}
    assert {recording.config[f"random.{name}.seeded"] for name in ("torch", "numpy", "python")} == {"true"}
