"""Selects the runs to record and the pairs to compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from verdict_bench import families, legal
from verdict_bench.bugs import Bug
from verdict_bench.training import Family

TWINS = ((1, 1), (1, 2), (32, 1), (1024, 1), (32768, 1))  # of every baseline: noise in units in the last place, seed
LATE_SIZES = (1e-5, 1e-3, 1e-1)
LATE_SIZES_BFLOAT16 = (1e-2, 1e-1)


@dataclass(frozen=True)
class Subset:
    """What is recorded of a family: so many bugs (0: all), each at these sizes (none: all), on so many legal changes, and so many of these
    for longer, with so many bugs that begin late in them. `clean`: no bugs, but two legal changes at once."""

    bugs: int
    on_legal: int
    long: int
    late: int
    sizes: tuple[float, ...] = ()
    sizes_bfloat16: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    clean: bool = False


SUBSETS = {
    "tiny": Subset(3, 1, 0, 0, (1e-5, 1e-4), (1e-2, 3e-2), (1.0, 10.0)),
    "small": Subset(6, 2, 0, 0, (1e-6, 1e-5, 1e-4, 1e-2), (1e-3, 1e-2, 3e-2, 1e-1), (1e-1, 1.0, 10.0, 100.0)),
    "medium": Subset(0, 2, 4, 3, (3e-7, 1e-6, 3e-6, 1e-5, 1e-4, 1e-2), (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), (1e-1, 1.0, 10.0, 100.0)),
    "full": Subset(0, 3, 100, 100),
    "clean": Subset(0, 0, 0, 0, clean=True),
}


@dataclass
class Pair:
    """Two runs, and what the verdict must be: clean without a bug."""

    family: str
    half: str  # fitted, reported or unseen
    precision: str
    run_a: str
    run_b: str
    legal: str  # "" on the bug alone
    bug: str  # "" of a clean pair
    size: float = 0.0
    step: int = 0
    expected: dict[str, Any] = field(default_factory=dict)  # stages, step, names: [[activation, kind], ...], patterns
    causes: list[str] = field(default_factory=list)
    effect: float | None = None
    distance: float | None = None  # of the bug alone at its place
    rounding: float | None = None  # of the legal change alone at the same place
    typical: float | None = None  # distance over what the family's legal changes differ by at that place, in the middle
    steps: int = 0  # of a run longer than usual


def run_name(family: str, legal_change: str = "", bug: str = "", size: float = 0.0, steps: int = 0) -> str:
    parts = [
        family,
        legal_change.replace("+", ".") or "plain",
        *([bug, f"{size:.0e}".replace("+", "")] if bug else []),
        *([f"{steps}steps"] if steps else []),
    ]
    return "-".join(parts)


def twin_name(base: str, ulps: int, seed: int) -> str:
    """The name under which the agent stores a twin of a run."""
    return f"{base}.twin-{ulps}-{seed}"


def twins_of(base: str) -> list[str]:
    return [twin_name(base, *noise) for noise in TWINS]


@cache
def root_names(family: str) -> tuple[str, ...]:
    """Under which the models themselves are recorded."""
    models = families.load(family).FAMILY.models()
    return tuple(watch or type(model).__name__ for watch, model in models.items())


def expected_of(family: str, bug: Bug) -> dict[str, Any]:
    names = [
        [root if activation == "@root" else activation, kind]
        for activation, kind in bug.names
        for root in (root_names(family) if activation == "@root" else ("",))
    ]
    return {"stages": list(bug.stages), "step": bug.step, "names": names}


def chosen_sizes(bug: Bug, family: Family, subset: Subset) -> Sequence[float]:
    if len(bug.sizes) == 1:
        return bug.sizes
    chosen = subset.factors if bug.sizes else subset.sizes if family.precision == "f32" else subset.sizes_bfloat16
    return chosen or bug.swept(family.precision != "f32")


def plan(name: str, subset: str, optional: bool = False) -> list[Pair]:
    """All pairs of a family: clean ones, then each bug alone and on top of legal changes, which take turns. `optional`: with the legal changes
    that take long to record."""
    module, chosen = families.load(name), SUBSETS[subset]
    known = [*legal.of_family(module.FAMILY), *(legal.of_family(module.FAMILY, optional=True) if optional else [])]
    changes = [each.name for each in known if not each.optional and not each.idle]
    found = [replace(_pair(name, ""), run_b=f"{run_name(name)}-again"), *(_pair(name, each.name) for each in known)]
    for index, bug in enumerate([] if chosen.clean else module.BUGS[: chosen.bugs or None]):
        for turn, size in enumerate(chosen_sizes(bug, module.FAMILY, chosen)):
            stride = len(changes) // chosen.on_legal
            on_top = dict.fromkeys(changes[(index + turn + i * stride) % len(changes)] for i in range(chosen.on_legal))
            found += [_pair(name, change, bug, size) for change in ("", *on_top)]
    if chosen.long or chosen.clean:
        found += [_pair(name, f"{one}+{other}") for one, other in zip(changes, changes[len(changes) // 2 :])]
    if chosen.long:
        found += plan_long(name, changes, chosen)
    return found + [between(one, other, found[0]) for one, other in zip(changes, changes[1:])]


def plan_long(name: str, changes: Sequence[str], subset: Subset) -> list[Pair]:
    """Clean pairs, and a few bugs that begin when rounding has grown."""
    kept = [change for change in changes if change != "threads"][: subset.long]
    found = [_pair(name, change, steps=families.LONG) for change in kept]
    sizes = LATE_SIZES if families.load(name).FAMILY.precision == "f32" else LATE_SIZES_BFLOAT16
    for index, bug in enumerate(families.bugs_of(name)[len(families.load(name).BUGS) :][: subset.late]):
        for turn, size in enumerate(sizes):
            on_top = kept[(index + turn) % len(kept)]
            found += [_pair(name, change, bug, size, families.LONG) for change in ("", on_top)]
    return found


def _pair(name: str, change: str, bug: Bug | None = None, size: float = 0.0, steps: int = 0) -> Pair:
    """With the baseline; clean without a bug."""
    planted = bug.name if bug else ""
    runs = run_name(name, steps=steps), run_name(name, change, planted, size, steps)
    precision = families.load(name).FAMILY.precision
    made = Pair(name, families.half(name), precision, *runs, change, planted, size, steps=steps)
    if bug is not None:
        made.step, made.expected, made.causes = bug.step, expected_of(name, bug), list(bug.causes)
    return made


def between(one: str, other: str, like: Pair) -> Pair:
    """A clean pair of two legal changes, whose runs are recorded for other pairs."""
    runs = run_name(like.family, one), run_name(like.family, other)
    return Pair(like.family, like.half, like.precision, *runs, f"{one}~{other}", "")


def has_baseline(pair: Pair) -> bool:
    """Whether the first run is the family's baseline, which has twins; else it is another legal change."""
    return "~" not in pair.legal


def jobs_of(pairs: Iterable[Pair], twins: bool = False) -> list[dict[str, Any]]:
    """The runs to record for these pairs, each once, baselines first. `twins`: behind each baseline its twins, which have `perturb` and
    `twin_of`."""
    jobs: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        if not has_baseline(pair):
            continue
        common = {"family": pair.family, "steps": pair.steps}
        plain = {**common, "legal": "", "bug": "", "size": 0.0}
        jobs.setdefault(pair.run_a, {**plain, "run": pair.run_a})
        for noise in TWINS if twins else ():
            twin = twin_name(pair.run_a, *noise)
            jobs.setdefault(twin, {**plain, "run": twin, "twin_of": pair.run_a, "perturb": list(noise)})
        jobs.setdefault(pair.run_b, {**common, "run": pair.run_b, "legal": pair.legal, "bug": pair.bug, "size": pair.size})
    return list(jobs.values())
