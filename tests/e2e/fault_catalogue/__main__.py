"""Runs the whole catalogue and prints the table: `python tests/e2e/fault_catalogue [--write-docs]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import ROOT, Collector

from fault_catalogue import noise, report
from fault_catalogue.catalogue import WORLDS, ask_clean, ask_with_noise, names_of, record
from fault_catalogue.check import ask
from fault_catalogue.clean import CLEAN
from fault_catalogue.fault import FAULTS


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fault_catalogue", description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"only these; no clean repeats then. Known: {', '.join(FAULTS)}")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=list(WORLDS), choices=WORLDS, help="numbers of ranks (default 1 2)"
    )
    parser.add_argument("--tables", action="store_true", help="print what statctl diff prints for each fault as well")
    parser.add_argument("--write-docs", action="store_true", help="write docs/fault-catalogue.md")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.faults) - set(FAULTS))
    if unknown:
        parser.error(f"unknown faults: {', '.join(unknown)}; expected some of: {', '.join(FAULTS)}")
    if arguments.write_docs and (arguments.faults or set(arguments.ranks) != set(WORLDS)):
        parser.error("--write-docs needs all faults on 1 and 2 ranks; leave out the names and --ranks")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="fault-catalogue-") as folder:
        collector = Collector(Path(folder) / "data").start()
        try:
            return run(collector, arguments)
        finally:
            collector.stop()


def run(collector: Collector, arguments: argparse.Namespace) -> int:
    answers, repeats = [], []
    for world in arguments.ranks:
        started = time.monotonic()
        faults = arguments.faults or list(FAULTS)
        clean = [] if arguments.faults else list(CLEAN)
        record(collector, names_of(world, faults, clean), world)
        print(f"{world} rank(s): recorded in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        answers += [ask(collector, FAULTS[name], world) for name in faults if world in FAULTS[name].worlds]
        repeats += [ask_clean(collector, CLEAN[name], world) for name in clean]
    calibrated = []
    if not arguments.faults and 1 in arguments.ranks:
        record(collector, noise.names(), 1)
        calibrated = [ask_with_noise(collector, name) for name in noise.ASKED]
    if arguments.tables:
        for answer in answers:
            print(f"=== {answer.fault.name} on {answer.world} rank(s): {answer.fault.change}\n\n{answer.table}")
    print(report.text(answers, repeats, calibrated))
    if arguments.write_docs:
        page = ROOT / "docs" / "fault-catalogue.md"
        page.write_text(report.markdown(answers, repeats, calibrated), encoding="utf-8")
        print(f"wrote {page}", file=sys.stderr)
    wrong = any(answer.wrong for answer in answers) or any(repeat.verdict == "diverged" for repeat in repeats)
    return 1 if wrong or not all(each.ok() for each in calibrated) else 0


if __name__ == "__main__":
    sys.exit(main())
