"""What gpu_check makes of programs that pass, fail, or find no device."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_check


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
