"""Each mutant still finds the code that it changes, so that tests/mutants/run.py, which nobody runs every day, can be run on any."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_code_that_a_mutant_changes_is_there_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1, f"find this code and rewrite the mutant: {mutant.old!r}"
