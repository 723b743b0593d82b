"""The checks of scripts/gpu_check.sh. Needs Python 3.9 and, for the parts that train, torch."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = (ROOT / "MANIFEST").is_file()
BUILD = ROOT if BUNDLED else Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release")).resolve()
PACKAGE = ROOT / "python" if BUNDLED else ROOT / "agent" / "python"
SANITIZERS = ("memcheck", "racecheck", "initcheck")
# Quick under a sanitizer; together they cover every part of the kernels.
SANITIZED_TESTS = "GpuEngineTest.AgreesForAnyStridesAndAlignment:GpuEngineTest.KeepsStreamsApart:GpuEngineTest.CopiesSamples:"
SANITIZED_TESTS += "GpuEngineTest.RecordsTheReplaysOfAGraph:GpuRowsTest.AgreeForAnyBits"
NO_GPU = 3


PART_SECONDS = 540.0  # at most for each part: some machines are only lent for ten minutes at a time
# Shares of a copy's speed (P3: from 256 MiB on), empty launches (P4), microseconds (P5), percent of a step (P6).
P3_TARGETS, P3_BYTES_MIN = {"f32": 0.90, "bf16": 0.80}, 256
P4_LAUNCHES, P4_LIST_COPIES, P5_MICROSECONDS, P6_PERCENT = 1.50, 2.00, 1.00, 2.0


@dataclass
class Check:
    """One line of the table. `ok` is None if the check was left out; then `note` has the reason. `met` is False if what was measured
    misses its target."""

    name: str
    ok: bool | None
    seconds: float
    note: str = ""
    figures: Any = None
    met: bool = True

    @property
    def word(self) -> str:
        if self.ok and not self.met:
            return "MISSED"
        return {True: "passed", False: "FAILED", None: "left out"}[self.ok]


def run(command: list[str], timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command. One that exceeds the timeout, in seconds, counts as failed."""
    try:
        return subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, 124, str(late.stdout or ""), f"not finished after {timeout:.0f} s")


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def engine(filter_: str = "*") -> Check:
    """The GoogleTest program: compares the device with the host's emulation bit by bit, and with the CPU engine."""
    begin = time.monotonic()
    program = BUILD / "tests" / "gpu_test"
    if not program.is_file():
        return Check("engine on the device", False, 0, f"{program} is missing; build with STATCOLLECT_CUDA=ON")
    done = run([str(program), f"--gtest_filter={filter_}"], PART_SECONDS)
    passed, skipped = (re.search(rf"\[  {word} +\] (\d+) test", done.stdout) for word in ("PASSED", "SKIPPED"))
    failed = sorted(set(re.findall(r"\[  FAILED  \] (\w+\.\w+)", done.stdout)))
    note = f"{passed.group(1) if passed else 0} tests passed" + (f", {skipped.group(1)} skipped" if skipped else "")
    if failed:
        note = f"failed: {', '.join(failed)}"[:200]
    # This machine has a GPU: if every test was skipped, the engine cannot use it.
    ok = done.returncode == 0 and passed is not None and int(passed.group(1)) > 0
    return Check("engine on the device", ok, time.monotonic() - begin, note)


def sanitizer(kind: str) -> Check:
    begin = time.monotonic()
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        return Check(f"compute-sanitizer {kind}", None, 0, "not installed")
    command = [tool, "--tool", kind, "--error-exitcode", "9", str(BUILD / "tests" / "gpu_test")]
    done = run([*command, f"--gtest_filter={SANITIZED_TESTS}"], PART_SECONDS)
    note = last_line(done.stdout) or last_line(done.stderr)
    return Check(f"compute-sanitizer {kind}", done.returncode == 0, time.monotonic() - begin, note)


