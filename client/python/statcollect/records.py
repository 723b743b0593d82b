"""Stored tensor records, one dataclass each, from the columns in which the collector streams them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import AnswerError

# Bits of Layout.absent in stats.proto: statistics that imported records lack.
_ABSENT = {"min": 0, "max": 1, "mean": 2, "std": 3, "l1": 4, "l2": 5, "nan": 6, "inf": 7, "inf_sign": 8, "zero": 9, "neg": 10, "pos": 11,
           "hash": 12, "shape": 13}  # fmt: skip
_OF_FINITE = ("min", "max", "mean", "std", "l1", "l2")


@dataclass(frozen=True)
class Observation:
    """One tensor of one rank in one step. The statistics min to l2 are over finite elements, and None where there are none. What another
    tool's dump did not have is None, too."""

    run: str
    attempt: int  # launch under the run's name, from 1
    rank: int
    step: int
    micro_batch: int
    kind: str
    activation: str
    output_path: str
    call: int
    mode: str
    class_name: str
    depth: int
    order: int  # position in the step's order of execution
    dtype: str
    shape: list[int] | None
    numel: int | None
    nan: int | None
    pos_inf: int | None
    neg_inf: int | None
    zero: int | None
    neg: int | None
    pos: int | None
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    l1: float | None
    l2: float | None
    hash: str | None
    inf: int | None  # both signs, where they were counted together
    hash_kind: str


class _Names:
    """The definitions of one launch and rank, by their ids."""

    def __init__(self) -> None:
        self.activations: dict[int, Mapping[str, Any]] = {}
        self.layouts: dict[int, Mapping[str, Any]] = {}

    def learn(self, records: Mapping[str, Any]) -> None:
        self.activations.update((each["id"], each) for each in records["activations"])
        self.layouts.update((each["id"], each) for each in records["layouts"])


def observations(run: str, messages: Iterable[Any]) -> Iterator[Observation]:
    """The records of a stream of ReadRecordsResponse. Raises AnswerError for any other message."""
    known: dict[tuple[int, int], _Names] = {}
    for message in messages:
        try:
            records = message["records"]
            if records is None:
                continue
            names = known.setdefault((message["attempt"], message["rank"]), _Names())
            names.learn(records)
            if records["stats"]:
                yield from _of_columns(run, message["attempt"], message["rank"], names, records["stats"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise AnswerError(
                f"read the records of run '{run}': {type(error).__name__}: {error}; expected what docs/http.md describes; use the same "
                "version of this package and of the collector"
            ) from error


def _of_columns(run: str, attempt: int, rank: int, names: _Names, columns: Mapping[str, Any]) -> Iterator[Observation]:
    orders = columns["order"] or [0] * len(columns["activation"])
    for row, (activation, layout_id) in enumerate(zip(columns["activation"], columns["layout"])):
        definition, layout = names.activations[activation], names.layouts[layout_id]
        shape = None if _lacks(layout, "shape") else list(layout["shape"])
        yield Observation(
            run=run, attempt=attempt, rank=rank, step=columns["step"][row], micro_batch=definition["micro_batch"],
            kind=definition["kind"], activation=definition["name"], output_path=definition["output_path"], call=definition["call"],
            mode=definition["mode"] or "", class_name=definition["class_name"], depth=definition["depth"], order=orders[row],
            dtype=layout["dtype"], shape=shape, numel=None if shape is None else math.prod(shape),
            hash=None if _lacks(layout, "hash") else columns["hash"][row], hash_kind=(layout["hash_kind"] or "").removeprefix("hash_kind_"),
            **_counts(layout, columns, row), **_statistics(layout, columns, row),
        )  # fmt: skip


def _lacks(layout: Mapping[str, Any], statistic: str) -> bool:
    return bool(layout["absent"] >> _ABSENT[statistic] & 1)


def _counts(layout: Mapping[str, Any], columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: None if _lacks(layout, name) else columns[name][row] for name in ("nan", "zero", "neg", "pos")}
    found.update(dict.fromkeys(("pos_inf", "neg_inf", "inf")))
    if not _lacks(layout, "inf"):
        if _lacks(layout, "inf_sign"):
            found["inf"] = columns["pos_inf"][row]
        else:
            found["pos_inf"], found["neg_inf"] = columns["pos_inf"][row], columns["neg_inf"][row]
    return found


def _statistics(layout: Mapping[str, Any], columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    finite = columns["has_finite"][row]
    return {name: float(columns[name][row]) if finite and not _lacks(layout, name) else None for name in _OF_FINITE}
