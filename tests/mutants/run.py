#!/usr/bin/env python3
"""Takes one mechanism after the other out of a copy of the sources and checks that the test named for it fails.

    tests/mutants/run.py [--work FOLDER] [NAME ...]

Prints a table. The exit code is 1 if a test stays green, or if the code to change is no longer there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
CASE_SECONDS = 300


def copy_sources(to: Path) -> None:
    """Copies what git tracks, as it is in the working tree; what is equal keeps its time, so that little is built again."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, to / name
        if not source.is_file() or (target.is_file() and target.read_bytes() == source.read_bytes()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def build(work: Path, program: str) -> str:
    """Empty, or what the compiler says."""
    done = subprocess.run(["ninja", "-C", str(work / "build"), program], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout[-2000:]


def run(work: Path, mutant: Mutant) -> tuple[int, float]:
    """Exit code (124: no end in time) and seconds."""
    began = time.monotonic()
    environment = os.environ | ({"STATCOLLECT_FAULT_ROUNDS": str(mutant.rounds)} if mutant.rounds else {})
    try:
        done = subprocess.run(
            [str(work / "build/tests" / mutant.program), f"--gtest_filter={mutant.cases}"],
            env=environment,
            capture_output=True,
            timeout=CASE_SECONDS,
            check=False,
        )
        code = done.returncode
        if b"Running 0 tests" in done.stdout:
            raise SystemExit(f"run.py: {mutant.program} has no case {mutant.cases}")
    except subprocess.TimeoutExpired:
        code = 124
    return code, time.monotonic() - began


def check(work: Path, mutant: Mutant) -> str:
    """Red, or what is wrong."""
    path = work / "src" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        return f"the code to change occurs {text.count(mutant.old)} times in {mutant.file}"
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        if said := build(work, mutant.program):
            return "does not compile: " + said
        code, seconds = run(work, mutant)
    finally:
        path.write_text(text)
    return "STAYS GREEN" if code == 0 else f"red after {seconds:.1f} s" if code != 124 else "red: no end"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build/mutants", help="folder for the copy and its build")
    parser.add_argument("names", nargs="*", help="of mutants; default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error("no such mutant: " + ", ".join(sorted(unknown)))
    chosen = [mutant for mutant in MUTANTS if not arguments.names or mutant.name in arguments.names]
    work: Path = arguments.work.resolve()
    sources = work / "src"
    copy_sources(sources)
    built = work / "build"
    if not (built / "build.ninja").exists():
        configure = ["cmake", "-S", str(sources), "-B", str(built), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
        configure += ["-DSTATCOLLECT_BUILD_TESTS=ON", "-DSTATCOLLECT_BUILD_BENCH=OFF", "-DSTATCOLLECT_CUDA=OFF"]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    for program in sorted({mutant.program for mutant in chosen}):
        if said := build(work, program):
            sys.exit(f"run.py: build {program} as it is: {said}")
    bad = 0
    print("| what is broken | test that fails | |\n|---|---|---|", flush=True)
    for mutant in chosen:
        result = check(work, mutant)
        bad += not result.startswith("red")
        print(f"| {mutant.mechanism} | `{mutant.program}`: `{mutant.cases}` | {result} |", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} red", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
