"""What importing and starting the Python packages says where they cannot run: an old Python, another system, another C library."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"statagent": ROOT / "agent/python/statagent", "statcollect": ROOT / "client/python/statcollect"}


def python(program: str, **extra: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder.parent) for folder in PACKAGES.values())
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, **extra}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_an_old_python_is_named_before_anything_else_fails(package: str) -> None:
    # Old Pythons can read the files up to the check: no syntax of later ones before it.
    for name in ("__init__.py", "_python.py"):
        ast.parse((PACKAGES[package] / name).read_text(encoding="utf-8"), feature_version=(3, 6))
    first = next(
        line for line in (PACKAGES[package] / "__init__.py").read_text().splitlines() if line.startswith(("from", "import"))
    )
    assert first.startswith("from . import _python"), first
    done = python(f"import sys; sys.version_info = (3, 8, 10, 'final', 0); import {package}")
    assert f"ImportError: import {package}: found Python 3.8; expected 3.9 or later" in done.stderr
    assert python(f"import {package}").returncode == 0


PRETEND = "import platform; platform.system = lambda: {system!r}; platform.machine = lambda: {machine!r}; platform.libc_ver = lambda: ('glibc', '2.31')\n"
START = "import statagent; statagent.init(run='x', required=True); statagent.log_scalar('loss', 1.0); statagent.step(); statagent.close()"


@pytest.mark.parametrize(
    ("system", "machine", "library", "expected"),
    [
        ("Darwin", "arm64", "/nonexistent/libstatagent.so", "this is Darwin, and the agent runs on Linux"),
        ("Linux", "aarch64", "text", "the wheel is for x86-64, and this is aarch64"),
        ("Linux", "x86_64", "text", "rebuild it"),
        ("Linux", "x86_64", "/nonexistent/libstatagent.so", "build it"),
    ],
)
def test_another_system_is_named_when_the_agent_starts(
    system: str, machine: str, library: str, expected: str, tmp_path: Path
) -> None:
    if library == "text":
        (tmp_path / "libstatagent.so").write_text("not a library" * 100)
        library = str(tmp_path / "libstatagent.so")
    done = python(PRETEND.format(system=system, machine=machine) + START, STATAGENT_LIBRARY=library)
    assert done.returncode == 1 and expected in done.stderr.splitlines()[-1], done.stderr


def test_an_old_c_library_is_named() -> None:
    program = 'from statagent._native.library import _advice; print(_advice("/lib/libc.so.6: version `GLIBC_2.34\' not found"))'
    done = python(PRETEND.format(system="Linux", machine="x86_64") + program)
    assert done.stdout.startswith("the wheel needs glibc 2.35 or later, and this system has 2.31"), done.stderr


def test_the_same_script_runs_without_the_agent_where_it_is_disabled() -> None:
    pretend = PRETEND.format(system="Darwin", machine="arm64")
    done = python(pretend + START, STATAGENT_LIBRARY="/nonexistent/libstatagent.so", STATAGENT_DISABLE="1")
    assert done.returncode == 0, done.stderr
