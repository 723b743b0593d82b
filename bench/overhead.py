"""The cost of observing a training step. The demo's model runs with every module output and its gradient observed in each step, alternating
in one process with the same step without an observer. Other tools that record such statistics are measured in the same way.

    python bench/overhead.py                                   # a quarter of an hour; writes results/<date>-overhead.json
    python bench/overhead.py --sizes tiny,small --rivals none  # the agent only
    python bench/overhead.py --seconds 120 --rounds 100        # narrower intervals
    python bench/overhead.py --device cuda --autocast          # on a GPU; writes results/<date>-overhead-gpu.json
    python bench/overhead.py --quick --output /tmp/quick.json  # seconds; only a check, its figures are meaningless

Each rival has its own Python environment below .cache/bench, created once with pip, and uses this environment's PyTorch. If ONNX Runtime
cannot be installed, a row repeats the torch calls that it makes for every tensor."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

# layers, width, heads, context, batch; measured steps in a block.
SIZES = {
    "quick": ((1, 32, 2, 16, 2), 2),
    "tiny": ((2, 128, 4, 64, 4), 25),
    "small": ((4, 256, 4, 128, 8), 3),
    "medium": ((6, 512, 8, 128, 8), 1),
    "gpt2": ((12, 768, 12, 512, 8), 10),
    "gpt2-xl": ((48, 1600, 25, 512, 4), 5),
}
DEFAULT_SIZES = {"cpu": "tiny,small,medium", "cuda": "gpt2,gpt2-xl"}
# Observer: name in the table, package that pip installs.
RIVALS = {
    "ort": ("ONNX Runtime StatisticsSubscriber", "onnxruntime-training"),
    "msprobe": ("msProbe, statistics, level L0", "mindstudio-probe"),
    "torch_calls": ("same torch calls as ORT's subscriber", ""),
}
OWN = {
    "nothing": "nothing (what the method itself adds)",
    "empty_hooks": "hooks of outputs and their gradients that do nothing: PyTorch's own cost",
    "statagent_bare": "statagent: output, grad_output, and nothing else",
    "statagent": "statagent: output, grad_output; memory, density, inputs",
    "statagent_all": "statagent: everything that is on by default, with the optimizer",
    "statagent_everything": "statagent: every kind, memory of each module",
}
# glibc returns large blocks to the kernel in some processes and keeps them in others, which changes a step by a third. Here it keeps them.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(4 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
RESAMPLES = 2000
INSTALL_SECONDS = 900


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(DEFAULT_SIZES), default="cpu", help="where the model trains (default cpu)")
    parser.add_argument("--autocast", action="store_true", help="train in bfloat16 (autocast)")
    parser.add_argument(
        "--sizes", help=f"some of {', '.join(SIZES)} (default: {DEFAULT_SIZES['cpu']}; cuda: {DEFAULT_SIZES['cuda']})"
    )
    parser.add_argument("--rivals", default="ort,msprobe", help=f"some of {', '.join(RIVALS)}, or none (default: ort,msprobe)")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch (default 1, as in the demo)")
    parser.add_argument(
        "--seconds", type=float, default=45, help="approximate time for each size and observer, in seconds (default 45)"
    )
    parser.add_argument("--rounds", type=int, default=40, help="maximum number of rounds for each size and observer (default 40)")
    parser.add_argument(
        "--cache", type=Path, default=machine.REPOSITORY / ".cache" / "bench", help="where the rivals are installed"
    )
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-overhead.json)")
    parser.add_argument("--quick", action="store_true", help="a few steps of a tiny model, without rivals that need pip")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.rivals, arguments.rounds, arguments.seconds = "quick", "torch_calls", 2, 5.0
    arguments.sizes = (arguments.sizes or DEFAULT_SIZES[arguments.device]).split(",")
    arguments.rivals = [] if arguments.rivals == "none" else arguments.rivals.split(",")
    for what, found, expected in (("--sizes", arguments.sizes, SIZES), ("--rivals", arguments.rivals, RIVALS)):
        unknown = [name for name in found if name not in expected]
        if unknown:
            parser.error(f"{what}: found '{unknown[0]}'; expected some of {', '.join(expected)}")
    if arguments.rounds < 2 or arguments.threads < 1 or arguments.seconds <= 0:
        parser.error("expected --rounds of 2 or more, --threads of 1 or more, --seconds above 0")
    return arguments


# --- rivals -----------------------------------------------------------------------------------------------------------------


def install(name: str, cache: Path) -> Path:
    """The Python of the rival's environment, which is created if necessary. Raises RuntimeError if pip fails."""
    folder, package = cache / name, RIVALS[name][1]
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        progress(f"installing {package} into {folder}")
        venv.create(folder, with_pip=False, clear=True, symlinks=True)
        packages = next(folder.glob("lib/python*/site-packages"))
        (packages / "base.pth").write_text(
            "\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n", encoding="utf-8"
        )
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", package],
            capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"pip install {package} failed: {last_line(done.stderr)}")
        (folder / "complete").touch()
    return python


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


