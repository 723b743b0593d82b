"""The benchmarks run, and say what they promise to say. Their speed is nobody's business here."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

overhead: Any = importlib.import_module("overhead")
report: Any = importlib.import_module("report")


def run(script: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STATAGENT_")}
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments], capture_output=True, text=True, timeout=280, env=env, check=False
    )
    assert done.returncode == code, f"{script} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def result(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert {"what", "date", "commit", "machine", "parameters", "rows"} <= found.keys()
    assert found["machine"]["cores"] >= 1 and found["machine"]["cpu"]
    assert os.uname().nodename not in json.dumps(found["machine"])
    return found


def test_overhead_measures_the_agent_and_the_other_tool_on_one_model(tmp_path: Path) -> None:
    done = run("overhead.py", "--quick", "--output", str(tmp_path / "overhead.json"))
    found = result(tmp_path / "overhead.json")
    rows = {row["observer"]: row for row in found["rows"]}
    assert list(rows) == ["nothing", "statagent", "statagent_all", "torch_calls"]
    for row in rows.values():
        assert row["rounds"] == 2 and len(row["step"]["by_round_ms"]) == 2
        for what in ("step", "thread"):
            assert row[what]["without_ms"] > 0 and row[what]["with_ms"] > 0
            assert row[what]["added_low_ms"] <= row[what]["added_ms"] <= row[what]["added_high_ms"]
    agent = rows["statagent"]
    # Embeddings, two norms, four linear layers, GELU, attention, mlp, block, last norm, head, the model; and their gradients.
    assert agent["tensors"] == 2 * 15
    assert agent["bytes"] > 0 and agent["engine_ms"] > 0
    assert 0 < agent["calls_ms"] < agent["step"]["with_ms"] * 10
    # Every tensor of every observed step, and the step's end, is in the collector.
    records = (agent["steps_observed"] + 10) * (agent["tensors"] + 1)  # 10: those in which calls are timed
    assert agent["facts"]["counters"] == {"produced": records, "acked": records}
    assert rows["torch_calls"]["facts"]["files"] == rows["torch_calls"]["steps_observed"] * 15
    assert "statagent: output, grad_output" in done.stdout and "quick" in done.stdout


def test_host_path_measures_every_row_without_losing_records(tmp_path: Path) -> None:
    run("host_path.py", "--rounds", "1", "--output", str(tmp_path / "host.json"))
    names = [row["name"] for row in result(tmp_path / "host.json")["rows"]]
    assert [name for name in names if name.startswith("Python: observe")]
    assert "Python: module hook, output and a hook for its gradient" in names
    assert "Python: module outside the recorded steps, forward" in names
    machine = importlib.import_module("machine")
    if (machine.BUILD / "bin" / "statagent_host_bench").is_file():
        assert "C++: Observe by handle, 1 float32" in names


def test_a_collector_that_is_not_built_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from collector import Collector\nwith Collector(): pass"],
        cwd=BENCH, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "STATCOLLECT_BUILD_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1 and f"{tmp_path}/bin/statcollectord is missing" in done.stderr


@pytest.mark.parametrize("arguments", [["--sizes", "huge"], ["--rivals", "nobody"], ["--rounds", "1"], ["--threads", "0"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert "expected" in run("overhead.py", *arguments, code=2).stderr


def test_the_interval_holds_the_median_and_grows_with_the_spread() -> None:
    narrow = overhead.interval([1.0, 1.1, 0.9, 1.0, 1.05, 0.95])
    wide = overhead.interval([1.0, 2.0, 0.0, 1.0, 3.0, -1.0])
    assert narrow[0] <= 1.0 <= narrow[1]
    assert wide[1] - wide[0] > narrow[1] - narrow[0]
    assert overhead.interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_tables_are_filled_between_their_markers_only() -> None:
    text = "before\n<!-- a: written by report.py -->\nold\n<!-- /a -->\nafter\n"
    filled = report.fill(text, {"a": "new"})
    assert filled == "before\n<!-- a: written by report.py -->\nnew\n<!-- /a -->\nafter\n"
    assert report.fill(filled, {"a": "new"}) == filled
    with pytest.raises(ValueError, match="'b'"):
        report.fill(text, {"b": "new"})


def test_the_readme_shows_the_newest_results() -> None:
    assert run("report.py", "--check").stdout.startswith("up to date")
