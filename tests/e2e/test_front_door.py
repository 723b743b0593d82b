"""statctl run, ab, bisect, and diff of files: from a script that knows nothing of statcollect to the verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from conftest import STATCTL, WARM, Collector, Finished, agent_environment, run_command, wait_until

SCRIPT = """
import os, sys, torch
torch.manual_seed(0)
eps = 0.1 if "--bug" in sys.argv else float(os.environ.get("EPS", "1e-5"))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8, eps=eps), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    loss = model(torch.randn(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", step + 1)
"""
TRAIN = ["python", "train.py"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def training_environment(**variables: str) -> dict[str, str]:
    """In which statctl finds the package beside itself, and `python` is a fork."""
    env = WARM.on_path(agent_environment(**variables))
    del env["PYTHONPATH"]
    return env


def statctl(folder: Path, *arguments: str, **variables: str) -> Finished:
    """With its own collector."""
    command = [str(STATCTL), "--data-dir", str(folder / "data"), *arguments]
    return run_command(command, cwd=folder, env=training_environment(**variables))


def answer(folder: Path, *arguments: str) -> dict[str, object]:
    return cast("dict[str, object]", statctl(folder, "--format", "json", *arguments).json())


@contextlib.contextmanager
def killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[None]:
    """Popen waits for a process when its block is left, also after a test has failed."""
    try:
        yield
    finally:
        process.kill()


# --- run


def test_output_and_exit_code_are_the_commands(tmp_path: Path) -> None:
    done = statctl(tmp_path, "run", "base", "--", "sh", "-c", "cat; echo out; echo err >&2; exit 7")
    assert (done.code, done.out) == (7, "out\n")
    assert done.err.startswith("err\n") and "the command ended with exit code 7 before a training was recorded" in done.err
    killed = statctl(tmp_path, "run", "base", "--", "sh", "-c", "kill -9 $$")
    assert killed.code == 128 + signal.SIGKILL and "was ended by signal 9 before a training was recorded" in killed.err


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for command in ("no-such-command", "./notes.txt"):
        done = statctl(tmp_path, "run", "base", "--", command)
        assert done.code == 2 and f"start '{command}'" in done.err and "expected the command" in done.err
    assert "command is required" in statctl(tmp_path, "run", "base").err
    for command in ("run", "twins"):
        assert f"{command}: found no name of the run" in statctl(tmp_path, command, "--", "true").err


@pytest.mark.parametrize("name", ["", "a b", "base.twin-1-1", "../up", "x" * 300])
def test_names_that_no_run_may_have(tmp_path: Path, name: str) -> None:
    done = statctl(tmp_path, "run", name, "--", "touch", "ran")
    assert done.code == 2 and "statctl: " in done.err
    assert not (tmp_path / "ran").exists(), "nothing runs without a place for its records"


def test_signals_reach_the_command(tmp_path: Path) -> None:
    script = "trap 'echo ended well; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    command = [str(STATCTL), "--data-dir", str(tmp_path / "data"), "run", "base", "--", "bash", "-c", script]
    with subprocess.Popen(
        command, env=agent_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with killed_at_the_end(process):
            process.terminate()
            assert process.communicate(timeout=20)[0] == "ended well\n" and process.returncode == 3


def test_ctrl_c_ends_both(tmp_path: Path) -> None:
    script = (
        "import sys, time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(5)"
    )
    command = [str(STATCTL), "--data-dir", str(tmp_path / "data"), "run", "base", "--", sys.executable, "-c", script]
    with subprocess.Popen(
        command, env=agent_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with killed_at_the_end(process):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            assert process.wait(timeout=20) == 5
    wait_until(lambda: not (tmp_path / "data/statcollectord.address").exists(), what="the collector to end")


def test_a_name_that_is_taken(work: Path) -> None:
    first = statctl(work, "run", "base", "--", *TRAIN)
    assert (first.code, first.out) == (0, "trained 8\n"), first.err
    assert "recording run 'base'" in first.err and "8 steps" in first.err
    assert statctl(work, "run", "base", "--perturb", "1", "--", *TRAIN).code == 0
    taken = statctl(work, "run", "base", "--", "touch", "ran")
    assert taken.code == 2 and "run 'base' exists (finished, 8 steps)" in taken.err and not (work / "ran").exists()
    assert "base.twin-1-1" in statctl(work, "runs", "--twins").out
    again = statctl(work, "run", "base", "--if-exists", "replace", "--steps", "0-3", "--", *TRAIN)
    assert again.code == 0, again.err
    runs = statctl(work, "runs", "--twins").out
    assert "base.twin-1-1" not in runs, "noise of the old recording says nothing about the new one"


@pytest.mark.parametrize(
    ("flags", "why"),
    [(["-S"], "does not import sitecustomize"), (["-I"], "ignores PYTHONPATH"), (["-u", "-BE"], "ignores PYTHONPATH")],
)
def test_pythons_that_cannot_be_instrumented(tmp_path: Path, flags: list[str], why: str) -> None:
    done = statctl(tmp_path, "run", "base", "--", sys.executable, *flags, "-c", "print(1)")
    assert done.code == 0 and done.out == "1\n" and why in done.err and "statagent.watch(model" in done.err


NO_MODEL = """
import torch
weight = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
weight.sum().backward()
optimizer.step()
"""
TWO_WORKERS = """
import multiprocessing, runpy
if __name__ == "__main__":
    workers = [multiprocessing.get_context("spawn").Process(target=runpy.run_path, args=("train.py",)) for _ in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print(1)", "its Python has not imported torch"),
        ("import torch", "no optimizer of torch.optim was made"),
        (NO_MODEL, "no torch.nn.Module has the parameters"),
    ],
)
def test_what_was_missing_is_said(tmp_path: Path, code: str, why: str) -> None:
    done = statctl(tmp_path, "run", "base", "--", sys.executable, "-c", code)
    assert done.code == 0 and "run 'base': nothing was recorded" in done.err and why in done.err, done.err


def test_a_switch_that_is_off_is_said(tmp_path: Path) -> None:
    off = statctl(tmp_path, "run", "base", "--", sys.executable, "-c", NO_MODEL, STATAGENT_DISABLE="1")
    assert off.code == 0 and "run 'base': nothing was recorded: STATAGENT_DISABLE is set" in off.err, off.err


def test_two_trainings_in_one_command_are_not_one_run(work: Path) -> None:
    """Whichever came first would be the run, and two starts could differ."""
    (work / "both.py").write_text(TWO_WORKERS)
    done = statctl(work, "run", "base", "--", sys.executable, "both.py")
    assert done.code == 0 and "2 processes have trained as the same rank" in done.err, done.err
    compared = statctl(work, "ab", "--no-twins", "--", sys.executable, "both.py")
    assert compared.code == 2 and "2 processes have trained as the same rank" in compared.err, compared.err


def test_nothing_is_started_where_no_records_are_taken(tmp_path: Path) -> None:
    collector = Collector(tmp_path / "full", extra=["--disk-free-min", str(1 << 24)])
    collector.start()
    try:
        env = agent_environment()
        done = run_command(
            [str(STATCTL), "--collector", collector.address, "run", "base", "--", "touch", str(tmp_path / "ran")], env=env
        )
        assert done.code == 2 and "the collector takes no records now: it is read_only" in done.err, done.err
        assert not (tmp_path / "ran").exists()
    finally:
        assert collector.stop() == 0


def test_two_at_once_in_a_folder_with_spaces_and_unicode_one_of_them_killed(tmp_path: Path) -> None:
    """They meet at the same collector; what the killed one has sent stays, and its name is taken."""
    work = tmp_path / "Läufe von 'heute'"
    work.mkdir()
    (work / "train it.py").write_text(SCRIPT + "\nif '--killed' in sys.argv:\n    os.kill(os.getpid(), 9)\n")
    ends = {"gut": [], "tot": ["--killed"]}
    env = agent_environment(PYTHONPATH="")
    begun = {
        run: subprocess.Popen(
            [str(STATCTL), "run", run, "--", sys.executable, "train it.py", *extra],
            cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for run, extra in ends.items()
    }  # fmt: skip
    said = {run: process.communicate(timeout=120) for run, process in begun.items()}
    assert begun["gut"].returncode == 0 and "run 'gut': 8 steps" in said["gut"][1], said
    assert begun["tot"].returncode == 128 + signal.SIGKILL and said["tot"][0] == "trained 8\n", said
    listed = run_command([str(STATCTL), "runs"], cwd=work, env=env)
    assert listed.code == 0 and "gut" in listed.out, listed.err
    again = run_command([str(STATCTL), "run", "gut", "--", "touch", "ran"], cwd=work, env=env)
    assert again.code == 2 and "run 'gut' exists (finished, 8 steps)" in again.err and not (work / "ran").exists()


# --- ab


def test_ab_from_a_plain_script(work: Path) -> None:
    done = statctl(work, "ab", "--steps", "4", "--quick", "--", *TRAIN, "---", *TRAIN, "--bug")
    assert done.code == 1, done.err
    assert done.out.startswith("DIVERGED at step 0, rank 0, forward, 1 (LayerNorm)")
    assert "Cause: eps is 1e-05 in ab-a and 0.1 in ab-b (1)." in done.out
    assert "twin 2 of 2: 'ab-a.twin-1-2'" in done.err and "trained" not in done.err + done.out
    assert answer(work, "show", "ab-a")["summary"]["steps"] == 4, "the training ended there"  # type: ignore[index]
    # The same A is not trained again; a B that agrees needs no twins.
    reused = statctl(work, "ab", "--steps", "4", "--quick", "--reuse", "--", *TRAIN)
    assert reused.code == 0 and "A: 'ab-a' is as it was last time" in reused.err, reused.err
    assert reused.out.startswith("IDENTICAL") and "twin" not in reused.err
    (work / "train.py").write_text(SCRIPT + "# changed\n")
    changed = statctl(work, "ab", "--steps", "4", "--no-twins", "--reuse", "--env-b", "EPS=0.1", "--", *TRAIN)
    assert changed.code == 1 and "as it was last time" not in changed.err, changed.err
    (work / "beside.py").write_text("# what the script may import\n")
    beside = statctl(work, "ab", "--steps", "4", "--no-twins", "--reuse", "--", *TRAIN, "---", "false")
    assert "as it was last time" not in beside.err and "B: 'ab-b' is still that of an earlier training" in beside.err, beside.err
    # What an earlier command has left under B's name is not B's.
    nothing = statctl(work, "ab", "--steps", "4", "--no-twins", "--reuse", "--", *TRAIN, "---", "true")
    assert nothing.code == 2 and "B: the command ended well, but it has recorded nothing of run 'ab-b'" in nothing.err
    again = statctl(work, "run", "ab-b", "--if-exists", "replace", "--", "true")
    assert again.code == 0 and "run 'ab-b': nothing was recorded" in again.err, again.err


@pytest.mark.parametrize("data", ["runs of mine*", "../elsewhere"])
def test_the_data_folder_is_no_code_wherever_it_is(work: Path, data: str) -> None:
    """Inside of the repository, under a name of the user's, from a folder below its top."""
    (work / "below").mkdir()
    (work / "train.py").rename(work / "below" / "train.py")
    git(work, "init", "-q", "-b", "main")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "first")
    command = ["--data-dir", data, "ab", "--steps", "1", "--no-twins", "--reuse", "--", *TRAIN]
    again = [run_command([str(STATCTL), *command], cwd=work / "below", env=training_environment()) for _ in range(2)]
    assert [done.code for done in again] == [0, 0], again
    assert ["A: 'ab-a' is as it was last time" in done.err for done in again] == [False, True], again


def test_ab_says_which_training_failed(work: Path) -> None:
    done = statctl(work, "ab", "--", sys.executable, "-c", "print('no data'); raise SystemExit(4)")
    assert done.code == 2 and "no data" in done.err and "ab: A: the command ended with exit code 4" in done.err
    done = statctl(work, "ab", "--", "true")
    assert done.code == 2 and "has recorded nothing of run 'ab-a'" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env-b", "X", "--", "true"], "--env-b: expected NAME=VALUE, found 'X'"),
        (["--names", "one", "--", "true"], "--names: expected two names"),
        (["--names", "one,one", "--", "true"], "--names: expected two names"),
        (["--steps", "0", "--", "true"], "--steps: expected at least one step"),
        (["--", "true", "---"], "found an empty command"),
        (["--", "---", "true"], "found an empty command"),
    ],
)
def test_ab_that_makes_no_sense(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = statctl(tmp_path, "ab", *arguments)
    assert done.code == 2 and said in done.err


# --- bisect


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_bisect_finds_the_commit(work: Path) -> None:
    git(work, "init", "-q", "-b", "main")
    (work / ".gitignore").write_text("data\n")
    for number in range(1, 8):
        text = SCRIPT if number < 6 else SCRIPT.replace("randn(2, 4)", "randn(2, 4) * 1.01")
        if number == 4:
            text = "raise SystemExit(1)\n"
        (work / "train.py").write_text(text + f"# {number}\n")
        git(work, "add", "-A")
        git(work, "commit", "-qm", f"change {number}")
    command = ["bisect", "--good", "HEAD~6", "--bad", "HEAD", "--steps", "2", "--no-twins", "--", *TRAIN]
    done = statctl(work, *command)
    assert done.code == 0, done.err
    assert "The numbers change with" in done.out and "change 6" in done.out and "DIVERGED at step 0" in done.out
    assert "does not train, and is left out" in done.err
    assert git(work, "symbolic-ref", "--short", "HEAD") == "main" and git(work, "status", "--porcelain") == ""
    same = statctl(work, "bisect", "--good", "HEAD~6", "--bad", "HEAD~5", "--steps", "2", "--no-twins", "--", *TRAIN)
    assert same.code == 2 and "agree up to rounding" in same.err
    assert git(work, "symbolic-ref", "--short", "HEAD") == "main"
    (work / "train.py").write_text("changed")
    dirty = statctl(work, *command)
    assert dirty.code == 2 and "found changes that are not committed" in dirty.err
    assert (work / "train.py").read_text() == "changed"
    assert "no commit 'nowhere'" in statctl(work, "bisect", "--good", "nowhere", "--bad", "HEAD", "--", "true").err


def test_bisect_outside_of_git(tmp_path: Path) -> None:
    done = statctl(tmp_path, "bisect", "--good", "a", "--bad", "b", "--", "true")
    assert done.code == 2 and "no commit 'a' in a repository of git here" in done.err


# --- files in the place of runs


def test_diff_of_files(work: Path) -> None:
    for run, extra in (("base", []), ("other", ["--bug"])):
        spill = {"STATAGENT_COLLECTOR": "127.0.0.1:1", "STATAGENT_SPILL_DIR": str(work / run), "STATAGENT_CONNECT_TIMEOUT": "0.2"}
        env = agent_environment(STATAGENT_RUN=run, **spill)
        watching = SCRIPT.replace("for step", "import statagent\nstatagent.init()\nstatagent.watch(model, optimizer)\nfor step")
        watching += "statagent.close(timeout=0.5)\n"  # nobody will come
        assert run_command([sys.executable, "-c", watching, *extra], env=env).code == 0
    before = {path: path.read_bytes() for path in work.glob("*/*.spill")}
    assert len(before) == 2
    empty = work / "empty"
    empty.mkdir()
    env = agent_environment()
    folders = run_command([str(STATCTL), "diff", "../base", "../other"], cwd=empty, env=env)
    assert folders.code == 1 and "eps is 1e-05 in base and 0.1 in other" in folders.out, folders.err
    one, two = (str(path) for path in sorted(before))
    files = run_command([str(STATCTL), "--format", "json", "diff", one, two], cwd=empty, env=env)
    assert files.json()["verdict"] == "diverged", files.err
    assert {path: path.read_bytes() for path in work.glob("*/*.spill")} == before and not list(empty.iterdir())
    for run in ("base", "other"):
        assert statctl(work, "import", "spill", run).code == 0
        assert statctl(work, "golden", "save", run, f"{run}.scg").code == 0
    goldens = run_command([str(STATCTL), "diff", "base.scg", "other.scg"], cwd=work, env=env)
    assert goldens.code == 1 and "eps is 1e-05 in base and 0.1 in other" in goldens.out, goldens.err
    again = run_command([str(STATCTL), "diff", "base.scg", "base.scg"], cwd=work, env=env)
    assert again.code == 0 and again.out.startswith("IDENTICAL base and base-b"), again.err
    for path, said in (
        ("./none", "there is no such file or folder"),
        ("./empty", "found no files"),
        ("./train.py", "found no dump in it"),
    ):
        wrong = run_command([str(STATCTL), "diff", "base.scg", path], cwd=work, env=env)
        assert wrong.code == 2 and said in wrong.err, wrong.err
