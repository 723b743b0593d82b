"""Result files, and the tables in README.md that are made from them.

    python bench/report.py            # every table again, each from the newest results of its kind
    python bench/report.py --check    # changes nothing; exit code 1 if a table is not what the results say

The newest result of a kind is the one whose file name comes last."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
README = FOLDER / "README.md"


def write(
    what: str, parameters: dict[str, Any], facts: dict[str, Any], rows: list[dict[str, Any]], to: Path | None = None
) -> Path:
    """Writes results/<date>-<what>.json, or the file `to`; returns its path."""
    path = to or RESULTS / f"{machine.today()}-{what.replace('_', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "what": what,
        "date": machine.today(),
        "commit": machine.commit(),
        "machine": facts,
        "parameters": parameters,
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def caption(result: dict[str, Any]) -> str:
    """Where and when a result was measured, in one line."""
    found = result["machine"]
    parts = [result["date"], f"commit {result['commit']}" if result.get("commit") else "", str(found.get("cpu", "")),
             f"{found['cores']} cores" if "cores" in found else "", f"PyTorch {found['torch']}" if found.get("torch") else "",
             f"load before {found['load_before']}" if "load_before" in found else ""]  # fmt: skip
    return "_" + ", ".join(part for part in parts if part) + "_"


def newest(what: str) -> dict[str, Any] | None:
    """The newest result file of a kind."""
    files = sorted(RESULTS.glob(f"*-{what.replace('_', '-')}.json"))
    return json.loads(files[-1].read_text(encoding="utf-8")) if files else None


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


def _renderers() -> dict[str, Callable[[dict[str, Any]], str]]:
    import agent_memory
    import engine
    import host_path
    import ingest
    import overhead

    return {
        "engine": engine.render,
        "host_path": host_path.render,
        "agent_memory": agent_memory.render,
        "overhead": overhead.render,
        "overhead_gpu": overhead.render,
        "ingest": ingest.render,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; say whether the tables are up to date")
    arguments = parser.parse_args()
    found = {what: (newest(what), render) for what, render in _renderers().items()}
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
