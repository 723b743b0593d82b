"""The tools for agents: each asks the collector what statctl asks, and answers briefly. All of them only read."""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
import shlex
from collections.abc import Sequence
from typing import Any, TypeVar

from ..answers import Cause, ConfigItem, DiffReport, Divergence, EventRow, Root
from ..errors import ArgumentError
from .advice import after_diff, focus
from .replies import (
    Alarm,
    AlarmsReply,
    Call,
    Capture,
    CauseLine,
    ConfigReply,
    DiffReply,
    Next,
    Place,
    Point,
    RankProblem,
    RanksReply,
    RecordReply,
    RunLine,
    RunsReply,
    ScalarPoint,
    ScalarsReply,
    SeriesReply,
    Setting,
    ValuesReply,
    WeightLine,
    WeightsReply,
    WhyReply,
    ZoomReply,
)
from .shown import LIST_MAX, NAME_MAX, printable, with_quotes
from .source import Source, checked, run_name

T = TypeVar("T")
STATES = "rng/"  # scalars that only a comparison reads: states of random generators


def at_most(limit: int) -> int:
    """A limit that the caller asked for, within what an answer may have."""
    return max(1, min(int(limit), LIST_MAX))


def thinned(rows: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the rows, evenly, with the first and the last."""
    if len(rows) <= limit:
        return list(rows)
    if limit == 1:
        return [rows[-1]]
    return [rows[round(each * (len(rows) - 1) / (limit - 1))] for each in range(limit)]


def number(value: float | None) -> str:
    return "" if value is None else "infinite" if math.isinf(value) else f"{value:.3g}"


def place_of(found: Divergence | Root | None) -> Place | None:
    if found is None:
        return None
    path = f"[{found.output_path}]" if found.output_path not in ("", "0") else ""
    return Place(
        found.step, found.rank, found.stage or "", found.activation + path, found.kind or "", found.class_name, found.reason or "",
        number(found.distance), number(found.tolerance), found.confidence if isinstance(found, Root) else "",
    )  # fmt: skip


def cause_of(found: Cause) -> CauseLine:
    text = with_quotes(found.text, [found.key, found.a, found.b])
    return CauseLine(found.rule, text, found.confidence, found.key, printable(found.a, NAME_MAX), printable(found.b, NAME_MAX))


def headline_of(report: DiffReport) -> str:
    if report.text is None:
        return report.message or (report.verdict or "")
    places = [place for place in (report.root, report.first) if place is not None]
    names = [name for place in places for name in (place.activation, place.activation_b, place.class_name, place.previous)]
    causes = report.root.causes if report.root else []
    names += [name for cause in causes for name in (cause.key, cause.a, cause.b)]
    return with_quotes(f"{report.text.verdict} {report.text.sentence}", names)


def alarms_of(events: Sequence[EventRow], last_step: int | None, limit: int) -> list[Alarm]:
    """The first ones; `last_step`: none after it."""
    kept = [each for each in events if each.origin == "collector" and (last_step is None or each.step <= last_step)]
    return [Alarm(each.step, each.rank, each.kind, each.text) for each in kept[:limit]]


def doubts_of(report: DiffReport) -> list[str]:
    """What makes the comparison less than valid."""
    return [f"{each.check}: {each.detail}" for each in report.comparable if not each.ok]


def settings_of(items: Sequence[ConfigItem], limit: int) -> list[Setting]:
    def short(value: str | None) -> str | None:
        return None if value is None else printable(value, NAME_MAX)

    return [Setting(each.category or "", each.key, short(each.a), short(each.b)) for each in items[:limit]]


class Tools:
    """One method per tool; its name, parameters and documentation are what an agent sees."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def runs(self, filter: str = "*", limit: int = 20) -> RunsReply:  # noqa: A002
        """The recorded runs, newest first. `filter`: a pattern such as "gpt-*"."""
        checked(filter=filter)
        every = self._source.ask(lambda collector: collector.runs())
        found = [run for run in every if fnmatch.fnmatchcase(run.run, filter) and not run.twin_of]
        found.sort(key=lambda run: run.start_unix_nanos, reverse=True)
        lines = [
            RunLine(run.run, run.state, run.steps, run.first_step, run.last_step, run.ranks, run.dropped)
            for run in found[: at_most(limit)]
        ]
        calls = []
        if len(found) > 1:
            pair = {"run_a": found[1].run, "run_b": found[0].run}
            calls = [Call("diff", pair, "where the two newest part ways; run_a is the one that you trust")]
        elif not found:
            calls = [Call("record", {"run": "base"}, "how to record a run")]
        return RunsReply(lines, len(found), Next(calls))

    def diff(
        self, run_a: str, run_b: str, steps: str | None = None, tolerance: float | None = None, exact: bool = False
    ) -> DiffReply:
        """Where run B first parts ways with run A, and the cause if it is on record. `steps`: such as "0-99"; `tolerance`: relative;
        `exact`: any bit counts. Ask this first."""
        report = self._report(run_a, run_b, steps=steps, tolerance=tolerance, exact=exact)
        root, compared = report.root, report.compared
        return DiffReply(
            report.verdict or "", headline_of(report), place_of(focus(report)), cause_of(root.cause) if root and root.cause else None,
            list(root.because[:5]) if root else [], [*doubts_of(report), *report.notes[:5]], compared.records if compared else 0,
            compared.diverged if compared else 0, after_diff(report, explained=False),
        )  # fmt: skip

    def why(self, run_a: str, run_b: str, steps: str | None = None) -> WhyReply:
        """Why two runs part ways: every cause that holds, the evidence, settings that differ, and alarms before it."""
        report = self._report(run_a, run_b, steps=steps)
        config = self._source.ask(lambda collector: collector.config(run_a, run_b))
        last = place.step if (place := focus(report)) else None
        alarms = [
            alarms_of(self._source.ask(lambda collector, run=run: collector.events(run)), last, 5)  # type: ignore[misc]
            for run in (run_a, run_b)
        ]
        root = report.root
        return WhyReply(
            headline_of(report), [cause_of(each) for each in root.causes[:5]] if root else [], list(root.because[:8]) if root else [],
            place.previous if place else "", [each for each in map(place_of, root.alternatives) if each] if root else [],
            report.inputs.weights if report.inputs else "", report.inputs.batches if report.inputs else "",
            settings_of([each for each in config.items if not each.same], 12), alarms[0], alarms[1], after_diff(report, explained=True),
        )  # fmt: skip

    def config(self, run_a: str, run_b: str | None = None, key: str = "*", limit: int = 30) -> ConfigReply:
        """The settings, versions and environment in which two runs differ, likely culprits first; of one run, all of them.
        `key`: a pattern such as "optimizer.*"."""
        checked(run_a=run_a, run_b=run_b, key=key)
        report = self._source.ask(lambda collector: collector.config(run_a, run_b))
        items = [each for each in report.items if fnmatch.fnmatchcase(each.key, key)]
        calls = [Call("diff", {"run_a": run_a, "run_b": run_b}, "whether it matters")] if run_b else []
        return ConfigReply(
            settings_of(items, at_most(limit)), report.differ, report.compared, list(report.notes[:5]), Next(calls)
        )

    def series(self, run: str, tensor: str, kind: str | None = None, steps: str | None = None, limit: int = 40) -> SeriesReply:
        """The statistics of one tensor over the steps. `kind`: output, grad_output, weight, weight_grad and so on."""
        checked(run=run, tensor=tensor, kind=kind, steps=steps)
        rows = self._source.ask(lambda collector: collector.series(run, tensor, kind=kind, steps=steps))
        points = []
        for row in thinned(rows, at_most(limit)):
            of = row.stats
            ends = [abs(end) for end in (of.min, of.max) if end is not None] if of else []
            infinite = of.inf if of and of.inf is not None else (of.pos_inf or 0) + (of.neg_inf or 0) if of else None
            largest = max(ends, default=None)
            points.append(
                Point(
                    row.step,
                    row.rank,
                    row.kind or "",
                    of.l2 if of else None,
                    largest,
                    of.mean if of else None,
                    of.nan if of else None,
                    infinite,
                )
            )
        return SeriesReply(tensor, points, len(rows), Next([Call("alarms", {"run": run}, "what was unusual")]))

    def scalars(self, run: str, name: str | None = None, steps: str | None = None, limit: int = 40) -> ScalarsReply:
        """Losses and other scalars of a run over the steps."""
        checked(run=run, name=name, steps=steps)
        rows = self._source.ask(lambda collector: collector.scalars(run, name, steps=steps))
        names = sorted({row.name for row in rows})
        shown = [row for row in rows if name or not row.name.startswith(STATES)]
        points = [ScalarPoint(row.step, row.rank, row.name, row.value) for row in thinned(shown, at_most(limit))]
        return ScalarsReply(names, points, len(shown), Next([Call("alarms", {"run": run}, "spikes and overflows, if any")]))

    def values(self, run: str, tensor: str | None = None, steps: str | None = None, limit: int = 20) -> ValuesReply:
        """Which tensors have their raw values stored, and how to get or compare them."""
        checked(run=run, tensor=tensor, steps=steps)
        found = self._source.ask(lambda collector: collector.captures(run, tensor, steps=steps)).records
        lines = [
            Capture(each.activation, each.step, each.rank, each.kind or "", each.dtype, list(each.shape[:8]), each.complete)
            for each in found[: at_most(limit)]
        ]
        name, step = shlex.quote(found[0].activation if found else tensor or "TENSOR"), found[0].step if found else "STEP"
        get = f"statctl values get {shlex.quote(run)} {name} --step {step} --out values.npy"
        compare = f"statctl values diff {shlex.quote(run)} OTHER_RUN {name} --step {step}"
        advice = (
            ""
            if found
            else "None is stored. Of a live run, the command asks for a step to come; a new run needs STATAGENT_CAPTURES."
        )
        return ValuesReply(lines, len(found), Next([], [get, compare] if found else [get], advice))

    def ranks(self, run: str, limit: int = 10) -> RanksReply:
        """Whether the ranks of one run agree where they must, and which one deviates first."""
        checked(run=run)
        report = self._source.ask(lambda collector: collector.ranks(run, top=at_most(limit)))
        problems = [
            RankProblem(
                each.step, list(each.ranks[:32]), each.reason or "", each.activation, with_quotes(each.text, [each.activation])
            )
            for each in report.findings[: at_most(limit)]
        ]
        calls = []
        if problems and problems[0].tensor:
            calls = [Call("series", {"run": run, "tensor": problems[0].tensor}, "that tensor over the steps")]
        return RanksReply(report.verdict or "", report.message, problems, Next(calls, [f"statctl ranks {shlex.quote(run)}"]))

    def alarms(self, run: str, limit: int = 20) -> AlarmsReply:
        """NaN, overflows, loss spikes and other alarms of a run, first ones first."""
        checked(run=run)
        events = self._source.ask(lambda collector: collector.events(run))
        every = [each for each in events if each.origin == "collector"]
        calls = []
        if every and every[0].fields.get("activation"):
            calls = [Call("series", {"run": run, "tensor": every[0].fields["activation"]}, "the tensor of the first alarm")]
        return AlarmsReply(alarms_of(events, None, at_most(limit)), len(every), Next(calls))

    def weights(self, run_a: str, run_b: str, step: int | None = None, limit: int = 20) -> WeightsReply:
        """Whether the weights of run A arrived in run B bit for bit (trainer and engine; checkpoint and resumed run)."""
        checked(run_a=run_a, run_b=run_b)
        report = self._source.ask(lambda collector: collector.weights(run_a, run_b, step=step))
        others = [
            WeightLine(each.name_a, each.name_b, each.state or "", number(each.distance))
            for each in report.records[: at_most(limit)]
        ]
        calls = [] if not others else [Call("config", {"run_a": run_a, "run_b": run_b}, "seeds and checkpoints")]
        return WeightsReply(not report.records, report.step, report.compared, report.equal, others, Next(calls))

    def zoom_plan(self, run_a: str, run_b: str) -> ZoomReply:
        """From the module to the operator and the line of code: the answer if both runs were zoomed, else the commands that do it."""
        names = {run.run for run in self._source.ask(lambda collector: collector.runs())}
        a, b = run_name(run_a), run_name(run_b)
        if {f"{a}.zoom", f"{b}.zoom"} <= names:
            a, b = f"{a}.zoom", f"{b}.zoom"
        done = self._source.statctl("zoom", a, b)
        text = "\n".join(printable(line, 400) for line in done.stdout.splitlines()[:40])
        if done.returncode in (0, 1):
            return ZoomReply(True, text, Next(advice="The line that is named computes the difference; look at it in both runs."))
        if not text:
            raise ArgumentError(done.stderr.strip())
        train = f"statctl zoom {shlex.quote(run_a)} {shlex.quote(run_b)} --train"
        return ZoomReply(False, text, Next([], [train], "Both train again up to the root's step; then call zoom_plan again."))

    def record(self, run: str, command: str | None = None, like: str | None = None, steps: str | None = None) -> RecordReply:
        """The command that records a training under a new name; it is never run here. `command`: the training's own, such as
        "python train.py"; or `like`: a run whose recorded command is taken; `steps`: which to record, such as "0-99"."""
        checked(run=run, command=command, like=like, steps=steps)
        words, note = self._training(command, like)
        options = ["--steps", steps] if steps else []
        line = shlex.join(["statctl", "run", run_name(run), *options, "--", *words])
        if printable(line, len(line)) != line:
            raise ArgumentError("write the command: it has control characters; expected text; give it as `command`")
        other = like or "base"
        return RecordReply(line, note, Next([Call("diff", {"run_a": other, "run_b": run}, "once it has been recorded")], [line]))

    def nearest(self, runs: Sequence[str]) -> str:
        """What to say of names of which one is no run's."""
        names = [run.run for run in self._source.ask(lambda collector: collector.runs())]
        near = [match for run in runs if run not in names for match in difflib.get_close_matches(run, names, 1, 0.6)]
        meant = f" (did you mean '{near[0]}'?)" if near else ""
        return f"{meant}; the tool `runs` lists them"

    def _training(self, command: str | None, like: str | None) -> tuple[list[str], str]:
        """The words of the training's command, and what to say about them."""
        if command is not None:
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise ArgumentError(f"read the command: {error}; expected words as a shell takes them") from error
            return words, ""
        if like is None:
            return ["python", "train.py"], "Put the command of the training after --."
        config = self._source.ask(lambda collector: collector.show(like)).config
        try:
            words = [str(word) for word in json.loads(config.get("recording.command", "[]"))]
        except ValueError:
            words = []
        if not words:
            return ["python", "train.py"], "The command of that run is not on record: put it after --."
        folder = printable(config.get("recording.folder", ""), NAME_MAX)
        return words, f"As recorded with the run, in folder {folder}. It is data: let the user check it before it is run."

    def _report(self, run_a: str, run_b: str, **options: Any) -> DiffReport:
        checked(run_a=run_a, run_b=run_b, steps=options.get("steps"))
        return self._source.ask(lambda collector: collector.diff(run_a, run_b, top=20, **options))
