"""The size of a planted bug: its distance where it acts, divided by the distance of the legal change at the same place."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from conftest import Collector

from verdict_bench.pairs import Pair, run_name

FLOORS = {"bf16": 4e-3, "f16": 5e-4, "f64": 1e-16}
LARGEST = 1e12
UNSEEN = 0.01  # of the rounding of its dtype: two statistics that agree, not two tensors that were compared
FLOOR = 6e-8  # of f32 and of everything that is not rounded

Row = dict[str, Any]


def matches(row: Row, expected: dict[str, Any]) -> bool:
    """Stage and name of a row of the report are what a bug may show as; not the step."""
    stages, kind = expected["stages"], row["kind"] or ""
    if "*" not in stages and row["stage"] not in stages:
        return False
    return any(fnmatchcase(row["activation"], name) and fnmatchcase(kind, of_kind) for name, of_kind in expected["names"])


class Distances:
    """The records whose bits differ between two runs in one step, queried once."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._known: dict[tuple[str, str, int], dict[tuple[Any, ...], Row]] = {}

    def of(self, run_a: str, run_b: str, step: int) -> dict[tuple[Any, ...], Row]:
        key = (run_a, run_b, step)
        if key not in self._known:
            options = ("--exact", "--all", "--no-alignment", "--steps", str(step))
            rows = self._collector.diff(run_a, run_b, *options)["diverged"]
            self._known[key] = {_place(row): _short(row) for row in rows}
        return self._known[key]

    def forget(self) -> None:
        self._known.clear()


_PLACE = ("rank", "micro_batch", "stage", "kind", "activation", "output_path", "call", "mode")
_MICRO_BATCH, _CALL = _PLACE.index("micro_batch"), _PLACE.index("call")


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in _PLACE)


def _short(row: Row) -> Row:
    distance = math.inf if row["distance"] is None else float(row["distance"])
    return {
        "stage": row["stage"],
        "kind": row["kind"],
        "activation": row["activation"],
        "dtype": (row["a"] or row["b"])["dtype"],
        "distance": distance,
    }


def alone_of(pair: Pair) -> str:
    """The run that has the pair's bug and no legal change."""
    return run_name(pair.family, "", pair.bug, pair.size, pair.steps)


def measure(pair: Pair, distances: Distances, changes: Sequence[str]) -> None:
    """Fills effect, distance and rounding: at the place of those expected where the bug stands out most. `changes`: the family's legal ones."""
    alone = distances.of(pair.run_a, alone_of(pair), pair.step)
    rounded = {change: distances.of(pair.run_a, run_name(pair.family, change, steps=pair.steps), pair.step) for change in changes}
    pair.effect, pair.distance, pair.rounding, pair.typical = 0.0, 0.0, 0.0, 0.0
    for place, row in first_calls({place: row for place, row in alone.items() if matches(row, pair.expected)}).items():
        noise = distance_at(rounded.get(pair.legal, {}), place)
        floor = FLOORS.get(row["dtype"], FLOOR)
        others = [found for found in (distance_at(rows, place) for rows in rounded.values()) if found > 0]
        typical = max(floor, noise, statistics.median(others) if others else 0.0)
        pair.typical = max(pair.typical, min(row["distance"] / typical, LARGEST))
        effect = row["distance"] / (noise if noise > UNSEEN * floor else floor)
        if effect > pair.effect:
            pair.effect, pair.distance, pair.rounding = min(effect, LARGEST), min(row["distance"], LARGEST), noise


def distance_at(rows: dict[tuple[Any, ...], Row], place: tuple[Any, ...]) -> float:
    return float(rows[place]["distance"]) if place in rows else 0.0


def first_calls(rows: dict[tuple[Any, ...], Row]) -> dict[tuple[Any, ...], Row]:
    """Without later calls and micro-batches of the same module in the step: what those got has the bug in it already."""
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for place in sorted(rows, key=lambda place: (place[_MICRO_BATCH], place[_CALL])):
        found.setdefault(tuple(value for at, value in enumerate(place) if at not in (_MICRO_BATCH, _CALL)), place)
    return {place: rows[place] for place in found.values()}


def measure_all(pairs: Sequence[Pair], collector: Collector) -> None:
    distances = Distances(collector)
    for family in dict.fromkeys(pair.family for pair in pairs):
        mine = [pair for pair in pairs if pair.family == family]
        for pair in mine:
            if pair.bug:
                measure(pair, distances, changes_in(mine, pair.steps))
        distances.forget()


def changes_in(pairs: Sequence[Pair], steps: int) -> list[str]:
    """Legal changes of which a clean pair with the baseline was recorded."""
    clean = [pair.legal for pair in pairs if not pair.bug and pair.steps == steps and pair.legal]
    return [change for change in clean if "~" not in change and "+" not in change]
