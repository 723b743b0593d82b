"""How much of each difference its inputs and rounding explain, worked out the slow and plain way (docs/verdict-model.md)."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

from naive.naive_order import stage_of
from naive.naive_records import Record

UNITS = {"f64": 2.0**-53, "c128": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
F32 = 2.0**-24


@dataclass
class Pair:
    """A tensor that both runs have, or a loss; then the fields from `stage` on say what explains its difference."""

    a: Record | None
    b: Record | None
    distance: float
    name: str
    stage: str = "loss"
    observed: float = 0.0
    expected: float = 0.0
    spread: float = 0.0
    unit: float = F32
    of_loss: bool = False  # the first gradient: what the loss computes is not recorded
    cancelled: bool = False
    fresh: bool = False

    @property
    def records(self) -> tuple[Record, Record]:
        assert self.a is not None and self.b is not None
        return self.a, self.b

    @property
    def differs(self) -> bool:
        return self.distance > 0

    @property
    def norm(self) -> float:
        return max(moment(record, "l2") for record in self.records)

    @property
    def numel(self) -> int:
        return max(1, self.records[0].numel)

    @property
    def ratio(self) -> float:
        if not self.observed > 0:
            return -math.inf
        return math.inf if math.isinf(self.distance) else math.log(self.observed / self.expected)


def moment(record: Record, name: str) -> float:
    return record.moments[name] if record.moments else 0.0


def unit_of(record: Record) -> float:
    return UNITS.get(record.dtype, F32)


def parent(name: str) -> str:
    return name.rpartition(".")[0]


def capped(distance: float) -> float:
    return min(distance, 1.0)


def quantised(difference: float, unit: float) -> float:
    """A difference before rounding, after it: a share of the elements moves to another neighbour."""
    if difference <= 0 or difference >= unit:
        return difference
    return max(difference, min(math.sqrt(unit * difference), unit))


def is_factor(pair: Pair) -> bool:
    """Whether B's tensor is A's times a factor, by the sketches."""
    a, b = (record.sketch for record in pair.records)
    if len(a) < 16 or len(a) != len(b):
        return False
    apart = [y - x for x, y in zip(a, b, strict=True)]
    return abs(sum(x * d for x, d in zip(a, apart, strict=True))) > 0.9 * math.hypot(*apart) * math.hypot(*a)


# --- what explains a difference


@dataclass
class Output:
    """A module as an input of the modules that run after it."""

    module: str
    distance: float
    unit: float
    inherited: float  # by all but its direct successor


@dataclass
class Memory:
    """A rank's state from step to step."""

    weights: dict[str, Pair] = field(default_factory=dict)  # the last seen, by name
    states: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)  # distance and norm
    fragile: set[str] = field(default_factory=set)  # modules
    normalised: set[str] = field(default_factory=set)  # parameters with a running mean of squares
    noise_driven: set[str] = field(default_factory=set)  # parameters whose gradient was zero except for rounding in some step


def is_output_in_training(pair: Pair) -> bool:
    return pair.stage == "forward" and pair.records[0].identity[1] != "buffer" and pair.records[0].identity[5] == "train"


