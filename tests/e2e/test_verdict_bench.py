"""A small part of the benchmark of verdicts: rounding raises no alarm, and a bug larger than rounding is named where it was planted.

`python -m verdict_bench` in this folder records and scores all of it; the figures are in docs/verdict-benchmark.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Collector
from verdict_bench import curves, effects, families, launch, legal, pairs, report, score
from verdict_bench.pairs import Pair
from verdict_bench.score import Result

FAMILIES = ("cnn", "gpt", "gan")


@dataclass
class Bench:
    """Recorded and queried once for all tests here."""

    pairs: list[Pair]
    results: list[Result]

    def clean(self) -> list[Result]:
        return [each for each in self.results if report.is_clean(each)]

    def planted(self, at_least: float) -> list[Result]:
        return [each for each in self.results if not report.is_clean(each) and report.effect_of(each) >= at_least]


@pytest.fixture(scope="module")
def bench(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    planned = [pair for name in FAMILIES for pair in pairs.plan(name, "tiny")]
    jobs = pairs.jobs_of(planned)
    recorded = launch.record_all(shared_collector.address, jobs, tmp_path_factory.mktemp("jobs"), processes=2)
    assert recorded == {job["run"] for job in jobs}
    effects.measure_all(planned, shared_collector)
    return Bench(planned, score.ask_all(shared_collector, planned))


def test_a_repeat_is_identical_and_legal_changes_change_bits(bench: Bench) -> None:
    verdicts = {each.pair["run_b"]: each.verdict for each in bench.clean()}
    assert [verdicts[f"{name}-plain-again"] for name in FAMILIES] == ["identical"] * len(FAMILIES)
    changed = [name for name, verdict in verdicts.items() if verdict != "identical"]
    assert len(changed) >= 0.6 * (len(verdicts) - len(FAMILIES)), "most legal changes must round differently"


def test_bugs_are_planted_at_all_sizes(bench: Bench) -> None:
    """Each bug changes bits where it says, if it is larger than the precision; and larger sizes change more."""
    alone = [pair for pair in bench.pairs if pair.bug and not pair.legal]
    assert all(pair.effect for pair in alone if pair.size >= 1e-5), [p.run_b for p in alone if not p.effect]
    by_bug: dict[tuple[str, str], list[Pair]] = {}
    for pair in alone:
        by_bug.setdefault((pair.family, pair.bug), []).append(pair)
    for each in by_bug.values():
        distances = [pair.distance or 0.0 for pair in sorted(each, key=lambda pair: pair.size)]
        assert distances == sorted(distances), f"{each[0].bug} of {each[0].family}: {distances}"


def test_rounding_is_no_alarm(bench: Bench) -> None:
    alarms = [f"{each.pair['run_b']}: {each.found or each.first_found}" for each in bench.clean() if each.alarm]
    assert not alarms, f"{len(alarms)} of {len(bench.clean())} clean pairs\n" + "\n".join(alarms)


@pytest.mark.parametrize(("on_legal", "at_least"), [(False, 0.9), (True, 0.9)])
def test_a_bug_ten_times_rounding_is_named_exactly(bench: Bench, on_legal: bool, at_least: float) -> None:
    planted = [each for each in bench.planted(10.0) if report.on_top(each) == on_legal]
    exact = sum(each.exact for each in planted)
    assert exact >= at_least * len(planted) > 0, f"{exact} of {len(planted)}\n{report.wrong(planted)}"


def test_the_cause_of_an_exact_root_is_right(bench: Bench) -> None:
    ruled = [each for each in bench.planted(10.0) if each.exact and each.cause_right is not None]
    right = sum(bool(each.cause_right) for each in ruled)
    named = "\n".join(f"{each.pair['run_b']}: {each.cause or 'no cause'}" for each in ruled if not each.cause_right)
    assert right >= 0.8 * len(ruled) > 0, f"{right} of {len(ruled)}\n{named}"


# --- the benchmark itself


def test_every_family_has_ten_legal_changes_or_so_and_a_half() -> None:
    assert set(families.FITTED) | set(families.REPORTED) == set(families.NAMES) and len(families.NAMES) >= 10
    for name in families.NAMES:
        module = families.load(name)
        assert len(legal.of_family(module.FAMILY)) >= 9, name
        assert len({bug.name for bug in module.BUGS}) == len(module.BUGS) >= 18, name


def test_runs_of_a_plan_have_one_meaning_each() -> None:
    planned = pairs.plan("gan", "full")
    jobs = pairs.jobs_of(planned)
    assert len({job["run"] for job in jobs}) == len(jobs)
    named = {job["run"]: (job["legal"], job["bug"], job["size"]) for job in jobs}
    own = [pair for pair in planned if "~" not in pair.legal]  # the others compare two legal changes
    assert all(named[pair.run_b] == (pair.legal, pair.bug, pair.size) for pair in own)


ROW = {"step": 3, "stage": "forward", "kind": "output", "activation": "b.2.ln2"}
PAIR = Pair(
    "gpt", "reported", "f32", "a", "b", "", "eps_of_b.2.ln2", 1e-5, 3, {"stages": ["forward"], "step": 3, "names": [["b.2.*", "output"]]},
    ["module_setting"],
)  # fmt: skip


def answered(pair: Pair, verdict: str, **fields: Any) -> Result:
    return score.judge(pair, {"verdict": verdict, "first": None, **fields}, 0.0)


def test_a_root_is_exact_at_its_step_stage_kind_and_name_only() -> None:
    assert answered(PAIR, "within_tolerance", root=ROW).exact
    for change in ({"step": 4}, {"stage": "backward"}, {"kind": "input"}, {"activation": "b.1.ln2"}):
        found = answered(PAIR, "within_tolerance", root={**ROW, **change})
        assert found.alarm and not found.exact, change


def test_without_a_root_the_first_difference_counts_and_agreement_is_clean() -> None:
    old = answered(PAIR, "diverged", first=ROW)
    assert old.exact and old.first_exact and old.alarm
    clean = answered(replace(PAIR, bug=""), "within_tolerance", explained="rounding")
    assert not clean.alarm and not clean.exact and clean.explained == "rounding"
    assert not answered(PAIR, "diverged", first=ROW, root={**ROW, "step": 5}).exact


def test_a_cause_is_right_by_its_rule() -> None:
    cause = {"rule": "module_setting", "text": "eps is 1e-05 and 2e-05"}
    assert answered(PAIR, "diverged", first=ROW, root={**ROW, "cause": cause}).cause_right
    assert answered(PAIR, "diverged", first=ROW, root={**ROW, "cause": {"rule": "dropout"}}).cause_right is False
    assert answered(replace(PAIR, causes=[]), "diverged", first=ROW, root={**ROW, "cause": cause}).cause_right is None


def test_data_of_a_benchmark_can_be_kept_in_a_manifest(tmp_path: Path) -> None:
    from verdict_bench.__main__ import read_manifest, write_manifest

    write_manifest(tmp_path, [PAIR, replace(PAIR, effect=12.5)])
    assert read_manifest(tmp_path) == [PAIR, replace(PAIR, effect=12.5)]


# --- its pictures

SVG = "{http://www.w3.org/2000/svg}"


def scored(half: str, effect: float, exact: bool, confidence: str = "likely") -> Result:
    pair = replace(PAIR, half=half, effect=effect)
    return answered(pair, "diverged", root={**ROW, "confidence": confidence, "step": 3 if exact else 4})


def drawn_at(picture: str, title: str) -> tuple[float, float]:
    """The centre of the point that says so when pointed at."""
    root = ElementTree.fromstring(picture)
    found = [each for each in root.iter(f"{SVG}circle") if each.findtext(f"{SVG}title") == title]
    assert len(found) == 1, f"{title}: not among {[each.findtext(f'{SVG}title') for each in root.iter(f'{SVG}circle')]}"
    return float(found[0].get("cx", "nan")), float(found[0].get("cy", "nan"))


def test_curves_show_the_share_of_exact_roots_by_size_and_half() -> None:
    results = [scored("reported", 5.0, exact) for exact in (True, True, True, False)]
    results += [
        scored("reported", 20.0, True),
        scored("reported", 0.0, False),
        scored("fitted", 5.0, True),
        scored("fitted", 5.0, False),
    ]
    picture = curves.sizes(results)
    x, y = drawn_at(picture, "reported, 3 to 10 times rounding: 3 of 4")
    assert y == pytest.approx(curves.BOTTOM + 0.75 * (curves.TOP - curves.BOTTOM))
    assert drawn_at(picture, "fitted, 3 to 10 times rounding: 1 of 2") == pytest.approx((x, (curves.TOP + curves.BOTTOM) / 2))
    assert drawn_at(picture, "before, 3 to 10 times rounding: 0 of 4") == pytest.approx((x, curves.BOTTOM))
    right, top = drawn_at(picture, "reported, 10 to 30 times rounding: 1 of 1")
    assert right > x and top == pytest.approx(curves.TOP)
    assert "0 to 1 times" not in picture, "a bug without effect belongs to no bin"


def test_the_picture_of_answers_counts_what_was_true_of_each(tmp_path: Path) -> None:
    results = [scored("reported", 5.0, exact, "certain") for exact in (True, True, True, False)]
    results += [answered(replace(PAIR, effect=effect), "within_tolerance", explained="rounding") for effect in (2.0, 4.0, 4.0)]
    results += [answered(replace(PAIR, bug=""), "identical"), scored("fitted", 5.0, True, "certain")]
    results.append(answered(replace(PAIR, bug=""), "diverged", root={**ROW, "confidence": "possible"}))
    assert [path.name for path in curves.write(results, tmp_path / "new")] == ["verdict-sizes.svg", "verdict-answers.svg"]
    picture = ElementTree.parse(tmp_path / "new" / "verdict-answers.svg")
    bars = {bar.findtext(f"{SVG}title"): float(bar.get("width", "nan")) for bar in picture.iter(f"{SVG}rect") if len(bar)}
    assert set(bars) == {
        "certain, exact: 3 of 4", "certain, another place: 1 of 4", "possible, no bug: 1 of 1",
        "only rounding, no bug: 1 of 4", "only rounding, a bug below 3 times rounding: 1 of 4", "only rounding, a larger bug: 2 of 4",
    }  # fmt: skip
    assert bars["certain, exact: 3 of 4"] == pytest.approx(3 * bars["certain, another place: 1 of 4"], rel=0.03)
