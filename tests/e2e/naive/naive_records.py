"""The records of a run, as `statctl move export csv --sketch` writes them."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from naive.naive_origin import Identity


@dataclass
class Record:
    """One line of the CSV."""

    rank: int
    step: int
    identity: Identity
    order: int
    dtype: str
    shape: str
    numel: int
    counts: tuple[int, int, int]  # NaN, +inf, -inf
    hash: str
    moments: dict[str, float] | None  # None: no finite element
    sketch: list[float]
    class_name: str
    depth: int
    zeros: int
    l1: float


def read_records(path: Path) -> list[Record]:
    with path.open(newline="") as lines:
        return [as_record(line) for line in csv.DictReader(lines)]


def as_record(line: dict[str, str]) -> Record:
    identity = (line["activation"], line["kind"], line["output_path"], int(line["micro_batch"]), int(line["call"]), line["mode"])
    moments = {name: float(line[name]) for name in ("min", "max", "mean", "std", "l2")} if line["min"] else None
    return Record(
        int(line["rank"]), int(line["step"]), identity, int(line["order"]), line["dtype"], line["shape"], int(line["numel"]),
        (int(line["nan"]), int(line["pos_inf"]), int(line["neg_inf"])), line["hash"], moments,
        [float(x) for x in json.loads(line["sketch"])] if line["sketch"] else [],
        line["class"], int(line["depth"]), int(line["zero"] or 0), float(line["l1"] or 0),
    )  # fmt: skip
