"""`python -m statcollect publish`: writes a verdict into the run of an experiment tracker, as a summary and a note."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from .. import client
from ..answers import DiffReport
from ..errors import ArgumentError, QueryError, StatcollectError
from .shown import printable

SECONDS = 60.0  # for a tracker, before it counts as hanging; STATCOLLECT_PUBLISH_SECONDS
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny", "trackio": "trackio"}


@dataclass(frozen=True)
class Verdict:
    """What is written."""

    run: str
    against: str
    verdict: str  # "DIVERGED"
    headline: str
    link: str  # empty: there is none that lasts

    def fields(self) -> dict[str, str]:
        found = {"against": self.against, "verdict": self.verdict, "headline": self.headline, "link": self.link}
        return {f"statcollect.{name}": value for name, value in found.items() if value}

    def note(self) -> str:
        return f"statcollect, {self.run} against {self.against}: {self.verdict} {self.headline} {self.link}".rstrip()


def with_note(old: str | None, verdict: Verdict) -> str:
    """The notes with this verdict in place of an earlier one against the same run."""
    begins = verdict.note().partition(":")[0] + ":"
    kept = [line for line in (old or "").splitlines() if not line.startswith(begins)]
    return "\n".join([*kept, verdict.note()]).strip()


def to_wandb(wandb: Any, run_id: str, verdict: Verdict) -> str:
    parts = run_id.split("/")
    if not 2 <= len(parts) <= 3 or not all(parts):
        raise ArgumentError(f"write to W&B run '{printable(run_id)}': expected ENTITY/PROJECT/ID or PROJECT/ID")
    entity = parts[0] if len(parts) == 3 else None
    settings = wandb.Settings(console="off", silent=True)
    run = wandb.init(entity=entity, project=parts[-2], id=parts[-1], resume="allow", settings=settings)
    run.summary.update(verdict.fields())
    run.notes = with_note(run.notes, verdict)
    run.finish()
    return f"W&B run {run_id}"


def to_mlflow(mlflow: Any, run_id: str, verdict: Verdict) -> str:
    tracking = mlflow.MlflowClient()
    old = tracking.get_run(run_id).data.tags.get("mlflow.note.content")
    for name, value in {**verdict.fields(), "mlflow.note.content": with_note(old, verdict)}.items():
        tracking.set_tag(run_id, name, value)
    return f"MLflow run {run_id}"


def to_trackio(trackio: Any, run_id: str, verdict: Verdict) -> str:
    project, _, name = run_id.partition("/")
    if not project or not name:
        raise ArgumentError(f"write to Trackio run '{printable(run_id)}': expected PROJECT/NAME")
    run = trackio.init(project=project, name=name, resume="allow", embed=False, auto_log_gpu=False)
    run.log({name.replace(".", "/"): value for name, value in verdict.fields().items()})
    trackio.alert(title=f"statcollect: {verdict.verdict}", text=verdict.note())
    trackio.finish()
    return f"Trackio run {run_id}"


WRITERS: dict[str, Callable[[Any, str, Verdict], str]] = {"wandb": to_wandb, "mlflow": to_mlflow, "trackio": to_trackio}


def recorded_id(collector: client.Collector, run: str, tracker: str) -> str:
    """Of the tracker's run that was active when the run was recorded. Raises QueryError without one."""
    found = collector.show(run).config.get(f"tracker.{tracker}.run", "")
    if not found:
        raise QueryError(
            f"publish to {tracker}: run '{run}' was recorded without an active {tracker} run; expected one; name it: "
            f"{tracker}:RUN",
            0, "no_answer",
        )  # fmt: skip
    return found


def publish(tracker: str, run_id: str, verdict: Verdict) -> str:
    """Writes it, and returns where. Raises StatcollectError; a tracker that hangs is given up after `SECONDS`."""
    try:
        module = importlib.import_module(tracker)
    except ImportError as error:
        raise StatcollectError(
            f"publish to {tracker}: {error}; expected the package; run {sys.executable} -m pip install {PACKAGES[tracker]}"
        ) from error
    done: list[str | BaseException] = []

    def work() -> None:
        try:
            done.append(WRITERS[tracker](module, run_id, verdict))
        except BaseException as error:
            done.append(error)

    seconds = float(os.environ.get("STATCOLLECT_PUBLISH_SECONDS") or SECONDS)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise StatcollectError(
            f"publish to {tracker}: no answer within {seconds:g} s; expected its server; check it, or raise STATCOLLECT_PUBLISH_SECONDS"
        )
    (result,) = done
    if isinstance(result, StatcollectError):
        raise result
    if isinstance(result, BaseException):
        text = printable(f"{type(result).__name__}: {result}", 400)
        raise StatcollectError(f"publish to {tracker} run '{printable(run_id)}': {text}; expected a run that can be written")
    return result


def verdict_of(report: DiffReport, address: str) -> Verdict:
    """address: of the page."""
    text = report.text
    word, sentence = (text.verdict, text.sentence) if text else (report.verdict or "", report.message)
    query = urlencode({"view": "compare", "a": report.run_a, "b": report.run_b})
    return Verdict(report.run_b, report.run_a, word, printable(sentence), f"{address}/?{query}")


def given_verdict(text: str, run: str, against: str) -> Verdict:
    """What `statctl diff` has found. Raises ArgumentError."""
    try:
        given = json.loads(text)
        return Verdict(run, against, given["verdict"], printable(given["headline"]), given["link"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"read --verdict: {error}; expected that of statctl diff") from error


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m statcollect publish", description=__doc__, epilog="Exit codes are those of statctl diff."
    )
    parser.add_argument(
        "tracker", help="wandb, mlflow or trackio; or with its run, such as wandb:ENTITY/PROJECT/ID (default: that of run_b)"
    )
    parser.add_argument("run_a", help="the baseline run")
    parser.add_argument("run_b", help="the run to compare with it")
    parser.add_argument(
        "--collector", help="address, as statcollect.connect takes it (default: STATCTL_COLLECTOR, else 127.0.0.1:7433)"
    )
    parser.add_argument("--http", help="the collector's HTTP address, where it is neither of the two")
    parser.add_argument("--verdict", help=argparse.SUPPRESS)  # of statctl diff, which then has the exit code
    parser.add_argument("--statctl", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    tracker, _, run_id = options.tracker.partition(":")
    if tracker not in WRITERS:
        parser.error(f"found tracker '{printable(tracker, 100)}'; expected {', '.join(WRITERS)}")
    connected = functools.cache(lambda: client.connect(options.collector, http=options.http))
    code = 0
    try:
        if options.verdict:
            verdict = given_verdict(options.verdict, options.run_b, options.run_a)
        else:
            report = connected().diff(options.run_a, options.run_b)
            code = {"identical": 0, "within_tolerance": 0, "diverged": 1}.get(report.verdict or "", 2)
            verdict = verdict_of(report, str(connected().address))
            print(f"{verdict.verdict} {verdict.headline}", flush=True)
        where = publish(tracker, run_id or recorded_id(connected(), options.run_b, tracker), verdict)
        print(f"published to {where}", file=sys.stderr, flush=True)
    except StatcollectError as error:
        print(f"statcollect publish: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(2)  # not waiting for a thread of a tracker that hangs
    return code
