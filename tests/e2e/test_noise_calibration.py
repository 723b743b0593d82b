"""Noise calibration with real training: repeats that differ only in the order of summation or in threads, and late errors of one percent."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Collector
from fault_catalogue import noise
from fault_catalogue.catalogue import record

LEARNED = ",".join(f"{name}.1" for name in noise.LEARNED)


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> Collector:
    record(shared_collector, noise.names(), 1)
    return shared_collector


def diff(collector: Collector, run: str, *options: str) -> Any:
    return collector.diff(f"base-{noise.NOISE[run].base}.1", f"{run}.1", *options)


def place(report: Any) -> tuple[int, str, str] | None:
    first = report["first"]
    return None if first is None else (first["step"], first["stage"], first["activation"])


def test_rounding_alone_is_no_alarm_of_the_default_report(recorded: Collector) -> None:
    report = diff(recorded, "plain_summed_in_2_parts")
    assert report["verdict"] == "within_tolerance"
    assert report["compared"]["within_tolerance"] > 1000


def test_default_report_finds_one_percent_in_one_layer_at_a_late_step(recorded: Collector) -> None:
    report = diff(recorded, "plain_off_by_one_percent")
    assert place(report) == (noise.LATE, "forward", "blocks.1.mlp.fc2")
    assert report["first"]["origin"] and report["first"]["distance"] == pytest.approx(0.01, rel=0.5)


# Whether two threads sum in another order is the machine's to say.
@pytest.mark.parametrize("run", [run for run in noise.ASKED if run != "noise_two_threads"])
def test_noise_that_training_amplifies_parts_runs_at_the_first_updates(recorded: Collector, run: str) -> None:
    """Why noise has to be learned: without it every repeat of this model is an alarm, and the planted error is not what is found.

    Half of the fused bias has a gradient of pure noise, which Adam turns into steps of full size. Where something else differs as well,
    the output that this bias moved is the first difference, not the bias itself."""
    report = diff(recorded, run, "--all")
    first = report["first"]
    assert first["step"] <= 1 and first["activation"].endswith(("attn.qkv.bias", "attn.qkv"))
    moved = [row for row in report["diverged"] if row["step"] <= 1 and row["activation"].endswith("attn.qkv.bias")]
    assert max(row["distance"] / row["tolerance"] for row in moved) > 10


@pytest.mark.parametrize("run", noise.ASKED)
def test_learned_noise_hides_repeats_and_only_them(recorded: Collector, run: str) -> None:
    report = diff(recorded, run, "--noise", LEARNED)
    root = report["root"]
    assert (root and (root["step"], root["stage"], root["activation"])) == noise.ASKED[run]
    if root is None:
        assert report["verdict"] in ("identical", "within_tolerance")
        return
    assert report["verdict"] == "diverged" and root["origin"] and root["reason"] == "numeric"
    assert root["times_noise"] > 10
    assert {row["step"] for row in report["origins"]} == {noise.LATE}
    headline = recorded.statctl("diff", f"base-{noise.BASE}.1", f"{run}.1", "--noise", LEARNED).out.splitlines()[0]
    assert f"step {noise.LATE}" in headline and "times noise" in headline
