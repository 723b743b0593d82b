"""Published bugs of how parallelisms compose: diff names each at the tensor where it acts, and nothing where it is absent.

A selection on two ranks; `python tests/e2e/published_bugs` runs all of them and writes the tables of docs/layouts.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Collector
from published_bugs.cases import CASES, Case
from published_bugs.check import QUIET, ask, record, root_of, verdict_of

SELECTED = (
    "label_smoothing",
    "head_norm",
    "context_gradient",
    "expert_scale",
    "final_norm",
    "rank_mean",
    "zigzag_positions",
    "norms_of_contexts",
)
CHOSEN = [case for case in CASES if case.bug in SELECTED]


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    record(shared_collector, CHOSEN, tmp_path_factory.mktemp("published_bugs"))
    return shared_collector


@pytest.mark.parametrize("case", CHOSEN, ids=[case.bug for case in CHOSEN])
def test_published_bug_is_named_where_it_acts_and_its_layout_is_quiet(recorded: Collector, case: Case) -> None:
    answer = ask(recorded, case)
    assert verdict_of(answer.clean) in QUIET, (root_of(answer.clean), answer.clean["notes"])
    assert answer.found, (verdict_of(answer.faulty), answer.root, answer.faulty["notes"])


def test_each_case_has_a_source_and_a_place_where_it_acts() -> None:
    assert len(CHOSEN) == len(SELECTED) and len({case.bug for case in CASES}) == len(CASES)
    assert all(case.source and case.text and case.acts and case.ranks in (2, 4) for case in CASES)


def test_the_documentation_has_every_case() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "layouts.md").read_text(encoding="utf-8")
    assert all(f"\n{case.source} | {case.layout} | {case.text} | " in page for case in CASES)