class StepModel:
    """Explains the differences of one rank's step, in A's order."""

    def __init__(self, pairs: list[Pair], memory: Memory) -> None:
        self.memory = memory
        self.root = next((p.a.identity[0] for p in pairs if p.a and p.a.depth == 1 and p.a.identity[0]), "")
        memory.normalised |= {
            p.a.identity[0] for p in pairs if p.a and p.a.identity[1] == "optimizer_state" and p.a.identity[2] == "exp_avg_sq"
        }
        self.seen: list[Pair] = []  # of this step, before the one that is explained
        self.batch = 0.0
        self.levels: dict[str, float] = defaultdict(float)  # of modules' inputs
        self.of_terms: dict[str, float] = defaultdict(float)  # the same, without what noise-driven biases have added
        self.outputs: dict[str, float] = defaultdict(float)
        self.last_forward = 0.0
        # By pass, then by the module around it: what ran last, newest last.
        self.scopes: dict[tuple[int, str], dict[str, list[Output]]] = defaultdict(lambda: defaultdict(list))
        self.gradients: dict[str, Pair] = {}  # of parameters; the last
        self.worst_gradient: dict[str, float] = defaultdict(float)
        self.noise_driven: dict[str, bool] = {}
        for pair in pairs:
            self.explain(pair)
            self.seen.append(pair)

    def explain(self, pair: Pair) -> None:
        pair.observed = pair.distance
        if pair.a is None:
            level = max(self.batch, self.last_forward)
            pair.fresh, pair.expected = level == 0, math.hypot(level, 4 * F32)
            return
        a, b = pair.records
        pair.stage = stage_of(a.identity)
        pair.unit = max(unit_of(a), unit_of(b))
        # The sketches of all inputs of a state or an update count.
        sketches = 1 if pair.stage != "optimizer" else 2 if a.identity[1] == "optimizer_state" else 3
        sums = max(1, min(len(a.sketch), len(b.sketch)))
        pair.spread = math.sqrt(0.5 * (1 / sums + sketches / math.ceil(pair.numel / 16)))
        level, roundoffs = 0.0, 1
        if pair.stage == "weights":
            self.memory.weights[a.identity[0]] = pair
        elif pair.stage == "batch":
            trained = self.of_parameters(max([capped(w.distance) for w in self.memory.weights.values()], default=0.0))
            coarsest = max([p.unit for p in self.seen if is_output_in_training(p)], default=0.0)
            level = max(trained, quantised(max(self.outputs.values(), default=0.0), coarsest))
            pair.unit = max(pair.unit, coarsest)
            self.batch = max(self.batch, capped(pair.distance))
        elif pair.stage == "forward":
            level = self.forward(pair, a)
        elif pair.stage == "backward":
            level = self.backward(pair, a)
        elif pair.stage == "grad":
            level, roundoffs = self.gradient(pair, a), 4
        elif a.identity[1] == "optimizer_state":
            level = self.state(pair, a)
        else:
            level = self.update(pair, a)
        rounding = roundoffs * pair.unit
        pair.fresh = pair.fresh or level < 2 * rounding
        pair.expected = math.hypot(level, rounding)

    def forward(self, pair: Pair, a: Record) -> float:
        name, kind, _, micro_batch, _, mode = a.identity
        scopes = self.scopes[micro_batch, mode]
        module = "" if name == self.root else name
        owner = parent(module) if kind == "buffer" else module
        inputs = self.inputs_of(owner, scopes)
        distance = max([self.batch, *(i.distance for i in inputs)])
        unit = max([pair.unit, *(i.unit for i in inputs)])
        own = self.of_parameters(self.own_parameters(owner, pair))
        level = math.hypot(distance, own)
        if kind == "buffer":
            before, norm = self.memory.states.get((name, ""), (0.0, 0.0))
            self.memory.states[name, ""] = (capped(pair.distance), norm)
            return quantised(max(level, before), unit)
        self.levels[name] = max(self.levels[name], level)
        self.outputs[name] = max(self.outputs[name], capped(pair.distance))
        self.last_forward = capped(pair.distance)
        fragile = name in self.memory.fragile
        without_bias = min(own, self.of_parameters(self.matrices(module))) if fragile else own
        of_inputs = max([self.batch, *(i.inherited for i in inputs)])
        self.of_terms[name] = max(self.of_terms[name], math.hypot(of_inputs, without_bias))
        inherited = capped(pair.distance)
        if fragile:
            pair.spread += 0.75
            inherited = min(inherited, self.of_parameters(self.matrices(module)))
        at = module
        while at:
            around = scopes[parent(at)]
            around[:] = [output for output in around if output.module != at]
            around.append(Output(at, capped(pair.distance), pair.unit, inherited))
            at = parent(at)
        return quantised(level, unit)

    def inputs_of(self, module: str, scopes: dict[str, list[Output]]) -> list[Output]:
        """All that ran inside, and the last three beside each module around it. A noise-driven bias counts for its successor only."""
        groups = [list(scopes[module])]
        at = module
        while at:
            groups.append([output for output in scopes[parent(at)] if output.module != at][-3:])
            at = parent(at)
        return [
            output if output is group[-1] else replace(output, distance=output.inherited) for group in groups for output in group
        ]

    def of_parameters(self, distance: float) -> float:
        return capped(distance * (3 if self.memory.normalised else min(3.0, max(1.0, distance / 1e-6))))

    def own_parameters(self, module: str, pair: Pair) -> float:
        level = 0.0
        for name, weight in self.memory.weights.items():
            if parent(name) != module or not weight.differs:
                continue
            distance = capped(weight.distance)
            if name.endswith("bias") and pair.norm > 0:
                rows = max(1.0, pair.numel / max(1, weight.records[0].numel))
                distance = distance * weight.norm * math.sqrt(rows) / pair.norm
            level = max(level, distance)
        return level

    def matrices(self, module: str) -> float:
        of_module = [w for name, w in self.memory.weights.items() if parent(name) == module and not name.endswith("bias")]
        return max([capped(weight.distance) for weight in of_module], default=0.0)

    def backward(self, pair: Pair, a: Record) -> float:
        name, _, _, micro_batch, _, _ = a.identity
        before = [p for p in self.backward_pairs() if p.records[0].identity[3] == micro_batch]
        level = max([self.batch, self.outputs[name], self.levels[name], *(capped(p.distance) for p in before[-4:])])
        if not before:
            level = max(level, self.last_forward)
            pair.of_loss = not is_factor(pair)
        unit = max([pair.unit, *(p.unit for p in before[-4:])])
        matrices = max(self.matrices(module) for module in [name, *(p.name for p in before[-4:])])
        return math.hypot(quantised(math.hypot(level, self.of_parameters(matrices)), unit), self.mask(pair, a))

    def backward_pairs(self) -> list[Pair]:
        return [p for p in self.seen if p.stage == "backward"]

    def mask(self, pair: Pair, a: Record) -> float:
        flipped = pair.numel * capped(max(self.outputs[pair.name], self.levels[pair.name]))
        if a.zeros <= 0.02 * pair.numel or flipped <= 0.002 or pair.norm <= 0:
            return 0.0
        largest = max(abs(moment(a, "min")), abs(moment(a, "max")))
        return 2 * largest / pair.norm * math.sqrt(max(1.0, flipped))

    def gradient(self, pair: Pair, a: Record) -> float:
        module = parent(pair.name)
        everything = self.backward_pairs()
        terms = [p for p in everything if p.name == module]
        pair.unit = max([pair.unit, *(p.unit for p in everything)])
        level = max([self.batch, *(capped(p.distance) for p in everything)])
        norm = pair.norm
        if terms:
            level = max(self.of_terms[module], *(capped(p.distance) for p in terms))
            l2 = math.sqrt(sum(p.norm**2 for p in terms))
            l1 = sum(max(record.l1 for record in p.records) for p in terms)
            if len(json.loads(a.shape)) < 2 and norm > 0 and math.isfinite(pair.distance):
                pair.cancelled = norm < 0.3 * l2
                scale = max(norm, l2, l1 / math.sqrt(pair.numel) if pair.cancelled else 0.0)
                pair.observed = pair.distance * norm / scale
        self.gradients[pair.name] = pair
        self.worst_gradient[pair.name] = max(self.worst_gradient[pair.name], capped(pair.distance))
        self.noise_driven[pair.name] = pair.cancelled and pair.distance > 0.01 and pair.observed < 0.1 * pair.distance
        if self.noise_driven[pair.name]:
            self.memory.noise_driven.add(pair.name)
        return quantised(level, pair.unit)

    def state(self, pair: Pair, a: Record) -> float:
        name, _, path, _, _, _ = a.identity
        before, norm_before = self.memory.states.get((name, path), (0.0, 0.0))
        self.memory.states[name, path] = (capped(pair.distance), pair.norm)
        if name not in self.gradients:
            return before
        gradient, of_gradient = self.worst_gradient[name], self.gradients[name].norm
        level = max(before, gradient)
        if path == "exp_avg_sq":
            return 2 * level
        if pair.norm <= 0 or of_gradient <= 0:
            return level
        share = min(1.0, (pair.norm + norm_before) / of_gradient)
        return max(level, (before * norm_before + share * gradient * of_gradient) / pair.norm)

    def update(self, pair: Pair, a: Record) -> float:
        name = pair.name
        gradient = self.worst_gradient[name]
        normalised = name in self.memory.normalised
        if normalised and self.noise_driven.get(name):
            self.memory.fragile.add(parent(name))
        before = self.memory.weights.get(name)
        self.memory.weights[name] = pair
        sketches = [r.sketch for p in (before, pair) if p for r in p.records]
        if before is None or not a.sketch or len({len(s) for s in sketches}) > 1 or math.isinf(pair.distance):
            return max(gradient, capped(before.distance) if before else 0.0)
        before_a, before_b, now_a, now_b = sketches
        update_a = [now - then for now, then in zip(now_a, before_a, strict=True)]
        update_b = [now - then for now, then in zip(now_b, before_b, strict=True)]
        update = max(math.hypot(*update_a), math.hypot(*update_b))
        if not pair.differs or update == 0:
            pair.observed = 0.0
            return 0.0
        pair.observed = min(math.dist(update_a, update_b) / update, 2.0)
        resolution = (2 * 4e-8 + pair.unit) * max(pair.norm, before.norm) / update
        flipped = min(12 * math.sqrt(gradient), 0.7) if normalised else 0.0
        level = math.hypot(max(3 * gradient, flipped), resolution)
        pair.fresh = gradient == 0 and not before.differs
        return max(level, 1.0) if gradient > 0.05 else level
