"""No answer of `statctl diff` contradicts itself: pairs of runs whose answers once did, read by contradictions/check.py. The catalogue of faults is
read in test_fault_catalogue.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, Collector, run_command
from contradictions.ask import ask
from contradictions.check import CHECKS, Answer, contradictions
from test_import import ort_dump

RUNS = ROOT / "tests" / "e2e" / "contradictions" / "runs.py"
PAIRS = [
    ("mlp", "again"), ("mlp", "conv"), ("conv", "mlp"), ("mask", "mask_full"), ("mask_full", "mask"), ("mlp", "loss_twice"),
    ("mlp", "loss_nan"), ("loss_nan", "mlp"), ("mlp", "eps"), ("eps", "mlp"), ("mlp", "like"), ("long", "long_eps"), ("bn", "bn_eval"),
    ("bn_eval", "bn"), ("mlp", "shade"), ("mlp", "window"), ("long", "mlp"),
]  # fmt: skip
OPTIONS = [(), ("--exact",), ("--tolerance", "0.01"), ("--merge-ranks",), ("--kinds", "output"), ("--noise", "NOISE")]


@pytest.fixture(scope="module")
def runs(shared_collector: Collector) -> Collector:
    done = run_command([sys.executable, str(RUNS)], env=shared_collector.environment())
    assert done.code == 0, done.err
    return shared_collector


@pytest.fixture(scope="module")
def imports(runs: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    folder = tmp_path_factory.mktemp("dumps")
    for run, wrong in (("dump", (99, 99)), ("dump_again", (99, 99)), ("dump_wrong", (1, 2))):
        runs.json("import", "ort", str(ort_dump(folder / run, wrong_from=wrong)), "--run", run)
    return runs


def judged(collector: Collector, a: str, b: str, *options: str, sources: Mapping[str, str] | None = None) -> Answer:
    answer = ask(collector, a, b, *options, sources=sources)
    assert contradictions(answer) == [], answer.text
    return answer


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_no_answer_contradicts_itself(runs: Collector, a: str, b: str) -> None:
    for options in OPTIONS:
        repeat = {"mask": "mask_full", "bn": "bn_eval"}.get(a, "shade_repeat")
        judged(runs, a, b, *(repeat if option == "NOISE" else option for option in options))


def test_two_models_cannot_be_compared(runs: Collector) -> None:
    answer = judged(runs, "mlp", "conv")
    assert answer.code == 2 and answer.report["verdict"] == "incomparable" and answer.report["root"] is None
    assert answer.text.startswith(
        "INCOMPARABLE mlp and conv: they are different models: of 26 tensors of mlp and 20 of conv, none has"
    )
    assert "statctl map propose mlp conv" in answer.headline
    only = runs.diff("mlp", "conv")["unmatched"]
    assert only["only_a"] and only["only_b"]


def test_an_input_differs_though_others_come_before_it(runs: Collector) -> None:
    answer = judged(runs, "mask", "mask_full")
    assert answer.root is not None and answer.root["because"] == ["it is an input: nothing that was recorded computes it"]
    assert answer.says("input_ids, of the same batch, agrees bit for bit")


def test_nothing_is_propagated_from_a_logged_loss(runs: Collector) -> None:
    answer = judged(runs, "mlp", "loss_twice")
    assert answer.cells() == ["origin", "-", "-", "-"]


def test_a_nan_has_no_sign(runs: Collector) -> None:
    for command in (("events", "loss_nan"), ("show", "loss_nan"), ("scalars", "loss_nan"), ("diff", "mlp", "loss_nan")):
        assert "-nan" not in runs.statctl(*command).out.lower(), command
    assert any(event["text"] == "'loss' is nan at step 2" for event in runs.json("events", "loss_nan")["records"])


def test_a_setting_changed_between_two_looks_at_it(runs: Collector) -> None:
    cause = judged(runs, "long", "long_eps").report["root"]["cause"]["text"]
    assert cause.endswith("it changed while long_eps ran, between steps 8 and 16")


def test_a_modules_mode_is_always_set(runs: Collector) -> None:
    answer = judged(runs, "bn", "bn_eval")
    assert answer.root is not None and answer.root["cause"]["text"] == "training is true in bn and false in bn_eval (bn)"
    assert {"key": "module.bn.training", "a": "true", "b": "false"} in answer.report["inputs"]["config"]
    (item,) = [each for each in runs.json("config", "bn", "bn_eval", codes=(1,))["items"] if each["key"] == "module.bn.training"]
    assert (item["a"], item["b"]) == ("true", "false")


def test_a_replaced_module_goes_by_its_name(runs: Collector) -> None:
    (event,) = [each for each in runs.json("events", "like")["records"] if each["fields"].get("reason") == "modules"]
    assert (event["fields"]["element"], event["fields"]["to"]) == ("norm", "another LayerNorm")


def test_what_repeats_show_as_well_is_no_root(runs: Collector) -> None:
    without = judged(runs, "mlp", "shade")
    assert without.root is not None and without.report["verdict"] == "within_tolerance"
    answer = judged(runs, "mlp", "shade", "--noise", "shade_repeat")
    assert answer.root is None and answer.code == 0
    assert answer.headline.endswith("none by more than its tolerance; rounding explains all of them.")
    # The repeat of a smaller noise leaves the root, and says how much larger it is.
    smaller = judged(runs, "mlp", "eps", "--noise", "shade_repeat")
    assert smaller.root is not None and smaller.root["times_noise"] > 1000


def test_a_window_of_steps_is_no_whole_run(runs: Collector) -> None:
    # The weights as loaded are in step 0.
    assert "tensors in 3 of the steps 0..4" in runs.statctl("show", "window").out
    assert "20 steps (0..19)" in runs.statctl("show", "long").out


def test_a_golden_is_not_launched_again(runs: Collector, tmp_path: Path) -> None:
    golden = tmp_path / "mlp.scg"
    assert runs.statctl("golden", "save", "mlp", str(golden)).code == 0
    done = runs.statctl("diff", "--golden", str(golden), "--run-b", "eps")
    report = runs.json("diff", "--golden", str(golden), "--run-b", "eps", codes=(1,))
    assert (report["source_a"], report["source_b"]) == ("golden", "agent")
    answer = Answer(done.out, report, done.code, sources={report["run_a"]: "golden"})
    assert contradictions(replace(answer, report={**report, "diverged": report["diverged"][:20]})) == []
    assert "launch its training and the other run again as values-a and eps-2 (statctl run" in done.out


def test_of_imports_no_bits_are_known(imports: Collector) -> None:
    sources = dict.fromkeys(("dump", "dump_again", "dump_wrong"), "import")
    equal = judged(imports, "dump", "dump_again", sources=sources)
    assert (
        equal.code == 0
        and equal.report["verdict"] == "identical"
        and equal.text.startswith("EQUAL dump and dump_again: all 15 records")
    )
    wrong = judged(imports, "dump", "dump_wrong", sources=sources)
    assert wrong.report["source_a"] == "import" and "STATAGENT" not in wrong.text
    assert wrong.says("agrees in every recorded statistic")
    golden = imports.data_dir.parent / "dump.scg"
    assert imports.statctl("golden", "save", "dump", str(golden)).code == 0
    same = imports.statctl("diff", "--golden", str(golden), "--run-b", "dump_again")
    assert same.code == 0 and same.out.rstrip().endswith(f"SAME dump_again equals {golden} in every recorded statistic.")


@pytest.mark.parametrize(
    "command",
    [
        ("keep", "nope"), ("noise", "show", "mlp"), ("noise", "rm", "mlp"), ("series", "mlp", "none"), ("exponents", "mlp", "nope"),
        ("diff", "--golden", "/nope.scg", "--run-b", "mlp"), ("diff", "mlp", "again", "--noise", "mlp"), ("diff", "mlp", "again", "--map", "hf:none"),
        ("checkpoint", "/nope/x"), ("import", "ort", "/nope", "--run", "x"), ("diff-values", "mlp", "eps", "norm", "--step", "0"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_error_says_its_object_once(runs: Collector, command: tuple[str, ...]) -> None:
    done = runs.statctl(*command)
    assert done.code == 2
    attempted = done.err.partition(";")[0].replace("'", " ").replace(":", " ").split()
    for said in command[1:]:
        assert attempted.count(said.removeprefix("--")) <= 1, done.err


def test_every_check_can_fail(runs: Collector) -> None:
    """Answers that say the opposite of what is so, one for each check."""
    fine = ask(runs, "mlp", "eps")
    report, root = fine.report, fine.root
    assert root is not None
    with_root = lambda **changes: replace(fine, report={**report, "root": {**root, **changes}})  # noqa: E731
    wrong = {
        "verdict_and_exit_code": replace(fine, code=0),
        "verdict_and_counts": replace(fine, report={**report, "compared": {**report["compared"], "identical": 1}}),
        "runs_with_nothing_in_common": replace(
            fine,
            report={
                **report,
                "diverged": [{**row, "reason": "missing_in_a"} for row in report["diverged"] if row["stage"] == "forward"],
                "compared": {**report["compared"], "diverged": sum(row["stage"] == "forward" for row in report["diverged"])},
                "unmatched": {"only_a": ["output a call 0"], "only_b": ["output b call 0"]},
                "spread": {**report["spread"], "activations": report["spread"]["activations_total"]},
            },
        ),
        "bits_are_known": replace(fine, report={**report, "without_hash": 3}),
        "what_comes_before_the_root": with_root(agreeing=0),
        "what_the_advice_says_agrees": replace(
            with_root(stage="backward"),
            report={
                **report,
                "root": {**root, "stage": "backward", "micro_batch": 1},
                "text": {**report["text"], "next": "look at it: forward pass and loss agree."},
            },
        ),
        "root_is_one_of_the_rows": with_root(distance=0.2),
        "origins_and_root": with_root(step=3),
        "propagated_from_something": replace(fine, text=fine.text.replace("origin\n", "propagated\n")),
        "root_obeys_the_noise": replace(
            with_root(times_noise=2.0),
            report={**report, "verdict": "within_tolerance", "noise": {}, "root": {**root, "times_noise": 2.0}},
        ),
        "distances_are_said_alike": replace(fine, text=fine.text.replace("distance ", "distance 7")),
        "no_negative_nan": replace(fine, text=fine.text + "-nan"),
        "heat_map_and_rows": replace(
            fine, heat_map={**(fine.heat_map or {}), "cells": bytes(len((fine.heat_map or {})["cells"]))}
        ),
        "steps_are_in_the_window": replace(fine, report={**report, "steps": {"first": 0, "last": 1}}),
        "names_of_the_runs": with_root(cause={**root["cause"], "text": "p is 1 in x and 2 in y"}),
        "settings_have_values": replace(fine, text=fine.text + "\ntraining is not set in mlp"),
        "advice_fits_the_source": replace(fine, sources={"mlp": "golden"}, text=fine.text + "\nSTATAGENT_RUN=mlp-2"),
    }
    assert wrong.keys() == CHECKS.keys()
    assert contradictions(fine) == []
    for name, answer in wrong.items():
        assert list(CHECKS[name](answer)), name
