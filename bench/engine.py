"""Throughput of the CPU engine compared with a plain read-and-sum of the same bytes (targets P1, P2): runs statagent_bench.

python bench/engine.py                                  # a tensor of 1 GiB; writes results/<date>-engine.json
python bench/engine.py --mebibytes 64 --rounds 2 --output /tmp/engine.json"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
import result_files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the tensor (default 1024)")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of measurements (default 7)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-engine.json)")
    arguments = parser.parse_args()
    binary = machine.BUILD / "bin" / "statagent_bench"
    if not binary.is_file():
        print(f"engine: {binary} is missing; build it (scripts/build.sh), or set STATCOLLECT_BUILD_DIR", file=sys.stderr)
        return 2
    facts = machine.facts()
    with tempfile.TemporaryDirectory() as folder:
        rows_file = Path(folder) / "rows.json"
        command = [
            str(binary),
            "--mebibytes",
            str(arguments.mebibytes),
            "--rounds",
            str(arguments.rounds),
            "--json",
            str(rows_file),
        ]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            return 1
        rows = json.loads(rows_file.read_text(encoding="utf-8"))["rows"]
    path = result_files.write(
        "engine", {"mebibytes": arguments.mebibytes, "rounds": arguments.rounds}, facts, rows, arguments.output
    )
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def render(result: dict[str, Any]) -> str:
    """The table in README.md."""
    threads = sorted({row["threads"] for row in result["rows"]})
    dtypes: dict[str, dict[int, str]] = {}
    for row in result["rows"]:
        share = f"{row['engine_gb_per_s']:.1f} ({row['ratio']:.2f})"
        dtypes.setdefault(row["dtype"], {})[row["threads"]] = share
    return result_files.table(
        ["dtype", *(f"GB/s (share), {number} thread{'s' if number > 1 else ''}" for number in threads)],
        [[dtype, *(found.get(number, "-") for number in threads)] for dtype, found in dtypes.items()],
    )


if __name__ == "__main__":
    sys.exit(main())
