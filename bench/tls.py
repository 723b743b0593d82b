"""What TLS costs: records through one agent until all are acknowledged, and an export and a diff by statctl, with and without it in turn.

python bench/tls.py                       # five turns of each; prints a table and writes nothing
python bench/tls.py --turns 3 --steps 200"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
from collector import Collector

# Prints the seconds from the first observation until every record is acknowledged, and the processor's seconds of this process.
AGENT = """
import numpy, statagent, sys, time
statagent.init(run=sys.argv[1], required=True, buffer_records_max=4_000_000)
values = [numpy.full(16, float(i), numpy.float32) for i in range(1000)]
begin, used = time.monotonic(), time.process_time()
for step in range(int(sys.argv[2])):
    for i, value in enumerate(values):
        statagent.inspect(f"layer.{i}", value)
    statagent.step()
statagent.close(timeout=120)
counters = statagent.counters()
assert counters["acked"] == counters["produced"], counters
print(time.monotonic() - begin, time.process_time() - used)
"""
STATCTL = machine.BUILD / "bin" / "statctl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="of each way (default 5)")
    parser.add_argument("--steps", type=int, default=200, help="of 1000 records each (default 200)")
    arguments = parser.parse_args()
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="statcollect-tls-") as folder:
        certs = Path(folder) / "certs"
        init = [str(machine.BUILD / "bin" / "statcollectord"), "tls", "init", str(certs), "--host", "127.0.0.1"]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
        for turn in range(arguments.turns):
            for way in ("plain", "tls") if turn % 2 == 0 else ("tls", "plain"):
                for what, took in _turn(certs if way == "tls" else None, arguments.steps).items():
                    seconds.setdefault((what, way), []).append(took)
    print("| of one turn | plain, s | TLS, s | ratio |\n| --- | ---: | ---: | ---: |")
    for what in dict.fromkeys(what for what, _ in seconds):
        plain, tls = (statistics.median(seconds[what, way]) for way in ("plain", "tls"))
        print(f"| {what} | {plain:.3f} | {tls:.3f} | {tls / plain:.2f} |")
    return 0


def _turn(certs: Path | None, steps: int) -> dict[str, float]:
    options = [] if certs is None else ["--tls-cert", str(certs / "server.pem"), "--tls-key", str(certs / "server.key")]
    took = {}
    with Collector(options=options) as collector:
        env = {**os.environ, "PYTHONPATH": str(machine.REPOSITORY / "agent" / "python")}
        env["STATAGENT_LIBRARY"] = str(machine.BUILD / "lib" / "libstatagent.so")
        for client in ("STATAGENT", "STATCTL"):
            env[f"{client}_COLLECTOR"] = collector.address
            if certs is not None:
                env[f"{client}_TLS_CA"] = str(certs / "ca.pem")
        for run in ("a", "b"):
            done = subprocess.run(
                [sys.executable, "-c", AGENT, run, str(steps)], env=env, check=True, capture_output=True, text=True
            )
            took["records acknowledged"], took["processor of the agent"] = map(float, done.stdout.split())
        for what, command in (
            ("export", ["export", "csv", "a", str(collector.data_dir.parent / "a.csv")]),
            ("diff", ["diff", "a", "b"]),
            ("runs", ["runs"]),
        ):
            begin = time.monotonic()
            subprocess.run([STATCTL, "--quiet", *command], env=env, check=True, stdout=subprocess.DEVNULL)
            took[f"statctl {what}"] = time.monotonic() - begin
    return took


if __name__ == "__main__":
    sys.exit(main())
