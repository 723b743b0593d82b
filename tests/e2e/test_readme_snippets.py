"""The quick starts, run as printed: Python (README.md) under torchrun, C++ (docs/cpp.md) against the installed agent."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import BUILD, ROOT, Collector, run_command, torchrun


def snippet(page: str, language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [b for b in blocks if containing in b]
    return str(block)


def test_python_quick_start_runs_as_printed(collector: Collector, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    # What the reader has already: a model, an optimizer, batches.
    script.write_text(
        "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))\n"
        "optimizer = torch.optim.AdamW(model.parameters())\nbatches = [torch.randn(2, 4) for _ in range(3)]\n"
        "def compute_loss(model, batch):\n    return model(batch).square().mean()\n"
        + snippet("README.md", "python", "statagent.watch")
    )
    done = run_command(torchrun(2, str(script)), env=collector.environment(STATAGENT_RUN="quick"))
    assert done.code == 0, done.err
    shown = collector.json("show", "quick")
    assert shown["summary"]["ranks"] == 2
    assert shown["summary"]["steps"] == 3
    assert {p["kind"] for p in collector.json("series", "quick", "1")["records"]} >= {"output", "grad_output"}
    assert len([s for s in collector.json("scalars", "quick")["records"] if s["name"] == "loss"]) == 6


def test_cpp_quick_start_builds_against_the_installation(collector: Collector, tmp_path: Path) -> None:
    # The second block is part of a function.
    shard = snippet("docs/cpp.md", "cpp", "global_shape[]")
    (tmp_path / "main.cc").write_text(
        snippet("docs/cpp.md", "cpp", "statagent::Agent::Start")
        + "\nvoid ObserveShard(statagent::Agent* agent, const void* data, std::span<const std::int64_t> shape) {\n"
        + f"{shard}}}\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(trainer CXX)\nset(CMAKE_CXX_STANDARD 20)\nadd_executable(trainer main.cc)\n"
        + snippet("docs/cpp.md", "cmake", "find_package(statagent")
    )
    prefix, build = tmp_path / "prefix", tmp_path / "build"
    for command in (
        ["cmake", "--install", str(BUILD), "--prefix", str(prefix)],
        ["cmake", "-S", str(tmp_path), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", str(build)],
        [str(build / "trainer")],
    ):
        done = run_command(command, env=collector.environment())
        assert done.code == 0, f"{command}:\n{done.out}\n{done.err}"
    assert collector.json("runs")["runs"][0]["records"] > 0
