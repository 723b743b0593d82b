"""Compares one model under every layout: docs/layouts.md has the sums of these tables.

python -m layouts [--steps N] [--layouts A,B] [--bugs X,Y] [--out FILE.md] [--json FILE.json]"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path

from conftest import WARM, Collector

from .cuts import LAYOUTS
from .runs import jobs, record
from .tables import BUGS, ask, bugs_table, pairs_table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m layouts", description="Records one model under every layout and compares each pair."
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of each run (default 20)")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="default: all")
    parser.add_argument("--bugs", default=",".join(bug.name for bug in BUGS), help="default: all")
    parser.add_argument("--out", type=Path, help="write the tables there instead of to the terminal")
    parser.add_argument("--json", type=Path, help="write every report of diff there")
    parser.add_argument("--data", type=Path, help="folder for the collector's data; kept (default: a temporary one)")
    return parser.parse_args()


def main() -> int:
    given = parse()
    names = [name for name in given.layouts.split(",") if name]
    unknown = [name for name in names if name not in LAYOUTS]
    if unknown:
        print(f"layouts: unknown layout {unknown[0]}; expected some of {', '.join(LAYOUTS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        collector = Collector((given.data or Path(temporary)) / "data").start()
        try:
            record(collector, jobs(names, given.bugs.split(","), given.steps), Path(temporary))
            pairs = {(a, b): ask(collector, a, b) for a, b in itertools.combinations(names, 2)}
            bugs = {bug.name: ask(collector, bug.reference, bug.run) for bug in BUGS if bug.name in given.bugs.split(",")}
        finally:
            collector.stop()
            WARM.close()
    text = pairs_table(pairs, names) + "\n\n" + bugs_table(bugs) + "\n"
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    else:
        print(text)
    if given.json:
        reports = {f"{a} {b}": answer.report for (a, b), answer in pairs.items()} | {
            n: answer.report for n, answer in bugs.items()
        }
        given.json.write_text(json.dumps(reports, indent=1), encoding="utf-8")
    good = all(a.verdict in ("identical", "within_tolerance", "rounding") for a in pairs.values())
    return 0 if good and all(bug.found(bugs[bug.name]) for bug in BUGS if bug.name in bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
