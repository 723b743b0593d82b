"""What the tools for agents answer. Every answer is short, and says which call or command is useful next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Call:
    """A further call of a tool of this server."""

    tool: str
    arguments: dict[str, Any]
    why: str


@dataclass
class Next:
    """What is useful next."""

    calls: list[Call] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)  # for a shell; nothing here runs them
    advice: str = ""


@dataclass
class RunLine:
    name: str
    state: str  # running, finished, interrupted
    steps: int
    first_step: int | None
    last_step: int | None
    ranks: int
    records_lost: int


@dataclass
class RunsReply:
    runs: list[RunLine]  # newest first
    total: int  # that match, also those left out
    next: Next


@dataclass
class Place:
    """Where two runs differ."""

    step: int
    rank: int
    stage: str  # weights, batch, forward, loss, backward, grad, optimizer
    tensor: str
    kind: str
    module_class: str
    reason: str  # numeric, nonfinite, shape, dtype, order, missing_in_a, missing_in_b
    distance: str  # relative L2; "infinite"; empty: none
    tolerance: str
    confidence: str  # of the root: certain, likely, possible


@dataclass
class CauseLine:
    rule: str
    text: str
    confidence: str
    key: str  # of the setting that differs, if it has one
    a: str
    b: str


@dataclass
class DiffReply:
    verdict: str  # identical, within_tolerance, diverged, incomparable
    headline: str  # one sentence: where, by how much, and the cause
    root: Place | None  # the first difference that rounding does not explain
    cause: CauseLine | None  # why, as far as the records show
    evidence: list[str]  # why it is the root
    notes: list[str]  # first what makes the comparison less than valid
    records_compared: int
    records_different: int
    next: Next


@dataclass
class Setting:
    category: str
    key: str
    a: str | None  # null: not set
    b: str | None


@dataclass
class Alarm:
    step: int
    rank: int
    kind: str
    text: str


@dataclass
class WhyReply:
    headline: str
    causes: list[CauseLine]  # most specific first
    evidence: list[str]
    last_agreeing: str  # the tensor just before the root, which agrees
    alternatives: list[Place]  # other places that may be the root
    same_weights: str  # identical, differ, unknown: as loaded
    same_batches: str
    settings: list[Setting]  # that differ, likely culprits first
    alarms_a: list[Alarm]  # up to the root's step
    alarms_b: list[Alarm]
    next: Next


@dataclass
class ConfigReply:
    settings: list[Setting]
    differ: int
    compared: int
    notes: list[str]
    next: Next


@dataclass
class Point:
    step: int
    rank: int
    kind: str
    l2: float | None
    absmax: float | None
    mean: float | None
    nan: int | None
    inf: int | None


@dataclass
class SeriesReply:
    tensor: str
    points: list[Point]  # thinned evenly to the limit
    total: int
    next: Next


@dataclass
class ScalarPoint:
    step: int
    rank: int
    name: str
    value: float | None  # null: not finite


@dataclass
class ScalarsReply:
    names: list[str]
    points: list[ScalarPoint]
    total: int
    next: Next


@dataclass
class Capture:
    tensor: str
    step: int
    rank: int
    kind: str
    dtype: str
    shape: list[int]
    complete: bool


@dataclass
class ValuesReply:
    captured: list[Capture]
    total: int
    next: Next


@dataclass
class RankProblem:
    step: int
    ranks: list[int]
    reason: str
    tensor: str
    text: str


@dataclass
class RanksReply:
    verdict: str  # consistent, inconsistent, incomparable
    message: str
    problems: list[RankProblem]
    next: Next


@dataclass
class AlarmsReply:
    alarms: list[Alarm]
    total: int
    next: Next


@dataclass
class WeightLine:
    name_a: str
    name_b: str
    state: str  # stale, exchanged, permuted, cast, same_statistics, differs, missing_in_a, missing_in_b
    distance: str


@dataclass
class WeightsReply:
    arrived: bool  # all, bit for bit
    step: int
    compared: int
    equal: int
    others: list[WeightLine]
    next: Next


@dataclass
class ZoomReply:
    zoomed: bool  # both runs have zoomed: `text` names the operator and the line
    text: str
    next: Next


@dataclass
class RecordReply:
    command: str  # for a shell; this server never runs it
    note: str
    next: Next
