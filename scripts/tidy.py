#!/usr/bin/env python3
"""Runs clang-tidy with the checks of .clang-tidy over the product's C++ sources. Usage: scripts/tidy.py [BUILD_DIR]

Needs a configured build folder whose generated headers exist (scripts/build.sh). Takes its compile commands as they are: in a unity
build several sources are checked at a time, which is three times as fast. What was clean before and has not changed since (the source,
the project's headers that it includes, its flags, the checks) is not checked again; ~/.cache/statcollect/tidy remembers that.
Exit code 1: there are findings.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("agent", "client", "common", "proto", "server")
GCC_ONLY = (  # clang refuses them
    "-fno-tree-slp-vectorize",
    "-fno-tree-ter",
    "-fno-tree-reassoc",
    "-mstringop-strategy=vector_loop",
    "-Wno-tsan",
)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Unit:
    """One compile command."""

    file: Path
    arguments: tuple[str, ...]

    def sources(self) -> list[Path]:
        """The project's files that it is made of: itself, or those of a unity build."""
        if self.file.parent.name != "units":
            return [self.file]
        return [ROOT / name for name in includes(self.file)]


@functools.cache
def includes(file: Path) -> list[str]:
    """The file's quoted includes, in order."""
    return INCLUDE.findall(file.read_text(encoding="utf-8"))


def units(build: Path) -> list[Unit]:
    """The compile commands of the product's sources: not tests, nothing generated."""
    found = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        arguments = shlex.split(entry["command"])
        unit = Unit(Path(entry["file"]), tuple(arguments))
        target = Path(arguments[arguments.index("-o") + 1]).parts[0]
        if target not in PRODUCT or unit.file.suffix != ".cc":
            continue
        if all(ROOT in s.parents and s.relative_to(ROOT).parts[0] in PRODUCT for s in unit.sources()):
            found.append(unit)
    return found


def closure(files: list[Path]) -> set[Path]:
    """The files and every header of the project that they include, directly or not."""
    seen: set[Path] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in includes(file):
            todo += [path for path in (ROOT / name, ROOT / "agent/include" / name) if path.is_file()]
    return seen


def digest(unit: Unit, tool: str) -> str:
    hashed = hashlib.sha256((tool + "\0" + "\0".join(a for a in unit.arguments if str(ROOT) not in a)).encode())
    for file in sorted(closure(unit.sources())):
        hashed.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return hashed.hexdigest()


def check(unit: Unit, build: Path, clang_tidy: str) -> str:
    """The findings; empty: none."""
    command = [clang_tidy, "--quiet", "--extra-arg=-Wthread-safety", "--extra-arg=-Wno-unknown-warning-option"]
    command += ["--extra-arg=-Wno-ignored-optimization-argument", f"--config-file={ROOT / '.clang-tidy'}", "-p", str(build)]
    command += [f"--removed-arg={flag}" for flag in GCC_ONLY]
    done = subprocess.run([*command, str(unit.file)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or done.stderr.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build/release", type=Path, help="build folder (default build/release)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="units checked at a time (default: the cores)")
    arguments = parser.parse_args()
    build = (ROOT / arguments.build).resolve()
    if not (build / "compile_commands.json").is_file():
        print(f"tidy.py: read {build / 'compile_commands.json'}: not found; run scripts/build.sh first", file=sys.stderr)
        return 2
    clang_tidy = str(Path(sys.executable).parent / "clang-tidy")
    version = subprocess.run([clang_tidy, "--version"], capture_output=True, text=True, check=True).stdout
    tool = version + (ROOT / ".clang-tidy").read_text(encoding="utf-8") + Path(__file__).read_text(encoding="utf-8")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statcollect" / "tidy"
    cache.mkdir(parents=True, exist_ok=True)

    todo = [(unit, cache / digest(unit, tool)) for unit in units(build)]
    if not todo:
        print(f"tidy.py: found no source of the product in {build}; expected compile commands of it", file=sys.stderr)
        return 2
    changed = [(unit, stamp) for unit, stamp in todo if not stamp.exists()]
    findings = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda pair: check(pair[0], build, clang_tidy), changed)
        for (_, stamp), found in zip(changed, results, strict=True):
            if found:
                findings += 1
                print(found.replace(f"{ROOT}/", ""))
            else:
                stamp.touch()
    print(
        f"clang-tidy: {len(changed)} of {len(todo)} units checked, {len(todo) - len(changed)} unchanged; findings in {findings}"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
