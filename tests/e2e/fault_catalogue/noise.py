"""Runs for noise calibration: a model whose training amplifies rounding, repeats of it, and late errors of one percent.

The bias of attention's keys has no influence on the result (softmax does not see what is added to all scores of a row), so its gradient is
rounding noise and nothing else, and Adam makes updates of full size from it: repeats that differ in the order of summation alone part
from each other at the first update, by more than any tolerance by dtype."""

# mypy: disable-error-code="method-assign, assignment"
from __future__ import annotations

import torch

from fault_catalogue.clean import CLEAN, Clean, chunked, on_linears, summed_backwards, summed_in_2_parts, two_threads
from fault_catalogue.fault import BASES
from fault_catalogue.model import Sizes
from fault_catalogue.training import Recipe, Training

LATE = 7
BASE = "key_bias"
BASES[BASE] = Recipe(steps=10, sizes=Sizes(key_bias=True))
NOISE: dict[str, Clean] = {}


def _enter(name: str, change: str, *plants: object, base: str = BASE) -> None:
    def plant(training: Training) -> None:
        for each in plants:
            assert callable(each)
            each(training)

    NOISE[name] = Clean(name, change, plant, base)


def other_sums(training: Training) -> None:
    on_linears(training, chunked(4))


def output_off_by_one_percent(training: Training) -> None:
    def scale() -> None:
        fc2 = training.model.block(1).mlp.fc2
        plain = fc2.forward
        fc2.forward = lambda x: plain(x) * 1.01

    training.at(LATE, scale)


def weight_off_by_one_percent(training: Training) -> None:
    def scale() -> None:
        with torch.no_grad():
            training.model.block(0).attn.proj.weight.mul_(1.01)

    training.at(LATE, scale)


def rate_off_by_one_percent(training: Training) -> None:
    def scale() -> None:
        for group in training.optimizer.param_groups:
            group["lr"] *= 1.01

    training.at(LATE, scale)


# The runs from which the noise is learned.
_enter("noise_summed_in_2_parts", CLEAN["summed_in_2_parts"].change, summed_in_2_parts)
_enter("noise_summed_backwards", CLEAN["summed_backwards"].change, summed_backwards)
LEARNED = ("noise_summed_in_2_parts", "noise_summed_backwards")

# The runs that are then compared: name -> first place, None: no alarm.
_enter("noise_summed_in_4_parts", CLEAN["summed_in_4_parts"].change, other_sums)
_enter("noise_two_threads", CLEAN["two_threads"].change, two_threads)
_enter("output_off_by_one_percent", "output of one layer times 1.01 from step 7", other_sums, output_off_by_one_percent)
_enter("weight_off_by_one_percent", "one weight times 1.01 before step 7", other_sums, weight_off_by_one_percent)
_enter("rate_off_by_one_percent", "learning rate times 1.01 from step 7", other_sums, rate_off_by_one_percent)
ASKED: dict[str, tuple[int, str, str] | None] = {
    "noise_summed_in_4_parts": None,
    "noise_two_threads": None,
    "output_off_by_one_percent": (LATE, "forward", "blocks.1.mlp.fc2"),
    "weight_off_by_one_percent": (LATE, "forward", "blocks.0.attn.proj"),
    "rate_off_by_one_percent": (LATE, "optimizer", "tok.weight"),
}

# The same in the model without that bias, where the tolerance by dtype is enough.
_enter(
    "plain_off_by_one_percent",
    "output of one layer times 1.01 from step 7",
    other_sums,
    output_off_by_one_percent,
    base="plain_longer",
)
BASES["plain_longer"] = Recipe(steps=10)
_enter("plain_summed_in_2_parts", CLEAN["summed_in_2_parts"].change, summed_in_2_parts, base="plain_longer")


def names() -> list[str]:
    """The runs to record, on one rank."""
    return [f"base-{BASE}", "base-plain_longer", *NOISE]
