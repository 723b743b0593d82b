"""Host time of observing in C++ and Python, in microseconds: of one tensor, one hooked module, and one module outside of the recorded steps;
and of single calls beside a busy Python thread. A real collector stores the records.

    python bench/host_path.py                      # about half a minute; writes results/<date>-host-path.json
    python bench/host_path.py --rounds 5 --output /tmp/host-path.json
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import busy_thread
import machine
import result_files
from collector import Collector

sys.path.insert(0, str(machine.REPOSITORY / "agent" / "python"))
CALLS = 500  # observations, or modules, in one timed loop


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16, help=f"timed loops of {CALLS} calls for each row (default 16)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-host-path.json)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}; expected 1 or more")
    import torch

    os.environ.setdefault("STATAGENT_LIBRARY", str(machine.BUILD / "lib" / "libstatagent.so"))
    import statagent

    torch.set_num_threads(1)
    facts = machine.facts()
    with Collector() as collector:
        agent = statagent.init(run="host-path", collector=collector.address, required=True)
        rows = [
            *_native(collector.address, arguments.rounds),
            *_observations(torch, agent, arguments.rounds),
            *_modules(torch, agent, arguments.rounds),
        ]
        beside = busy_thread.rows(torch, agent, arguments.rounds, _end_step)
        statagent.close(timeout=10)
        lost = {name: n for name, n in statagent.counters().items() if name.startswith("dropped_") and n}
    if lost:
        print(
            f"host_path: found lost records {lost}; expected none, because lost records cost less; run it on an idle machine",
            file=sys.stderr,
        )
        return 1
    path = result_files.write("host_path", {"rounds": arguments.rounds, "calls": CALLS}, facts, rows + beside, arguments.output)
    print(render({"rows": rows + beside}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def render(result: dict[str, Any]) -> str:
    """The tables that are printed; README.md has the first."""
    tables = [
        result_files.table(
            ["microseconds a call", "median", "without the reduction"],
            [
                [row["name"], f"{row['median']:.2f}",
                 f"{row['without_reduction']:.2f}" if row.get("without_reduction") is not None else "-"]
                for row in result["rows"]
                if "beside" not in row and "reduction" not in row["name"] and " 16 " not in row["name"]  # as for 1
            ],
        )
    ]  # fmt: skip
    beside = [row for row in result["rows"] if "beside" in row]
    if beside:
        places = ("alone", "beside")
        tables.append(
            result_files.table(
                ["Python, microseconds a call", *(f"{where}, p50 (p99)" for where in places)],
                [[row["name"], *(f"{row[where]['p50']:.1f} ({row[where]['p99']:.1f})" for where in places)] for row in beside],
            )
        )
    return "\n\n".join(tables)


def _row(name: str, microseconds: list[float], reduction: float | None = None) -> dict[str, Any]:
    found = sorted(microseconds)
    median = statistics.median(found)
    low, high = found[len(found) // 10], found[len(found) * 9 // 10]
    row: dict[str, Any] = {"name": name, "median": round(median, 3), "low": round(low, 3), "high": round(high, 3)}
    row["without_reduction"] = None if reduction is None else round(median - reduction, 3)
    return row


def _timed(loop: Callable[[], None]) -> float:
    """Microseconds per call of a loop over CALLS calls."""
    started = time.perf_counter_ns()
    loop()
    return (time.perf_counter_ns() - started) / CALLS / 1000


def _native(address: str, rounds: int) -> list[dict[str, Any]]:
    """The rows of statagent_host_bench, if it is built."""
    binary = machine.BUILD / "bin" / "statagent_host_bench"
    if not binary.is_file():
        print(f"host_path: {binary} is missing, so the C++ rows are left out; build it (scripts/build.sh)", file=sys.stderr)
        return []
    done = subprocess.run([str(binary), address, str(rounds)], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"statagent_host_bench: {done.stderr.strip()}")
    rows, reduced = [], None
    for found in json.loads(done.stdout):
        reduction = "reduction" in found["name"]
        rows.append(_row(found["name"], [value / 1000 for value in found["nanoseconds"]], None if reduction else reduced))
        reduced = rows[-1]["median"] if reduction else reduced
    return rows


# --- one tensor -------------------------------------------------------------------------------------------------------------


def _observations(torch: Any, agent: Any, rounds: int) -> list[dict[str, Any]]:
    handles = [agent.intern("tensor", "inspect", call=call) for call in range(CALLS)]
    names = [f"named.{index}" for index in range(CALLS)]

    def observe(tensor: Any) -> None:
        observe_handle = agent.observe_handle
        for handle in handles:
            observe_handle(handle, tensor)

    def inspect(tensor: Any) -> None:
        function = agent.inspect
        for name in names:
            function(name, tensor)

    def nothing(_: Any) -> None:
        for _handle in handles:
            pass

    rows = []
    for elements in (1, 16, 1024):
        tensor = torch.ones(elements)
        empty, reduction, found = [], [], {"observe": list[float](), "inspect": list[float]()}
        compute = _compute_calls(tensor)
        for _ in range(rounds):
            empty.append(_timed(functools.partial(nothing, tensor)))
            reduction.append(compute())
            for name, loop in (("observe", observe), ("inspect", inspect)):
                found[name].append(_timed(functools.partial(loop, tensor)))
                _end_step(agent)
        base, reduced = statistics.median(empty), statistics.median(reduction)
        rows.append(_row(f"Python: reduction through the C interface, {elements} float32", reduction))
        rows.extend(
            _row(f"Python: {name}, {elements} float32", [t - base for t in times], reduced) for name, times in found.items()
        )
    return rows


def _compute_calls(tensor: Any) -> Callable[[], float]:
    """Microseconds of the reduction alone: the C call minus an empty C call."""
    from statagent._native import library as _library
    from statagent._native import tensors as _tensors

    library = _library.load()
    structure = _tensors.borrow(tensor)[0]
    found, sums = _library.Statistics(), (ctypes.c_double * 16)()

    def compute() -> None:
        function = library.statagent_compute_on_held  # holds the GIL, as the empty call does
        for _ in range(CALLS):
            function(structure, 16, 0, None, found, sums, None)

    def nothing() -> None:
        function = library.statagent_steps_contains
        for _ in range(CALLS):
            function(None, 0)

    return lambda: _timed(compute) - _timed(nothing)


def _end_step(agent: Any) -> None:
    agent.end_step()
    if not agent.flush(timeout=30):
        raise RuntimeError("flush: records are still pending after 30 s; expected the collector to store them")


# --- modules ----------------------------------------------------------------------------------------------------------------


def _modules(torch: Any, agent: Any, rounds: int) -> list[dict[str, Any]]:
    """Three equal chains of modules: not watched, watched, and watched in other steps."""
    import statagent

    class Scale(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x * 1.0

    def chain() -> Any:
        return torch.nn.Sequential(*(Scale() for _ in range(CALLS)))

    plain, watched, resting = chain(), chain(), chain()
    statagent.watch(watched, kinds={"output", "grad_output"}, include=["on.*"], name="on")
    statagent.watch(resting, kinds={"output", "grad_output"}, include=["off.*"], name="off", steps="999999999-")
    found: dict[str, list[float]] = {name: [] for name in ("forward", "backward", "forward_resting", "backward_resting")}
    reduction = _compute_calls(torch.ones(1))
    reduced = statistics.median(reduction() for _ in range(rounds))
    for _ in range(rounds):
        times = {}
        for name, model in (("plain", plain), ("watched", watched), ("resting", resting)):
            times[name] = _pass(torch, model)
        _end_step(agent)
        found["forward"].append(times["watched"][0] - times["plain"][0])
        found["backward"].append(times["watched"][1] - times["plain"][1])
        found["forward_resting"].append(times["resting"][0] - times["plain"][0])
        found["backward_resting"].append(times["resting"][1] - times["plain"][1])
    return [
        _row("Python: module hook, output and a hook for its gradient", found["forward"], reduced),
        _row("Python: gradient hook", found["backward"], reduced),
        _row("Python: module outside the recorded steps, forward", found["forward_resting"]),
        _row("Python: module outside the recorded steps, backward", found["backward_resting"]),
    ]


def _pass(torch: Any, model: Any) -> tuple[float, float]:
    """Microseconds per module of one forward and one backward pass."""
    x = torch.ones(1, requires_grad=True)
    y: list[Any] = []
    forward = _timed(lambda: y.append(model(x)))
    return forward, _timed(lambda: y[0].backward())


if __name__ == "__main__":
    sys.exit(main())
