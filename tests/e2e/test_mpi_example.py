"""The C++ example: built against the installed agent with find_package(statagent), run with mpirun, compared with statctl."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, Collector, Finished, run_command


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's binary, built outside the source tree against an installation."""
    work = tmp_path_factory.mktemp("mpi")
    prefix, build = work / "prefix", work / "build"
    for command in (
        ["cmake", "--install", str(BUILD), "--prefix", str(prefix)],
        ["cmake", "-S", str(ROOT / "examples" / "mpi_cpp"), "-B", str(build), "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
         "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(build)],
    ):  # fmt: skip
        done = run_command(command)
        assert done.code == 0, f"{command}:\n{done.out}\n{done.err}"
    binaries = [p for p in build.iterdir() if p.is_file() and os.access(p, os.X_OK) and p.suffix == ""]
    assert len(binaries) == 1, binaries
    return binaries[0]


def mpirun(collector: Collector, trainer: Path, *arguments: str) -> Finished:
    command = ["mpirun", "-np", "2", "--oversubscribe"]
    if os.getuid() == 0:
        command.append("--allow-run-as-root")
    done = run_command([*command, str(trainer), *arguments], env=collector.environment())
    assert done.code == 0, f"{done.out}\n{done.err}"
    return done


def test_two_ranks_compare_just_the_same(shared_collector: Collector, trainer: Path) -> None:
    mpirun(shared_collector, trainer, "--run", "cpp")
    mpirun(shared_collector, trainer, "--run", "cpp2")
    mpirun(shared_collector, trainer, "--run", "cpp_bug", "--bug", "activation-scale")
    report = shared_collector.diff("cpp", "cpp2")
    assert report["verdict"] == "identical"
    assert report["ranks"] == [0, 1]
    report = shared_collector.diff("cpp", "cpp_bug")
    assert report["verdict"] == "diverged"
    assert report["first"]["stage"] == "forward" and report["first"]["origin"]
    kinds = {p["kind"] for p in shared_collector.json("series", "cpp", "fc1")["records"]}
    assert {"output", "grad_output"} <= kinds
    losses = [s["value"] for s in shared_collector.json("scalars", "cpp")["records"] if s["name"] == "loss" and s["rank"] == 0]
    assert losses[-1] < losses[0] / 2, "it must learn"


def test_it_trains_without_a_collector(trainer: Path, shared_collector: Collector) -> None:
    assert "loss" in mpirun(shared_collector, trainer, "--no-agent").out
    done = mpirun(shared_collector, trainer, "--run", "nobody", "--collector", "127.0.0.1:9", "--steps", "5")
    assert "loss" in done.out
