"""Planted faults in real training runs on 1 and 2 ranks: `statctl diff` names each at its place, and raises no false alarm."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT, Collector
from contradictions.ask import ask as read
from contradictions.check import contradictions
from fault_catalogue import alarms, noise
from fault_catalogue import faults as _faults  # enters the faults
from fault_catalogue.catalogue import WORLDS, ask_clean, names_of, record, short_selection
from fault_catalogue.check import ask
from fault_catalogue.clean import CLEAN
from fault_catalogue.fault import FAULTS

assert _faults
# On two ranks a selection, unless STATCOLLECT_FAULT_CATALOGUE=full; `python tests/e2e/fault_catalogue` runs everything, too.
FULL = os.environ.get("STATCOLLECT_FAULT_CATALOGUE") == "full"
CHOSEN = {1: (list(FAULTS), list(CLEAN)), 2: (list(FAULTS), list(CLEAN)) if FULL else short_selection()}
PLACES = [(name, world) for world in WORLDS for name in CHOSEN[world][0] if world in FAULTS[name].worlds]
REPEATS = [(name, world) for world in WORLDS for name in CHOSEN[world][1]]


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> Collector:
    """Every run of the catalogue: one process for those of one rank, one launch of torchrun for those of two."""
    for world in WORLDS:
        record(shared_collector, names_of(world, *CHOSEN[world]), world)
    return shared_collector


@pytest.mark.parametrize(("name", "world"), PLACES)
def test_planted_fault_is_found_where_it_was_planted(recorded: Collector, name: str, world: int) -> None:
    answer = ask(recorded, FAULTS[name], world)
    assert not answer.wrong, "\n".join([FAULTS[name].change, *answer.wrong, "", answer.table])


@pytest.mark.parametrize(("name", "world"), REPEATS)
def test_run_without_a_fault_is_no_alarm(recorded: Collector, name: str, world: int) -> None:
    repeat = ask_clean(recorded, CLEAN[name], world)
    assert repeat.verdict in ("identical", "within_tolerance")
    assert repeat.verdict == "identical" or not name.startswith("repeat_")
    assert repeat.largest < 3e-5, "six steps of Adam must not bring rounding near the tolerance of 1e-4"


def test_no_answer_contradicts_itself(recorded: Collector) -> None:
    """About all that the catalogue has, clean runs and noise included; test_contradictions.py has more pairs."""
    record(recorded, noise.names(), 1)
    pairs = [(f"base-{FAULTS[name].base}.{world}", f"{name}.{world}") for name, world in PLACES]
    pairs += [(f"base-{CLEAN[name].base}.{world}", f"{name}.{world}") for name, world in REPEATS]
    asked: list[tuple[str, ...]] = [*pairs]
    learned = ",".join(f"{repeat}.1" for repeat in noise.LEARNED)
    for name in noise.ASKED:
        asked += [(f"base-{noise.BASE}.1", f"{name}.1"), (f"base-{noise.BASE}.1", f"{name}.1", "--noise", learned)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda question: contradictions(read(recorded, *question)), asked))
    wrong = [f"{' '.join(question)}: {text}" for question, texts in zip(asked, found) for text in texts]
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("name", ["permuted_features", "transposed_weight"])
def test_what_keeps_every_summary_statistic_is_seen_by_the_sketch(recorded: Collector, name: str) -> None:
    first = ask(recorded, FAULTS[name], 1).first
    assert first is not None
    assert first["distance_kind"] == "sketch" and first["distance"] > 0.5
    for statistic in ("min", "max", "nan"):
        assert first["a"][statistic] == first["b"][statistic]
    for statistic in ("mean", "std", "l2"):
        assert first["a"][statistic] == pytest.approx(first["b"][statistic], rel=1e-6, abs=1e-8)


def test_rounding_noise_differs_in_bits_so_that_its_verdict_means_something(recorded: Collector) -> None:
    for name in ("summed_in_2_parts", "summed_in_4_parts", "summed_backwards", "fused_attention"):
        repeat = ask_clean(recorded, CLEAN[name], 1)
        assert 0 < repeat.largest and repeat.identical < repeat.records, name


def test_documentation_lists_every_fault() -> None:
    for page, program in (("fault-catalogue.md", "fault_catalogue"), ("alarms-catalogue.md", "fault_catalogue/alarms.py")):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for name in [*FAULTS, *CLEAN]:
            assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), (
                f"{name}: run python tests/e2e/{program} --write-docs"
            )


def test_a_run_raises_an_alarm_if_numbers_break_and_none_if_nothing_is_wrong(recorded: Collector) -> None:
    """Alarms of six steps; docs/alarms-catalogue.md has those that need more steps."""
    alarms.judged(recorded)
    for name, place in (
        ("overflow", "blocks.1.mlp.fc1"),
        ("inf_in_gradient", "blocks.0.mlp.act"),
        ("nan_in_backward", "blocks.1.ln2"),
    ):
        (first,) = [e for e in alarms.alarms_of(recorded, f"{name}.1") if e["kind"] == "nan_first_seen"]
        assert (first["step"], first["fields"]["activation"]) == (FAULTS[name].expected.step, place)
    raised = {f"{name}.{world}": alarms.alarms_of(recorded, f"{name}.{world}") for name, world in REPEATS}
    assert not {run: found for run, found in raised.items() if found}


def test_what_only_one_run_recorded_is_told_from_what_differs(recorded: Collector) -> None:
    done = recorded.statctl("diff", "base-plain.1", "recorded_outputs.1")
    assert done.code == 0
    assert "records compared are equal bit for bit; others exist in only one run." in done.out.splitlines()[0]
