"""Compiled programs go on working: the C interface is that of the committed c_abi.txt."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import c_abi

LIBRARY = Path(os.environ.get("STATCOLLECT_BUILD_DIR", c_abi.ROOT / "build" / "release")) / "lib/libstatagent.so"
HEADER, TYPES = c_abi.source(c_abi.HEADER), c_abi.source(c_abi.TYPES)
GOLDEN = c_abi.GOLDEN.read_text(encoding="utf-8")


def test_the_interface_is_the_committed_one() -> None:
    now = c_abi.describe(HEADER, TYPES)
    changes = "\n".join(difflib.unified_diff(GOLDEN.splitlines(), now.splitlines(), "c_abi.txt", "the headers", lineterm="", n=0))
    assert now == GOLDEN, (
        f"compare the C interface with tests/agent/c_abi.txt: found\n{changes}\n{c_abi.breaks(GOLDEN, now) or 'only additions'}; "
        "expected no change; if it is meant, run python tests/agent/c_abi.py --update and follow docs/upgrading.md"
    )


def test_the_library_exports_exactly_these_functions() -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r" T (statagent_\w+)$", listed, re.MULTILINE))
    assert exported == {
        re.split(r"\(", line)[0].rsplit(" ", 1)[1].lstrip("*") for line in GOLDEN.splitlines() if line.startswith("function ")
    }


def test_python_uses_the_same_structures() -> None:
    """The Python package has them once more, for ctypes."""
    sys.path.insert(0, str(c_abi.ROOT / "agent/python"))
    from statagent._native import library

    of_python = {
        each.__name__.lower(): each for each in vars(library).values() if isinstance(each, type) and hasattr(each, "_fields_")
    }
    compared = 0
    for name, places in c_abi.layout(c_abi.structures(HEADER)).items():
        structure = of_python[name.removeprefix("statagent_").replace("_", "")]
        fields = {field: (getattr(structure, field).offset, getattr(structure, field).size) for field, *_ in structure._fields_}
        assert fields == {field: place for field, place in places.items() if field}, name
        compared += 1
    assert compared == 10


CHANGES = {
    "field moved": ("  const char* run;\n  const char* collector;", "  const char* collector;\n  const char* run;", True),
    "field wider": ("uint32_t micro_batch;\n  uint32_t call;", "uint64_t micro_batch;\n  uint32_t call;", True),
    "field inserted": ("  uint32_t kind;\n", "  uint32_t sort;\n  uint32_t kind;\n", True),
    "field added": ("} statagent_options;", "  const char* more;\n} statagent_options;", False),
    "function gone": ("STATAGENT_C_API void statagent_end_step(statagent_agent* agent);", "", True),
    "argument changed": ("statagent_agent* agent, int64_t timeout_ms", "statagent_agent* agent, int32_t timeout_ms", True),
    "function added": ("typedef struct statagent_steps", "STATAGENT_C_API int statagent_more(void);\ntypedef struct statagent_steps", False),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_told_from_an_addition(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, breaking = CHANGES[change]
    changed = HEADER.replace(old, new, 1)
    assert changed != HEADER
    (tmp_path / "agent/include/statagent").mkdir(parents=True)
    (tmp_path / "agent/include/statagent/statagent.h").write_text(changed)
    monkeypatch.setattr(c_abi, "ROOT", tmp_path)
    now = c_abi.describe(changed, TYPES)
    assert now != GOLDEN
    assert bool(c_abi.breaks(GOLDEN, now)) == breaking
