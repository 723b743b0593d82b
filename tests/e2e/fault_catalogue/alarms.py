"""Which alarm catches which fault: `python tests/e2e/fault_catalogue/alarms.py [--write-docs]`.

The catalogue's runs, longer than for diff, so that the rules have steps to learn from before the fault begins; then the alarms that the collector
raised by itself, without a baseline."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import ROOT, Collector, wait_until

from fault_catalogue.catalogue import WORLDS, names_of, record
from fault_catalogue.clean import CLEAN
from fault_catalogue.fault import FAULTS
from fault_catalogue.report import markdown_table

FAULT_STEP, STEPS = 21, 40  # odd, as in the shorter runs: every other step is recorded in some
PAGE = ROOT / "docs" / "alarms-catalogue.md"
NEEDS_TWO = "needs two ranks"
QUIET = {"-", NEEDS_TWO}
SAME = "the same"

INTRODUCTION = f"""# Which alarm catches which planted fault

The faults of the [catalogue](fault-catalogue.md), which says what each is, in trainings of {STEPS} steps on one rank and on two, with the default thresholds ([alarms.md](alarms.md)). Those that begin at a step begin at step {FAULT_STEP}.
Most raise no alarm, because the training goes on with different numbers of the same size; `statctl diff` finds all of them.
An entry is the rule, the step, and the tensor or scalar that it names.

    python tests/e2e/fault_catalogue/alarms.py --write-docs            # writes this page
    python tests/e2e/fault_catalogue/alarms.py overflow --write-docs   # this fault's part of it

"""
QUIET_FAULTS, QUIET_PAIRS, QUIET_RUNS = (
    "No alarm: ",
    "No alarm, on two ranks only: ",
    "Runs without a fault, and without an alarm: ",
)


@dataclass
class Raised:
    """The alarms of one run, in the order of steps."""

    name: str
    world: int
    alarms: list[dict[str, Any]]

    def text(self) -> str:
        return "; ".join(map(_text, self.alarms)) or "-"


def _text(event: dict[str, Any]) -> str:
    fields = event["fields"]
    what = fields.get("activation") or fields.get("name") or fields.get("scalar") or ""
    kind = fields.get("kind", "")
    return f"{event['kind']} {event['step']}" + (f" ({kind} {what})".replace("( ", "(") if what else "")


def alarms_of(collector: Collector, run: str) -> list[dict[str, Any]]:
    """The alarms that the collector raised in a run."""
    events = collector.json("events", run)["records"]
    return sorted((e for e in events if e["fields"].get("severity") == "alarm"), key=lambda e: (e["step"], e["kind"], e["rank"]))


def judged(collector: Collector) -> None:
    """Waits until the rules have seen everything: the last step of a run is judged a while after it."""

    def seen() -> int:
        return int(collector.json("status")["alarms"]["evaluated_records"])

    before = -1

    def settled() -> bool:
        nonlocal before
        now = seen()
        still, before = now == before, now
        time.sleep(2.5)
        return still

    wait_until(settled, timeout=120, what="the alarms to have judged every record")


def ask(collector: Collector, names: list[str], world: int) -> list[Raised]:
    found = []
    for name in names:
        alarms = alarms_of(collector, f"{name}.{world}")
        first: dict[str, dict[str, Any]] = {}
        for event in alarms:
            first.setdefault(event["kind"], event)  # the first of each rule
        found.append(Raised(name, world, list(first.values())))
    return found


Rows = dict[str, list[str]]  # by run: what was raised on one rank, and on two


def rows_of(raised: list[Raised]) -> Rows:
    """The entries of each fault by number of ranks; NEEDS_TWO if a single rank cannot show the fault."""
    found: Rows = {}
    for each in raised:
        found.setdefault(each.name, [NEEDS_TWO, "-"])[WORLDS.index(each.world)] = each.text()
    return found


def read_page() -> Rows:
    """The rows of the page as it is."""
    rows: Rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = line.strip("| ").split(" | ")
        if line.startswith("| ") and (cells[0] in FAULTS or cells[0] in CLEAN or cells[0].startswith("base-")):
            one, two = cells[-2:]
            rows[cells[0]] = [one, one if two == SAME else two]
        for start, quiet in ((QUIET_FAULTS, "-"), (QUIET_PAIRS, NEEDS_TWO), (QUIET_RUNS, "-")):
            if line.startswith(start):
                rows |= {name: [quiet, "-"] for name in line.removeprefix(start).rstrip(".").split(", ")}
    return rows


def shown(row: list[str]) -> tuple[str, str]:
    one, two = row
    return one, SAME if two == one and one not in QUIET else two


def page(rows: Rows) -> str:
    caught = [name for name in FAULTS if set(rows[name]) - QUIET]
    clean = [name for name in rows if name not in FAULTS]
    loud = [name for name in clean if set(rows[name]) - QUIET]
    false = [name for name in loud for cell in rows[name] if cell not in QUIET]
    summary = (
        f"{len(caught)} of {len(FAULTS)} faults raised an alarm. Of {len(clean) * len(WORLDS)} runs without a fault, "
        f"{len(false) or 'none'} raised one.\n"
    )
    faults = [("fault", "1 rank", "2 ranks"), *((name, *shown(rows[name])) for name in caught)]
    quiet = [name for name in FAULTS if name not in caught]
    lists = {
        QUIET_FAULTS: [name for name in quiet if NEEDS_TWO not in rows[name]],
        QUIET_PAIRS: [name for name in quiet if NEEDS_TWO in rows[name]],
        QUIET_RUNS: [name for name in clean if name not in loud],
    }
    without = [("run without a fault", "1 rank", "2 ranks"), *((name, *shown(rows[name])) for name in loud)]
    return "\n".join(
        [INTRODUCTION + summary, *markdown_table(faults), *(f"\n{start}{', '.join(names)}." for start, names in lists.items() if names),
         *(["", *markdown_table(without)] if loud else []), ""]
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="alarms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help="only these; --write-docs then leaves the other rows of the page as they are")
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.faults) - set(FAULTS))
    if unknown:
        parser.error(f"unknown faults: {', '.join(unknown)}; expected some of: {', '.join(FAULTS)}")
    raised: list[Raised] = []
    with tempfile.TemporaryDirectory(prefix="fault-catalogue-") as folder:
        collector = Collector(Path(folder) / "data").start()
        try:
            for world in WORLDS:
                started = time.monotonic()
                names = names_of(world, arguments.faults, []) if arguments.faults else names_of(world)
                steps = {"FAULT_CATALOGUE_STEP": str(FAULT_STEP), "FAULT_CATALOGUE_STEPS": str(STEPS)}
                record(collector, names, world, timeout=7200, **steps)
                judged(collector)
                print(f"{world} rank(s): recorded in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
                raised += ask(collector, names, world)
            skipped = collector.json("status")["alarms"]["skipped_records"]
            assert skipped == 0, f"the rules could not keep up and left {skipped} records out"
        finally:
            collector.stop()
    for each in raised:
        if each.alarms:
            print(f"{each.name} on {each.world} rank(s): {each.text()}")
    if arguments.write_docs:
        PAGE.write_text(page({**(read_page() if arguments.faults else {}), **rows_of(raised)}), encoding="utf-8")
    return 1 if any(each.alarms for each in raised if each.name not in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
