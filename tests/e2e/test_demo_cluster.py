"""scripts/demo_cluster.sh: a real cluster, a collector and a replica killed in the middle, and the verdict of the embedded store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clickhouse_server import missing_packages
from conftest import BUILD, CORPUS, ROOT, WARM, Finished, agent_environment, run_command
from held_signals import held_signals

DEMO = ROOT / "scripts" / "demo_cluster.py"
TINY = f"--layers 2 --width 32 --heads 2 --context 32 --batch 2 --corpus {CORPUS}"
missing = missing_packages(replicated=True, balanced=True)
needs_packages = pytest.mark.skipif(
    bool(missing), reason=f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them"
)


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "STATCOLLECT_BUILD_DIR": str(BUILD), **extra}


def demo(*arguments: str, env: dict[str, str] | None = None, timeout: float = 240) -> Finished:
    return run_command([sys.executable, str(DEMO), *arguments], env=env or environment(), timeout=timeout, cold=True)


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and "demo_cluster.py" not in line:
            found.append(line)
    return found


@needs_packages
def test_the_cluster_gives_the_verdict_of_the_embedded_store_and_loses_nothing(tmp_path: Path) -> None:
    arguments = ["--steps", "30", "--outage", "2", "--model", TINY, "--keep", str(tmp_path / "kept")]
    forks = agent_environment(STATCOLLECT_BUILD_DIR=str(BUILD), **WARM.stand_in())  # four ranks of each training
    done = demo(*arguments, env=forks)
    assert done.code == 0, done.out + done.err
    assert re.search(r"[\d,]+ of [\d,]+ records are stored, collector1 and replica 1 are killed", done.out)
    sent = re.findall(r"(\w+): the agents sent ([\d,]*\d) records, and the cluster has ([\d,]*\d)", done.out)
    assert [name for name, _, _ in sent] == ["base", "ort"] and all(a == b for _, a, b in sent)
    assert "blocks.1.ln2" in done.out and "gives the same verdict, word for word" in done.out
    assert processes_in(tmp_path) == []


@needs_packages
def test_a_stop_in_the_middle_leaves_no_process(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(DEMO), "--steps", "400", "--model", TINY, "--keep", str(kept)],
            env=environment(), stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(kept.glob("base-*/log")):
        assert time.monotonic() < deadline and process.poll() is None, (tmp_path / "out").read_text()
        time.sleep(0.1)
    assert processes_in(kept)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert processes_in(kept) == []


def test_a_signal_waits_until_the_process_that_is_being_started_is_known() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        with held_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            assert came == []
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "1"], "expected at least 3"),
        (["--bug-step", "99"], "expected a step from 0 to 39"),
        (["--replicas", "4"], "invalid choice"),
        (["--outage", "x"], "--outage"),
        (["--nonsense"], "--nonsense"),
        (["--keep", "."], "name an empty or a new folder"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], said: str) -> None:
    done = demo(*arguments)
    assert done.code == 2 and said in done.err


def test_missing_packages_and_builds_are_named(tmp_path: Path) -> None:
    done = demo(env=environment(PATH=str(tmp_path), STATCOLLECT_BUILD_DIR=str(tmp_path)))
    assert done.code == 2
    assert "default-jre-headless" in done.err and "scripts/setup.sh --for cluster installs them" in done.err


def test_help_has_examples() -> None:
    done = run_command([str(ROOT / "scripts/demo_cluster.sh"), "--help"])
    assert done.code == 0 and "--replicas 3" in done.out and "exit codes" in done.out
