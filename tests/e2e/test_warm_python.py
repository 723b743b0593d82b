"""The stand-in for the interpreter is to whoever starts it what the program in the fork is."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import WARM, run_command, start_python, wait_until

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def test_a_fork_has_the_files_arguments_environment_and_exit_code_of_a_program() -> None:
    script = """
import os, sys
print(os.getppid(), sys.argv[1:], os.environ["STATAGENT_RUN"], sys.stdin.readline().strip())
print("to stderr", file=sys.stderr)
sys.exit(7)
"""
    process = start_python(["-c", script, "a", "b"], env=WARM.environment(STATAGENT_RUN="r"), **PIPES)
    out, err = process.communicate("line\n", timeout=60)
    parent, said = out.split(" ", 1)
    assert (said, err) == ("['a', 'b'] r line\n", "to stderr\n")
    assert int(parent) != os.getpid(), "the program is a fork of the server"
    assert process.returncode == 7


def test_a_fork_sees_torch_when_it_imports_it_and_whoever_waits_for_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("""
import sys
class Waiting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("told")
sys.meta_path.insert(0, Waiting())
""")
    script = """
import sys
print([name for name in sys.modules if name.partition(".")[0] == "torch"])
from torch.nn import functional
import torch
print(torch.__spec__.loader is torch.__loader__, torch.nn.functional is functional is sys.modules["torch.nn.functional"])
"""
    for path, said in ((str(tmp_path), "[]\ntold\nTrue True\n"), ("", "[]\nTrue True\n")):
        process = start_python(["-c", script], env=WARM.environment(PYTHONPATH=path), **PIPES)
        assert process.communicate(timeout=60) == (said, "")


def test_an_exception_is_shown_and_ends_with_1_after_the_handlers_of_atexit() -> None:
    script = "import atexit; atexit.register(print, 'handler'); raise ValueError('broken')"
    process = start_python(["-c", script], env=WARM.environment(), **PIPES)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "handler\n") and "ValueError: broken" in err


def test_a_signal_reaches_the_program_and_its_death_by_one_is_passed_on() -> None:
    script = """
import os, signal, time
def handle(*_):
    os.write(1, b"handled\\n")  # print() must not be entered again, and "ready" may still be in it
    os.kill(os.getpid(), signal.SIGABRT)
signal.signal(signal.SIGTERM, handle)
print("ready", flush=True)
time.sleep(60)
"""
    process = start_python(["-c", script], env=WARM.environment(), **PIPES)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=60)[0] == "handled\n"
    assert process.returncode == -signal.SIGABRT


def test_a_fork_is_on_the_machine_of_whoever_asked() -> None:
    shown = "import os; print(*(os.readlink(f'/proc/self/ns/{kind}') for kind in ('net', 'mnt')))"
    enter = [
        "unshare",
        "--net",
        "--mount",
        "sh",
        "-c",
        'readlink /proc/self/ns/net /proc/self/ns/mnt; exec "$PYTHON_EXEC" -c "$0"',
        shown,
    ]
    done = run_command(enter, env=WARM.environment(**WARM.stand_in()))
    if "unshare failed" in done.err:
        pytest.skip("making a network namespace needs root")
    net, mnt, fork = done.out.splitlines()
    assert fork == f"{net} {mnt}" and net != os.readlink("/proc/self/ns/net"), done


def test_a_program_does_not_outlive_its_killed_stand_in() -> None:
    process = start_python(
        ["-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"], env=WARM.environment(), **PIPES
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert pid != process.pid and Path(f"/proc/{pid}").exists()
    process.kill()
    process.communicate()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the fork")


def test_what_torch_reads_at_its_import_needs_an_interpreter_of_its_own() -> None:
    env = WARM.environment(OMP_NUM_THREADS="2")
    assert not WARM.takes(env)
    process = start_python(["-c", "import os; print(os.getpid())"], env=env, **PIPES)
    out, _ = process.communicate(timeout=60)
    assert out.split() == [str(process.pid)]


def test_programs_run_beside_each_other() -> None:
    first = start_python(["-c", "input(); print('first')"], env=WARM.environment(), **PIPES)
    second = start_python(["-c", "print('second')"], env=WARM.environment(), **PIPES)
    assert second.communicate(timeout=60)[0] == "second\n", "the first one still waits"
    assert first.communicate("\n", timeout=60)[0] == "first\n"
