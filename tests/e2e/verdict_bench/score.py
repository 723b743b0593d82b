"""Asks `statctl diff` for the verdict of each pair, and holds it against what was planted."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from conftest import Collector

from verdict_bench.effects import matches
from verdict_bench.pairs import Pair

Row = dict[str, Any]


@dataclass
class Result:
    """`found` and `exact` are of the root; `first_*` of the first difference above the tolerance, the baseline."""

    pair: dict[str, Any]
    verdict: str
    seconds: float
    has_root: bool  # whether this build names roots at all, or this report has none to name
    alarm: bool
    exact: bool
    found: str
    confidence: str
    cause: str
    cause_right: bool | None  # None: no rule is expected
    cause_text: str
    alternative: bool  # an alternative is exact
    explained: str
    times_expected: float | None
    first_alarm: bool
    first_exact: bool
    first_found: str
    because: list[str] = field(default_factory=list)
    twins: int = 0  # from how many the report measured rounding


def place_of(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['step']} {row['stage']} {row['activation']} {row['kind'] or ''}".rstrip()


def is_exact(row: Row | None, pair: Pair) -> bool:
    return row is not None and bool(pair.bug) and row["step"] == pair.step and matches(row, pair.expected)


def judge(pair: Pair, report: Row, seconds: float) -> Result:
    """What this build cannot report counts as not reported; without roots, the first difference stands in for them."""
    root, first, verdict = report.get("root"), report.get("first"), report["verdict"]
    diverged = verdict == "diverged"
    cause = (root or {}).get("cause") or {}
    rule = cause.get("rule", "")
    expected = root or report.get("explained") or not diverged
    found = root if expected else first
    return Result(
        pair=asdict(pair), verdict=verdict, seconds=seconds, has_root=root is not None,
        alarm=diverged or root is not None, exact=is_exact(found, pair), found=place_of(found),
        confidence=(root or {}).get("confidence", ""), cause=rule, cause_text=cause.get("text", ""),
        cause_right=(rule in pair.causes) if pair.causes else None,
        alternative=any(is_exact(each, pair) for each in (root or {}).get("alternatives") or []),
        explained=report.get("explained") or "", times_expected=(root or {}).get("times_expected"),
        first_alarm=first is not None, first_exact=is_exact(first, pair), first_found=place_of(first),
        because=list((root or {}).get("because") or []), twins=twins_in(report),
    )  # fmt: skip


def twins_in(report: Row) -> int:
    noise = report.get("noise")
    return int(noise.get("twins") or 0) if isinstance(noise, dict) else 0


def ask(collector: Collector, pair: Pair, options: Sequence[str] = ()) -> Result:
    started = time.monotonic()
    report = collector.diff(pair.run_a, pair.run_b, *options)
    return judge(pair, report, round(time.monotonic() - started, 4))


def ask_all(collector: Collector, pairs: Sequence[Pair], at_a_time: int = 2, options: Sequence[str] = ()) -> list[Result]:
    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(lambda pair: ask(collector, pair, options), pairs))


def as_json(results: Sequence[Result]) -> str:
    rows = [{key: None if value == math.inf else value for key, value in asdict(result).items()} for result in results]
    return json.dumps(rows, indent=1)
