"""Computes the root that `statctl diff` must name, in the slow and plain way (docs/verdict-model.md).

Takes what naive_diff takes: two runs as `statctl export csv --sketch` writes them. It judges the steps that diff chooses:
on each rank the first four that differ, those in which a distance rose most, and the first with another recorded setting
of the optimizer. Each is read with the two before it. Not covered: tensors that stand for several of the other run,
runs without sketches, --kinds and --merge-ranks.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

from naive.naive_diff import Answer, Row, Run, compare, relative
from naive.naive_explain import Memory, Pair, StepModel, is_factor, moment, unit_of
from naive.naive_order import COMPUTING, STAGES, Course, stage_of
from naive.naive_origin import Identity
from naive.naive_records import Record

Settings = dict[tuple[int, int], list[tuple[str, float]]]  # by step and rank: scalars in the order of the listing


@dataclass
class Jump:
    index: int
    kind: str
    excess: float


@dataclass
class Root:
    step: int
    order: int
    place: int
    rank: int
    pair: Pair

    def key(self) -> tuple[Any, ...]:
        if self.pair.a is None:
            return self.step, self.rank, "loss", self.pair.name, "", "", 0, 0, "train"
        return self.step, self.rank, self.pair.stage, *self.pair.a.identity


# --- which differences stand out


def quantile(values: list[float], share: float) -> float:
    values = sorted(values)
    below = int(share * (len(values) - 1))
    above = min(below + 1, len(values) - 1)
    return values[below] + (share * (len(values) - 1) - below) * (values[above] - values[below])


def deviation(values: list[float]) -> float:
    return median([abs(value - median(values)) for value in values])


def sisters_of(record: Record) -> tuple[str, ...]:
    name, kind, path, _, _, mode = record.identity
    return kind, re.sub(r"(^|\.)[0-9]+", r"\1*", name), path, mode, record.class_name


def is_judged(pair: Pair) -> bool:
    return pair.stage not in ("weights", "batch", "loss")


def gradients_alike(of: Pair, step: list[Pair]) -> list[float]:
    """Ratios of the other gradients of its kind (biases with biases) that inherit their differences."""
    return [
        p.ratio for p in step
        if p is not of and p.stage == "grad" and p.differs and not p.fresh and not p.cancelled and math.isfinite(p.ratio)
        and p.name.rpartition(".")[2] == of.name.rpartition(".")[2]
    ]  # fmt: skip


class Finder:
    """The jumps of one rank. Remembers the ratios of each tensor in earlier steps."""

    def __init__(self, identical_steps: int) -> None:
        self.identical_steps = identical_steps
        self.differed = False
        self.past: dict[Identity, list[float]] = defaultdict(list)

    def find(self, step: list[Pair]) -> list[Jump]:
        jumps: list[Jump] = []
        first = next((i for i, pair in enumerate(step) if pair.differs), -1)
        for i, pair in enumerate(step):
            if not pair.differs:
                continue
            if pair.stage in ("weights", "batch"):
                if not is_rounded(pair):
                    jumps.append(Jump(i, "input", 5.0))
                continue
            excess = self.of_the_first(pair, step) if i == first and not self.differed else 0.0
            kind = "unchanged" if excess > 0 else "excess"
            excess = excess if excess > 0 else self.excess(pair, step)
            if excess > 0:
                jumps.append(Jump(i, kind, excess))
        jumps += scales(step)
        self.differed = self.differed or first >= 0
        for pair in step:
            if is_judged(pair) and pair.differs and math.isfinite(pair.ratio):
                self.past[pair.records[0].identity].append(pair.ratio)
        return sorted(jumps, key=lambda jump: jump.index)

    def of_the_first(self, pair: Pair, step: list[Pair]) -> float:
        if pair.a is None or pair.stage == "optimizer" or pair.a.numel < 1024 or not pair.fresh:
            return 0.0
        a = pair.a
        same = [
            p for p in step
            if is_judged(p) and p.fresh and not p.differs and sisters_of(p.records[0]) == sisters_of(a)
            and (p.records[0].shape, p.records[0].dtype) == (a.shape, a.dtype)
        ]  # fmt: skip
        if not same and self.identical_steps == 0:
            return 0.0
        unit = max(unit_of(record) for record in pair.records)
        return math.log(pair.observed / (3 * unit)) if pair.observed > 0 else -math.inf

    def past_of(self, pair: Pair) -> list[float]:
        return self.past[pair.records[0].identity][-4:]

    def excess(self, pair: Pair, step: list[Pair]) -> float:
        ratio = pair.ratio
        if not ratio > 0.3:
            return 0.0
        usual, compared = 0.0, 0
        if pair.a is not None:
            sisters = [
                p.ratio for p in step
                if p is not pair and is_judged(p) and p.differs and p.fresh == pair.fresh and math.isfinite(p.ratio)
                and sisters_of(p.records[0]) == sisters_of(pair.a)
            ]  # fmt: skip
            if sisters:
                most = 1.0 if pair.fresh else 1.3 if pair.stage == "optimizer" else 2.2
                usual = max(0.0, min(quantile(sisters, 0.8), most))
            compared = len(sisters)
            past = self.past_of(pair)
            if len(past) >= 2:
                usual = max(usual, min(max(past), 1.0 if pair.fresh else 7.0 if pair.of_loss else 4.0))
                compared += len(past)
        is_gradient = pair.stage == "grad"
        threshold = 0.9 if compared >= 3 else 1.7 if is_gradient else 1.3
        if is_gradient and not pair.fresh and not pair.cancelled:
            alike = gradients_alike(pair, step)
            if len(alike) >= 3:
                usual = max(usual, min(quantile(alike, 0.8), 2.2))
        if pair.fresh or (pair.of_loss and len(self.past_of(pair)) < 2):
            threshold = max(threshold, 2.1)
        return ratio - usual - threshold - 5 * max(0.0, pair.spread - 0.18)


def is_real(record: Record) -> bool:
    return record.dtype.startswith(("f", "bf", "c"))


def is_rounded(pair: Pair) -> bool:
    """Of an input: it differs by no more than rounding, or a batch by no more than the weights it may be computed with."""
    if pair.stage == "weights":
        return pair.distance <= 4 * pair.unit
    real = all(is_real(record) for record in pair.records)
    return real and pair.distance <= 4 * pair.expected and not is_factor(pair)


def factors(step: list[Pair], stage: str) -> tuple[list[tuple[float, int]], float] | None:
    """Logarithms of B's norms over A's with their indexes, and how far from 0 rounding takes one."""
    asked = [i for i, p in enumerate(step) if p.stage == stage and not p.cancelled and p.records[0].numel >= 64]
    logs: list[tuple[float, int]] = []
    noise: list[float] = []
    across: list[float] = []
    for i in asked:
        pair = step[i]
        of_a, of_b = (moment(record, "l2") for record in pair.records)
        if 0 < pair.distance < 10 and of_a > 0 and of_b > 0:
            logs.append((math.log(of_b / of_a), i))
            noise.append(min(pair.expected, 3 * pair.distance) / math.sqrt(pair.numel))
            across.append(apart_from(logs[-1][0], pair) ** 2 / 2)
    if len(logs) < 4 or len(logs) < 0.6 * len(asked):
        return None
    return logs, 5 * median(noise) + 2 * median(across) + 1e-5


def scales(step: list[Pair]) -> list[Jump]:
    inherited = least = 0.0
    for stage in ("backward", "grad"):
        found = factors(step, stage)
        if found is None:
            continue
        logs, noise = found
        noise = least = max(noise, least)
        values = [log for log, _ in logs]
        factor = median(values) - inherited
        apart = deviation(values)
        if abs(factor) > noise and apart < 0.2 * abs(factor):
            allowed = max(apart, 0.5 * abs(factor))
            index = next(i for log, i in logs if abs(log - median(values)) <= allowed)
            return [Jump(index, "scale", math.log(abs(factor) / noise))]
        inherited = median(values)
    return []


def apart_from(factor: float, pair: Pair) -> float:
    """How far B's tensor is from A's, apart from a factor."""
    a, b = (record.sketch for record in pair.records)
    if not a or len(a) != len(b) or not any(a):
        return 0.0
    return math.dist([y / math.exp(factor) for y in b], a) / math.hypot(*a)


# --- the search


def is_setting(name: str) -> bool:
    return "/group" in name and re.search(r"(^|/)(lr|weight_decay)/", name) is not None


class RootSearch:
    def __init__(self, a: Run, b: Run, settings_a: Settings, settings_b: Settings) -> None:
        self.a, self.b, self.settings = a, b, (settings_a, settings_b)
        self.ranks = sorted({rank for _, rank in a.places} & {rank for _, rank in b.places})
        self.steps = sorted(a.steps & b.steps)
        self.noise_driven: set[str] = set()  # parameters whose gradient is zero except for rounding

    def run(self) -> Root | None:
        roots = [self.judge(place, steps) for place, steps in self.chosen().items()]
        return min((root for root in roots if root), key=lambda root: (root.step, root.order, root.place), default=None)

    # --- which steps

    def chosen(self) -> dict[int, set[int]]:
        """Steps by the rank's place."""
        first: dict[int, list[int]] = defaultdict(list)
        rises: list[tuple[float, int, int]] = []
        before: dict[int, dict[Identity, float]] = defaultdict(dict)
        for step in self.steps:
            for place, rank in enumerate(self.ranks):
                now = self.distances(step, rank)
                rise = max([d / max(before[place].get(i, 0.0), 1e-7) for i, d in now.items()], default=0.0)
                before[place] = now
                if not any(d > 0 for d in now.values()) and not self.losses_differ(step, rank):
                    continue
                if len(first[place]) < 4:
                    first[place].append(step)
                elif rise >= 2.5:
                    rises = sorted([*rises, (rise, step, place)], key=lambda r: r[0])[-12:]
        first = {place: steps for place, steps in sorted(first.items()) if steps}
        earliest = min((steps[0] for steps in first.values()), default=0)
        chosen = {p: set(steps) for p, steps in [(p, s) for p, s in first.items() if s[0] == earliest][:4]}
        for _, step, place in reversed(rises):
            if place in chosen or len(chosen) < 8:
                chosen[place] = chosen.get(place, set()) | {step, *first[place]}
        return chosen

    def distances(self, step: int, rank: int) -> dict[Identity, float]:
        return {p.a.identity: 1e30 if math.isinf(p.distance) else p.distance for p in self.tensors(step, rank) if p.a}

    def losses_differ(self, step: int, rank: int) -> bool:
        return any(pair.differs for pair, _ in self.losses(step, rank))

    # --- one step

    def tensors(self, step: int, rank: int) -> list[Pair]:
        there = {r.identity: r for r in self.b.by_place.get((step, rank), [])}
        pairs = []
        for a in self.a.by_place.get((step, rank), []):
            b = there.get(a.identity)
            if b is not None:
                result, distance = compare(a, b, None)
                distance = 0.0 if result == "identical" else math.inf if distance is None else distance
                pairs.append(Pair(a, b, distance, a.identity[0]))
        return pairs

    def losses(self, step: int, rank: int) -> list[tuple[Pair, int]]:
        """Each with its segment."""
        course = Course(self.a.by_place.get((step, rank), []))
        others: dict[tuple[str, int], list[float]] = defaultdict(list)
        for name, micro_batch, value in self.b.losses.get((step, rank), []):
            others[name, micro_batch].append(value)
        pairs = []
        for name, micro_batch, value in self.a.losses.get((step, rank), []):
            if others[name, micro_batch]:
                other = others[name, micro_batch].pop(0)
                segment = course.spot_of_loss(name, micro_batch)[0] if course.several else 0
                pairs.append((Pair(None, None, relative(value, other), name), segment))
        return pairs

    def pairs(self, step: int, rank: int) -> list[Pair]:
        """A loss stands behind the last forward record of its segment that ran before the first gradient."""
        tensors, course = self.tensors(step, rank), Course(self.a.by_place.get((step, rank), []))
        at: dict[int, list[Pair]] = defaultdict(list)
        for loss, segment in self.losses(step, rank):
            place = 0
            for i, pair in enumerate(tensors):
                a, _ = pair.records
                stage, of_pair = stage_of(a.identity), course.spots[a.order][0]
                if of_pair > segment or (of_pair == segment and stage in ("backward", "grad")):
                    break
                if stage == "forward" or of_pair < segment:
                    place = i + 1
            at[place].append(loss)
        return [pair for i in range(len(tensors) + 1) for pair in (*at[i], *tensors[i : i + 1])]

    # --- one rank

    def judge(self, place: int, steps: set[int]) -> Root | None:
        rank, first = self.ranks[place], min(steps)
        setting = self.other_setting(rank)
        judged = steps | ({setting[0]} if setting and setting[0] >= first else set())
        read = {s for step in judged for s in self.steps[max(0, self.steps.index(step) - 2) : self.steps.index(step) + 1]}
        memory, finder = Memory(), Finder(self.steps.index(first))
        for step in sorted(s for s in read if s >= first):
            pairs = self.pairs(step, rank)
            StepModel(pairs, memory)
            self.noise_driven |= memory.noise_driven
            jumps = finder.find(pairs)
            if step not in judged:
                continue
            if setting and setting[0] == step:
                jumps = sorted(jumps + update_with(setting, pairs), key=lambda jump: jump.index)
            if jumps:
                index = chosen_of(jumps, pairs)
                order = [pair.a.order for pair in pairs[: index + 1] if pair.a]
                return Root(step, order[-1] if order else 0, place, rank, pairs[index])
        return None

    def other_setting(self, rank: int) -> tuple[int, str, float] | None:
        """The first step with another learning rate or weight decay, its scalar and the relative change."""
        for step in self.steps:
            of_a, of_b = (dict(settings.get((step, rank), [])) for settings in self.settings)
            for name, value in of_b.items():
                if is_setting(name) and name in of_a and relative(of_a[name], value) > 1e-12:
                    return step, name, relative(of_a[name], value)
        return None


