"""scripts/measure_code.py counts what it says, in a small tree and in this one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "scripts/measure_code.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rows(table: str) -> dict[str, tuple[str, str, str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return {what: (now, goal, met) for what, now, goal, met in cells[2:]}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree of which every figure is known."""
    files = {
        "server/query/query.h": '// Facade.\n#include "server/query/diff/diff.h"\n#include "server/query/compare/pair.h"\n',
        "server/query/diff/diff.h": '#include "server/query/compare/pair.h"\n',
        "server/query/diff/diff.cc": '#include "server/query/diff/diff.h"\n#include "server/query/compare/pair.h"\n',
        "server/query/compare/pair.h": "// One.\n// Two.\nint pair;\nint other;  // not a line of comment\n",
        "server/query/compare/tally.cc": "int tally;\n",
        "server/store/store.h": "int " + "x" * 97 + ";\n" + "int " + "y" * 95 + ";\n",  # 102 and 100 columns
        "server/api/convert/runs.cc": "int runs;\n",
        "server/daemon/main.cc": "int main() {}\n",
        "tests/server/store_test.cc": "int not_counted;\n",
        "README.md": "Three words | here\n",
        "CHANGELOG.md": "not counted\n",
        "CONTRIBUTING.md": "Goals:\n\n<!-- goals: written by scripts/measure_code.py -->\n<!-- /goals -->\n\nAfter.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def test_every_figure_of_a_small_tree_is_as_counted_by_hand(small: Path) -> None:
    found = {what: now for what, (now, _, _) in rows(run("--root", small).stdout).items()}
    assert found == {
        "lines of server": "15",
        "lines of server/query": "11",
        "lines of query: compare, diff": "8",
        "lines of query: verdict, cause, settings": "0",
        "lines of query: the rest": "3",
        "lines of store": "2",
        "lines of api": "1",
        "lines of all other rooms": "1",
        "`.cc` files without their own header": "1",  # tally.cc
        "arrows among query's rooms": "3",
        "comments in headers of server/query/verdict": "0.0 %",
        "comments in headers of server/query/compare": "50.0 %",
        "comments in headers of server/query/logical": "0.0 %",
        "comments in headers of server/store": "0.0 %",
        "lines over 100 columns": "1",
        "words of documentation": "15",  # 4 of the readme, 11 of CONTRIBUTING with its markers
    }


def test_a_figure_says_whether_it_meets_its_goal(small: Path) -> None:
    found = rows(run("--root", small).stdout)
    assert found["lines of server"] == ("15", "<= 46,000", "yes")
    assert found["comments in headers of server/query/compare"][1:] == (">= 15 %", "yes")
    assert found["comments in headers of server/store"][2] == "**no**"
    assert found["lines over 100 columns"] == ("1", "0", "**no**")


def test_the_table_is_written_between_its_marks_and_counts_its_own_words(small: Path) -> None:
    assert run("--root", small, "--write").returncode == 0
    page = (small / "CONTRIBUTING.md").read_text()
    assert page.startswith("Goals:\n") and page.endswith("\n\nAfter.\n")
    assert rows(page) == rows(run("--root", small).stdout)


def test_a_page_without_marks_is_left_as_it_is(small: Path) -> None:
    (small / "CONTRIBUTING.md").write_text("No place.\n")
    done = run("--root", small, "--write")
    assert done.returncode == 1 and "has no lines" in done.stderr
    assert (small / "CONTRIBUTING.md").read_text() == "No place.\n"


def test_rooms_of_this_tree_add_up_to_the_server_and_the_page_has_every_row() -> None:
    found = rows(run().stdout)
    assert set(rows((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("<!-- goals")[2])) == set(found)
    number = {what: float(re.sub(r"[^\d.]", "", now)) for what, (now, _, _) in found.items()}
    of_query = sum(value for what, value in number.items() if what.startswith("lines of query:"))
    assert of_query == number["lines of server/query"]
    others = sum(number[f"lines of {room}"] for room in ("store", "api", "all other rooms"))
    assert of_query + others == number["lines of server"]


def test_it_explains_itself() -> None:
    assert "--write" in run("--help").stdout
