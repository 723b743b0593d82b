"""`python -m verdict_bench record | effects | score | report`, in tests/e2e; see --help of each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from conftest import Collector

from verdict_bench import curves, effects, families, launch, pairs, report, score

RESULTS = {"with twins": "results.json", "without twins": "results-without-twins.json"}
Runs = dict[str, Sequence[score.Result]]


def record(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.data)
    folder.mkdir(parents=True, exist_ok=True)
    planned = [pair for name in installed(arguments.families) for pair in pairs.plan(name, arguments.subset, arguments.optional)]
    before = launch.recorded_in(folder / "jobs")
    wanted = pairs.jobs_of(planned, twins=not arguments.no_twins)
    jobs = [{**job, "seed": arguments.seed} for job in wanted if job["run"] not in before]
    started = time.monotonic()
    print(f"{len(planned)} pairs; {len(before)} runs are recorded already, {len(jobs)} to do", file=sys.stderr, flush=True)
    collector = Collector(folder / "data").start()
    try:
        forget_unfinished(collector, before)
        recorded = launch.record_all(collector.address, jobs, folder / "jobs", arguments.jobs)
        kept = kept_pairs(planned, before | recorded, twins=not arguments.no_twins)
        write_manifest(folder, kept)
        effects.measure_all(kept, collector)
        write_manifest(folder, kept)
    finally:
        collector.stop()
    seconds = time.monotonic() - started
    print(f"recorded {len(recorded)} of {len(jobs)} runs in {seconds:.0f} s, {len(kept)} pairs", file=sys.stderr)
    return 0 if len(recorded) == len(jobs) else 1


def installed(names: Sequence[str]) -> list[str]:
    """The families whose packages are there; the others are said to be skipped."""
    for name in names:
        if families.missing(name):
            print(f"{name} is skipped: {families.missing(name)} is not installed", file=sys.stderr)
    return [name for name in names if not families.missing(name)]


def forget_unfinished(collector: Collector, recorded: set[str]) -> None:
    """Removes runs that were under way when an earlier recording ended."""
    for run in collector.json("runs", "--twins")["runs"]:
        if run["run"] not in recorded:
            collector.statctl("rm", run["run"], "--yes", "--force")


def kept_pairs(planned: list[pairs.Pair], recorded: set[str], twins: bool) -> list[pairs.Pair]:
    """The pairs whose runs were all recorded, with the baseline's twins if these were asked for."""

    def needed(pair: pairs.Pair) -> set[str]:
        noise = pairs.twins_of(pair.run_a) if twins and pairs.has_baseline(pair) else []
        return {pair.run_a, pair.run_b, *([effects.alone_of(pair)] if pair.bug else []), *noise}

    return [pair for pair in planned if needed(pair) <= recorded]


def write_manifest(folder: Path, kept: list[pairs.Pair]) -> None:
    text = json.dumps({"pairs": [asdict(pair) for pair in kept]}, indent=1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> list[pairs.Pair]:
    found = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return [pairs.Pair(**pair) for pair in found["pairs"]]


def measure(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.data)
    found = read_manifest(folder)
    collector = Collector(folder / "data").start()
    try:
        effects.measure_all(found, collector)
    finally:
        collector.stop()
    write_manifest(folder, found)
    return 0


def ask(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.data)
    chosen = [pair for pair in read_manifest(folder) if pair.family in arguments.families]
    collector = Collector(folder / "data").start()
    try:
        results = score.ask_all(collector, chosen, arguments.jobs, ["--no-noise"] if arguments.without_twins else [])
    finally:
        collector.stop()
    asked = "without twins" if arguments.without_twins else "with twins"
    Path(arguments.results or folder / RESULTS[asked]).write_text(score.as_json(results), encoding="utf-8")
    print(report.text({asked: results}, launch.seconds_in(folder / "jobs")))
    return 0


def read_results(folder: Path, chosen: str | None) -> Runs:
    """The chosen file, or those with and without twins, as far as they exist."""
    files = {"results": Path(chosen)} if chosen else {asked: folder / name for asked, name in RESULTS.items()}
    found = {asked: path for asked, path in files.items() if path.exists()}
    if not found:
        sys.exit(f"report: found none of {', '.join(map(str, files.values()))}; run `score` first")
    return {asked: [score.Result(**row) for row in json.loads(path.read_text(encoding="utf-8"))] for asked, path in found.items()}


def show(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.data)
    runs = read_results(folder, arguments.results)
    print(report.text(runs, launch.seconds_in(folder / "jobs"), report.markdown if arguments.markdown else report.aligned))
    results = next(iter(runs.values()))
    if arguments.wrong is not None:
        print(f"\n{report.wrong(results, arguments.wrong)}")
    if arguments.curves:
        written = curves.write(results, Path(arguments.curves))
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="verdict_bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="train every run of the pairs into DIR/data, and write DIR/manifest.json")
    recording.add_argument("--subset", choices=sorted(pairs.SUBSETS), default="small")
    recording.add_argument("--optional", action="store_true", help="also legal changes that take long: compiled models")
    recording.add_argument("--seed", type=int, default=0, help="other weights, data and masks than those of seed 0 (default)")
    recording.add_argument("--no-twins", action="store_true", help="leave out the twins of the baselines: five runs of each")
    recording.set_defaults(run=record)
    measuring = commands.add_parser("effects", help="measure again how large each bug is beside rounding")
    measuring.set_defaults(run=measure)
    asking = commands.add_parser(
        "score", help="ask for the verdict of each pair, write the results into DIR and print the tables"
    )
    asking.add_argument("--without-twins", action="store_true", help="judge without measured noise, into results of their own")
    asking.set_defaults(run=ask)
    showing = commands.add_parser("report", help="print the tables of results, with and without twins side by side")
    showing.add_argument("--markdown", action="store_true")
    showing.add_argument("--wrong", type=float, metavar="TIMES", help="list what is wrong of bugs from so many times rounding")
    showing.add_argument("--curves", metavar="FOLDER", help="write pictures of the results there, as SVG")
    showing.set_defaults(run=show)
    for command in (recording, measuring, asking, showing):
        command.add_argument("--data", required=True, metavar="DIR")
    for command in (recording, asking):
        command.add_argument(
            "--families",
            type=families.chosen,
            default=list(families.ALL),
            help="names, or fitted, reported, unseen, set-up, case",
        )
        command.add_argument("--jobs", type=int, default=2, help="processes or questions at a time (default 2)")
    for command in (asking, showing):
        command.add_argument("--results", metavar="FILE", help="instead of those in DIR")
    return parser.parse_args()


if __name__ == "__main__":
    parsed = parse_arguments()
    sys.exit(parsed.run(parsed))
