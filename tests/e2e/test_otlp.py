"""`python -m statcollect otlp` against a receiver that reads OTLP with OpenTelemetry's own protos: losses, steps and alarms, and endpoints that are away or hang."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT, Collector, agent_environment, run_command, wait_until
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

sys.path.insert(0, str(ROOT / "client/python"))
from statcollect.bridges import otlp
from statcollect.errors import CollectorUnavailableError

OTLP = [sys.executable, "-m", "statcollect", "otlp"]
ENVIRONMENT = {**agent_environment(), "PYTHONPATH": str(ROOT / "client/python")}
TRAIN = """
import sys, statagent, torch
for rank in range(int(sys.argv[2])):
    statagent.init(run=sys.argv[1], rank=rank, world_size=int(sys.argv[2]), if_exists="append", launch=sys.argv[1])
    for step in range(int(sys.argv[3])):
        statagent.inspect("x", torch.full((4,), float("nan") if step == 3 else 1.0))
        statagent.log_scalar("loss", float("nan") if step == 4 else 2.0 / (1 + step))
        statagent.step()
    statagent.close()
"""


class Receiver(http.server.BaseHTTPRequestHandler):
    """Refuses what is not OTLP."""

    metrics: list[ExportMetricsServiceRequest] = []
    logs: list[ExportLogsServiceRequest] = []
    status = 200

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kinds: dict[str, tuple[Any, list[Any]]] = {
            "/v1/metrics": (ExportMetricsServiceRequest, self.metrics),
            "/v1/logs": (ExportLogsServiceRequest, self.logs),
        }
        message, kept = kinds[self.path]
        assert self.headers["Content-Type"] == "application/json"
        if self.status == 200:
            kept.append(json_format.Parse(body, message()))
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


@contextlib.contextmanager
def receiving() -> Iterator[str]:
    Receiver.metrics, Receiver.logs, Receiver.status = [], [], 200
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in of.attributes}


def metrics(run: str, name: str) -> list[tuple[dict[str, Any], Any]]:
    """(attributes of the resource, data point) of what has been received."""
    return [
        (attributes(of.resource), point)
        for request in Receiver.metrics
        for of in request.resource_metrics
        if attributes(of.resource)["statcollect.run"] == run
        for scope in of.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points
    ]


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> Collector:
    shared_collector.python(TRAIN, "two", "2", "6")
    wait_until(lambda: shared_collector.json("events", "two")["records"], what="an alarm")
    return shared_collector


def send(collector: Collector, endpoint: str, *options: str) -> Any:
    return run_command([*OTLP, endpoint, "--collector", collector.http, *options], env=ENVIRONMENT, cold=True)


def test_losses_steps_and_alarms_arrive_with_run_and_rank(recorded: Collector) -> None:
    with receiving() as endpoint:
        done = send(recorded, endpoint, "--all", "--once")
        assert (done.code, done.out) == (0, ""), done
        losses = metrics("two", "statcollect.loss")
        expected = [(rank, step) for step in range(6) for rank in range(2)]
        found = [(of["statcollect.rank"], attributes(point)["step"]) for of, point in losses]
        assert sorted(found, key=lambda each: (each[1], each[0])) == expected
        values = {attributes(point)["step"]: point.as_double for of, point in losses if of["statcollect.rank"] == 1}
        assert values[0] == 2.0 and values[4] != values[4], "NaN stays NaN"
        ((of, newest),) = metrics("two", "statcollect.step")
        assert newest.as_int == 5 and of["service.name"] == "statcollect" and "statcollect.rank" not in of
        assert metrics("two", "statcollect.records.lost")[0][1].as_int == 0
        alarms = recorded.json("events", "two")["records"]
        records = [
            (attributes(of.resource)["statcollect.rank"], record)
            for request in Receiver.logs for of in request.resource_logs for scope in of.scope_logs for record in scope.log_records
        ]  # fmt: skip
        raised = sorted((each["rank"], each["kind"], each["text"]) for each in alarms if each["origin"] == "collector")
        assert raised and raised == sorted(
            (rank, record.event_name.removeprefix("statcollect.alarm."), record.body.string_value) for rank, record in records
        )


def test_what_is_new_is_sent_once_also_after_the_endpoint_was_away(recorded: Collector) -> None:
    with receiving() as endpoint:
        command = [*OTLP, endpoint, "--collector", recorded.http, "--interval", "0.2", "--run", "new*"]
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            Receiver.status = 503
            recorded.python(TRAIN, "newer", "1", "3")
            recorded.python(TRAIN, "other", "1", "3")
            assert "HTTP Error 503" in process.stderr.readline()
            assert not metrics("newer", "statcollect.loss")
            Receiver.status = 200
            wait_until(lambda: metrics("newer", "statcollect.loss"), what="what it missed")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
        steps = [attributes(point)["step"] for _, point in metrics("newer", "statcollect.loss")]
        assert steps == [0, 1, 2], "each once"
        assert not metrics("other", "statcollect.loss") and not metrics("two", "statcollect.loss")


def test_endpoints_that_are_wrong_away_or_hang_are_clear_errors(recorded: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "such as http://127.0.0.1:4318" in send(recorded, "localhost:4318", "--once").err
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        away = send(recorded, address, "--all", "--once")
        assert away.code == 2 and "Connection refused" in away.err and "expected an OTLP/HTTP receiver" in away.err
        silent.listen()
        monkeypatch.setattr(otlp, "SECONDS", 0.2)
        with pytest.raises(CollectorUnavailableError, match="timed out"):
            otlp.Endpoint(address).send("logs", {})


def test_hostile_names_are_escaped_and_cut() -> None:
    found = otlp.attribute("key", "\x1b[2J" + "x" * 5000)["value"]["stringValue"]
    assert found.startswith(r"\x1b[2J") and len(found) < 500 and json.dumps(found)
