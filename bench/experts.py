"""What experts that are spread over ranks cost a diff: a mixture trained on one rank and on four, each twice, and the diffs of equal layouts
beside the one across them. The goal is 2 times.

python bench/experts.py                             # five minutes; writes results/<date>-experts.json
python bench/experts.py --steps 20 --turns 3 --output /tmp/experts.json"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

PROGRAM = machine.REPOSITORY / "tests" / "e2e" / "expert_runs.py"
RANKS = 4
QUIET = ("identical", "within_tolerance")
DIFFS = {
    "one rank with one": ("one", "one_again"),
    f"{RANKS} ranks with {RANKS}": ("spread", "spread_again"),
    f"{RANKS} ranks with one": ("one", "spread"),
}
ACROSS = f"{RANKS} ranks with one"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="of each run (default 100)")
    parser.add_argument("--layers", type=int, default=8, help="blocks, each with a mixture (default 8)")
    parser.add_argument("--turns", type=int, default=9, help="diffs of each pair (default 9)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-experts.json)")
    arguments = parser.parse_args()
    facts = machine.facts()
    with tempfile.TemporaryDirectory(prefix="statcollect-experts-") as folder, Collector(Path(folder)) as collector:
        for names, ranks in ((("one", "one_again"), 1), (("spread", "spread_again"), RANKS)):
            _train(Path(folder), collector, names, ranks, arguments.steps, arguments.layers)
        rows = _measure(collector, arguments.turns)
    parameters = {"steps": arguments.steps, "layers": arguments.layers, "turns": arguments.turns}
    path = result_files.write("experts", parameters, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def render(result: dict[str, Any]) -> str:
    seconds = {row["diff"]: row["seconds"] for row in result["rows"]}
    return result_files.table(
        ["diff of", "pairs compared", "seconds", "across, of it"],
        [
            [row["diff"], f"{row['pairs']:,}", f"{row['seconds']:.3f}", f"{seconds[ACROSS] / row['seconds']:.2f}"]
            for row in result["rows"]
        ],
    )


def _train(folder: Path, collector: Collector, names: tuple[str, ...], ranks: int, steps: int, layers: int) -> None:
    jobs = [
        {"run": run, "steps": steps, "fault": "", "capacity": 0, "tied": False, "reordered": False, "layers": layers}
        for run in names
    ]
    path = folder / f"{ranks}.json"
    path.write_text(json.dumps(jobs), encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
    env = {
        **os.environ,
        "STATAGENT_COLLECTOR": collector.address,
        "STATAGENT_LIBRARY": str(machine.BUILD / "lib" / "libstatagent.so"),
        "PYTHONPATH": str(machine.REPOSITORY / "agent" / "python"),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, *launcher, str(PROGRAM), str(path)], env=env, check=True, stdout=sys.stderr, timeout=1800)


def _measure(collector: Collector, turns: int) -> list[dict[str, Any]]:
    """Seconds of a diff's answer, the pairs in turns; the first turn does not count."""
    seconds: dict[str, list[float]] = {what: [] for what in DIFFS}
    answers: dict[str, Any] = {}
    for _ in range(turns + 1):
        for what, (a, b) in DIFFS.items():
            begin = time.monotonic()
            with urllib.request.urlopen(f"http://{collector.http}/api/v1/diff?run_a={a}&run_b={b}", timeout=600) as answer:
                found = answer.read()
            seconds[what].append(time.monotonic() - begin)
            answers[what] = json.loads(found)
    for what, report in answers.items():
        if report["verdict"] not in QUIET:
            raise RuntimeError(f"diff of {what}: found {report['verdict']}; expected equal runs")
    return [
        {
            "diff": what,
            "pairs": answers[what]["compared"]["records"],
            "seconds": round(statistics.median(taken[1:]), 4),
            "least": round(min(taken[1:]), 4),
        }
        for what, taken in seconds.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
