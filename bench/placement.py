"""What a layout adds to the recording of a tensor: processor time of the training thread, with `layouts=` and without.

python bench/placement.py                          # a minute; writes results/<date>-placement.json
python bench/placement.py --repeats 3 --output /tmp/placement.json

Processes with and without a layout take turns, and of each the fastest step counts, so that other work on the machine matters little."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

sys.path.insert(0, str(machine.REPOSITORY / "agent" / "python"))
os.environ.setdefault("STATAGENT_LIBRARY", str(machine.BUILD / "lib" / "libstatagent.so"))

MODULES = 64  # outputs of one forward pass
SIZES = {"16 KiB": (64, 64), "256 KiB": (256, 256), "4 MiB": (1024, 1024)}  # f32
WAYS = {"none": None, "rows": 0, "columns": 1}  # the dimension of which this rank has the second of four parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="processes of each kind (default 7)")
    parser.add_argument("--steps", type=int, default=30, help="of each process and size (default 30)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-placement.json)")
    parser.add_argument("--measure", nargs=2, metavar=("ADDRESS", "WAY"), help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure[0], arguments.measure[1], arguments.steps)))
        return 0
    facts = machine.facts()
    fastest: dict[tuple[str, str], float] = {}
    with Collector() as collector:
        for _ in range(arguments.repeats):
            for way in WAYS:
                command = [sys.executable, __file__, "--steps", str(arguments.steps), "--measure", collector.address, way]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
                for size, microseconds in json.loads(done.stdout).items():
                    fastest[size, way] = min(fastest.get((size, way), microseconds), microseconds)
    rows = [
        {"size": size, "way": way, "microseconds": round(fastest[size, way], 3),
         "ratio": round(fastest[size, way] / fastest[size, "none"], 4)}
        for size in SIZES for way in WAYS
    ]  # fmt: skip
    parameters = {"repeats": arguments.repeats, "steps": arguments.steps, "modules": MODULES}
    path = result_files.write("placement", parameters, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def render(result: dict[str, Any]) -> str:
    header = ["tensor, cut by", "microseconds a record", "of that without a layout"]
    return result_files.table(
        header, [[f"{row['size']}, {row['way']}", f"{row['microseconds']:.2f}", f"{row['ratio']:.3f}"] for row in result["rows"]]
    )


def _measure(address: str, way: str, steps: int) -> dict[str, float]:
    """For each size, microseconds of this thread for a module's output in the fastest step."""
    import torch

    import statagent

    torch.set_num_threads(1)
    statagent.init(run=f"placement-{way}", collector=address, required=True, if_exists="append")

    class Same(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)  # a tensor of its own, without work

    model = torch.nn.Sequential(*(Same() for _ in range(MODULES)))
    dim = WAYS[way]
    if dim is None:
        statagent.watch(model)
    else:
        statagent.watch(model, layouts={"*": statagent.shard(dim, (1, 4))})
    found: dict[str, float] = {}
    for name, shape in SIZES.items():
        tensor = torch.randn(shape)
        times = []
        for _ in range(steps):
            begun = time.thread_time_ns()
            model(tensor)
            times.append((time.thread_time_ns() - begun) / MODULES / 1000)
            statagent.step()
        found[name] = min(times)
    statagent.close(timeout=20)
    counts = statagent.counters()
    assert counts["produced"] >= len(SIZES) * steps * MODULES, counts  # it was recorded
    return found


if __name__ == "__main__":
    sys.exit(main())
