"""A collector that can be stopped: every question about steps at the ends of their type is answered, and SIGTERM ends the daemon."""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conftest import Collector, start_python, wait_until

LAST = 2**63 - 1  # of set_step
ANSWER = 60  # seconds, on a machine that is busy with other tests
GRACE = 10  # that SIGTERM may take

# Statistics in the first steps, a scalar far behind them, and more behind that.
EXTREMES = """
import sys, statagent, torch
agent = statagent.init(run=sys.argv[1], config={"lr": 0.1}, exponents="x@0-2", captures=["x@1"], required=True)
for step in range(3):
    statagent.inspect("x", torch.arange(4.0) + step)
    statagent.log_scalar("loss", 0.5)
    statagent.step()
agent.set_step(2**63 - 1)
statagent.log_scalar("loss", 0.25)
statagent.step()
statagent.close(timeout=10)
"""
# More than what fits into the buffers between a collector and a reader who does not read.
LARGE = """
import statagent, torch
statagent.init(run="large", required=True)
x = torch.arange(4.0)
for step in range(100):
    for i in range(200):
        statagent.inspect(f"layer.{i}.with.a.rather.long.name", x)
    statagent.step()
statagent.close(timeout=30)
"""
OPEN_ENDED = """
import sys, time, statagent, torch
statagent.init(run="open", required=True)
statagent.inspect("x", torch.arange(4.0))
statagent.step()
statagent.flush(timeout=10)
print("recorded", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    collector = Collector(tmp_path_factory.mktemp("stopping") / "data").start()
    try:
        for run in ("a", "b"):
            collector.python(EXTREMES, run)
        yield collector
        if collector.process is not None:
            assert stop(collector) == 0
    finally:
        if collector.process is not None:
            collector.kill()


def stop(collector: Collector) -> int:
    began = time.monotonic()
    code = collector.stop()
    assert time.monotonic() - began < GRACE
    return code


QUESTIONS = [
    ["runs"],
    ["show", "a"],
    ["top", "a"],
    ["top", "a", "--by-rank"],
    ["top", "a", "--step", str(LAST)],
    ["diff", "a", "b"],
    ["diff", "a", "b", "--steps", f"{LAST}-"],
    ["diff", "a", "b", "--by-rank", "--steps", "0-18446744073709551615"],
    ["scalars", "a"],
    ["scalars", "a", "--steps", f"{LAST}"],
    ["series", "a", "x"],
    ["series", "a", "x", "--steps", f"1-{LAST}"],
    ["ranks", "a"],
    ["events", "a"],
    ["memory", "a"],
    ["density", "a"],
    ["captures", "a"],
    ["exponents", "a"],
    ["config", "a", "b"],
    ["noise", "save", "a", "--runs", "b"],
    ["noise", "show", "a"],
]


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_every_question_about_a_run_with_a_scalar_at_the_last_step_is_answered(extremes: Collector, question: list[str]) -> None:
    answer = extremes.statctl(*question, timeout=ANSWER)
    says_why_not = question[0] in ("memory", "density", "ranks") or {"--step", "--steps"} & set(question)
    assert answer.code in ((0, 1, 2) if says_why_not else (0, 1)), answer.err


def test_top_shows_the_newest_step_with_statistics_and_scalars_the_last_step(extremes: Collector) -> None:
    assert extremes.json("top", "a")["step"] == 2
    assert [row["step"] for row in extremes.json("scalars", "a", "--name", "loss")["records"]] == [0, 1, 2, LAST]


def questions_over_http(collector: Collector) -> dict[str, dict[str, Any]]:
    """By path: the parameters of every question that can be asked with GET and has an end."""
    description = json.loads(collector.get("/api/v1/openapi.json"))
    found = {}
    for path, methods in description["paths"].items():
        if "get" in methods and path not in ("/api/v1/live", "/api/v1/openapi.json"):
            found[path] = {parameter["name"]: parameter["schema"] for parameter in methods["get"].get("parameters", [])}
    return found


@pytest.mark.parametrize("end", [0, LAST, LAST + 1, 2**64 - 1])
def test_every_question_over_http_that_takes_steps_is_answered(extremes: Collector, end: int) -> None:
    texts = {
        "run": "a",
        "run_a": "a",
        "run_b": "b",
        "runs": "a",
        "activation": "x",
        "name": "loss",
        "steps": f"{end}-",
        "kinds": "output",
    }
    asked = 0
    for path, parameters in questions_over_http(extremes).items():
        values = {name: texts[name] for name in parameters if name in texts and name != "kinds"}
        values |= {name: str(end) for name in parameters if name in ("step", "since_step")}
        if not {"steps", "step", "since_step"} & values.keys():
            continue
        asked += 1
        connection = http.client.HTTPConnection(extremes.http, timeout=ANSWER)
        connection.request("GET", f"{path}?{urlencode(values)}")
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status in (200, 400, 404, 409), f"{path}: {response.status} {body!r}"
    assert asked >= 12, (
        "series, curves, scalars, memory, density, events, records, top, map, ranks, captures, exponents, diff, heatmap"
    )


def read_nothing(collector: Collector, path: str) -> socket.socket:
    """Asks, waits for the beginning of the answer, and reads no further."""
    host, _, port = collector.http.rpartition(":")
    reader = socket.create_connection((host, int(port)), timeout=ANSWER)
    reader.sendall(f"GET {path} HTTP/1.1\r\nHost: {collector.http}\r\n\r\n".encode())
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


def test_sigterm_ends_the_daemon_while_answers_are_read_and_runs_are_followed(collector: Collector, tmp_path: Path) -> None:
    collector.python(LARGE)
    with (tmp_path / "open.out").open("w") as out:
        training = start_python(["-c", OPEN_ENDED], env=collector.environment(), stdout=out, stderr=out)
    try:
        wait_until(lambda: "recorded" in (tmp_path / "open.out").read_text(), timeout=ANSWER, what="a training")
        readers = [read_nothing(collector, "/api/v1/records?run=large") for _ in range(4)]
        readers.append(read_nothing(collector, "/api/v1/live"))
        assert stop(collector) == 0
        for reader in readers:
            reader.close()
    finally:
        training.kill()
        training.wait(timeout=20)
