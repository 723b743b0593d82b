"""Stands in for the interpreter where torch shall not be imported again: asks the server of warm_python.py for a fork, and is to whoever
started it what that fork is: passes on signals, ends with its exit code, and takes it along when it is killed.

A program that needs an interpreter of its own gets one. Standard library only: this must start in a few milliseconds."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(os.environ["STATCOLLECT_WARM"])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    request = {"arguments": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    pid = json.loads(server.recv(1 << 18))
    if isinstance(pid, list):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    for number in PASSED_ON:
        signal.signal(number, lambda got, _: os.kill(pid, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    end = server.recv(1 << 18)
    code = json.loads(end) if end else 1  # the server is gone
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
