"""`statctl move export` and `summary`: every format, read back by the tools that use it."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import BUILD, STATCTL, Collector, run_command

MAKE_RUNS = BUILD / "tests" / "make_runs"
FIRST_COLUMNS = "rank,step,micro_batch,kind,activation,output_path,call"

TENSORS: list[dict[str, Any]] = [
    {"name": "embed", "values": [0.1, -2.0, 3e-9, 4.0], "shape": [2, 2], "samples": 4},
    {"name": 'a,b"c', "values": [1.5, "nan", "-inf", 2.0], "path": "0"},
    {"name": "x/../y", "values": ["nan"], "call": 1, "micro_batch": 1, "mode": "eval"},
    {"name": "counts", "values": [3.0, -4.0], "dtype": "i64", "samples": 2},
    {"name": "embed", "kind": "grad_output", "values": [1e300, 2.0]},
    {"name": "embed.weight", "kind": "weight", "values": [0.25] * 20},
]


def launch(run: str, ranks: int = 2, steps: int = 3, tensors: list[dict[str, Any]] | None = None) -> str:
    records: list[dict[str, Any]] = []
    for step in range(steps):
        for rank in range(ranks):
            records += [{**tensor, "rank": rank, "step": step} for tensor in tensors or TENSORS]
            records.append({"rank": rank, "step": step, "scalar": "loss", "value": 1 / (1 + step)})
    records.append({"rank": 0, "step": 1, "event": "nan_first_seen", "text": 'in "embed"'})
    return json.dumps({"run": run, "world_size": ranks, "records": records})


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("export")
    big = [{"name": f"layer.{i}", "values": [float(i), -1.0]} for i in range(500)]
    lines = [launch("r"), launch("one", ranks=1), launch("big", ranks=2, steps=60, tensors=big),
             launch("other", ranks=1, tensors=[TENSORS[4], TENSORS[0], {"name": "new", "values": [1.0]}])]  # fmt: skip
    subprocess.run([str(MAKE_RUNS), str(folder / "data")], input="\n".join(lines), text=True, check=True, timeout=60)
    started = Collector(folder / "data").start()
    yield started
    started.stop()


def export(collector: Collector, form: str, run: str, path: Path, *more: str) -> str:
    done = collector.statctl("export", form, run, str(path), *more)
    assert done.code == 0, done.err
    return done.err


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_has_one_line_an_observation_and_exact_numbers(collector: Collector, tmp_path: Path) -> None:
    said = export(collector, "csv", "r", tmp_path / "r.csv", "--sketch")
    assert "36 records of run r (2 ranks, steps 0..2)" in said
    text = (tmp_path / "r.csv").read_bytes().decode()
    assert text.startswith(FIRST_COLUMNS + ",mode,class,depth,order,dtype,shape,numel,")
    assert text.count("\r\n") == text.count("\n") == 37
    rows = rows_of(text)
    assert [r["activation"] for r in rows[:6]] == [t["name"] for t in TENSORS]
    assert [(r["step"], r["rank"]) for r in rows[::6]] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    assert float(rows[0]["max"]) == 4.0 and rows[0]["shape"] == "[2,2]" and rows[0]["order"] == "0"
    assert float(rows[0]["mean"]) == (0.1 - 2.0 + 3e-9 + 4.0) / 4
    assert re.fullmatch("0x[0-9a-f]{16}", rows[0]["hash"])
    assert len(json.loads(rows[0]["sketch"])) == 16
    assert (rows[1]["nan"], rows[1]["neg_inf"], rows[1]["min"]) == ("1", "1", "1.5")
    assert (rows[2]["nan"], rows[2]["mean"], rows[2]["mode"], rows[2]["call"]) == ("1", "", "eval", "1")
    assert rows[4]["l1"] == "1e+300"


def test_dash_is_standard_output_and_filters_choose(collector: Collector) -> None:
    done = collector.statctl(
        "export", "csv", "r", "-", "--ranks", "1", "--steps", "2", "--kinds", "weight,grad_output", "--quiet"
    )
    assert (done.code, done.err) == (0, "")
    assert [(r["rank"], r["step"], r["kind"]) for r in rows_of(done.out)] == [("1", "2", "grad_output"), ("1", "2", "weight")]
    assert collector.statctl("export", "parquet", "r", "-").code == 2


def test_json_lines_hold_everything(collector: Collector) -> None:
    done = collector.statctl("export", "json", "r", "-", "--samples", "--sketch")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert lines[0] == {"record": "run", "run": "r", "version": 1}
    kinds = [line["record"] for line in lines[1:]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"stats": 36, "scalar": 6, "event": 1, "step_end": 6}
    stats = [line for line in lines if line["record"] == "stats"]
    assert stats[0]["samples"] == [0.1, -2.0, 3e-9, 4.0] and len(stats[0]["sketch"]) == 16
    assert stats[2]["mean"] is None and stats[2]["nan"] == 1 and stats[2]["shape"] == [1]
    assert next(line for line in lines if line["record"] == "event")["text"] == 'in "embed"'
    assert next(line for line in lines if line["record"] == "scalar")["value"] == 1.0


def test_parquet_has_the_same_values_as_csv(collector: Collector, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export(collector, "parquet", "r", tmp_path / "r.parquet", "--sketch", "--samples")
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table.schema.metadata[b"statcollect.run"] == b"r"
    export(collector, "csv", "r", tmp_path / "r.csv", "--sketch", "--samples")
    rows = rows_of((tmp_path / "r.csv").read_text())
    assert table.column_names == list(rows[0])
    for of_parquet, row in zip(table.to_pylist(), rows, strict=True):
        for name, value in of_parquet.items():
            assert same(value, row[name], name), (name, value, row[name])


def test_parquet_says_which_python_it_needs(collector: Collector, tmp_path: Path) -> None:
    bare = tmp_path / "bare python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # without the packages that are installed
    bare.chmod(0o755)
    (tmp_path / "out").mkdir()
    command = [str(STATCTL), "--collector", collector.address, "export", "parquet", "r", "r.parquet"]
    done = run_command(command, env={**os.environ, "STATCTL_PYTHON": str(bare)}, cwd=tmp_path / "out")
    assert done.code == 2 and str(bare) in done.err
    assert "No module named 'pyarrow'" in done.err and "STATCTL_PYTHON, or export csv" in done.err
    done = run_command(command, env={**os.environ, "STATCTL_PYTHON": "/no/python"}, cwd=tmp_path / "out")
    assert done.code == 2 and "start Python as '/no/python': No such file or directory" in done.err
    assert list((tmp_path / "out").iterdir()) == []


def test_parquet_imports_nothing_from_the_working_directory(collector: Collector, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    (tmp_path / "json.py").write_text("raise SystemExit('this is not the json that was meant')")
    done = run_command(
        [str(STATCTL), "--collector", collector.address, "export", "parquet", "r", "r.parquet"],
        env={**os.environ, "STATCTL_PYTHON": sys.executable},
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    assert (tmp_path / "r.parquet").stat().st_size > 1000


def same(value: Any, cell: str, name: str) -> bool:
    if value is None:
        return cell == ""
    if name == "hash":
        return int(cell, 16) == value
    if isinstance(value, list):
        listed = json.loads(cell)
        return len(listed) == len(value) and all(same(x, str(y), "") for x, y in zip(value, listed, strict=True))
    if isinstance(value, float):
        return float(cell) == value or (math.isnan(value) and cell.lower() == "nan")
    return cell == str(value)


# --- ONNX Runtime

LINES = [
    r">*(.+) (forward|backward) run shape: torch\.Size\(\[([\d, ]*)\]\) dtype: (torch\.\w+) size: torch\.Size\(\[(\d+)\]\) ",
    r"min: (\S+) max: (\S+), mean: (\S+), std: (\S+) ",
    r"nan: (\d+), inf: (\d+)",
    r"samples\(top 128\): tensor\((?:.|\n)*\)",
    r"neg: (\d+), pos: (\d+), zero: (\d+),",
    r"=+",
]
GRAMMAR = re.compile("\n".join(LINES) + "\n")


def test_ort_folders_follow_the_grammar(collector: Collector, tmp_path: Path) -> None:
    said = export(collector, "ort", "r", tmp_path / "dump")
    assert "6 weight tensors left out" in said
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["rank_0", "rank_1"]
    step = tmp_path / "dump" / "rank_1" / "step_2"
    order = (step / "order.txt").read_text().splitlines()
    assert order == ["embed_forward", 'a,b"c[0]_forward', "x%2F..%2Fy@mb1@call1@eval_forward", "counts_forward", "embed_backward"]
    assert sorted(p.name for p in step.iterdir()) == sorted(["order.txt", *order])
    found = {name: GRAMMAR.fullmatch((step / name).read_text()) for name in order}
    assert all(found.values()), found
    embed = found["embed_forward"]
    assert embed is not None
    assert embed.groups()[:5] == ("embed", "forward", "2, 2", "torch.float32", "4")
    values = [0.1, -2.0, 3e-9, 4.0]
    mean = sum(values) / 4
    assert math.isclose(float(embed[9]), math.sqrt(sum((x - mean) ** 2 for x in values) / 3), rel_tol=1e-12), "the sample's std"


def test_one_rank_needs_no_folder_of_its_own(collector: Collector, tmp_path: Path) -> None:
    export(collector, "ort", "one", tmp_path / "dump")
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["step_0", "step_1", "step_2"]


def test_samples_look_as_torch_prints_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(1)
    dtypes = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32,
              "bool": torch.bool}  # fmt: skip
    tensors, expected = [], {}
    torch.set_printoptions(precision=6, linewidth=128)
    try:
        for i, (name, dtype) in enumerate(dtypes.items()):
            for scale in (1.0, 1e-6, 1e5, 0.0):
                x = (scale * torch.randn(40, generator=generator)).to(dtype)
                if dtype.is_floating_point and scale == 1e5:
                    x[3], x[5], x = math.nan, -math.inf, x.round()
                key = f"t{i}.{scale}"
                tensors.append({"name": key, "values": [str(float(v)) for v in x], "dtype": name, "samples": 40})
                expected[key] = str(x)
    finally:
        torch.set_printoptions("default")
    text = json.dumps({"run": "t", "records": [{**t, "rank": 0, "step": 0} for t in tensors]})
    subprocess.run([str(MAKE_RUNS), str(tmp_path / "data")], input=text, text=True, check=True, timeout=60)
    collector = Collector(tmp_path / "data").start()
    try:
        export(collector, "ort", "t", tmp_path / "dump")
    finally:
        collector.stop()
    for name, printed in expected.items():
        found = (tmp_path / "dump" / "step_0" / f"{name}_forward").read_text()
        assert f"samples(top 128): {printed}\n" in found, (name, printed, found)


def test_summary_is_in_the_order_of_another_run(collector: Collector, tmp_path: Path) -> None:
    done = collector.statctl("summary", "one", "--step", "1")
    assert done.code == 0, done.err
    export(collector, "ort", "one", tmp_path / "dump")
    step = tmp_path / "dump" / "step_1"
    order = (step / "order.txt").read_text().splitlines()
    assert done.out == "".join((step / name).read_text() + "\n" for name in order), "each file verbatim and one line's end"
    done = collector.statctl("summary", "one", "--step", "1", "--like", "other", "--out", str(tmp_path / "merged"))
    assert done.code == 0
    assert "1 of other are not in one and are left out:\n  new_forward" in done.err
    assert "counts_forward" in done.err
    merged = (tmp_path / "merged" / "step_1_.txt").read_text()
    assert merged == "".join((step / name).read_text() + "\n" for name in ("embed_backward", "embed_forward"))
    assert collector.statctl("summary", "one", "--step", "99").code == 2


# --- TensorBoard


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def framed(data: bytes) -> list[bytes]:
    """The records of a TFRecord file, all checksums verified."""

    def check(covered: bytes, masked: int) -> None:
        crc = crc32c(covered)
        assert ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == masked

    records = []
    while data:
        (size, masked) = struct.unpack("<QI", data[:12])
        check(data[:8], masked)
        record = data[12 : 12 + size]
        check(record, struct.unpack("<I", data[12 + size : 16 + size])[0])
        records.append(record)
        data = data[16 + size :]
    return records


def test_event_files_are_well_framed(collector: Collector, tmp_path: Path) -> None:
    export(collector, "tensorboard", "one", tmp_path / "logs")
    (file,) = (tmp_path / "logs").iterdir()
    records = framed(file.read_bytes())
    assert len(records) == 1 + 3, "the version, then one event a step"
    assert b"brain.Event:2" in records[0]


def test_tensorboard_reads_what_was_exported(collector: Collector, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    said = export(collector, "tensorboard", "r", tmp_path / "logs")
    assert "1 events left out" in said
    logs = accumulator.EventAccumulator(str(tmp_path / "logs" / "rank_1"), size_guidance={"scalars": 0})
    logs.Reload()
    assert [(s.step, s.value) for s in logs.Scalars("loss")] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert [s.value for s in logs.Scalars("output/embed/max")] == [4.0] * 3
    tags = logs.Tags()["scalars"]
    assert 'output/a,b"c[0]/nan' in tags and "output/embed/nan" not in tags
    export(collector, "tensorboard", "one", tmp_path / "few", "--stat", "l1,zero", "--kinds", "output")
    logs = accumulator.EventAccumulator(str(tmp_path / "few"))
    logs.Reload()
    assert {tag.rsplit("/", 1)[1] for tag in logs.Tags()["scalars"]} == {"l1", "zero"}


# --- what goes wrong


def test_nothing_is_overwritten_unasked(collector: Collector, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("mine")
    done = collector.statctl("export", "csv", "r", str(path))
    assert done.code == 2 and "--overwrite" in done.err
    assert path.read_text() == "mine"
    export(collector, "csv", "r", path, "--overwrite")
    assert path.read_text().startswith(FIRST_COLUMNS)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    done = collector.statctl("export", "ort", "r", str(tmp_path / "home"), "--overwrite")
    assert done.code == 2 and "thesis.tex" in done.err
    assert (tmp_path / "home" / "thesis.tex").exists()


@pytest.mark.parametrize("form", ["csv", "json", "ort", "tensorboard", "parquet"])
def test_a_full_disk_leaves_nothing_behind(collector: Collector, tmp_path: Path, form: str) -> None:
    def limit() -> None:  # no file may grow beyond that, as on a disk that is full
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    done = subprocess.run(
        [str(STATCTL), "--collector", collector.address, "export", form, "big", str(tmp_path / "out")],
        preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr and "out" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["json", "ort", "parquet"])
def test_an_interrupted_export_leaves_nothing_behind(collector: Collector, tmp_path: Path, form: str) -> None:
    process = subprocess.Popen(
        [str(STATCTL), "--collector", collector.address, "export", form, "big", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while not any(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    if process.returncode == 0:
        assert (tmp_path / "out").exists()
        pytest.skip("the export was done before the signal came")
    assert process.returncode == 130 and "interrupted" in err
    assert list(tmp_path.iterdir()) == [], "nor a part under another name"


def test_unknown_runs_ranks_and_formats_are_said(collector: Collector, tmp_path: Path) -> None:
    for arguments, expected in [
        (["csv", "rr", "x"], "no run 'rr'"),
        (["cvs", "r", "x"], "expected csv, json, ort, parquet or tensorboard"),
        (["csv", "r", "x", "--ranks", "7"], "it has 0, 1"),
        (["csv", "r", "x", "--steps", "9-1"], "--step"),
        (["csv", "r", "/proc/no/such/x"], "create the folder '/proc/no/such'"),
        (["ort", "r", "x", "--sketch"], "--sketch"),
    ]:
        done = run_command([str(STATCTL), "--collector", collector.address, "export", *arguments], cwd=tmp_path)
        assert done.code == 2 and expected in done.err, (arguments, done.err)
    assert os.listdir(tmp_path) == []


def test_an_exported_folder_imported_again_agrees(collector: Collector, tmp_path: Path) -> None:
    export(collector, "ort", "r", tmp_path / "dump")
    done = collector.statctl(
        "import", "ort", str(tmp_path / "dump"), "--run", "again", "--rank-pattern", "rank_{}", "--trust-std"
    )
    assert done.code == 0, done.err
    # The sample's std and back again: integers, which have no tolerance of their own, differ in the last digit.
    question = ["--kinds", "output,grad_output,inspect", "--tolerance", "1e-12"]
    report = collector.diff("r", "again", *question)
    assert report["verdict"] in ("identical", "within_tolerance"), report
    assert report["unmatched"] == {"only_a": [], "only_b": []}
    assert report["compared"]["records"] >= 2 * 3 * 4 and report["compared"]["diverged"] == 0
    assert report["ranks"] == [0, 1] and report["steps"] == {"first": 0, "last": 2}
    # And it is a comparison: another value is seen.
    changed = tmp_path / "dump" / "rank_1" / "step_2" / "embed_forward"
    changed.write_text(changed.read_text().replace("max: 4.0", "max: 4.5"))
    done = collector.statctl(
        "import", "ort", str(tmp_path / "dump"), "--run", "changed", "--rank-pattern", "rank_{}", "--trust-std"
    )
    assert done.code == 0, done.err
    first = collector.diff("r", "changed", *question)["first"]
    assert (first["step"], first["rank"], first["activation"], first["reason"]) == (2, 1, "embed", "numeric")


def test_names_of_inspected_tensors_come_back_as_they_were(shared_collector: Collector, tmp_path: Path) -> None:
    script = """
