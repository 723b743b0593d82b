"""A Python process that has imported torch and runs programs in forks of itself: importing takes longer than most tests' training.

A fork becomes what `python -c SCRIPT ...`, `python -m MODULE ...` or `python FILE ...` would be, up to its exit code and the handlers of
`atexit`; the interpreter's own teardown is left out, and tests of that need a process of their own. Only torch has been imported there, no
module of statcollect, and a fork does not see it before it imports it, too: the sitecustomize on its PYTHONPATH, which a fork runs as an
interpreter does at its start, may wait for that. `Warm` is the tests' side. This file run as a program is the server; the
interpreter's stand-in, warm_client.py, asks it for a fork where a launcher starts ranks, or a test a process that it wants to hold.

A request is one packet on a Unix socket: the program as JSON, with the three standard files. The answer is the fork's pid, and at its
end the exit code; or the names of variables because of which the program needs an interpreter of its own."""

from __future__ import annotations

import atexit
import contextlib
import copy
import ctypes
import gc
import json
import os
import runpy
import selectors
import signal
import site
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn

# Variables that may differ from the environment in which torch was imported: it reads none of them before it is used.
_FREE = (
    "STATAGENT_", "STATCTL_", "TORCHINDUCTOR_CACHE_DIR", "PYTEST_CURRENT_TEST", "PYTHONPATH", "PYTHON_EXEC", "STATCOLLECT_", "PWD",
    "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "TORCH_NCCL_", "ACCELERATE_", "FAULT_CATALOGUE_",
    "DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES", "PATH", "GLOO_", "SLURM_", "NODE", "MAIN", "COLLECTOR_",
    "SHLVL", "OLDPWD", "_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PYTHON=", "EPS=", "WAIT=", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
_PACKET_MAX = 1 << 18  # an environment and a script


def _bound(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not f"{name}=".startswith(_FREE)}


class Warm:
    """The server, started at the first program. For any number of threads."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._starting = threading.Lock()

    def takes(self, env: dict[str, str]) -> bool:
        """Whether a program with this environment may run in a fork."""
        return _bound(env) == _bound(self._env)

    def environment(self, **extra: str) -> dict[str, str]:
        """One that it takes, whatever a module that a test imported has put into that of the tests since."""
        return {**self._env, **extra}

    def run(self, arguments: list[str], env: dict[str, str], timeout: float, cwd: Path | None) -> tuple[int, str, str]:
        """Exit code, standard output and standard error. Raises subprocess.TimeoutExpired, as subprocess.run does."""
        env = {**env, **self.stand_in()}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open() as none:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                server.connect(env["STATCOLLECT_WARM"])
                pid = ask(server, arguments, env, str(cwd or Path.cwd()), [none.fileno(), out.fileno(), err.fileno()])
                assert isinstance(pid, int), f"{arguments[:2]} needs an interpreter of its own because of {pid}"
                server.settimeout(timeout)
                try:
                    code: int | None = json.loads(server.recv(_PACKET_MAX))
                except TimeoutError:
                    code = None
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
            if code is None:
                raise subprocess.TimeoutExpired([sys.executable, *arguments], timeout, texts[0], texts[1])
            return code, texts[0], texts[1]

    def stand_in(self) -> dict[str, str]:
        """Variables by which torchrun's ranks, and whoever runs the program that PYTHON_EXEC names, become forks, too."""
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._folder is not None
            return {"STATCOLLECT_WARM": f"{self._folder.name}/socket", "PYTHON_EXEC": f"{self._folder.name}/python"}

    def on_path(self, env: dict[str, str]) -> dict[str, str]:
        """The environment for a program that starts `python` or `torchrun`: they are forks, too, and instrumented as interpreters would be."""
        warm = self.stand_in()
        return {**env, **warm, "PATH": f"{Path(warm['PYTHON_EXEC']).parent}:{env['PATH']}"}

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        program = Path(self._folder.name, "python")
        program.write_text(f"#!{sys.executable} -IS\n" + Path(__file__).with_name("warm_client.py").read_text())
        program.chmod(0o755)
        launcher = program.with_name("torchrun")
        launcher.write_text(f'#!/bin/sh\nexec {program} -m torch.distributed.run "$@"\n')
        launcher.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__, f"{self._folder.name}/socket"], env=self._env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the server has not started; its own message is above"

    def close(self) -> None:
        if self._process is not None and self._folder is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=20)
            self._folder.cleanup()
            self._process = None


_servers: dict[frozenset[tuple[str, str]], Warm] = {}


def shared(env: dict[str, str]) -> Warm:
    """The server for programs with such an environment; one for all folders of tests. It ends with the process of the tests."""
    return _servers.setdefault(frozenset(_bound(env).items()), Warm(env))


def ask(server: socket.socket, arguments: list[str], env: dict[str, str], cwd: str, files: list[int]) -> int | list[str]:
    """The fork's pid, or why there is none. The next packet is the exit code."""
    request = json.dumps({"arguments": arguments, "env": env, "cwd": cwd}).encode()
    socket.send_fds(server, [request], files)
    answer = json.loads(server.recv(_PACKET_MAX))
    assert isinstance(answer, (int, list))
    return answer


