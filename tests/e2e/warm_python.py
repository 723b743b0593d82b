"""A Python process that has imported torch and runs programs in forks of itself: importing takes longer than most tests' training.

A fork becomes what `python -c SCRIPT ...`, `python -m MODULE ...` or `python FILE ...` would be, up to its exit code and the handlers of `atexit`.
Only torch has been imported there, nothing of ours. `Warm` is the tests' side; this file run as a program is the other one: a request a
line on standard input, for each the fork's pid and then its exit code on standard output."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

# Variables that may differ from the environment in which torch was imported.
_FREE = ("STATAGENT_", "STATCTL_", "TORCHINDUCTOR_CACHE_DIR")


class Warm:
    """The process, started at the first program. Threads: one."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def takes(self, env: dict[str, str]) -> bool:
        """Whether a program with this environment may run in a fork."""
        kept, mine = ({k: v for k, v in each.items() if not k.startswith(_FREE)} for each in (env, self._env))
        return {**kept, "PYTEST_CURRENT_TEST": ""} == {**mine, "PYTEST_CURRENT_TEST": ""}

    def run(self, arguments: list[str], env: dict[str, str], timeout: float, cwd: Path | None) -> tuple[int, str, str]:
        """Exit code, standard output and standard error. Raises subprocess.TimeoutExpired, as subprocess.run does."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-u", __file__], env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
            request = {"arguments": arguments, "env": env, "cwd": str(cwd or Path.cwd()), "out": files[0], "err": files[1]}
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            pid = int(process.stdout.readline())
            with selectors.DefaultSelector() as ready:
                ready.register(process.stdout, selectors.EVENT_READ)
                late = not ready.select(timeout)
            if late:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            code = int(process.stdout.readline())
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
            if late:
                raise subprocess.TimeoutExpired([sys.executable, *arguments], timeout, texts[0], texts[1])
            return code, texts[0], texts[1]

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=20)


def _serve() -> list[str] | None:
    """Returns in a fork, with the arguments of the program that it is to be, and None in the server, at the end."""
    import torch
    import torch._dynamo

    gc.collect()
    gc.freeze()  # what is there stays, and is not looked at again in every fork
    if "triton" in sys.modules:  # its nanobind reports what is still frozen at the end as leaks, on standard error
        atexit.register(gc.unfreeze)  # runs after the program's own handlers
    assert torch.get_num_threads() == 1 and len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"
    while True:
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(0, 1 << 16)
            if not part:
                return None
            line += part
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(request)
            return list(request["arguments"])
        os.write(1, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    for number, path, mode in ((0, os.devnull, os.O_RDONLY), (1, request["out"], os.O_WRONLY), (2, request["err"], os.O_WRONLY)):
        opened = os.open(path, mode | (os.O_APPEND if number else 0))
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])


def _run(arguments: list[str]) -> None:
    what, *rest = arguments
    if what == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif what == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(what).resolve().parent)
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    program = _serve()
    if program is not None:
        _run(program)
