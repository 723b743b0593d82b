"""The benchmarks run, and say what they promise to say. Their speed is nobody's business here."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

collector: Any = importlib.import_module("collector")
machine: Any = importlib.import_module("machine")
overhead: Any = importlib.import_module("overhead")
report: Any = importlib.import_module("report")
result_files: Any = importlib.import_module("result_files")


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
    own = ["statagent_bare", "statagent", "statagent_all", "statagent_everything"]
    assert list(rows) == ["nothing", "empty_hooks", *own, "torch_calls"]
    for row in rows.values():
        assert row["rounds"] == 2 and len(row["step"]["by_round_ms"]) == 2
        for what in ("step", "thread"):
            assert row[what]["without_ms"] > 0 and row[what]["with_ms"] > 0
            assert row[what]["added_low_ms"] <= row[what]["added_ms"] <= row[what]["added_high_ms"]
    agent = rows["statagent_bare"]
    # Embeddings, two norms, four linear layers, GELU, attention, mlp, block, last norm, head, the model; and their gradients.
    assert agent["tensors"] == 2 * 15
    assert agent["bytes"] > 0 and agent["engine_ms"] > 0
    assert 0 < agent["calls_ms"] < agent["step"]["with_ms"] * 10
    # Every tensor of every observed step, and the step's end, is in the collector; and what the model is made of, once.
    records = (agent["steps_observed"] + 10) * (agent["tensors"] + 1)  # 10: those in which calls are timed
    counters = agent["facts"]["counters"]
    assert set(counters) == {"produced", "acked"} and counters["produced"] == counters["acked"]
    assert records < counters["acked"] < records + 500
    assert rows["torch_calls"]["facts"]["files"] == rows["torch_calls"]["steps_observed"] * 15
    assert "statagent: output, grad_output" in done.stdout and "quick" in done.stdout


def test_host_path_measures_every_row_without_losing_records(tmp_path: Path) -> None:
    run("host_path.py", "--rounds", "1", "--output", str(tmp_path / "host.json"))
    rows = result(tmp_path / "host.json")["rows"]
    names = [row["name"] for row in rows]
    assert [name for name in names if name.startswith("Python: observe")]
    let_run = {row["name"]: row["let_run"] for row in rows if "beside" in row}
    assert let_run.pop("observe, 1024 KiB") > 0
    assert let_run == dict.fromkeys(let_run, 0) and len(let_run) == 6, "calls that hold the GIL"
    for row in rows:
        if "beside" in row:
            assert all(0 < row[where]["p50"] <= row[where]["p90"] <= row[where]["p99"] for where in ("alone", "beside"))
    assert "Python: module hook, output and a hook for its gradient" in names
    assert "Python: module outside the recorded steps, forward" in names
    if (machine.BUILD / "bin" / "statagent_host_bench").is_file():
        assert "C++: Observe by handle, 1 float32" in names


def test_agent_memory_measures_every_state_of_the_collector(tmp_path: Path) -> None:
    run("agent_memory.py", "--seconds", "1", "--output", str(tmp_path / "memory.json"))
    rows = {(row["collector"], row["spill"]): row for row in result(tmp_path / "memory.json")["rows"]}
    assert set(rows) == {(state, spill) for state in ("there", "stopped", "gone") for spill in (False, True)}
    for (state, spill), row in rows.items():
        assert row["added"] > 0 and row["observed"] > 0
        assert (row["spilled"] > 0) == (spill and state != "there") or state == "there"
        assert row["acked"] > 0 if state == "there" else row["acked"] == 0


def statcollect_bench(command: str, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    binary = machine.BUILD / "bin" / "statcollect-bench"
    done = subprocess.run([str(binary), command, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{command} {arguments} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def stored_records(address: str, run: str) -> int:
    """The counters of the collector's query service."""
    statctl = machine.BUILD / "bin" / "statctl"
    done = subprocess.run(
        [str(statctl), "--collector", address, "--format", "json", "show", run],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(json.loads(done.stdout)["summary"]["records"])


def test_every_record_that_the_load_says_was_acknowledged_is_in_the_store(tmp_path: Path) -> None:
    data = tmp_path / "data"
    daemon = machine.BUILD / "bin" / "statcollectord"
    sizes = ("--streams", 3, "--activations", 70, "--sketch", 16, "--repeat", 0.5)
    done = statcollect_bench(
        "ingest", "--spawn", daemon, "--data-dir", data, *sizes, "--seconds", 0.5, "--reopen", "--run", "timed"
    )
    found = json.loads(done.stdout)
    assert found["stat_records"] > 0 and found["seconds"] > 0 and found["fsync"]
    assert found["durable_records"] == found["records"] > found["stat_records"]
    # All records are in tables. The log has at most how far the alarms have judged, which the second start may
    # write after it has judged the last steps.
    assert found["stored_reopened"]["log"] < 4096 < found["stored_stopped"]["log"]
    assert found["stored_stopped"]["tables"] < found["stored_reopened"]["tables"]
    assert 0 < found["streams"]["fewest_records"] <= found["streams"]["most_records"]
    assert 3 * found["streams"]["fewest_records"] <= found["stat_records"] <= 3 * found["streams"]["most_records"]
    for side in ("sender", "daemon_stopped"):
        assert found[side]["rss_peak_bytes"] > 0 and found[side]["cpu_seconds"] > 0
    # The daemon is gone, the folder holds what was acknowledged.
    with collector.Collector(data_dir=data) as again:
        assert stored_records(again.address, "timed") == found["records"]
        sized = json.loads(
            statcollect_bench(
                "ingest", "--collector", again.address, *sizes, "--steps", 5, "--batch-records", 33, "--run", "s"
            ).stdout
        )
        assert sized["stat_records"] == 3 * 5 * 70 and sized["records"] == 3 * 5 * (70 + 2)  # a loss and an end a step
        assert stored_records(again.address, "s") == sized["records"]
        assert sized["batches"] == 3 * 5 * 3  # 33, 33 and 4: batches end with a step
        wrong = statcollect_bench("ingest", "--collector", again.address, *sizes, "--steps", 1, "--run", "s", code=1)
        assert "run" in wrong.stderr and not wrong.stdout


def test_same_seed_gives_the_same_records_and_another_step_on_differs(tmp_path: Path) -> None:
    statctl = machine.BUILD / "bin" / "statctl"
    with collector.Collector() as running:

        def load(run: str, *arguments: object) -> None:
            statcollect_bench(
                "ingest", "--collector", running.address, "--streams", 2, "--activations", 300, "--steps", 40, "--repeat", 0.9,
                "--run", run, *arguments,
            )  # fmt: skip

        def diff(a: str, b: str, code: int) -> dict[str, Any]:
            done = subprocess.run(
                [str(statctl), "--collector", running.address, "--format", "json", "diff", "--run-a", a, "--run-b", b, "--exact"],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == code, done.stdout + done.stderr
            found: dict[str, Any] = json.loads(done.stdout)
            return found

        load("base")
        load("same", "--batch-records", 100)  # cut otherwise, the records are the same
        load("later", "--differ-from", 7)
        load("seed", "--seed", 2)
        assert diff("base", "same", 0)["compared"]["identical"] == 2 * 40 * (300 + 1)  # and the losses
        later = diff("base", "later", 1)
        assert later["first"]["step"] == 7
        assert later["compared"]["identical"] == 2 * 7 * 300 + 2 * 40
        assert diff("base", "seed", 1)["compared"]["identical"] == 2 * 40  # the losses only


def test_rivals_are_given_the_records_that_the_collector_gets() -> None:
    sizes = ("--activations", 12, "--steps", 3, "--sketch", 16, "--repeat", 0.5)
    lines = statcollect_bench("dump", *sizes, "--ranks", 2, "--format", "influx").stdout.splitlines()
    assert len(lines) == 2 * 3 * 12
    dumped = {}
    for line in lines:
        place, fields, nanos = line.split(" ")
        rank, activation = (int(tag.partition("=")[2]) for tag in place.split(",")[2:])
        values = {name: float(value) for name, value in (field.split("=") for field in fields.split(","))}
        dumped[rank, (int(nanos) - 1_700_000_000 * 10**9) // 10**9, activation] = values
    with collector.Collector() as running:
        statcollect_bench("ingest", "--collector", running.address, "--streams", 2, *sizes, "--run", "r")
        statctl = [str(machine.BUILD / "bin" / "statctl"), "--collector", running.address, "--format", "json"]
        # With 12 activations the first three are the outputs of the first three modules.
        for activation, name in enumerate(("norm1", "attn.q_proj", "attn.k_proj")):
            asked = [*statctl, "series", "r", f"model.layers.0.{name}", "--kind", "output"]
            found = json.loads(subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout)["records"]
            assert len(found) == 2 * 3
            for record in found:
                given, stats = dumped[record["rank"], record["step"], activation], record["stats"]
                assert all(stats[field] == given[field] for field in ("min", "max", "mean", "std", "l1", "l2", "zero"))
                assert stats["numel"] == given["zero"] + given["neg"] + given["pos"]
    raw = subprocess.run(
        [str(machine.BUILD / "bin" / "statcollect-bench"), "dump", *map(str, sizes)], capture_output=True, timeout=60, check=True
    ).stdout
    assert len(raw) == 8 * 3 * 12 * (5 * 4 + 13 * 8 + 1 + 16 * 4)


def test_rivals_take_the_place_of_their_earlier_figures_only(tmp_path: Path) -> None:
    rivals: Any = importlib.import_module("rivals")
    path = tmp_path / "ingest.json"
    row = {"section": "rivals", "records": 10, "records_per_second": 1e6, "bytes_per_record": 50.0}
    result_files.write(
        "ingest", {}, {"cpu": "x", "cores": 2}, [{"section": "limits"}, {**row, "source": "victoria", "name": "V"}], path
    )
    added = [{**row, "source": "clickhouse", "name": "C", "diff_identical_seconds": 1.5}]
    assert rivals._add(added, ["clickhouse"], {}, path) == path
    assert [r.get("name") for r in result(path)["rows"]] == [None, "V", "C"]
    rivals._add([{**added[0], "name": "C2"}], ["clickhouse"], {}, path)
    rows = result(path)["rows"]
    assert [r.get("name") for r in rows] == [None, "V", "C2"]
    table = importlib.import_module("ingest").render({"rows": rows[1:]})
    assert "| V | 1.00 | 50.0 | - | - | - | - | 10 |" in table and "| C2 | 1.00 | 50.0 | 1.50 | - | - | - | 10 |" in table


def test_rivals_that_are_not_installed_are_named(tmp_path: Path) -> None:
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "bench_rivals.sh"), "--no-install"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "found no clickhouse-server clickhouse-client victoria-metrics curl" in done.stderr


def test_ingest_writes_every_section_and_its_tables(tmp_path: Path) -> None:
    output = tmp_path / "ingest.json"
    run("ingest.py", "--quick", "--only", "grow,crowd", "--output", str(output))
    done = run("ingest.py", "--quick", "--only", "queries", "--output", str(output))
    found = result(output)
    sections = [row["section"] for row in found["rows"]]
    assert sections == ["grow", "grow", "crowd", "queries"], "earlier sections stay"
    crowd = found["rows"][2]
    assert crowd["with_queries"]["queries"]["failed"] == 0 < crowd["with_queries"]["queries"]["answered"]
    assert len(crowd["alone"]["samples"]) >= 3
    names = [row["name"] for row in found["rows"][3]["rows"]]
    assert len(names) == 4 and all("(P" in name for name in names)
    assert "| question |" in done.stdout and "| 256 ranks |" in done.stdout
    same = found["rows"][3]["loads"][1]
    assert same["run"] == "queries-same" and same["stored"]["bytes_per_record"] < 20


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


def test_scale_spreads_ranks_over_collectors(tmp_path: Path) -> None:
    engine = ["clickhouse-2"] if shutil.which("clickhouse-server", path="/usr/sbin:/usr/bin") else []
    done = run(
        "scale.py", "--ranks", "5", "--seconds", "0.5", "--only", "rocksdb-1", *engine, "--output", str(tmp_path / "scale.json")
    )
    found = result(tmp_path / "scale.json")
    assert [row["setup"] for row in found["rows"]] == ["rocksdb-1", *engine]
    for row in found["rows"]:
        assert row["ranks"] == 5 and row["records"] > 0 and row["records_per_second"] > 0
    assert done.stdout.count("\n") == 2 + len(found["rows"])
