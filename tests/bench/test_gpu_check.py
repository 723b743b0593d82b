"""gpu_check with programs that pass, fail, or find no device."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_check

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.sh"


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_check, "BUILD", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("output", "code", "ok", "note"),
    [
        ("[  PASSED  ] 11 tests.", 0, True, "11 tests passed"),
        ("[  PASSED  ] 10 tests.\n[  SKIPPED ] 1 test, listed below:", 0, True, "1 skipped"),
        ("[  PASSED  ] 0 tests.\n[  SKIPPED ] 11 tests, listed below:", 0, False, "0 tests passed"),
        ("[  PASSED  ] 10 tests.\n[  FAILED  ] GpuEngineTest.KeepsStreamsApart", 1, False, "GpuEngineTest.KeepsStreamsApart"),
        ("Segmentation fault", 139, False, "0 tests passed"),
    ],
)
def test_engine_passes_only_if_tests_ran_and_passed(build: Path, output: str, code: int, ok: bool, note: str) -> None:
    program(build / "tests" / "gpu_test", f"cat <<'EOT'\n{output}\nEOT\nexit {code}")
    check = gpu_check.engine()
    assert check.ok is ok
    assert note in check.note


def test_a_build_without_the_engine_is_a_failure(build: Path) -> None:
    assert gpu_check.engine().ok is False
    assert [check.ok for check in gpu_check.speed(True)] == [None]


def test_speed_becomes_a_line_for_each_figure(build: Path) -> None:
    found = {
        "p3": [{"dtype": "f32", "mebibytes": 256, "gb_per_s": 3000.0, "copy_gb_per_s": 4000.0, "of_copy": 0.75}],
        "p4": [{"dtype": "f32", "kibibytes": 4, "us": 3.0, "empty_launch_us": 2.0, "of_empty_launch": 1.5}],
        "p5": {"enqueue_us": 3.0, "empty_launch_us": 2.0, "own_us": 1.0},
    }
    program(build / "bin" / "statagent_gpu_bench", f"cat <<'EOT'\n{json.dumps(found)}\nEOT")
    checks = gpu_check.speed(True)
    assert [check.name for check in checks] == ["P3 f32 256 MiB", "P4 f32 4 KiB", "P5 enqueue, C++"]
    assert "0.75 of a copy's, target 0.90" in checks[0].note
    assert [check.word for check in checks] == ["MISSED", "passed", "passed"]


def test_a_target_holds_for_the_sizes_that_it_names(build: Path) -> None:
    sizes = [{"mebibytes": size, "gb_per_s": 1.0, "of_copy": 0.5, "of_read": 0.4, "dtype": "f32"} for size in (1, 64, 256)]
    p4 = [{"dtype": "f32", "kibibytes": 4, "us": 3.0, "of_empty_launch": 1.51}]
    lists = [{"dtype": "f32", "kibibytes": 4, "tensors": 1000, "list_us": 9.0, "of_copy": 2.1}]
    found = {"p3": sizes, "p4": p4, "p4_lists": lists, "p5": {"enqueue_us": 3.0, "own_us": 1.1}}
    program(build / "bin" / "statagent_gpu_bench", f"cat <<'EOT'\n{json.dumps(found)}\nEOT")
    checks = gpu_check.speed(True)
    assert [check.word for check in checks] == ["passed", "passed", "MISSED", "MISSED", "MISSED", "MISSED"]
    assert "0.40 of only reading" in checks[0].note
    assert "target" not in checks[0].note


def check(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(gpu_check, "gpu_name", lambda: "Some GPU 1")
    monkeypatch.setattr(gpu_check, "driver_version", lambda: "570")
    monkeypatch.setattr(gpu_check, "commit", lambda: "0123456789")
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments])
    return gpu_check.main()


def test_a_missed_target_is_seen_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "speed", lambda quick: [gpu_check.Check("P5", True, 1.0, "2 us", None, met=False)])
    assert check("--only", "speed", "--output", str(tmp_path / "r.json"), monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "P5  MISSED" in printed
    assert "MISSED the targets of 1 of 1 checks: P5" in printed
    assert json.loads((tmp_path / "r.json").read_text())["checks"][0]["result"] == "MISSED"


def test_the_result_file_is_written_after_each_part_even_if_one_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "new folder" / "r.json"
    seen: list[list[str]] = []

    def look(*_: object) -> list[gpu_check.Check]:
        result = json.loads(output.read_text())
        seen.append([f"{each['part']} {each['result']}" for each in result["checks"]])
        return [gpu_check.Check("package", True, 1.0)]

    def broken() -> gpu_check.Check:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(gpu_check, "engine", broken)
    monkeypatch.setattr(gpu_check, "package", lambda: look()[0])
    monkeypatch.setattr(gpu_check, "speed", lambda quick: [gpu_check.Check("speed", False, 1.0, "crashed")])
    assert check("--only", "engine,package", "--only", "speed", "--output", str(output), monkeypatch=monkeypatch) == 1
    assert seen == [["engine FAILED"]]
    result = json.loads(output.read_text())
    assert [(each["part"], each["result"]) for each in result["checks"]] == [
        ("engine", "FAILED"), ("package", "passed"), ("speed", "FAILED"),
    ]  # fmt: skip
    assert result["checks"][0]["note"] == "RuntimeError: no such thing"
    assert result["parts_left"] == ["memcheck", "racecheck", "initcheck", "training"]


def test_parts_of_several_calls_come_together_if_they_are_of_one_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    monkeypatch.setattr(gpu_check, "engine", lambda: gpu_check.Check("engine", True, 1.0))
    monkeypatch.setattr(gpu_check, "package", lambda: gpu_check.Check("package", True, 1.0))
    assert check("--only", "package", "--output", str(output), monkeypatch=monkeypatch) == 0
    assert check("--only", "engine", "--output", str(output), monkeypatch=monkeypatch) == 0
    assert [each["part"] for each in json.loads(output.read_text())["checks"]] == ["engine", "package"]
    output.write_text(output.read_text().replace("0123456789", "abcdef0123"))
    assert check("--only", "engine", "--output", str(output), monkeypatch=monkeypatch) == 0
    assert [each["part"] for each in json.loads(output.read_text())["checks"]] == ["engine"]


def test_an_unknown_part_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        check("--only", "engine,sped", monkeypatch=monkeypatch)
    assert ended.value.code == 2
    assert "found 'sped'; expected some of engine, memcheck" in capsys.readouterr().err


def test_help_names_every_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check("--help", monkeypatch=monkeypatch)
    script = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    printed = capsys.readouterr().out
    for part in gpu_check.PARTS:
        assert f"  {part} " in printed
        assert part in script


def test_the_script_passes_its_arguments_on_and_finds_no_gpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "--only", "speed", "--output", tmp_path / "r.json", "--python", sys.executable],
        env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if shutil.which("nvidia-smi") is None:
        assert done.returncode == gpu_check.NO_GPU, done.stderr
        assert "found no GPU" in done.stderr
    wrong = subprocess.run(
        [SCRIPT, "--only", "sped", "--python", sys.executable], capture_output=True, text=True, timeout=100, check=False
    )
    assert wrong.returncode == 2
    assert "'sped'" in wrong.stderr


def test_without_a_gpu_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_check, "gpu_name", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--output", str(tmp_path / "result.json")])
    assert gpu_check.main() == gpu_check.NO_GPU
    assert not (tmp_path / "result.json").exists()


def test_the_result_file_names_what_was_left_out(
    monkeypatch: pytest.MonkeyPatch, build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(build / "tests" / "gpu_test", "echo '[  PASSED  ] 3 tests.'")
    monkeypatch.setattr(gpu_check, "gpu_name", lambda: "Some GPU 1")
    monkeypatch.setattr(gpu_check, "package", lambda: gpu_check.Check("package", None, 0, "no torch"))
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--quick", "--output", str(build / "result.json")])
    assert gpu_check.main() == 0
    result = json.loads((build / "result.json").read_text())
    assert result["gpu"] == "Some GPU 1"
    assert {check["name"]: check["result"] for check in result["checks"]}["package"] == "left out"
    assert "left out" in capsys.readouterr().out
