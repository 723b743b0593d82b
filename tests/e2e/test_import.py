"""`statctl move import` against a real collector: what comes in, what a diff of it says, and what is left after a bad file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import ROOT, STATCTL, Collector, run_command, wait_until

GOLDEN = ROOT / "tests" / "client" / "formats" / "golden"


def ort_record(
    name: str, way: str = "forward", depth: int = 2, low: float = -1.0, high: float = 2.0, mean: float = 0.5, std: float = 1.25
) -> str:
    """A tensor's text as ONNX Runtime's subscriber writes it."""
    return (
        f"{'>' * depth}{name} {way} run shape: torch.Size([2, 2]) dtype: torch.float32 size: torch.Size([4]) \n"
        f"min: {low} max: {high}, mean: {mean}, std: {std} \nnan: 0, inf: 0\nsamples(top 128): tensor([ 1.0, 2.0])\n"
        f"neg: 1, pos: 3, zero: 0,\n================\n"
    )


def ort_dump(folder: Path, steps: int = 3, wrong_from: tuple[int, int] = (99, 99), factor: float = 1.01, layers: int = 4) -> Path:
    """A run of a few layers, in which everything from (step, layer) on is off by a factor."""
    for step in range(steps):
        (folder / f"step_{step}").mkdir(parents=True)
        order = []
        for layer in range(layers, -1, -1):
            k = layer if layer else 0
            name = f"Linear_{layers - k + 1}_0th_output" if layer else "Net_0_0th_output"
            scale = factor if (step, layers - k + 1) >= wrong_from else 1.0
            text = ort_record(name, depth=2 if layer else 1, low=-1.0 * scale, high=2.0 * scale, mean=0.5 * scale)
            (folder / f"step_{step}" / f"{name}_forward").write_text(text)
            order.append(f"{name}_forward")
        (folder / f"step_{step}" / "order.txt").write_text("\n".join(order) + "\n")
    return folder


def test_two_ort_folders_are_compared_and_the_wrong_layer_is_named(shared_collector: Collector, tmp_path: Path) -> None:
    shared_collector.json("import", "ort", str(ort_dump(tmp_path / "a")), "--run", "ort-a")
    shared_collector.json("import", "ort", str(ort_dump(tmp_path / "b", wrong_from=(1, 2))), "--run", "ort-b")
    report = shared_collector.diff("ort-a", "ort-b")
    assert report["verdict"] == "diverged"
    first = report["first"]
    assert (first["step"], first["activation"], first["stage"], first["reason"]) == (
        1,
        "Linear_2_0th_output",
        "forward",
        "numeric",
    )
    assert first["a"]["max"] == 2.0 and first["b"]["max"] == pytest.approx(2.02)
    assert first["a"]["l2"] is None, "what the dump lacks is absent, not 0"
    assert "std" in first["a"]["untrusted"]
    assert report["compared"]["records"] == 15


def test_untrusted_std_alone_makes_no_divergence_and_trusted_std_does(shared_collector: Collector, tmp_path: Path) -> None:
    for name, std in (("x", 1.25), ("y", 1.5)):
        (tmp_path / name / "step_0").mkdir(parents=True)
        (tmp_path / name / "step_0" / "Linear_1_0th_output_forward").write_text(ort_record("Linear_1_0th_output", std=std))
        shared_collector.json("import", "ort", str(tmp_path / name), "--run", f"std-{name}")
        shared_collector.json("import", "ort", str(tmp_path / name), "--run", f"trusted-{name}", "--trust-std")
    assert shared_collector.diff("std-x", "std-y")["verdict"] == "identical"
    assert shared_collector.diff("trusted-x", "trusted-y")["verdict"] == "diverged"


def test_rank_folders_become_the_ranks_of_one_attempt(shared_collector: Collector) -> None:
    answer = shared_collector.json(
        "import", "ort", str(GOLDEN / "ort" / "ranks" / "dump"), "--run", "ranks", "--rank-pattern", "out_{rank}"
    )
    assert answer["ranks"] == [0, 1, 10] and answer["records"] == 6 and answer["attempt"] == 1
    shown = shared_collector.json("show", "ranks")
    assert shown["summary"]["attempts"] == 1
    assert [rank["rank"] for rank in shown["attempts"][0]["ranks"]] == [0, 1, 10]
    points = shared_collector.json("series", "ranks", "Net_0_0th_output", "--rank", "10")["records"]
    assert [(p["step"], p["stats"]["min"]) for p in points] == [(0, -11.0), (1, -11.0)]


def test_launch_joins_imports_of_single_ranks(shared_collector: Collector) -> None:
    for rank in ("0", "1"):
        shared_collector.json(
            "import", "ort", str(GOLDEN / "ort" / "ranks" / "dump" / f"out_{rank}"), "--run", "joined", "--rank", rank,
            "--world-size", "2", "--launch", "night",
        )  # fmt: skip
    shown = shared_collector.json("show", "joined")
    assert shown["summary"]["attempts"] == 1
    assert [rank["rank"] for rank in shown["attempts"][0]["ranks"]] == [0, 1]


def test_import_says_where_it_came_from(shared_collector: Collector, tmp_path: Path) -> None:
    dump = ort_dump(tmp_path / "dump")
    shared_collector.json("import", "ort", str(dump), "--run", "config")
    config = shared_collector.json("show", "config")["config"]
    text = json.dumps(config)
    assert "import.format" in text and "import.untrusted" in text and str(dump) in text


def test_run_that_exists_is_refused_replaced_or_appended_to(shared_collector: Collector, tmp_path: Path) -> None:
    dump = str(ort_dump(tmp_path / "dump"))
    shared_collector.json("import", "ort", dump, "--run", "twice")
    refused = shared_collector.statctl("import", "ort", dump, "--run", "twice")
    assert refused.code == 2 and "exists" in refused.err and "--if-exists replace" in refused.err
    shared_collector.json("import", "ort", dump, "--run", "twice", "--if-exists", "append")
    assert shared_collector.json("show", "twice")["summary"]["attempts"] == 2
    shared_collector.json("import", "ort", dump, "--run", "twice", "--if-exists", "replace")
    assert shared_collector.json("show", "twice")["summary"]["attempts"] == 1


def test_dry_run_stores_nothing_and_needs_no_collector(tmp_path: Path) -> None:
    done = run_command(
        [str(STATCTL), "--collector", "127.0.0.1:1", "--format", "json", "import", "ort", str(ort_dump(tmp_path / "d")), "--run",
         "r", "--dry-run"]
    )  # fmt: skip
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["dry_run"] and answer["records"] == 15 and answer["stored"] == 0


def test_bad_file_ends_the_import_and_what_was_read_before_stays(shared_collector: Collector, tmp_path: Path) -> None:
    dump = ort_dump(tmp_path / "dump")
    bad = dump / "step_1" / "Linear_2_0th_output_forward"
    bad.write_text(bad.read_text().replace("max: 2.0", "max: two"))
    done = shared_collector.statctl("import", "ort", str(dump), "--run", "stopped")
    assert done.code == 2
    assert f"{bad}:2: found 'two'; expected a number" in done.err
    assert "stored so far: 6 records of steps 0..1" in done.err and "statctl rm stopped" in done.err
    points = shared_collector.json("series", "stopped", "Net_0_0th_output")["records"]
    assert [p["step"] for p in points] == [0]


def test_strict_stores_nothing_of_a_dump_with_a_bad_file(shared_collector: Collector, tmp_path: Path) -> None:
    dump = ort_dump(tmp_path / "dump")
    shared_collector.json("import", "ort", str(dump), "--run", "strict")
    (dump / "step_2" / "Linear_1_0th_output_forward").write_bytes(b"\x00\x01")
    done = shared_collector.statctl("import", "ort", str(dump), "--run", "strict", "--strict", "--if-exists", "replace")
    assert done.code == 2 and "nothing was stored" in done.err
    assert len(shared_collector.json("series", "strict", "Net_0_0th_output")["records"]) == 3, "what was there still is"


def test_keep_going_leaves_bad_files_out_and_a_diff_does_not_call_them_missing(
    shared_collector: Collector, tmp_path: Path
) -> None:
    shared_collector.json("import", "ort", str(ort_dump(tmp_path / "good")), "--run", "good")
    dump = ort_dump(tmp_path / "dump")
    (dump / "step_1" / "Linear_2_0th_output_forward").write_text("")
    done = shared_collector.statctl("--format", "json", "import", "ort", str(dump), "--run", "going", "--keep-going")
    assert done.code == 0, done.err
    assert "skipped" in done.err and "Linear_2_0th_output_forward:1" in done.err
    assert done.json()["skipped"] == {"bad file": 1} and done.json()["records"] == 14
    report = shared_collector.diff("good", "going")
    assert report["verdict"] != "diverged" and report["first"] is None, report
    assert "Linear_2_0th_output" in json.dumps(report["unmatched"]), "but it is told"


def test_interrupt_while_the_collector_is_silent_says_what_is_stored(collector: Collector, tmp_path: Path) -> None:
    one_step = "\n".join(ort_record(f"Linear_{i}_0th_output") for i in range(5000))
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "step_0_.txt").write_text(one_step)
    for step in range(1, 100):
        os.link(tmp_path / "dump" / "step_0_.txt", tmp_path / "dump" / f"step_{step}_.txt")
    process = subprocess.Popen(
        [str(STATCTL), "--collector", collector.address, "import", "ort", str(tmp_path / "dump"), "--run", "cut"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: collector.json("runs")["runs"], what="the first records")
    assert collector.process is not None
    collector.process.send_signal(signal.SIGSTOP)  # no acknowledgement comes any more: the import waits
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        collector.process.send_signal(signal.SIGCONT)
    assert process.returncode == 130, err
    assert "interrupted" in err and ("stored so far" in err or "nothing was stored" in err), err


def msprobe_tensor(high: float | None, **more: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 2],
        "Max": high,
        "Min": -1.0,
        "Mean": 0.25,
        "Norm": 2.0,
        **more,
    }


def msprobe_dump(folder: Path, high: float = 2.0, ranks: int = 2, **more: Any) -> Path:
    """Two steps of two layers on some ranks; the second layer's output in step 1 on the last rank is as said."""
    for step in range(2):
        for rank in range(ranks):
            wrong = step == 1 and rank == ranks - 1
            entries = {
                f"Module.layers.{i}.Linear.forward.0": {
                    "input_args": [msprobe_tensor(1.0)],
                    "input_kwargs": {},
                    "output": [msprobe_tensor(high if wrong and i == 1 else 2.0, **more)],
                }
                for i in range(2)
            }
            place = folder / f"step{step}" / f"rank{rank}"
            place.mkdir(parents=True)
            (place / "dump.json").write_text(json.dumps({"task": "statistics", "data": entries}))
            (place / "construct.json").write_text(json.dumps(dict.fromkeys(entries, None)))
    return folder


