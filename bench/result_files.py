"""Result files: results/<date>-<what>.json, and the Markdown that is made from one. The newest of a kind has the last file name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import machine

RESULTS = Path(__file__).resolve().parent / "results"


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
