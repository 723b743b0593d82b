"""Which call or command is useful after an answer."""

from __future__ import annotations

import re
import shlex

from ..answers import DiffReport, Divergence, Root
from .replies import Call, Next

# Of a stage: the tool that looks closer, why, and the command with which a user sees the same.
_BY_STAGE = {
    "weights": ("weights", "which weights differ, and how", "statctl weights {a} {b}"),
    "batch": ("config", "the runs were fed different data: seeds, data set, batch size", "statctl config {a} {b}"),
    "forward": ("zoom_plan", "from the module to the operator and the line", "statctl zoom {a} {b} --train"),
    "loss": ("scalars", "how the losses go on", "statctl scalars {a} {b}"),
    "backward": ("config", "settings of precision and of the loss", "statctl diff {a} {b} --kind grad_output,output --all"),
    "grad": ("config", "accumulation, clipping, loss scale, reduction over ranks", "statctl config {a} {b}"),
    "optimizer": ("config", "settings of the optimizer", "statctl config {a} {b}"),
}


def focus(report: DiffReport) -> Divergence | Root | None:
    """The root, or without one the first difference."""
    return report.root or report.first


def next_name(run: str) -> str:
    """A free name for another launch: base-2, then base-3."""
    counted = re.fullmatch(r"(.*[^\d-])-(\d{1,4})", run)
    return f"{counted[1]}-{int(counted[2]) + 1}" if counted else f"{run}-2"


def after_diff(report: DiffReport, *, explained: bool) -> Next:
    """After `diff`; `explained`: after `why`, which would only repeat itself."""
    runs = {"run_a": report.run_a, "run_b": report.run_b}
    place = focus(report)
    if report.verdict == "incomparable":
        return Next([Call("runs", {}, "which runs there are"), Call("config", runs, "what differs between them")])
    if place is None or (report.verdict != "diverged" and report.root is None):
        return Next(advice="Nothing to look for: no tensor differs by more than rounding or the tolerance explains.")
    a, b = (shlex.quote(name) for name in (report.run_a, report.run_b))
    tool, why, command = _BY_STAGE.get(place.stage or "", ("config", "what differs between them", "statctl config {a} {b}"))
    arguments = {"run": report.run_b} if tool == "scalars" else dict(runs)
    calls = [] if explained else [Call("why", runs, "causes, evidence, and the settings that differ")]
    cause = report.root.cause if report.root else None
    if cause is not None and cause.confidence == "certain":
        again = Call("record", {"run": next_name(report.run_b), "like": report.run_b}, "record again after mending the cause")
        calls.append(again)
    calls.append(Call(tool, arguments, why))
    return Next(calls, [command.format(a=a, b=b)], report.text.next if report.text else "")