def package() -> Check:
    """The Python package's tests on the GPU, including training. They use unittest."""
    begin = time.monotonic()
    modules = sorted(f"gpu.{path.stem}" for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    command = [sys.executable, "-m", "unittest", *modules]
    library = {} if BUNDLED else {"STATAGENT_LIBRARY": str(BUILD / "lib" / "libstatagent.so")}
    if not BUNDLED:
        library["STATCOLLECT_BUILD_DIR"] = str(BUILD)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT / "tests",
            env={**os.environ, **library},
            capture_output=True,
            text=True,
            timeout=PART_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(
            "Python package, training, diff", False, time.monotonic() - begin, f"not finished after {PART_SECONDS:.0f} s"
        )
    note = last_line(done.stderr)
    skipped = "skipped" in note or "skipped" in done.stderr.rsplit("Ran ", 1)[-1]
    ok = done.returncode == 0
    if ok and skipped:
        return Check("Python package, training, diff", None, time.monotonic() - begin, f"{note}: torch sees no CUDA device")
    return Check("Python package, training, diff", ok, time.monotonic() - begin, note)


def speed(quick: bool) -> list[Check]:
    """Targets P3, P4 and P5: the engine alone."""
    begin = time.monotonic()
    program = BUILD / "bin" / "statagent_gpu_bench"
    if not program.is_file():
        return [Check("speed of the engine (P3-P5)", None, 0, f"{program.name} is missing")]
    done = run([str(program), "--rounds", "5" if quick else "15"], PART_SECONDS)
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        return [Check("speed of the engine (P3-P5)", False, seconds, last_line(done.stderr))]
    found = json.loads(done.stdout)
    checks = []
    for row in found["p3"]:
        target = P3_TARGETS.get(row["dtype"]) if row["mebibytes"] >= P3_BYTES_MIN else None
        aim = f", target {target:.2f}" if target else ""
        note = f"{row['gb_per_s']:.0f} GB/s, {row['of_copy']:.2f} of a copy's{aim}"
        if "of_read" in row:
            note += f"; {row['of_read']:.2f} of only reading"
        met = target is None or row["of_copy"] >= target
        checks.append(Check(f"P3 {row['dtype']} {row['mebibytes']} MiB", True, seconds, note, row, met))
    for row in found["p4"]:
        note = f"{row['us']:.2f} us, {row['of_empty_launch']:.2f} empty launches, target {P4_LAUNCHES:.2f}"
        met = row["of_empty_launch"] <= P4_LAUNCHES
        checks.append(Check(f"P4 {row['dtype']} {row['kibibytes']} KiB", True, seconds, note, row, met))
    for row in found.get("p4_lists", []):
        note = f"{row['list_us']:.0f} us for {row['tensors']}, {row['of_copy']:.2f} of a copy, target {P4_LIST_COPIES:.2f}"
        met = row["of_copy"] <= P4_LIST_COPIES
        checks.append(Check(f"P4 list {row['dtype']} {row['kibibytes']} KiB", True, seconds, note, row, met))
    row = found["p5"]
    note = f"{row['enqueue_us']:.2f} us, of which {row['own_us']:.2f} us beyond an empty launch, target {P5_MICROSECONDS:.2f}"
    checks.append(Check("P5 enqueue, C++", True, seconds, note, row, row["own_us"] <= P5_MICROSECONDS))
    return checks


def training_overhead(quick: bool, folder: Path) -> list[Check]:
    """Target P6: bench/overhead.py on the GPU, with our own observers only: the others' installation takes too long."""
    begin = time.monotonic()
    name = "P6 training step (bench/overhead.py)"
    script = ROOT / "bench" / "overhead.py"
    if quick or not script.is_file():
        return [Check(name, None, 0, "left out with --quick" if quick else f"{script} is missing")]
    output = folder / "overhead-gpu.json"
    paths = {"PYTHONPATH": str(PACKAGE), "STATCOLLECT_BUILD_DIR": str(BUILD)}
    command = [sys.executable, str(script), "--device", "cuda", "--autocast", "--rivals", "none", "--seconds", "20"]
    done = run([*command, "--output", str(output)], PART_SECONDS, **paths)
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        return [Check(name, False, seconds, last_line(done.stderr))]
    figures = json.loads(output.read_text())
    checks = [Check(name, True, seconds, "all figures are in the result file", figures)]
    for row in figures["rows"]:
        if row["observer"] == "statagent":
            added = row["step"]["added_percent"]
            note = f"{added:+.1f} % of a step, target {P6_PERCENT:+.1f} %"
            checks.append(Check(f"P6 {row['size']}", True, seconds, note, None, added <= P6_PERCENT))
    return checks


# Part -> what it does, and how.
PARTS: dict[str, tuple[str, Callable[[bool, Path], list[Check]]]] = {
    "engine": ("the engine on the device, against the host's emulation and the CPU engine", lambda *_: [engine()]),
    **{
        kind: (f"some of these tests under compute-sanitizer {kind}, where it exists", lambda *_, kind=kind: [sanitizer(kind)])
        for kind in SANITIZERS
    },
    "package": ("the Python package's tests: training, graphs, statctl diff", lambda *_: [package()]),
    "speed": ("P3 to P5: the engine beside a copy, a kernel that only reads, and empty launches", lambda quick, _: speed(quick)),
    "training": ("P6: a training step with and without the agent", training_overhead),
}


def gpu_name() -> str | None:
    """The driver's name of the first device; None if there is no driver or device."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        done = run([tool, "--query-gpu=name", "--format=csv,noheader"], 60)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip().splitlines()[0]
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def driver_version() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    done = run([tool, "--query-gpu=driver_version", "--format=csv,noheader"], 60)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def commit() -> str:
    manifest = ROOT / "MANIFEST"
    if manifest.is_file():
        found = re.search(r"^commit (\S+)", manifest.read_text(), re.MULTILINE)
        return found.group(1)[:10] if found else ""
    done = run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"], 30)
    return done.stdout.strip()


def print_table(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.name:<{width}}  {check.word:<8}  {check.note}")


class Results:
    """The result file, written after each part. Parts of an earlier call with the same GPU and commit are kept."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self.facts = facts
        self.parts: dict[str, list[dict[str, Any]]] = {}
        try:
            before = json.loads(path.read_text())
            if all(before.get(key) == facts[key] for key in ("what", "commit", "gpu", "driver")):
                for check in before["checks"]:
                    self.parts.setdefault(check["part"], []).append(check)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.parts = {}  # there is none, or it is another program's or version's

    def add(self, part: str, checks: list[Check]) -> None:
        self.parts[part] = [
            {"part": part, "name": c.name, "result": c.word, "seconds": round(c.seconds, 1), "note": c.note, "figures": c.figures}
            for c in checks
        ]
        rows = [check for name in PARTS for check in self.parts.get(name, [])]
        result = {**self.facts, "parts_left": [name for name in PARTS if name not in self.parts], "checks": rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps(result, indent=2) + "\n")
        new.replace(self.path)


def parse_arguments() -> argparse.Namespace:
    parts = "\n".join(f"  {name:<10} {what}" for name, (what, _) in PARTS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"parts, each within ten minutes:\n{parts}\n\nexit codes: 0 every check passed (a missed target is a line with MISSED); "
               "1 one failed; 2 wrong arguments;\n3 no GPU was found, so nothing was checked on a GPU",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="correctness and a minute of measurements")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="these parts, separated by commas (default: all)"
    )
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/gpu-<name>-<date>.json)")
    arguments = parser.parse_args()
    arguments.only = [part for each in arguments.only for part in each.split(",")] or list(PARTS)
    unknown = [part for part in arguments.only if part not in PARTS]
    if unknown:
        parser.error(f"--only: found {', '.join(map(repr, unknown))}; expected some of {', '.join(PARTS)}")
    return arguments