# --- the server ------------------------------------------------------------------------------------------------------------


class _Server:
    """One thread, as a process with several must not be forked."""

    def __init__(self, path: str) -> None:
        self._started_with = _bound(dict(os.environ))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        self._events = selectors.DefaultSelector()
        self._events.register(0, selectors.EVENT_READ)
        self._events.register(self._listener, selectors.EVENT_READ)
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, and who asked
        os.write(1, b"ready\n")

    def serve(self) -> list[str] | None:
        """Returns in a fork, with the arguments of the program that it is to be, and None in the server, at the end."""
        while True:
            for key, _ in self._events.select():
                if key.fd == 0:  # the tests are over, or gone
                    for pid, _ in self._forks.values():
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)
                    return None
                if key.fileobj is self._listener:
                    arguments = self._fork()
                    if arguments is not None:
                        return arguments
                elif key.fd in self._forks:
                    self._ended(key.fd)
                elif key.data in self._forks and self._forks[key.data][1] is key.fileobj:
                    self._events.unregister(key.fileobj)  # who asked is gone, killed: then the program is, too
                    os.kill(self._forks[key.data][0], signal.SIGKILL)

    def _fork(self) -> list[str] | None:
        client, _ = self._listener.accept()
        packet, files, _, _ = socket.recv_fds(client, _PACKET_MAX, 3)
        if not packet:
            client.close()
            return None
        request = json.loads(packet)
        env = _bound(request["env"])
        differ = sorted(name for name in env.keys() | self._started_with.keys() if env.get(name) != self._started_with.get(name))
        if differ:
            client.send(json.dumps(differ).encode())
            client.close()
        else:
            pid = os.fork()
            if pid == 0:
                self._become(request, files, client)
                return list(request["arguments"])
            with contextlib.suppress(BrokenPipeError):
                client.send(json.dumps(pid).encode())
            ended = os.pidfd_open(pid)
            self._forks[ended] = pid, client
            self._events.register(ended, selectors.EVENT_READ)
            self._events.register(client, selectors.EVENT_READ, ended)
        for file in files:
            os.close(file)
        return None

    def _ended(self, ended: int) -> None:
        pid, client = self._forks.pop(ended)
        _, status = os.waitpid(pid, 0)
        self._events.unregister(ended)
        os.close(ended)
        with contextlib.suppress(KeyError):
            self._events.unregister(client)
        with contextlib.suppress(OSError):
            client.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
        client.close()

    def _become(self, request: dict[str, Any], files: list[int], client: socket.socket) -> None:
        os.setsid()
        _enter(client)
        self._events.close()
        self._listener.close()
        client.close()
        for ended, (_, other) in self._forks.items():
            os.close(ended)
            other.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        unbuffered = request["arguments"][0] == "-u"
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout = os.fdopen(1, "w", buffering=1 if unbuffered else -1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        if unbuffered:
            sys.stdout.reconfigure(write_through=True)
            del request["arguments"][0]
        before, after = (env.get("PYTHONPATH", "") for env in (os.environ, request["env"]))
        if before != after:
            first = sys.path.index(before.partition(":")[0])
            sys.path[first : first + len(before.split(":"))] = after.split(":") if after else []
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.meta_path.insert(0, _Unseen("torch"))
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()


def _enter(client: socket.socket) -> None:
    """Goes to the machine of the process at the other end: its namespaces of the network and of files."""
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    for kind in ("net", "mnt"):
        theirs, ours = (os.open(f"/proc/{who}/ns/{kind}", os.O_RDONLY) for who in (pid, "self"))
        if not os.path.sameopenfile(theirs, ours) and ctypes.CDLL(None, use_errno=True).setns(theirs, 0) != 0:
            raise OSError(ctypes.get_errno(), f"enter the namespace '{kind}' of process {pid}")
        os.close(theirs)
        os.close(ours)


class _Unseen:
    """Hides a loaded package until a program imports it: a finder and loader that then puts the modules back. Import hooks that wait for the
    package see this import as its first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._modules = {key: sys.modules.pop(key) for key in list(sys.modules) if f"{key}.".startswith(f"{name}.")}
        self._spec = self._modules[name].__spec__

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = copy.copy(self._spec)
        assert spec is not None
        spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._modules[self._name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)


def _serve(path: str) -> list[str] | None:
    import torch
    import torch._dynamo
    import torch.distributed.run
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    # torchrun asks inspect.stack() 18 times for the name that an event shall have; each goes through all loaded modules.
    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False  # as the interpreter's teardown: of torch's operators, one by one
    gc.collect()
    gc.freeze()  # what is there stays, and is not looked at again in every fork
    assert torch.get_num_threads() == 1 and len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"
    return _Server(path).serve()


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


def _run_to_the_end(arguments: list[str]) -> NoReturn:
    """As the interpreter does at its end: threads, handlers, files. It does not take its modules apart, for which every page of torch would
    be copied: a second."""
    code = 0
    try:
        _run(arguments)
    except SystemExit as end:
        if isinstance(end.code, int):
            code = end.code
        elif end.code is not None:
            print(end.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)


if __name__ == "__main__":
    program = _serve(sys.argv[1])
    if program is not None:
        _run_to_the_end(program)
    os._exit(0)
