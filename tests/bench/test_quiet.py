"""Published figures come from a quiet machine: scripts/lib/quiet.sh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(tmp_path: Path, name: str, *arguments: str, load: str) -> subprocess.CompletedProcess[str]:
    loadavg = tmp_path / "loadavg"
    loadavg.write_text(f"{load} 0.00 0.00 1/100 4242\n", encoding="utf-8")
    code = f". scripts/lib/quiet.sh; require_quiet {name} {' '.join(arguments)} && echo measured"
    env = {**os.environ, "STATCOLLECT_LOADAVG": str(loadavg)}
    return subprocess.run(["bash", "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("load", ["0.00", "0.50"])
def test_a_quiet_machine_is_measured_at_once(tmp_path: Path, load: str) -> None:
    done = script(tmp_path, "bench.sh", "0", load=load)
    assert (done.returncode, done.stdout, done.stderr) == (0, "measured\n", "")


@pytest.mark.parametrize("load", ["0.51", "12.30"])
def test_a_busy_machine_is_not_measured(tmp_path: Path, load: str) -> None:
    done = script(tmp_path, "bench.sh", "0", load=load)
    assert done.returncode == 1 and done.stdout == ""
    assert f"found a load average of {load} over the last minute; expected at most 0.5" in done.stderr
    assert "--busy" in done.stderr


@pytest.mark.parametrize("name", ["bench.sh", "bench_rivals.sh"])
def test_every_published_benchmark_asks(name: str) -> None:
    text = (ROOT / "scripts" / name).read_text(encoding="utf-8")
    assert text.index("require_quiet " + name) < text.index(
        '"$python" "bench/' if name == "bench.sh" else '"$python" bench/rivals.py'
    )
