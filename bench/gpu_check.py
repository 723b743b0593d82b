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
SANITIZED_TESTS += "GpuEngineTest.RecordsTheReplaysOfAGraph"
NO_GPU = 3


@dataclass
class Check:
    """One line of the table. `ok` is None if the check was left out; then `note` has the reason."""

    name: str
    ok: bool | None
    seconds: float
    note: str = ""
    figures: Any = None

    @property
    def word(self) -> str:
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
    done = run([str(program), f"--gtest_filter={filter_}"], 900)
    passed, skipped = (re.search(rf"\[  {word} +\] (\d+) test", done.stdout) for word in ("PASSED", "SKIPPED"))
    failed = sorted(set(re.findall(r"\[  FAILED  \] (\w+\.\w+)", done.stdout)))
    note = f"{passed.group(1) if passed else 0} tests passed" + (f", {skipped.group(1)} skipped" if skipped else "")
    if failed:
        note = f"failed: {', '.join(failed)}"[:200]
    # This machine has a GPU: if every test was skipped, the engine cannot use it.
    ok = done.returncode == 0 and passed is not None and int(passed.group(1)) > 0
    return Check("engine on the device", ok, time.monotonic() - begin, note)


def sanitizers() -> list[Check]:
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    checks = []
    for kind in SANITIZERS:
        begin = time.monotonic()
        if tool is None:
            checks.append(Check(f"compute-sanitizer {kind}", None, 0, "not installed"))
            continue
        command = [tool, "--tool", kind, "--error-exitcode", "9", str(BUILD / "tests" / "gpu_test")]
        done = run([*command, f"--gtest_filter={SANITIZED_TESTS}"], 1200)
        checks.append(Check(f"compute-sanitizer {kind}", done.returncode == 0, time.monotonic() - begin, last_line(done.stdout)))
    return checks


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
            command, cwd=ROOT / "tests", env={**os.environ, **library}, capture_output=True, text=True, timeout=900, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("Python package, training, diff", False, time.monotonic() - begin, "not finished after 900 s")
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
    done = run([str(program), "--rounds", "5" if quick else "15"], 600)
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        return [Check("speed of the engine (P3-P5)", False, seconds, last_line(done.stderr))]
    found = json.loads(done.stdout)
    checks = []
    targets = {"f32": 0.90, "bf16": 0.80}
    for row in found["p3"]:
        target = targets.get(row["dtype"])
        aim = f", target {target:.2f}" if target else ""
        note = f"{row['gb_per_s']:.0f} GB/s, {row['of_copy']:.2f} of a copy's{aim}"
        checks.append(Check(f"P3 {row['dtype']} {row['mebibytes']} MiB", True, seconds, note, row))
    for row in found["p4"]:
        note = f"{row['us']:.2f} us, {row['of_empty_launch']:.2f} empty launches, target 1.50"
        checks.append(Check(f"P4 {row['dtype']} {row['kibibytes']} KiB", True, seconds, note, row))
    row = found["p5"]
    note = f"{row['enqueue_us']:.2f} us, of which {row['own_us']:.2f} us beyond an empty launch, target 1.00"
    checks.append(Check("P5 enqueue, C++", True, seconds, note, row))
    return checks


def training_overhead(quick: bool, folder: Path) -> Check:
    """Target P6: bench/overhead.py on the GPU."""
    begin = time.monotonic()
    name = "P6 training step (bench/overhead.py)"
    script = ROOT / "bench" / "overhead.py"
    if quick or not script.is_file():
        return Check(name, None, 0, "left out with --quick" if quick else f"{script} is missing")
    output = folder / "overhead-gpu.json"
    paths = {"PYTHONPATH": str(PACKAGE), "STATCOLLECT_BUILD_DIR": str(BUILD)}
    done = run([sys.executable, str(script), "--device", "cuda", "--autocast", "--output", str(output)], 1800, **paths)
    if done.returncode != 0:
        return Check(name, False, time.monotonic() - begin, last_line(done.stderr))
    figures = json.loads(output.read_text())
    return Check(name, True, time.monotonic() - begin, "figures in the result file", figures)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="correctness and a minute of measurements")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/gpu-<name>-<date>.json)")
    arguments = parser.parse_args()
    name = gpu_name()
    if name is None:
        print("gpu_check: check the CUDA engine: found no GPU (no nvidia-smi, and torch sees none); expected one; nothing was checked on a GPU",
              file=sys.stderr)  # fmt: skip
        return NO_GPU
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    output = arguments.output or ROOT / "bench" / "results" / f"gpu-{slug}-{today}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    print(f"gpu_check: {name}, driver {driver_version()}; programs in {BUILD}", flush=True)

    checks: list[Check] = []
    steps = [
        lambda: [engine()],
        sanitizers,
        lambda: [package()],
        lambda: speed(arguments.quick),
        lambda: [training_overhead(arguments.quick, output.parent)],
    ]
    for step in steps:
        found = step()
        print_table(found)
        sys.stdout.flush()
        checks += found
    result = {
        "what": "gpu_check", "date": today, "commit": commit(), "gpu": name, "driver": driver_version(),
        "python": platform.python_version(), "quick": arguments.quick,
        "checks": [
            {"name": c.name, "result": c.word, "seconds": round(c.seconds, 1), "note": c.note, "figures": c.figures} for c in checks
        ],
    }  # fmt: skip
    output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"gpu_check: written to {output}")
    return 1 if any(check.ok is False for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
