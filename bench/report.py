"""Fills the tables in README.md from the newest result file of each kind.

python bench/report.py            # writes every table
python bench/report.py --check    # changes nothing; exit code 1 if a table differs from the results"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine
import host_path
import ingest
import overhead
from result_files import caption, newest

README = Path(__file__).resolve().parent / "README.md"
Render = Callable[[dict[str, Any]], str]


def _of(keep: Callable[[dict[str, Any]], bool], render: Render) -> Render:
    """Renders only the rows that are kept; the JSON has all."""
    return lambda result: render({**result, "rows": [row for row in result["rows"] if keep(row)]})


RENDERERS: dict[str, Render] = {
    "engine": _of(lambda row: row["dtype"] in ("f32", "bf16", "f16"), engine.render),
    "host_path": _of(lambda row: "beside" not in row and " 1024 " not in row["name"], host_path.render),
    "overhead": overhead.render,
    "overhead_gpu": overhead.render,
    "one_run": _of(lambda row: row["section"] == "rivals", ingest.render),
}


def fill(text: str, tables: dict[str, str]) -> str:
    """The text with every table between its markers replaced. ValueError if one has no markers."""
    for what, content in tables.items():
        begin, end = f"<!-- {what}: written by report.py -->", f"<!-- /{what} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"write the table '{what}': found no lines '{begin}' and '{end}'; expected both in {README.name}")
        text = f"{before}{begin}\n{content}\n{end}{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; report whether the tables are up to date")
    arguments = parser.parse_args()
    found = {what: (newest(what), render) for what, render in RENDERERS.items()}
    tables = {
        what: f"{caption(result)}\n\n{render(result)}" if result else "_not measured_" for what, (result, render) in found.items()
    }
    now = README.read_text(encoding="utf-8")
    wanted = fill(now, tables)
    if arguments.check:
        print("up to date" if wanted == now else f"{README.name} differs from the results; run python bench/report.py")
        return 0 if wanted == now else 1
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