@pytest.mark.parametrize(("high", "reason"), [(2.5, "numeric"), (float("nan"), "nonfinite"), (float("inf"), "nonfinite")])
def test_two_msprobe_dumps_are_compared_by_rank_and_step(
    shared_collector: Collector, tmp_path: Path, high: float, reason: str
) -> None:
    name = f"msprobe-{high}"
    shared_collector.json("import", "msprobe", str(msprobe_dump(tmp_path / "a")), "--run", f"{name}-a")
    answer = shared_collector.json("import", "msprobe", str(msprobe_dump(tmp_path / "b", high)), "--run", f"{name}-b")
    assert answer["ranks"] == [0, 1] and answer["records"] == 16
    report = shared_collector.diff(f"{name}-a", f"{name}-b")
    first = report["first"]
    assert (first["step"], first["rank"], first["activation"], first["reason"]) == (1, 1, "layers.1", reason)
    assert report["compared"]["diverged"] == 1


def test_msprobe_checksums_find_what_statistics_cannot(shared_collector: Collector, tmp_path: Path) -> None:
    shared_collector.json("import", "msprobe", str(msprobe_dump(tmp_path / "a", md5="00c0ffee")), "--run", "crc-a")
    shared_collector.json("import", "msprobe", str(msprobe_dump(tmp_path / "b", md5="00c0ffef")), "--run", "crc-b")
    assert shared_collector.diff("crc-a", "crc-b")["verdict"] == "within_tolerance"
    exact = shared_collector.diff("crc-a", "crc-b", "--exact")
    assert (exact["verdict"], exact["first"]["reason"], exact["first"]["activation"]) == ("diverged", "bitwise", "layers.0")


