"""Connections beyond what the collector allows are refused, and cost neither its open streams nor its store anything."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Collector, start_python, wait_until

# Trains until its input ends; says how many records are acknowledged after each line of it.
STEADY = """
import numpy, select, statagent, sys
statagent.init(run=sys.argv[1], required=True)
print("started", flush=True)
while True:
    statagent.inspect("layer", numpy.ones(16, numpy.float32))
    statagent.step()
    if select.select([sys.stdin], [], [], 0.02)[0]:
        if not sys.stdin.readline(): break
        print(statagent.counters()["acked"], flush=True)
statagent.close(timeout=30)
c = statagent.counters()
print(c["produced"], c["acked"], flush=True)
"""


@contextmanager
def training(collector: Collector, run: str) -> Iterator[subprocess.Popen[str]]:
    process = start_python(["-c", STEADY, run], env=collector.environment(), text=True,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        out, _ = process.communicate(timeout=60)
        produced, acked = map(int, out.split())
        assert produced == acked > 0
    finally:
        process.kill()
        process.wait()


def acknowledged(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("?\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def connect(address: str, count: int) -> list[socket.socket]:
    host, port = address.rsplit(":", 1)
    sockets = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((host, int(port)))
        sockets.append(one)
    return sockets


def descriptors(collector: Collector) -> int:
    assert collector.process is not None
    return len(os.listdir(f"/proc/{collector.process.pid}/fd"))


@pytest.mark.parametrize("limited", ["descriptors", "connections"])
def test_streams_and_the_store_live_on_while_connections_are_refused(tmp_path: Path, limited: str) -> None:
    few = 300
    collector = Collector(tmp_path / "data")
    if limited == "descriptors":
        collector.wrapper = ["sh", "-c", f'ulimit -n {few}; exec "$@"', "sh"]
    else:
        collector.extra = ["--connections-max", "40", "--http-connections-max", "40"]
    collector.start()
    try:
        with training(collector, "steady") as trainer:
            wait_until(lambda: acknowledged(trainer) > 20, what="the first records")
            flood = connect(collector.address, 400) + connect(collector.http, 400)
            most = 0
            for _ in range(20):
                most = max(most, descriptors(collector))
                flood += connect(collector.address, 10)
            assert most < few - 50, "the store keeps some for itself"
            before = acknowledged(trainer)
            wait_until(lambda: acknowledged(trainer) > before + 20, what="records during the flood")
            for one in flood:
                one.close()
            wait_until(lambda: collector.statctl("runs").code == 0, what="an answer after the flood")
            assert collector.statctl("checkpoint", str(tmp_path / "saved")).code == 0  # opens files
            assert "ready" in collector.get("/readyz")
            wait_until(lambda: descriptors(collector) < 120, what="the connections to end")
        with training(collector, "later"):
            pass
    finally:
        errors = (tmp_path / "collector.err").read_text()
        assert collector.stop() == 0
    assert "refused" in errors and "read only" not in errors.replace("_", " ")
