"""What must have the same answer over every store."""

from __future__ import annotations

import csv
import io
from typing import Any

from conftest import Collector


def without_places(answer: Any) -> Any:
    """What must be equal over two stores: not when, how long and at which address."""
    if isinstance(answer, dict):
        return {k: without_places(v) for k, v in answer.items() if not any(part in k for part in ("time", "url", "page", "bytes", "start", "last_write"))}  # fmt: skip
    return [without_places(v) for v in answer] if isinstance(answer, list) else answer


def questions_about(collector: Collector, seeds: range) -> list[list[str]]:
    """About the runs that naive.check.write_runs makes of the seeds."""
    questions = [["runs"]]
    for seed in seeds:
        a, b = f"a{seed}", f"b{seed}"
        tensor = next(csv.DictReader(io.StringIO(collector.statctl("export", "csv", a, "-").out)))["activation"]
        questions += [
            ["diff", a, b, "--all"], ["diff", a, b, "--tolerance", "1e-2"], ["diff", a, b, "--exact"], ["diff", a, b, "--first"],
            ["diff", a, b, "--merge-ranks"], ["show", a], ["series", a, tensor], ["ranks", b], ["top", a], ["summary", b],
            ["scalars", a], ["scalars", a, "--against", b], ["config", a, b], ["memory", a], ["density", a], ["captures", a],
            ["events", b],
        ]  # fmt: skip
    return questions


def differing_answers(expected: Collector, found: Collector, seeds: range) -> list[str]:
    """A line for each question that the two collectors answer differently."""
    wrong: list[str] = []
    for question in questions_about(expected, seeds):
        one, other = (asked.statctl("--format", "json", *question) for asked in (expected, found))
        words = [answer.err.replace(asked.data_dir.parent.name, "") for asked, answer in ((expected, one), (found, other))]
        same = one.code == other.code and words[0] == words[1] and bool(one.out) == bool(other.out)
        if not same or (one.out and without_places(one.json()) != without_places(other.json())):
            wrong.append(f"{' '.join(question)}: exit codes {one.code} and {other.code}, {one.err!r} and {other.err!r}")
    for seed in seeds:
        for run in (f"a{seed}", f"b{seed}"):
            rows = [asked.statctl("export", "csv", run, "-", "--sketch").out for asked in (expected, found)]
            if rows[0] != rows[1] or rows[0].count("\n") < 2:
                wrong.append(f"export of {run}: {rows[0].count(chr(10))} and {rows[1].count(chr(10))} lines")
    return wrong