def update_with(setting: tuple[int, str, float], pairs: list[Pair]) -> list[Jump]:
    _, name, change = setting
    updates = [i for i, p in enumerate(pairs) if p.stage == "optimizer" and p.differs and p.records[0].identity[1] == "weight"]
    named = [i for i in updates if pairs[i].name.startswith(name.partition("/")[0] + ".")]
    is_rate = re.search(r"(^|/)lr/", name) is not None  # an update is proportional to it
    alike = [i for i in updates if is_rate and change / 3 < pairs[i].observed < 3 * change]
    enough = max([0.5, *(pairs[i].ratio / 2 for i in updates)])
    standing_out = [i for i in updates if not is_rate and pairs[i].ratio >= enough and pairs[i].ratio > 0.5]
    return [Jump(i, "setting", 5.0) for i in (named or alike or standing_out or updates)[:1]]


def chosen_of(jumps: list[Jump], pairs: list[Pair]) -> int:
    """The first; of gradients one that is four times as large: clipping spreads it to all of them."""
    first = jumps[0]
    if pairs[first.index].stage != "grad" or first.kind == "scale":
        return first.index
    gradients = [jump.index for jump in jumps if pairs[jump.index].stage == "grad"]
    largest = max(gradients, key=lambda i: pairs[i].observed)
    return largest if pairs[largest].observed >= 4 * pairs[first.index].observed else first.index


