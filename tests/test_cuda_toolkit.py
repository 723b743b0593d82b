"""Which CUDA toolkit a release is built with, and what setup.sh installs for it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def nvcc(folder: Path, said: str) -> Path:
    folder.mkdir(parents=True)
    program = folder / "nvcc"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    return program


def of_version(folder: Path, version: str) -> Path:
    return nvcc(folder, f"echo 'Cuda compilation tools, release {version}, V{version}.1'")


def choose(tmp_path: Path, *candidates: Path) -> str:
    script = tmp_path / "choose.cmake"
    files = " ".join(f'"{path}"' for path in candidates)
    script.write_text(
        f'include("{ROOT}/cmake/StatcollectNvcc.cmake")\nstatcollect_choose_nvcc(found {files})\nmessage("[${{found}}]")\n'
    )
    done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"\[(.*)\]", done.stderr)
    assert found, done.stderr
    return found.group(1)


def test_a_release_takes_the_oldest_toolkit_that_is_new_enough(tmp_path: Path) -> None:
    old, best = of_version(tmp_path / "12.4", "12.4"), of_version(tmp_path / "12.8", "12.8")
    newer, newest = of_version(tmp_path / "12.10", "12.10"), of_version(tmp_path / "13.2", "13.2")
    broken = nvcc(tmp_path / "broken", "exit 1")
    assert choose(tmp_path, newest, old, broken, newer, best) == str(best)
    assert choose(tmp_path, newest, newer) == str(newer), "12.10 is newer than 12.8, and older than 13.2"
    assert choose(tmp_path, old, newest) == str(newest)
    assert choose(tmp_path, old, broken) == ""


def test_the_preset_of_releases_asks_for_it() -> None:
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    cuda = next(preset for preset in presets if preset["name"] == "cuda")
    assert cuda["cacheVariables"]["STATCOLLECT_CUDA_RELEASE"] == "ON"
    build = (ROOT / "deploy" / "Containerfile.release").read_text()
    assert "cmake --preset cuda" in build
    assert "scripts/setup.sh --for release" in build


def test_setup_knows_what_a_release_needs() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "setup.sh", "--for", "release", "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 0:
        return  # a machine that builds releases
    assert done.returncode == 1
    assert "cuda-nvcc-12-8" in done.stdout
    assert ".venv" not in done.stdout, "a release needs no Python packages"