# --- one observer on one size -----------------------------------------------------------------------------------------------


def measure(observer: str, size: str, python: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs a worker with its own collector; returns a row of the result. Raises RuntimeError if the worker fails."""
    (layers, width, heads, context, batch), steps = SIZES[size]
    with tempfile.TemporaryDirectory(prefix="statcollect-overhead-") as folder, Collector() as collector:
        work = {"observer": observer, "layers": layers, "width": width, "heads": heads, "context": context, "batch": batch,
                "device": arguments.device, "autocast": arguments.autocast, "threads": arguments.threads, "rounds": arguments.rounds, "block_steps": steps, "seconds": arguments.seconds,
                "collector": collector.address, "folder": folder}  # fmt: skip
        worker = Path(__file__).resolve().parent / "overhead_worker.py"
        environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": str(arguments.threads), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [str(python), str(worker), json.dumps(work)],
            capture_output=True, text=True, timeout=600 + 10 * arguments.seconds, check=False, env=environment, cwd=folder,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{observer} on {size}: {last_line(done.stderr)}")
        found = json.loads(last_line(done.stdout))
        collector_cpu = collector.cpu_seconds()
    return summarise(observer, size, found, collector_cpu)


def summarise(observer: str, size: str, found: dict[str, Any], collector_cpu: float) -> dict[str, Any]:
    """Medians over rounds, with bootstrap intervals."""
    rounds = found["rounds"]
    row: dict[str, Any] = {
        "size": size,
        "observer": observer,
        "name": OWN.get(observer) or RIVALS[observer][0],
        "parameters": found["parameters"],
        "rounds": len(rounds),
        "steps_observed": len(rounds) * (found["work"]["block_steps"] + 1) + 1,
    }
    for what, key in (("step", "median"), ("thread", "thread")):
        added = [each["with"][key] - each["without"][key] for each in rounds]
        base, (low, high) = statistics.median(each["without"][key] for each in rounds), interval(added)
        values = {"added": statistics.median(added), "added_low": low, "added_high": high}
        row[what] = {"without_ms": round(base, 4), "with_ms": round(statistics.median(each["with"][key] for each in rounds), 4)}
        row[what].update((f"{name}_ms", round(value, 4)) for name, value in values.items())
        row[what].update((f"{name}_percent", round(100 * value / base, 3)) for name, value in values.items())
        row[what]["by_round_ms"] = [round(value, 4) for value in added]
    for what, key in (("added_mean_ms", "mean"), ("added_process_cpu_ms", "process")):
        row[what] = round(statistics.median(each["with"][key] - each["without"][key] for each in rounds), 4)
    row.update(memory_mib=found["memory_mib"], facts=found["observer"])
    if "reduction" in found:
        reduction = found["reduction"]
        row.update(tensors=reduction["tensors"], bytes=reduction["bytes"], engine_ms=reduction["engine_ms"])
        if reduction["engine_ms"]:
            row["engine_gb_s"] = round(reduction["bytes"] / reduction["engine_ms"] / 1e6, 3)
        row["calls_ms"] = round(found["calls_ms"], 4)
        row["collector_cpu_ms_step"] = round(1000 * collector_cpu / row["steps_observed"], 4)
    return row


def interval(values: list[float], seed: int = 1) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[round(0.025 * (RESAMPLES - 1))], medians[round(0.975 * (RESAMPLES - 1))]


# --- all --------------------------------------------------------------------------------------------------------------------


def main() -> int:
    arguments = parse_arguments()
    import torch  # noqa: F401 (its version is one of the machine's facts)

    facts = machine.facts()
    pythons, why = environments(arguments.rivals, arguments.cache)
    rows, failures = [], dict(why)
    for size in arguments.sizes:
        for observer, python in pythons.items():
            progress(f"{size}: {observer}")
            try:
                rows.append(measure(observer, size, python, arguments))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                if observer in OWN:
                    raise
                failures[f"{size} {observer}"] = str(error)
    progress("")
    compare(rows)
    parameters = {"device": arguments.device, "autocast": arguments.autocast, "threads": arguments.threads, "rounds_max": arguments.rounds, "seconds": arguments.seconds,
                  "sizes": {size: dict(zip(("layers", "width", "heads", "context", "batch"), SIZES[size][0])) for size in arguments.sizes},
                  "not_run": failures, "load_after": round(os.getloadavg()[0], 2)}  # fmt: skip
    what = "overhead" if arguments.device == "cpu" else "overhead_gpu"
    path = result_files.write(what, parameters, facts, rows, arguments.output)
    print(render({"rows": rows, "parameters": parameters}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def environments(rivals: list[str], cache: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Observer -> Python that runs it, and the reasons why some do not run. If ONNX Runtime fails, its substitute runs."""
    pythons = {name: Path(sys.executable) for name in OWN}
    why: dict[str, str] = {}
    for name in rivals:
        try:
            pythons[name] = install(name, cache) if RIVALS[name][1] else Path(sys.executable)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            why[name] = str(error)
            if name == "ort":
                pythons.setdefault("torch_calls", Path(sys.executable))
    return pythons, why


def compare(rows: list[dict[str, Any]]) -> None:
    """Adds to each rival's row its added time as a multiple of the agent's, for the same size."""
    for what in ("step", "thread"):
        agents = {row["size"]: row[what]["added_ms"] for row in rows if row["observer"] == "statagent"}
        for row in rows:
            ours = agents.get(row["size"], 0)
            row[what]["times_agent"] = round(row[what]["added_ms"] / ours, 2) if row["observer"] in RIVALS and ours > 0 else None


def render(result: dict[str, Any]) -> str:
    """The table in README.md: a row for each observer, a column for each size of the model."""
    sizes: dict[str, float] = {}
    observers: dict[str, dict[str, str]] = {}
    for row in result["rows"]:
        if row["name"].endswith("and nothing else"):
            continue  # the JSON has it
        thread = row["thread"]
        sizes.setdefault(row["size"], row["step"]["without_ms"])
        times = f"; {thread['times_agent']:.1f} times" if thread.get("times_agent") else ""
        low, high = thread["added_low_percent"], thread["added_high_percent"]
        observers.setdefault(row["name"], {})[row["size"]] = f"{thread['added_percent']:+.1f} % ({low:+.1f}..{high:+.1f}){times}"
    text = result_files.table(
        ["observer", *(f"{size}, {step:.0f} ms a step" for size, step in sizes.items())],
        [[name, *(found.get(size, "-") for size in sizes)] for name, found in observers.items()],
    )
    failures = result["parameters"].get("not_run", {})
    return text + "".join(f"\n\nNot run: {name}: {why}" for name, why in failures.items())


_started = time.monotonic()


def progress(text: str) -> None:
    """Shows the current work on a terminal; "" clears the line."""
    if sys.stderr.isatty():
        print(f"\r\033[K{f'{time.monotonic() - _started:4.0f} s  {text}' if text else ''}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