def measured_by(row: Row | None, a: Run, b: Run) -> str:
    """ "sketch", "statistics", or "" where nothing was measured."""
    if row is None or row.stage == "loss" or row.distance is None or row.reason == "nonfinite":
        return ""
    sketches = [
        record.sketch if record.moments else []
        for run in (a, b)
        for record in run.by_place.get((row.step, row.rank), [])
        if record.identity == row.identity
    ]
    return "sketch" if len(sketches) == 2 and sketches[0] and len(sketches[0]) == len(sketches[1]) else "statistics"


def is_loaded_later(row: Row, a: Run, b: Run) -> bool:
    """Weights as loaded in one run only: compared with those that the other run's step before left."""
    sides = [run.by_place.get((row.step, row.rank), []) for run in (a, b)]
    there = [any(record.identity == row.identity for record in side) for side in sides]
    return row.stage == "weights" and row.distance is not None and not all(there)


def is_known(a: Run, b: Run, answer: Answer) -> bool:
    """Whether rounding can be distinguished from other differences; with statistics alone it cannot."""
    measured = {measured_by(row, a, b) for row in (answer.rows[0] if answer.rows else None, answer.first_bitwise)}
    return "sketch" in measured or "statistics" not in measured


def is_hard(row: Row) -> bool:
    """Whether no rounding explains it: an input, or other than in the size of its values."""
    return row.stage in ("weights", "batch") or row.reason not in ("numeric", "bitwise")