def test_mindspore_statistics_are_compared_by_iteration_and_rank(shared_collector: Collector, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(GOLDEN / "mindspore" / "ranks" / "dump", dump)
    answer = shared_collector.json("import", "mindspore", str(dump), "--run", "ms-a")
    assert answer["ranks"] == [0, 1] and answer["steps"] == {"count": 2, "first": 0, "last": 3}
    table = dump / "rank_1" / "Net" / "0" / "3" / "statistic.csv"
    table.write_text(table.read_text().replace("2,-2,3.5", "2,-2,3.6"))
    shared_collector.json("import", "mindspore", str(dump), "--run", "ms-b")
    report = shared_collector.diff("ms-a", "ms-b")
    first = report["first"]
    assert (first["step"], first["rank"], first["activation"], first["kind"]) == (3, 1, "Default_Sub-op0", "output")
    assert report["compared"]["diverged"] == 1
    points = shared_collector.json("series", "ms-a", "Default_Sub-op0", "--kind", "input", "--rank", "1")["records"]
    assert [(p["step"], p["call"], p["stats"]["l2"]) for p in points] == [(0, 0, 4.0), (0, 1, 5.0), (3, 0, 4.0), (3, 1, 5.0)]


def test_mindspore_tensors_are_what_the_agent_would_have_recorded(shared_collector: Collector, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(GOLDEN / "mindspore" / "tensors" / "dump", dump)
    answer = shared_collector.json("import", "mindspore", str(dump), "--run", "npy-a")
    assert (answer["ranks"], answer["steps"]) == ([0, 1], {"count": 2, "first": 3, "last": 4})
    assert answer["skipped"]["statistic.csv beside the tensors that it describes"] == 1
    shared_collector.json("import", "mindspore", str(dump), "--run", "npy-b")
    assert shared_collector.diff("npy-a", "npy-b")["verdict"] == "identical"

    file = next((dump / "rank_1/Net/0/4").glob("MatMul.*.output.0.*.npy"))
    array = numpy.load(file)
    array[1, 2] = numpy.nextafter(array[1, 2], numpy.float32(100))
    numpy.save(file, array)
    shared_collector.json("import", "mindspore", str(dump), "--run", "npy-c")
    first = shared_collector.diff("npy-a", "npy-c", "--exact")["first"]
    assert (first["step"], first["rank"], first["activation"], first["reason"]) == (4, 1, "Default_fc1_MatMul-op2", "bitwise")

    recorded = numpy.load(file)
    shared_collector.python(
        "import numpy, statagent, sys; statagent.init(run='npy-agent', sketch=0); "
        f"statagent.inspect('x', numpy.ascontiguousarray(numpy.load({str(file)!r}))); statagent.close()"
    )
    point = shared_collector.json("series", "npy-c", "Default_fc1_MatMul-op2", "--rank", "1", "--steps", "4")["records"][0]
    same = shared_collector.json("series", "npy-agent", "x")["records"][0]
    assert point["stats"] == same["stats"] and point["stats"]["numel"] == recorded.size


def test_an_array_of_objects_is_refused_and_not_unpickled(shared_collector: Collector, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    folder = tmp_path / "dump" / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    numpy.save(folder / "Add.A-op1.0.0.1.output.0.ND.npy", numpy.array([Evil()], dtype=object), allow_pickle=True)
    done = shared_collector.statctl("import", "mindspore", str(tmp_path / "dump"), "--run", "evil")
    assert done.code == 2 and "found an array of Python objects; expected" in done.err
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("import", "ort"), "required"),
        (("import", "csv", ".", "--run", "x"), "expected ort, mindspore, msprobe, sglang, debugmode, transformerengine or spill"),
        (("import", "ort", "/nowhere/at/all", "--run", "x"), "No such file"),
        (("import", "ort", ".", "--run", "../x"), "run"),
        (("import", "ort", ".", "--run", "x", "--steps", "nine"), "--steps"),
        (("import", "ort", ".", "--run", "x", "--rank-pattern", "a/{}"), "--rank-pattern"),
        (("import", "ort", ".", "--run", "x", "--strict", "--keep-going"), "excludes"),
        (("import", "ort", ".", "--run", "x", "--rank", "4", "--world-size", "2"), "--world-size"),
    ],
)
def test_wrong_arguments_exit_2_with_what_was_expected(
    shared_collector: Collector, arguments: tuple[str, ...], expected: str
) -> None:
    done = shared_collector.statctl(*arguments)
    assert done.code == 2 and expected in done.err, done.err
    assert "Traceback" not in done.err
