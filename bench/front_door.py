"""What the front door costs: a training of a few steps under `statctl run` and without, and a diff by a collector that runs and by statctl's
own, in turn.

python bench/front_door.py                # nine turns of each; prints a table and writes nothing
python bench/front_door.py --write        # also bench/results/<date>-front-door.json"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import result_files
from collector import Collector

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
"""
BIN = machine.BUILD / "bin"
STATCTL = str(BIN / "statctl")
GOALS = {"a start, as statctl run": ("a start", 0.3), "a diff, own collector": ("a diff, a collector that runs", 0.5)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="of each way (default 9)")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    facts = machine.facts()
    with tempfile.TemporaryDirectory(prefix="statcollect-front-door-") as folder:
        seconds = _measure(Path(folder), arguments.turns)
    rows = []
    print("| | least, s | median, s | processor, s |\n| --- | ---: | ---: | ---: |")
    for what, taken in seconds.items():
        walls, used = (sorted(each) for each in zip(*taken))
        middle = len(walls) // 2
        row = {"what": what, "least": walls[0], "median": walls[middle], "processor": used[middle]}
        rows.append({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
        print(f"| {what} | {walls[0]:.3f} | {walls[middle]:.3f} | {used[middle]:.3f} |")
    found = {str(row["what"]): row for row in rows}
    for more, (less, goal) in GOALS.items():
        print(f"{more}: {float(found[more]['least']) - float(found[less]['least']):+.3f} s; goal {goal}")
    if arguments.write:
        print(result_files.write("front_door", {"turns": arguments.turns}, facts, rows))
    return 0


def _measure(folder: Path, turns: int) -> dict[str, list[tuple[float, float]]]:
    seconds: dict[str, list[tuple[float, float]]] = {}
    (folder / "train.py").write_text(TRAIN)
    train = [sys.executable, "train.py"]
    ours = ("STATAGENT_", "STATCTL_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # pip compiles what it installs
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def run(what: str, *command: str) -> None:
        before, begin = os.times(), time.monotonic()
        subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall, after = time.monotonic() - begin, os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        seconds.setdefault(what, []).append((wall, used))

    own = [STATCTL, "--data-dir", str(folder / "own")]
    with Collector(folder) as collector:
        there = [STATCTL, "--collector", collector.address]
        for kind in (own, there):
            run("", *kind, "run", "a", "--", *train)
            run("", *kind, "run", "b", "--", *train)
        seconds.clear()
        for turn in range(turns):
            run("a start", *train)
            run("a start, as statctl run", *own, "run", f"r{turn}", "--", *train)
            run("a start, as statctl run with a collector that runs", *there, "run", f"r{turn}", "--", *train)
            run("a diff, a collector that runs", *there, "diff", "a", "b")
            run("a diff, own collector", *own, "diff", "a", "b")
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