import statagent, torch
statagent.init(run="marks", required=True)
for name in ("plain", "a/b", "50%", "acc%20", "x[0]", "q@mb1", ".hidden"):
    statagent.inspect(name, torch.arange(4.0))
statagent.step(); statagent.close(timeout=10)
"""
    shared_collector.python(script)
    assert export(shared_collector, "ort", "marks", tmp_path / "dump")
    done = shared_collector.statctl("import", "ort", str(tmp_path / "dump"), "--run", "marks-again", "--trust-std")
    assert done.code == 0, done.err
    report = shared_collector.diff("marks", "marks-again", "--kinds", "inspect")
    assert report["unmatched"] == {"only_a": [], "only_b": []}
    assert report["compared"]["records"] == report["compared"]["within_tolerance"] + report["compared"]["identical"] == 7


def test_no_name_becomes_a_formula_in_a_spreadsheet(shared_collector: Collector, tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "'=1", "plain", "-"]
    shared_collector.python(f"""
import statagent, torch
statagent.init(run="formulas", required=True)
for name in {names!r}:
    statagent.inspect(name, torch.tensor([-1.0, -2.0]))
    statagent.log_scalar(name, -1.5)
statagent.step(); statagent.close(timeout=10)
""")
    export(shared_collector, "csv", "formulas", tmp_path / "formulas.csv")
    table = {"export": (tmp_path / "formulas.csv").read_text()}
    for command in (["series", "formulas", "=cmd|' /C calc'!A0"], ["scalars", "formulas", "--all"], ["events", "formulas"],
                    ["show", "formulas"], ["top", "formulas", "--by", "l2"], ["diff", "formulas", "formulas"]):  # fmt: skip
        done = shared_collector.statctl(*command, "--format", "csv")
        table[command[0]] = done.out
    for text in table.values():
        rows = list(csv.reader(io.StringIO(text, newline="")))
        for cell in (cell for row in rows for cell in row):
            if cell[:1] in "=+-@\t\r" and len(cell) > 1:
                float(cell)  # a number, or this raises
    exported = rows_of(table["export"])
    back = [re.sub(r"^'('*[=+\-@\t\r])", r"\1", row["activation"]) for row in exported if row["kind"] == "inspect"]
    assert back == names
    assert {float(row["min"]) for row in exported if row["kind"] == "inspect"} == {-2.0}
