"""`diff` agrees with a naive model on random pairs of runs, from what `export csv` writes of them.

STATCOLLECT_TEST_SEED repeats a failure; the long form is `python tests/e2e/naive/check.py --pairs 5000`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from naive import check
from naive.check import check_seeds, question_of

PAIRS = 100
PLAIN = next(seed for seed in range(100) if not question_of(seed))  # a question without options

Records = list[dict[str, Any]]


def test_diff_equals_the_naive_model(tmp_path: Path) -> None:
    seed = int(os.environ.get("STATCOLLECT_TEST_SEED", random.SystemRandom().randrange(10**9)))
    print(f"STATCOLLECT_TEST_SEED={seed}")
    found = check_seeds(tmp_path, range(seed, seed + PAIRS))
    assert not found, f"STATCOLLECT_TEST_SEED={seed}\n" + "\n".join(found)


def record(step: int, name: str, kind: str = "output", *values: float, **more: Any) -> dict[str, Any]:
    return {"rank": 0, "step": step, "name": name, "kind": kind, "values": list(values) or [1.0, 2.0, float(step)], **more}


def evaluated_before_a_launch() -> tuple[list[Records], list[Records]]:
    """The second launch of B does not repeat the evaluation before its first step."""
    steps = [[record(step, "m", mode="eval"), record(step, "m")] for step in range(4)]
    whole = [r for step in steps for r in step]
    return [whole], [[*steps[0], *steps[1]], [steps[2][1], *steps[3]]]


def gradient_of_rounding() -> tuple[list[Records], list[Records]]:
    """The first row is a gradient whose terms cancel; something else differs later."""

    def run(sign: float, last: float) -> list[Records]:
        terms = [1e4 * (i % 2 - 0.5) for i in range(16)]
        gradient = record(0, "m.weight", "weight_grad", 0.01 * sign, 0.0104 * sign)
        return [[record(0, "m"), record(0, "m", "grad_output", *terms), gradient, record(1, "m", "output", 1.0, last)]]

    return run(1, 2), run(-1, 3)


def returned_beside_a_lost_output() -> tuple[list[Records], list[Records]]:
    """A returns a second output; its second launch lost the first one, which both have."""
    second = [record(step, "m", path="1") for step in range(3)]
    lost = [[record(0, "m"), second[0]], [second[1], record(1, "n")], [record(2, "m"), second[2]]]
    return [lost[0], [*lost[1], *lost[2]]], [[record(0, "m"), record(1, "m"), record(1, "n"), record(2, "m")]]


@pytest.mark.parametrize("pair", [evaluated_before_a_launch, gradient_of_rounding, returned_beside_a_lost_output])
def test_diff_equals_the_naive_model_where_they_once_disagreed(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launches(_: int, a: str, b: str) -> Records:
        named = zip((a, b), pair(), strict=True)
        return [{"run": run, "world_size": 1, "sketch": 16, "records": records} for run, both in named for records in both]

    monkeypatch.setattr(check, "make_pair", launches)
    assert not check_seeds(tmp_path, [PLAIN])
