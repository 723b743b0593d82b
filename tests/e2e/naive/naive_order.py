"""In which order a report names the records of two runs (docs/divergence.md, "Order")."""

from __future__ import annotations

import re
from typing import Any

from naive.naive_origin import Identity
from naive.naive_records import Record

STAGES = ["weights", "batch", "forward", "loss", "backward", "grad", "optimizer"]
EVALUATING_FIRST, COMPUTING = 2, 3  # phases of a step
BACKWARD = {"grad_output", "grad_input", "inspect_grad"}


def stage_of(identity: Identity) -> str:
    _, kind, _, _, _, mode = identity
    if kind in ("weight", "optimizer_state"):
        return "weights" if mode == "init" else "optimizer"
    if kind in ("batch", "weight_grad"):
        return {"batch": "batch", "weight_grad": "grad"}[kind]
    return "backward" if kind in BACKWARD else "forward"


def place_of(
    step: int,
    rank: int,
    segment: int,
    stage: str,
    micro_batch: int,
    is_eval: bool,
    position: int,
    behind: int = 0,
    before_training: bool = False,
) -> tuple[Any, ...]:
    per_micro_batch = stage in ("forward", "loss", "backward")
    phase = {"weights": 0, "batch": 1, "grad": 4, "optimizer": 5}.get(
        stage, EVALUATING_FIRST if is_eval and before_training else COMPUTING
    )
    at = 0 if stage == "weights" else segment
    return (step, at, phase, micro_batch if per_micro_batch else 0, STAGES.index(stage), is_eval, position, behind, rank)


def is_first_of_step(place: tuple[Any, ...]) -> bool:
    """Evaluation before the training of a step."""
    return place[1:3] == (0, EVALUATING_FIRST)


Spot = tuple[int, int]  # segment of the step, pass in it


def is_of_training(record: Record) -> bool:
    return record.identity[5] == "train" and record.identity[1] != "buffer" and stage_of(record.identity) != "optimizer"


class Course:
    """Segments and passes of one step of one rank: which records lie between which updates, and in which pass."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.spots: dict[int, Spot] = {}  # by order
        stages = [stage_of(r.identity) for r in records]
        segment = at = 0
        while at < len(records):
            # A segment goes on to the last update before training goes on.
            end = at
            while end < len(records) and not self.ends(end, at, stages):
                end += 1
            self.count_passes(segment, records[at : end + 1])
            segment, at = segment + 1, end + 1
        self.several = segment > 1

    def ends(self, place: int, begin: int, stages: list[str]) -> bool:
        """Whether a segment that began at `begin` ends with the record at `place`."""
        if stages[place] != "optimizer":
            return False
        after = [i for i in range(place + 1, len(stages)) if stages[i] == "optimizer" or is_of_training(self.records[i])]
        return bool(after) and stages[after[0]] != "optimizer"

    def count_passes(self, segment: int, records: list[Record]) -> None:
        number = 0
        backward = False
        for record in records:
            stage = stage_of(record.identity)
            if is_of_training(record) and stage in ("forward", "batch") and backward:
                number, backward = number + 1, False
            if is_of_training(record) and stage == "backward":
                backward = True
            self.spots[record.order] = (segment, number)

    def forward(self, segment: int) -> list[Record]:
        """In training."""
        return [
            r for r in self.records
            if self.spots[r.order][0] == segment and is_of_training(r) and stage_of(r.identity) == "forward"
        ]  # fmt: skip

    def runs_after_training(self, record: Record) -> bool:
        forward = self.forward(self.spots[record.order][0])
        return bool(forward) and record.order > forward[0].order

    def runs_before_training(self, record: Record) -> bool:
        forward = self.forward(self.spots[record.order][0])
        return bool(forward) and record.order < forward[0].order

    def spot_of_loss(self, name: str, micro_batch: int) -> Spot:
        """The last segment with a forward pass; if the loss is named after a model, the last that updates this model."""
        if not self.several:
            return 0, micro_batch
        segments = sorted({segment for segment, _ in self.spots.values() if self.forward(segment)})
        own = [segment for segment in segments if any(is_named(name, model) for model in self.updated(segment))]
        segments = own or segments
        of_micro_batch = [s for s in segments if any(r.identity[3] == micro_batch for r in self.forward(s))]
        if of_micro_batch:
            return max(self.spots[r.order] for r in self.forward(of_micro_batch[-1]) if r.identity[3] == micro_batch)
        return max(self.spots[r.order] for r in self.forward(segments[-1])) if segments else (0, 0)

    def updated(self, segment: int) -> set[str]:
        """Models, by the first component of their weights' names."""
        return {
            r.identity[0].split(".")[0]
            for r in self.records
            if self.spots[r.order][0] == segment and stage_of(r.identity) == "optimizer"
        }


def is_named(loss: str, model: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(model)}(?![a-z0-9])", loss, re.IGNORECASE) is not None


def is_handed(record: Record) -> bool:
    """Whether it is a batch that what ran before it in the step may have computed."""
    _, kind, _, _, call, _ = record.identity
    return kind == "batch" and call > 0 and record.dtype.startswith(("f", "bf"))


def place_of_record(record: Record, position: int, behind: int, spot: Spot, several: bool, own: Course) -> tuple[Any, ...]:
    """`spot`: in A's step, `several`: A's step has several segments; `own`: the course of the record's own side."""
    is_eval, before = record.identity[5] == "eval", own.runs_before_training(record)
    micro_batch = spot[1] if several else record.identity[3]
    stage = stage_of(record.identity)
    if stage == "batch" and own.runs_after_training(record) and (several or is_handed(record)):
        stage = "forward"
    return place_of(record.step, record.rank, spot[0], stage, micro_batch, is_eval, position, behind, before)


def pass_of(record: Record) -> tuple[int, str]:
    """Micro-batch and mode: forward passes are each in an order of their own."""
    return record.identity[3], record.identity[5]


def label(identity: Identity) -> str:
    name, kind, path, micro_batch, call, mode = identity
    text = f"{kind} {name}" + (f"[{path}]" if path else "") + (f" micro-batch {micro_batch}" if micro_batch else "")
    return f"{text} call {call}" + (f" ({mode})" if mode != "train" else "")
