"""Computes from two exported CSV files what `statctl diff` must answer, in the slow and plain way (docs/divergence.md).

Knows nothing of the collector: two lists of observations, as `statctl move export csv --sketch` writes them, and two of losses,
as `statctl scalars` does. Repeats of run A, for `--noise`, are given the same way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from naive.naive_extra import is_returned_beside
from naive.naive_order import Course, is_first_of_step, label, pass_of, place_of, place_of_record, stage_of
from naive.naive_origin import Diverged, Identity, origins_of
from naive.naive_records import Record

TOLERANCES = {"f64": 1e-9, "c128": 1e-9, "f32": 1e-4, "c64": 1e-4, "f16": 5e-3, "bf16": 2e-2, "f8e4m3": 1e-1, "f8e5m2": 1e-1}


@dataclass
class Row:
    """One divergence; ordered as the report is."""

    place: tuple[Any, ...]
    step: int
    rank: int
    stage: str
    identity: Identity
    reason: str
    distance: float | None = None
    times_noise: float | None = None
    origin: bool = False

    def key(self) -> tuple[Any, ...]:
        name, kind, path, micro_batch, call, mode = self.identity
        return (self.step, self.rank, self.stage, name, kind, path, micro_batch, call, mode, self.reason)


@dataclass
class Answer:
    """As far as the model goes."""

    verdict: str = ""
    ranks: list[int] = field(default_factory=list)
    steps: tuple[int, int] | None = None
    records: int = 0
    identical: int = 0
    within: int = 0
    rows: list[Row] = field(default_factory=list)
    only_a: set[str] = field(default_factory=set)
    only_b: set[str] = field(default_factory=set)
    first: Row | None = None
    first_bitwise: Row | None = None
    origins: list[Row] = field(default_factory=list)
    spread_steps: int = 0
    spread_ranks: set[int] = field(default_factory=set)
    weights: str = "unknown"
    batches: str = "unknown"
    gradients: bool = False  # both runs have some of weights

    def is_idle(self, row: Row) -> bool:
        """Of one run only, and nothing that training need depend on: it would show in the gradients of weights."""
        missing = row.reason.startswith("missing_in_")
        return self.gradients and missing and row.identity[1] in ("grad_output", "grad_input", "input", "batch")


# --- one pair


def relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not math.isfinite(a) or not math.isfinite(b):
        return math.inf
    larger = max(abs(a), abs(b))
    return abs(a / larger - b / larger)


def apart(a: float, b: float, scale: float) -> float:
    return 0.0 if a == b else abs(a - b) / scale if scale > 0 else math.inf


def sketch_distance(a: Record, b: Record) -> float:
    assert a.moments is not None and b.moments is not None
    norm = max(a.moments["l2"], b.moments["l2"])
    estimate = math.sqrt(sum((x - y) ** 2 for x, y in zip(a.sketch, b.sketch, strict=True)))
    estimate = 0.0 if estimate == 0 else estimate / norm if norm > 0 else math.inf
    # Norms and means prove that much, down to their own accuracy.
    finite = a.numel * (2 if a.dtype.startswith("c") else 1) - sum(a.counts)
    of_means = math.sqrt(finite) * abs(a.moments["mean"] - b.moments["mean"])
    proven = max(relative(a.moments["l2"], b.moments["l2"]), of_means / norm if norm > 0 else 0.0 if of_means == 0 else math.inf)
    return max(estimate, proven) if proven > 1e-5 else estimate


def statistics_distance(a: dict[str, float], b: dict[str, float]) -> float:
    rms = max(math.hypot(a["mean"], a["std"]), math.hypot(b["mean"], b["std"]))
    largest = max(abs(s[name]) for s in (a, b) for name in ("min", "max"))
    return max(
        relative(a["l2"], b["l2"]),
        apart(a["mean"], b["mean"], rms),
        apart(a["std"], b["std"], max(a["std"], b["std"], 0.01 * rms)),
        apart(a["min"], b["min"], largest),
        apart(a["max"], b["max"], largest),
    )


def allowed_for(a: Record, b: Record, tolerance: float | None) -> float:
    return max(TOLERANCES.get(a.dtype, 0.0), TOLERANCES.get(b.dtype, 0.0)) if tolerance is None else tolerance


def compare(a: Record, b: Record, tolerance: float | None) -> tuple[str, float | None]:
    """The reason why the two differ, or "identical" or "within"; and the distance."""
    allowed = allowed_for(a, b, tolerance)
    if a.shape != b.shape:
        return "shape", None
    if a.dtype == b.dtype and a.hash == b.hash:
        return "identical", None
    if a.counts != b.counts:
        return "nonfinite", math.inf
    if a.moments is None or b.moments is None:
        distance = 0.0
    elif a.sketch and len(a.sketch) == len(b.sketch):
        distance = sketch_distance(a, b)
    else:
        distance = statistics_distance(a.moments, b.moments)
    if a.dtype != b.dtype and tolerance is None:
        return "dtype", distance
    never_rounded = tolerance is None and allowed == 0
    return ("numeric" if never_rounded or distance > allowed else "within"), distance


def times(distance: float | None, noise: float) -> float | None:
    return distance / noise if distance is not None and 0 < noise < math.inf else None


# --- two runs

Losses = dict[tuple[int, int], list[tuple[str, int, float]]]  # by step and rank, in order: name, micro-batch, value
Places = Set[tuple[int, int]]  # step and rank
Begun = Mapping[tuple[int, int], tuple[int, int]]  # by step and rank: launch that has it, from 1, and that launch's first step


class Run:
    def __init__(self, records: list[Record], losses: Losses, scalars: Places, begun: Begun) -> None:
        """`scalars`: step and rank of every scalar, losses or not: that is a step, too."""
        self.records, self.losses, self.by_place, self.begun = records, losses, by_place(records), begun
        self.places = set(self.by_place) | scalars
        self.steps = {step for step, _ in self.places}


class Model:
    def __init__(
        self, a: Run, b: Run, tolerance: float | None = None, kinds: set[str] | None = None, exact: bool = False,
        repeats: Sequence[Run] = (), noise_allows: bool = True,
    ) -> None:  # fmt: skip
        self.run_a, self.run_b, self.repeats, self.exact = a, b, repeats, exact
        self.noise_allows = noise_allows  # a multiple of it; else rounding is measured from the repeats
        self.a, self.b = a.by_place, b.by_place
        self.losses_a, self.losses_b = a.losses, b.losses
        self.places_a, self.places_b = a.places, b.places
        self.tolerance, self.kinds = tolerance, kinds
        self.records_a, self.records_b = a.records, b.records
        self.kinds_a: set[str] = set()  # that the run ever recorded, on ranks that both have
        self.kinds_b: set[str] = set()
        self.missing: set[tuple[str, int, Identity]] = set()
        self.extra: set[tuple[str, int, Identity]] = set()  # returned beside others
        self.paired: set[Identity] = set()
        self.order_reported = self.order_noted = False
        self.bitwise: list[Row] = []
        self.answer = Answer()

    def run(self) -> Answer:
        answer = self.answer
        self.lonely = False
        steps = sorted({step for step, _ in self.places_a} & {step for step, _ in self.places_b})
        answer.ranks = sorted({rank for _, rank in self.places_a} & {rank for _, rank in self.places_b})
        self.kinds_a = {r.identity[1] for r in self.records_a if r.rank in answer.ranks}
        self.kinds_b = {r.identity[1] for r in self.records_b if r.rank in answer.ranks}
        explained = False  # the first step whose values differ has been seen
        for step in steps:
            rows: list[Row] = []
            self.traces: dict[int, list[tuple[Identity, bool]]] = defaultdict(list)
            for rank in answer.ranks:
                self.compare_rank(step, rank, rows)
                self.compare_losses(step, rank, rows)
            self.order_reported = self.order_reported or self.order_noted
            rows.sort(key=lambda row: row.place)
            asked = [Diverged(r.rank, r.stage, r.identity, r.distance is None and r.reason != "shape", r.place[1]) for r in rows]
            if not explained and not all(row.structural for row in asked):
                explained = True
                for i in origins_of(asked, self.traces):
                    rows[i].origin = True
            if rows and not answer.rows:
                rows[0].origin = True  # nothing before it differs
            answer.origins += first_of_each([row for row in rows if row.origin], lambda row: (row.stage, *row.identity[:3]))
            answer.spread_steps += 1 if rows else 0
            answer.spread_ranks |= {row.rank for row in rows}
            answer.rows += rows
        if steps and answer.ranks:
            answer.steps = (steps[0], steps[-1])
        self.name_lonely_losses(steps)
        answer.first = answer.rows[0] if answer.rows else None
        if self.bitwise:
            answer.first_bitwise = min(self.bitwise, key=lambda row: row.place)
        if answer.records == len(self.missing) or self.are_other_models():
            return Answer(verdict="incomparable")
        unmatched = answer.only_a or answer.only_b or self.lonely
        clean = answer.identical == answer.records and not unmatched
        answer.gradients = "weight_grad" in self.kinds_a & self.kinds_b
        lenient = not self.exact and self.tolerance is None and self.kinds is None
        different = [row for row in answer.rows if not (lenient and answer.is_idle(row))]
        answer.verdict = "diverged" if different else "identical" if clean else "within_tolerance"
        return answer

    def are_other_models(self) -> bool:
        """Fewer than one in three tensors of the smaller model, batches aside, have a counterpart."""
        alone = {side: {i for lacking, _, i in self.missing if lacking == side and i[1] != "batch"} for side in "ab"}
        fewest = min(len(alone["a"]), len(alone["b"]))
        return fewest > 0 and 3 * len(self.paired) < len(self.paired) + fewest

    def compare_rank(self, step: int, rank: int, rows: list[Row]) -> None:
        if not self.a.get((step, rank)) or not self.b.get((step, rank)):
            self.lonely |= bool(self.a.get((step, rank)) or self.b.get((step, rank)))
            return  # a rank and step that only one run has
        course_a = self.course_a = Course(self.a[step, rank])
        course_b = Course(self.b[step, rank])
        wanted = [r for r in self.a.get((step, rank), []) if self.kinds is None or r.identity[1] in self.kinds]
        there = {r.identity: r for r in self.b.get((step, rank), [])}
        matched: dict[Identity, Record] = {}
        forward: list[tuple[Record, Record, str]] = []
        for a in wanted:
            b = there.get(a.identity)
            if b is None:
                self.note_missing(a, "b", self.place_in_a(a), rows)
                continue
            matched[a.identity] = a
            result = self.note_pair(a, b, rows)
            if stage_of(a.identity) == "forward" and a.identity[1] != "buffer":
                forward.append((a, b, result))
        position, behind = 0, 0
        of_a, of_b = (0, 0), (0, 0)  # spots of the last matched record on both sides
        for b in self.b.get((step, rank), []):
            now = course_b.spots[b.order]
            if b.identity in matched:
                position = matched[b.identity].order + 1
                of_a, of_b = course_a.spots[position - 1], now
            elif self.kinds is None or b.identity[1] in self.kinds:
                behind += 1
                later = now[0] - of_b[0]
                spot = (of_a[0] + later, now[1] if later else of_a[1] + now[1] - of_b[1])
                self.note_missing(b, "a", place_of_record(b, position, behind, spot, course_a.several, course_b), rows)
        self.compare_order(forward, rows)

    def place_in_a(self, a: Record) -> tuple[Any, ...]:
        course = self.course_a
        return place_of_record(a, a.order + 1, 0, course.spots[a.order], course.several, course)

    def note_pair(self, a: Record, b: Record, rows: list[Row]) -> str:
        answer, stage = self.answer, stage_of(a.identity)
        result, distance, noise = self.judge(a, b, a.identity)
        answer.records += 1
        if stage != "batch":
            self.paired.add(a.identity)
        if stage in ("weights", "batch"):
            which = "weights" if stage == "weights" else "batches"
            if getattr(answer, which) != "differ":
                setattr(answer, which, "identical" if result == "identical" else "differ")
        if stage == "forward":
            self.traces[a.rank].append((a.identity, result not in ("identical", "within")))
        place = self.place_in_a(a)
        self.count(Row(place, a.step, a.rank, stage, a.identity, result, distance, times(distance, noise)), rows)
        return result

    def judge(self, a: Record, b: Record, identity: Identity | None) -> tuple[str, float | None, float]:
        """Reason, distance and the noise of A's records of that identity."""
        result, distance = compare(a, b, self.tolerance)
        noise = 0.0
        if result in ("numeric", "nonfinite") and not self.exact and identity is not None:
            noise = self.noise_of(a.rank, max(a.step, b.step), identity)
            result = self.weigh(result, distance, allowed_for(a, b, self.tolerance), noise)
        elif result == "within" and self.exact:
            result = "bitwise"
        return result, distance, noise

    def count(self, row: Row, rows: list[Row]) -> None:
        if row.reason == "identical":
            self.answer.identical += 1
            return
        self.bitwise.append(row)
        if row.reason == "within":
            self.answer.within += 1
        else:
            rows.append(row)

    def note_missing(self, seen: Record, side: str, place: tuple[Any, ...], rows: list[Row]) -> None:
        if self.is_of_a_launch_only(seen, side):
            self.compare_loaded(seen, side, place, rows)
            return
        if is_first_of_step(place) and self.is_launched_again(seen, side):
            return
        (self.answer.only_b if side == "a" else self.answer.only_a).add(label(seen.identity))
        never = seen.identity[1] not in (self.kinds_a if side == "a" else self.kinds_b)
        if never or (side, seen.rank, seen.identity) in self.missing | self.extra:
            return
        if is_returned_beside(seen, self.a[seen.step, seen.rank], self.b[seen.step, seen.rank]):
            self.extra.add((side, seen.rank, seen.identity))
            return
        self.missing.add((side, seen.rank, seen.identity))
        self.answer.records += 1
        rows.append(Row(place, seen.step, seen.rank, stage_of(seen.identity), seen.identity, f"missing_in_{side}"))

    def is_of_a_launch_only(self, seen: Record, lacking: str) -> bool:
        """Weights as loaded, in a step at which the other run was under way already."""
        sides = (self.places_a, self.places_b) if lacking == "b" else (self.places_b, self.places_a)
        of_having, of_lacking = (min(step for step, rank in places if rank == seen.rank) for places in sides)
        return seen.identity[5] == "init" and of_having == seen.step and of_lacking < seen.step

    def is_launched_again(self, seen: Record, lacking: str) -> bool:
        """Whether the run that lacks the record was launched again at its step, and the other one was under way."""
        runs = (self.run_a, self.run_b) if lacking == "a" else (self.run_b, self.run_a)
        of_lacking, of_having = (run.begun[seen.step, seen.rank] for run in runs)
        return of_lacking[0] > 1 and of_lacking[1] == seen.step and of_having[1] < seen.step

    def compare_loaded(self, loaded: Record, lacking: str, place: tuple[Any, ...], rows: list[Row]) -> None:
        """A checkpoint holds what the step before it left, after its last update."""
        before = (self.a if lacking == "a" else self.b).get((loaded.step - 1, loaded.rank), [])
        updated = [r for r in before if r.identity[5] == "train" and r.identity[:3] == loaded.identity[:3]]
        if not updated:
            return
        a, b = (updated[-1], loaded) if lacking == "a" else (loaded, updated[-1])
        again: Identity = (*loaded.identity[:4], 0, "train")
        having = self.records_b if lacking == "a" else self.records_a
        known = any((r.rank, r.identity) == (loaded.rank, again) for r in having)
        result, distance, noise = self.judge(a, b, again if known else None)
        self.answer.records += 1
        self.paired.add(a.identity)
        if self.answer.weights != "differ":
            self.answer.weights = "identical" if result == "identical" else "differ"
        row = Row(place, loaded.step, loaded.rank, "weights", loaded.identity, result, distance, times(distance, noise))
        self.count(row, rows)

    def compare_order(self, forward: list[tuple[Record, Record, str]], rows: list[Row]) -> None:
        if self.order_reported:
            return
        for i, (a, b, result) in enumerate(forward):
            later = [other for other_a, other, _ in forward[i + 1 :] if pass_of(other_a) == pass_of(a)]
            if any(other.order < b.order for other in later):
                self.note_order(a, result, rows)
                return

    def note_order(self, a: Record, result: str, rows: list[Row]) -> None:
        if result in ("identical", "within"):
            self.order_noted = True
            if not self.exact:
                return
            if result == "identical":
                self.answer.identical -= 1
            else:
                self.answer.within -= 1
            place = self.place_in_a(a)
            rows.append(Row(place, a.step, a.rank, "forward", a.identity, "order"))
            return
        for row in rows:
            if (row.rank, row.identity) == (a.rank, a.identity) and row.reason in ("numeric", "nonfinite", "bitwise"):
                row.reason = "order"
                self.order_noted = True

    def compare_losses(self, step: int, rank: int, rows: list[Row]) -> None:
        if self.kinds is not None:
            return
        others: dict[tuple[str, int], list[float]] = defaultdict(list)
        for name, micro_batch, value in self.losses_b.get((step, rank), []):
            others[name, micro_batch].append(value)
        position, allowed = 0, 1e-4 if self.tolerance is None else self.tolerance
        for name, micro_batch, value in self.losses_a.get((step, rank), []):
            if not others[name, micro_batch]:
                continue
            distance = relative(value, others[name, micro_batch].pop(0))
            position += 1
            self.answer.records += 1
            if distance == 0:
                self.answer.identical += 1
                continue
            reason = "nonfinite" if math.isinf(distance) else "numeric" if distance > allowed else "within"
            noise = 0.0
            if self.exact:
                reason = "bitwise" if reason == "within" else reason
            elif reason != "within":
                noise = self.noise_of_loss(step, rank, name, micro_batch)
                reason = self.weigh(reason, distance, allowed, noise)
            identity: Identity = (name, "", "", micro_batch, 0, "train")
            both = self.a.get((step, rank)) and self.b.get((step, rank))
            segment, number = Course(self.a[step, rank] if both else []).spot_of_loss(name, micro_batch)
            place = place_of(step, rank, segment, "loss", number, False, position)
            row = Row(place, step, rank, "loss", identity, reason, distance, times(distance, noise))
            self.bitwise.append(row)
            if reason == "within":
                self.answer.within += 1
            else:
                rows.append(row)

    # --- noise

    def spots(self, step: int) -> list[tuple[Run, int]]:
        """Each repeat, with the last step up to `step` that it and A have."""
        common = [(repeat, [s for s in repeat.steps & self.run_a.steps if s <= step]) for repeat in self.repeats]
        return [(repeat, max(steps)) for repeat, steps in common if steps]

    def weigh(self, reason: str, distance: float | None, allowed: float, noise: float) -> str:
        """A difference in size must be more than ten times the noise."""
        assert distance is not None
        return "within" if self.noise_allows and noise > 0 and distance <= max(allowed, 10 * noise) else reason

    def noise_of(self, rank: int, step: int, identity: Identity) -> float:
        noise = 0.0
        for repeat, at in self.spots(step):
            then = [r for r in self.a.get((at, rank), []) if r.identity == identity]
            other = [r for r in repeat.by_place.get((at, rank), []) if r.identity == identity]
            for x, y in zip(then, other, strict=False):
                reason, distance = compare(x, y, None)
                if reason not in ("shape", "dtype", "identical"):
                    noise = max(noise, distance or 0.0)
        return noise

    def noise_of_loss(self, step: int, rank: int, name: str, micro_batch: int) -> float:
        noise = 0.0
        for repeat, at in self.spots(step):
            x = [v for n, m, v in self.losses_a.get((at, rank), []) if (n, m) == (name, micro_batch)]
            y = [v for n, m, v in repeat.losses.get((at, rank), []) if (n, m) == (name, micro_batch)]
            noise = max([noise, *(relative(p, q) for p, q in zip(x, y, strict=False))])
        return noise

    def name_lonely_losses(self, steps: list[int]) -> None:
        def names(losses: Losses) -> set[str]:
            return {
                name
                for (step, rank), found in losses.items()
                if step in steps and rank in self.answer.ranks
                for name, _, _ in found
            }

        if self.kinds is None:
            a, b = names(self.losses_a), names(self.losses_b)
            self.answer.only_a |= {f"scalar {name}" for name in a - b}
            self.answer.only_b |= {f"scalar {name}" for name in b - a}


def first_of_each(rows: list[Row], what: Callable[[Row], Any]) -> list[Row]:
    first: dict[Any, Row] = {}
    for row in rows:
        first.setdefault(what(row), row)
    return list(first.values())


def by_place(records: list[Record]) -> dict[tuple[int, int], list[Record]]:
    """By step and rank, in order of execution."""
    places: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in records:
        places[record.step, record.rank].append(record)
    return {place: sorted(found, key=lambda r: r.order) for place, found in places.items()}
