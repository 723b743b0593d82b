"""A small part of the benchmark of verdicts: rounding raises no alarm, and a bug larger than rounding is named where it was planted.

`python -m verdict_bench` in this folder records and scores all of it; the figures are in docs/verdict-benchmark.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from conftest import Collector
from verdict_bench import curves, effects, families, launch, legal, pairs, record, report, score
from verdict_bench.__main__ import RESULTS, forget_unfinished, installed, kept_pairs, read_manifest, read_results, write_manifest
from verdict_bench.pairs import Pair
from verdict_bench.score import Result
from verdict_bench.training import Training

import statagent

FAMILIES = ("cnn", "gpt", "gan")
TWINNED = ("gpt",)  # the others are judged without twins


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
    jobs = [job for name in FAMILIES for job in jobs_of(name, planned)]
    recorded = launch.record_all(shared_collector.address, jobs, tmp_path_factory.mktemp("jobs"), processes=2)
    assert recorded == {job["run"] for job in jobs}
    effects.measure_all(planned, shared_collector)
    return Bench(planned, score.ask_all(shared_collector, planned))


def jobs_of(name: str, planned: list[Pair]) -> list[dict[str, Any]]:
    return pairs.jobs_of([pair for pair in planned if pair.family == name], twins=name in TWINNED)


def test_twins_of_a_baseline_are_stored_beside_it_and_differ_by_their_noise(bench: Bench, shared_collector: Collector) -> None:
    stored = {row["run"] for row in shared_collector.json("runs", "--twins")["runs"]}
    for name in FAMILIES:
        assert stored.issuperset(pairs.twins_of(f"{name}-plain")) == (name in TWINNED), name
    distances = effects.Distances(shared_collector)
    for name in TWINNED:
        first = [distances.of(f"{name}-plain", twin, 0).values() for twin in pairs.twins_of(f"{name}-plain")]
        middle = [median(row["distance"] for row in rows if row["stage"] == "forward") for rows in first]
        one, other, _, _, largest = middle
        assert 1e-8 < one < 3e-6 and other == pytest.approx(one, rel=0.5), (
            f"{name}: twins of one unit in the last place differ by {middle}"
        )
        assert middle[1:] == sorted(middle[1:]) and largest > 1000 * one, f"{name}: more noise must move more: {middle}"


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
    assert not set(families.UNSEEN) & set(families.NAMES) and len(families.UNSEEN) >= 6
    assert {families.half(name) for name in families.UNSEEN} == {"unseen"}
    for name in families.ALL:
        module = families.load(name)
        assert module.FAMILY.name == name
        assert len({bug.name for bug in module.BUGS}) == len(module.BUGS), name
        at_least = (9, 18) if name in (*families.NAMES, *families.UNSEEN) else (8, 12)
        assert (len(legal.of_family(module.FAMILY)), len(module.BUGS)) >= at_least, name


def test_a_family_in_another_set_up_is_the_same_family_trained_otherwise() -> None:
    plain = families.load("gpt")
    assert families.load("gpt_bf16").FAMILY.bfloat16 and not plain.FAMILY.bfloat16
    longer = families.load("gpt_50steps")
    assert longer.FAMILY.steps == 50 and {bug.step for bug in longer.BUGS[:8]} > {33}, "bugs that begin late are among the first"
    names = [bug.name for bug in longer.BUGS]
    assert [bug.name for bug in families.bugs_of("gpt_50steps")] == names, "they begin late once"
    both = families.load("gpt_ddp2"), families.load("gpt_fsdp2")
    assert [(each.FAMILY.ranks, plain.FAMILY.ranks) for each in both] == [(2, 1)] * 2
    assert "ddp" not in {each.name for each in legal.of_family(both[0].FAMILY)}
    assert {bug.name for bug in plain.BUGS} - {bug.name for bug in both[1].BUGS} == {
        "gradient_of_b.2.attn.v.weight", "sign_of_b.1.ln1.weight",
    }, "hooks of parameters, which shards do not call"  # fmt: skip
    assert {families.half(name) for name in families.SET_UP} == {"set-up"} and families.half("hf_llama") == "case"


def test_families_are_chosen_by_name_or_by_half() -> None:
    assert families.chosen("gpt,unseen,lora") == ["gpt", *families.UNSEEN, "lora"]
    assert sorted(families.chosen("fitted,reported,unseen,set-up,case")) == sorted(families.ALL)


def test_a_family_whose_package_is_not_installed_is_skipped_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(families, "find_spec", lambda name: None)
    assert installed(["gpt", "hf_llama"]) == ["gpt"]
    assert capsys.readouterr().err == "hf_llama is skipped: transformers is not installed\n"


HELD_AGAINST_EACH_OTHER = (
    *families.UNSEEN,
    *(name for name in families.CASES if not name.startswith("hf_")),
    "hf_llama",
    "hf_mixtral",
)


# torch's Muon makes its updates orthogonal in bfloat16. Its mistakes change the loss by 5e-3 or more.
ROUNDS_INSIDE = {"optimizers_muon"}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", HELD_AGAINST_EACH_OTHER)
def test_legal_changes_of_an_unseen_family_only_round_differently(name: str) -> None:
    """Held against each other without any collector: a change that computes something else would count as a false alarm of the product."""
    if families.missing(name):
        pytest.skip(f"{families.missing(name)} is not installed")
    family = families.load(name).FAMILY
    in_f32 = family.precision == "f32" and name not in ROUNDS_INSIDE
    first, rounding = losses(name, []), 2e-5 if in_f32 else 1e-3
    assert first != losses(name, [], seed=1), "weights and data must depend on the seed"
    for change in legal.of_family(family):
        if not change.idle:  # with a process group of its own
            assert losses(name, [change.plant]) == pytest.approx(first, rel=rounding), change.name


def losses(name: str, changes: list[Callable[[Training], None]], seed: int = 0) -> list[float]:
    """What three steps log, micro-batches added."""
    family = copy(families.load(name).FAMILY)
    family.seed += seed
    training = Training(family, optimizer_options={"foreach": False})
    training.build(changes)
    logged = [0.0] * 3

    def add(_: str, value: torch.Tensor) -> None:
        logged[training.step] += float(value.detach())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statagent, "log_scalar", add)
        patch.setattr(statagent, "log_batch", lambda **_: None)
        for training.step in range(3):
            training.train_step()
    return logged


def test_a_set_up_on_two_ranks_is_recorded_by_both_with_its_twins(shared_collector: Collector, tmp_path: Path) -> None:
    run = "flow_fsdp2-plain"
    jobs = [job for job in pairs.jobs_of(pairs.plan("flow_fsdp2", "tiny"), twins=True) if job["run"] in (run, f"{run}.twin-1-1")]
    assert launch.record_all(shared_collector.address, jobs, tmp_path, processes=1) == {run, f"{run}.twin-1-1"}
    assert [shared_collector.json("show", job["run"])["summary"]["ranks"] for job in jobs] == [2, 2]
    report_ = shared_collector.diff(run, f"{run}.twin-1-1", "--exact", "--steps", "0", "--all")
    assert {row["rank"] for row in report_["diverged"]} == {0, 1}


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_runs_of_a_plan_have_one_meaning_each() -> None:
    planned = pairs.plan("gan", "full")
    jobs = pairs.jobs_of(planned)
    assert len({job["run"] for job in jobs}) == len(jobs)
    named = {job["run"]: (job["legal"], job["bug"], job["size"]) for job in jobs}
    own = [pair for pair in planned if "~" not in pair.legal]  # the others compare two legal changes
    assert all(named[pair.run_b] == (pair.legal, pair.bug, pair.size) for pair in own)


def test_every_baseline_has_its_twins_behind_it() -> None:
    planned = pairs.plan("gan", "medium")
    names = [job["run"] for job in pairs.jobs_of(planned, twins=True)]
    plain = [job["run"] for job in pairs.jobs_of(planned)]
    for base in ("gan-plain", f"gan-plain-{families.LONG}steps"):
        at = names.index(base)
        assert names[at + 1 : at + 6] == [f"{base}.twin-{noise}" for noise in ("1-1", "1-2", "32-1", "1024-1", "32768-1")]
    assert [name for name in names if ".twin-" not in name] == plain and len(names) == len(plain) + 10
    twin = next(job for job in pairs.jobs_of(planned, twins=True) if job["run"] == "gan-plain.twin-32-1")
    assert (twin["twin_of"], twin["perturb"], twin["legal"], twin["bug"]) == ("gan-plain", [32, 1], "", "")


def test_a_twin_is_asked_for_while_it_trains_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(record.PERTURB, raising=False)
    with record.perturbed({"run": "a.twin-32-1", "twin_of": "a", "perturb": [32, 1]}):
        assert os.environ[record.PERTURB] == "32,1"
    with pytest.raises(ZeroDivisionError), record.perturbed({"perturb": [1, 2]}):
        raise ZeroDivisionError
    assert record.PERTURB not in os.environ
    with record.perturbed({"run": "a"}):
        assert record.PERTURB not in os.environ


def test_runs_that_an_earlier_recording_did_not_finish_are_forgotten_twins_too(collector: Collector) -> None:
    script = "import statagent; statagent.init(required=True); statagent.log_scalar('loss', 1.0); statagent.close(timeout=20)"
    for perturb in ({}, {"STATAGENT_PERTURB": "1"}, {"STATAGENT_PERTURB": "32"}):
        collector.python(script, env={"STATAGENT_RUN": "gan-plain", **perturb})
    forget_unfinished(collector, {"gan-plain", "gan-plain.twin-1-1"})
    assert {run["run"] for run in collector.json("runs", "--twins")["runs"]} == {"gan-plain", "gan-plain.twin-1-1"}


def test_a_pair_is_kept_with_its_twins_only_if_they_were_asked_for() -> None:
    planned = [replace(PAIR, bug=""), replace(PAIR, bug="", legal="threads~split_k", run_a="c", run_b="b")]
    kept = partial(kept_pairs, planned)
    assert kept({"a", "b", "c"}, twins=False) == planned
    assert kept({"a", "b", "c", *pairs.twins_of("a")}, twins=True) == planned
    assert kept({"a", "b", "c", *pairs.twins_of("a")[1:]}, twins=True) == planned[1:]


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


def test_an_answer_says_from_how_many_twins_it_was_measured() -> None:
    noise = {"twins": 2, "scale": [1, 1]}
    assert answered(PAIR, "diverged", first=ROW, noise=noise).twins == 2
    assert answered(PAIR, "diverged", first=ROW, noise=None).twins == 0
    assert answered(PAIR, "diverged", first=ROW).twins == 0, "of a build that knows no twins"


def family_results(alarms: int, exact: int, twins: bool) -> list[Result]:
    """Of flow: four clean pairs, four bugs of 20 times rounding and one of 5; one pair of two legal changes."""
    noise = {"twins": 1} if twins else None
    root = {**ROW, "cause": {"rule": "module_setting"}}
    own = replace(PAIR, family="flow", half="unseen", run_a="flow-plain")
    found = [answered(replace(own, bug=""), "diverged" if i < alarms else "identical", first=ROW, noise=noise) for i in range(4)]
    for i in range(4):
        place = root if i < exact else {**root, "step": 5}
        found.append(answered(replace(own, effect=20.0), "diverged", root=place, noise=noise))
    found.append(answered(replace(own, effect=5.0), "within_tolerance", explained="rounding", noise=noise))
    return [*found, answered(replace(own, bug="", legal="threads~split_k"), "diverged", first=ROW)]


def test_the_headline_has_each_family_with_and_without_twins() -> None:
    runs = {"with twins": family_results(0, 4, twins=True), "without twins": family_results(3, 2, twins=False)}
    table = report.headline(runs)
    assert [row[0] for row in table] == ["family", "all", "unseen", "flow", "between two legal changes"]
    clean, large, small, cause = (("0.0 % (0/4)", "75.0 % (3/4)"), ("100.0 % (4/4)", "50.0 % (2/4)"),
                                  ("0.0 % (0/1)", "0.0 % (0/1)"), ("100.0 % (4/4)", "100.0 % (2/2)"))  # fmt: skip
    assert table[1] == ("all", *clean, *large, *small, *cause) and table[3][1:] == table[1][1:]
    assert table[-1][1:3] == ("100.0 % (1/1)", "100.0 % (1/1)"), "no twins of the first run: not among the others"
    assert table[0][1:3] == ("clean = bug, with twins", "clean = bug, without twins")
    assert report.measured(runs).splitlines() == [
        "with twins: rounding was measured from twins in 100.0 % (9/9)",
        "without twins: rounding was measured from twins in 0.0 % (0/9)",
    ]


def test_the_cost_of_a_twin_is_its_time_beside_the_baselines_own() -> None:
    twins = dict.fromkeys(pairs.twins_of("flow-plain"), 1.2)
    seconds = {"flow-plain": 3.0, "flow-plain-again": 1.0, **twins}  # the first run also started torch
    results = family_results(0, 4, twins=True)
    assert report.cost(results, seconds)[1:] == [("all", "1.00", "1.20", "1.20 times"), ("flow", "1.00", "1.20", "1.20 times")]
    assert len(report.cost(results, {"flow-plain": 3.0})) == 1, "recorded without twins"


def test_results_with_and_without_twins_are_read_side_by_side(tmp_path: Path) -> None:
    for asked, name in RESULTS.items():
        (tmp_path / name).write_text(score.as_json(family_results(1, 4, asked == "with twins")), encoding="utf-8")
    assert list(read_results(tmp_path, None)) == ["with twins", "without twins"]
    (tmp_path / RESULTS["with twins"]).unlink()
    found = read_results(tmp_path, None)
    assert list(found) == ["without twins"] and found["without twins"] == family_results(1, 4, twins=False)
    with pytest.raises(SystemExit, match="run `score` first"):
        read_results(tmp_path / "nowhere", None)


def test_data_of_a_benchmark_can_be_kept_in_a_manifest(tmp_path: Path) -> None:
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