def run_part(part: str, quick: bool, folder: Path) -> list[Check]:
    begin = time.monotonic()
    try:
        return PARTS[part][1](quick, folder)
    except Exception as error:  # the others still have something to say
        return [Check(part, False, time.monotonic() - begin, f"{type(error).__name__}: {error}"[:200])]


def main() -> int:
    arguments = parse_arguments()
    name = gpu_name()
    if name is None:
        print("gpu_check: check the CUDA engine: found no GPU (no nvidia-smi, and torch sees none); expected one; nothing was checked on a GPU",
              file=sys.stderr)  # fmt: skip
        return NO_GPU
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    output = arguments.output or ROOT / "bench" / "results" / f"gpu-{slug}-{today}.json"
    driver = driver_version()
    print(f"gpu_check: {name}, driver {driver}; programs in {BUILD}", flush=True)
    results = Results(output, {
        "what": "gpu_check", "date": today, "commit": commit(), "gpu": name, "driver": driver,
        "python": platform.python_version(), "quick": arguments.quick,
    })  # fmt: skip
    checks: list[Check] = []
    for part in [part for part in PARTS if part in arguments.only]:
        found = run_part(part, arguments.quick, output.parent)
        print_table(found)
        results.add(part, found)
        sys.stdout.flush()
        checks += found
    missed = [check.name for check in checks if check.word == "MISSED"]
    if missed:
        print(f"gpu_check: MISSED the targets of {len(missed)} of {len(checks)} checks: {', '.join(missed)}")
    print(f"gpu_check: written to {output}")
    return 1 if any(check.ok is False for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