def may_follow(row: Row, answer: Answer, runs: tuple[Run, Run]) -> bool:
    """Whether it is a batch of real numbers, which the model may have computed, before which the runs differ."""
    first = answer.first_bitwise
    given_late = row.place[2] == COMPUTING and first is not None and first.key()[:-1] != row.key()[:-1]
    before = first is not None and (first.step < row.step or given_late)
    if row.stage != "batch" or row.reason != "numeric" or not before:
        return False
    records = [record for run in runs for record in run.by_place.get((row.step, row.rank), [])]
    return all(is_real(record) for record in records if record.identity == row.identity)


def root_of(search: RootSearch, answer: Answer) -> tuple[Any, ...] | None:
    """(step, rank, stage, name, kind, path, micro-batch, call, mode), as `statctl diff --all` names it."""
    first = answer.rows[0] if answer.rows else None
    if first is None and answer.first_bitwise is None:
        return None
    known = is_known(search.a, search.b, answer)
    found = search.run() if known else None
    key = found.key() if found else None
    runs = (search.a, search.b)
    beyond = [is_hard(row) and not (known and may_follow(row, answer, runs)) for row in answer.rows]
    hard = beyond.index(True) if True in beyond else None
    if hard is not None:
        row = answer.rows[hard]
        same = next((i for i, other in enumerate(answer.rows) if other.key()[:-1] == key), None)
        # A root that is not among the rows knows its step and stage only.
        when = (row.step, row.place[1], STAGES.index(row.stage))
        if key is None or (hard <= same if same is not None else when < (key[0], 0, STAGES.index(key[2]))):
            return row.key()[:-1]
    # What one gradient is missing, clipping spreads over all others of its update.
    gradient = next((row for row in answer.rows if row.reason.startswith("missing") and row.stage == "grad"), None)
    if key is not None and gradient is not None and (gradient.step, gradient.rank, gradient.stage) == key[:3]:
        return gradient.key()[:-1]
    if key is None and first is not None and (not known or True in beyond):
        return first.key()[:-1]
    return key


def is_of_gradient(row: Row) -> bool:
    return row.reason == "numeric" and (row.stage == "optimizer" or row.identity[1] == "weight_grad")


def pass_over_noise(search: RootSearch, answer: Answer) -> None:
    """Gradients that are zero except for rounding, and their updates, are neither first nor an origin if they are not the root."""
    asked = any(is_of_gradient(row) for row in answer.rows) and is_known(search.a, search.b, answer)
    root = search.run() if asked else None
    noise = {row.key() for row in answer.rows if is_of_gradient(row) and row.identity[0] in search.noise_driven}
    others = [row for row in answer.rows if row.key() not in noise]
    if root is None or (*root.key(), "numeric") in noise or not others:
        return
    for row in answer.rows:
        row.origin = row.origin and row.key() not in noise
    answer.origins = [row for row in answer.origins if row.key() not in noise]
    if answer.rows[0].key() in noise:
        others[0].origin = True
        answer.origins = answer.origins or others[:1]
    answer.first = others[0]
