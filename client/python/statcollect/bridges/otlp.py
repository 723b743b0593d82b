"""`python -m statcollect otlp`: what a collector hears of its runs, as OpenTelemetry metrics and events, over OTLP/HTTP in JSON.

A process beside the collector, which asks it now and then: neither training nor collector waits for the endpoint. What has been sent is
remembered per run and rank, and moves on only once the endpoint has taken it; so an endpoint that was away gets what it missed."""

from __future__ import annotations

import argparse
import fnmatch
import http.client
import json
import math
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..answers import EventRow, RunSummary, ScalarRow
from ..errors import ArgumentError, CollectorUnavailableError, NotFoundError, StatcollectError
from .shown import printable
from .source import Source

SECONDS = 10.0  # for one request
POINTS_MAX = 1000  # of a run in one request; the rest goes with the next
LATE_NANOS = 60_000_000_000  # alarms may come that long after a run's end
LOSSES = ("loss",)
SEVERITY_WARN, CUMULATIVE = 13, 2


@dataclass
class Sent:
    """How far the endpoint has a run."""

    steps: dict[int, int] = field(default_factory=dict)  # rank -> last step
    events: int = 0  # of those that the collector lists
    last_step: int | None = None  # of the run, and when that was seen
    last_nanos: int = 0


def attribute(key: str, value: str | int) -> dict[str, Any]:
    # 64-bit integers are text in protobuf's JSON.
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": printable(value, 400)}}


def resource(run: str, rank: int | None) -> dict[str, Any]:
    named = [attribute("service.name", "statcollect"), attribute("statcollect.run", run)]
    return {"attributes": named if rank is None else [*named, attribute("statcollect.rank", rank)]}


def gauge(name: str, unit: str, text: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "unit": unit, "description": text, "gauge": {"dataPoints": points}}


def loss_point(row: ScalarRow, now: int) -> dict[str, Any]:
    value: float | str = row.value
    if not math.isfinite(row.value):
        value = "NaN" if math.isnan(row.value) else "Infinity" if row.value > 0 else "-Infinity"
    marks = [attribute("name", row.name), attribute("step", row.step), attribute("micro_batch", row.micro_batch)]
    return {"timeUnixNano": str(now), "asDouble": value, "attributes": marks}


def run_metrics(run: RunSummary, sent: Sent, now: int) -> list[dict[str, Any]]:
    """Of the whole run: its last step, the time of a step since the last look, and lost records."""
    lost = {"timeUnixNano": str(now), "startTimeUnixNano": str(run.start_unix_nanos), "asInt": str(run.dropped)}
    found: list[dict[str, Any]] = [
        {"name": "statcollect.records.lost", "unit": "{record}", "description": "records that agents reported as lost",
         "sum": {"aggregationTemporality": CUMULATIVE, "isMonotonic": True, "dataPoints": [lost]}},
    ]  # fmt: skip
    if run.last_step is not None:
        found.append(
            gauge("statcollect.step", "{step}", "the newest step", [{"timeUnixNano": str(now), "asInt": str(run.last_step)}])
        )
        steps = run.last_step - sent.last_step if sent.last_step is not None else 0
        if steps > 0 and run.end_unix_nanos > sent.last_nanos > 0:
            seconds = (run.end_unix_nanos - sent.last_nanos) / 1e9 / steps
            point = {"timeUnixNano": str(now), "asDouble": seconds}
            found.append(gauge("statcollect.step.duration", "s", "mean since the last look", [point]))
    return found


def metrics_of(run: RunSummary, rows: Iterable[ScalarRow], sent: Sent, now: int) -> dict[str, Any]:
    """An ExportMetricsServiceRequest: a resource for the run, and one for each rank."""
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_rank.setdefault(row.rank, []).append(loss_point(row, now))
    every = [(resource(run.run, None), run_metrics(run, sent, now))]
    every += [
        (resource(run.run, rank), [gauge("statcollect.loss", "1", "as logged by the training", points)])
        for rank, points in sorted(by_rank.items())
    ]
    scope = {"name": "statcollect"}
    return {"resourceMetrics": [{"resource": of, "scopeMetrics": [{"scope": scope, "metrics": each}]} for of, each in every]}


def logs_of(run: str, events: Iterable[EventRow], now: int) -> dict[str, Any]:
    """An ExportLogsServiceRequest: an event for each alarm."""
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        marks = [attribute("step", event.step), *(attribute(key, value) for key, value in event.fields.items())]
        record = {
            "timeUnixNano": str(event.unix_nanos), "observedTimeUnixNano": str(now), "severityNumber": SEVERITY_WARN, "severityText": "WARN",
            "eventName": f"statcollect.alarm.{event.kind}", "body": {"stringValue": printable(event.text)}, "attributes": marks,
        }  # fmt: skip
        by_rank.setdefault(event.rank, []).append(record)
    return {
        "resourceLogs": [
            {"resource": resource(run, rank), "scopeLogs": [{"scope": {"name": "statcollect"}, "logRecords": records}]}
            for rank, records in sorted(by_rank.items())
        ]
    }


class Endpoint:
    """An OTLP/HTTP receiver."""

    def __init__(self, url: str) -> None:
        """Raises ArgumentError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ArgumentError(
                f"send to '{printable(url, 200)}': expected the address of an OTLP/HTTP receiver, such as http://127.0.0.1:4318"
            )
        self.url = url.rstrip("/")
        # No proxy of the environment, as of every address that is named to statctl.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send(self, signal: str, message: dict[str, Any]) -> None:
        """signal: "metrics" or "logs". Raises CollectorUnavailableError, also for an endpoint that hangs."""
        request = urllib.request.Request(
            f"{self.url}/v1/{signal}", json.dumps(message).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                response.read(1 << 20)
        except (OSError, http.client.HTTPException, urllib.error.URLError) as error:
            reason = (
                error.reason
                if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError)
                else error
            )
            raise CollectorUnavailableError(
                f"send {signal} to {self.url}: {printable(str(reason), 200)}; expected an OTLP/HTTP receiver; it gets what it "
                "missed once it answers"
            ) from error


class Follower:
    """Sends what is new since the last look."""

    def __init__(self, source: Source, endpoint: Endpoint, pattern: str, everything: bool) -> None:
        self._source, self._endpoint, self._pattern, self._everything = source, endpoint, pattern, everything
        self._sent: dict[str, Sent] = {}
        self._first = True

    def look(self) -> bool:
        """Whether there is more at once. Raises StatcollectError: nothing that was not taken is forgotten."""
        runs = self._source.ask(lambda collector: collector.runs())
        chosen = [run for run in runs if fnmatch.fnmatchcase(run.run, self._pattern) and not run.twin_of]
        if self._first and not self._everything:
            for run in chosen:
                self._skip(run)
        self._first = False
        more = [self._send(run) for run in chosen]
        return any(more)

    def _skip(self, run: RunSummary) -> None:
        """What was recorded before this process began is not sent."""
        last = -1 if run.last_step is None else run.last_step
        events = len(self._events(run.run))
        self._sent[run.run] = Sent(
            dict.fromkeys(range(max(run.world_size, run.ranks)), last), events, run.last_step, run.end_unix_nanos
        )

    def _events(self, run: str) -> list[EventRow]:
        return self._source.ask(lambda collector: collector.events(run))

    def _send(self, run: RunSummary) -> bool:
        sent = self._sent.setdefault(run.run, Sent())
        now = time.time_ns()
        ended = run.state != "running" and now - run.end_unix_nanos > LATE_NANOS
        if ended and run.end_unix_nanos <= sent.last_nanos:
            return False
        try:
            rows, events = self._losses(run.run, sent), self._events(run.run)[sent.events :]
        except NotFoundError:
            self._sent.pop(run.run, None)  # removed meanwhile
            return False
        part, more = rows[:POINTS_MAX], len(rows) > POINTS_MAX
        self._endpoint.send("metrics", metrics_of(run, part, sent, now))
        for row in part:
            sent.steps[row.rank] = max(row.step, sent.steps.get(row.rank, -1))
        if not more:
            sent.last_step, sent.last_nanos = run.last_step, run.end_unix_nanos
        alarms = [event for event in events if event.origin == "collector"]
        if alarms:
            self._endpoint.send("logs", logs_of(run.run, alarms, now))
        sent.events += len(events)
        return more

    def _losses(self, run: str, sent: Sent) -> list[ScalarRow]:
        """In the order of steps, so that a part of them leaves no gap."""
        first = min(sent.steps.values(), default=-1) + 1
        rows: list[ScalarRow] = []
        for name in LOSSES:
            rows += self._source.ask(lambda collector, name=name: collector.scalars(run, name, steps=f"{first}-"))  # type: ignore[misc]
        return sorted((row for row in rows if row.step > sent.steps.get(row.rank, -1)), key=lambda row: (row.step, row.rank))


def follow(follower: Follower, interval: float, once: bool) -> int:
    said = ""
    while True:
        more = False
        try:
            more = follower.look()
            said = ""
        except StatcollectError as error:
            if str(error) != said:
                print(f"statcollect otlp: {error}", file=sys.stderr, flush=True)
            said = str(error)
            if once:
                return 2
        if not more:
            if once:
                return 0
            time.sleep(interval)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m statcollect otlp", description=__doc__)
    parser.add_argument("endpoint", help="address of the receiver, such as http://127.0.0.1:4318")
    parser.add_argument("--run", default="*", metavar="PATTERN", help="only runs whose name matches")
    parser.add_argument("--interval", type=float, default=10.0, metavar="SECONDS", help="between two looks (default 10)")
    parser.add_argument("--all", action="store_true", help="also send what was recorded before")
    parser.add_argument("--once", action="store_true", help="look once, then exit")
    parser.add_argument(
        "--collector", help="address, as statcollect.connect takes it (default: STATCTL_COLLECTOR, else 127.0.0.1:7433)"
    )
    options = parser.parse_args(arguments)
    if not options.interval > 0:
        parser.error(f"--interval: found {options.interval:g}; expected seconds, more than 0")
    try:
        endpoint = Endpoint(options.endpoint)
    except ArgumentError as error:
        print(f"statcollect otlp: {error}", file=sys.stderr)
        return 2
    follower = Follower(Source(options.collector, None), endpoint, options.run, options.all)
    try:
        return follow(follower, options.interval, options.once)
    except KeyboardInterrupt:
        return 130
