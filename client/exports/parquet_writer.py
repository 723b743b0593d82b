"""Writes the JSON lines of `statctl move export json` that come from standard input as a Parquet file.

statctl carries this text and runs it (parquet.cc): parquet_writer.py PATH [sketch] [samples]. Exit codes: 0 written, 3 pyarrow
is missing, 1 anything else; standard error says why in one line.
"""

from __future__ import annotations

import sys

if sys.path[:1] == [""]:
    del sys.path[0]  # nothing is imported from the working directory

import itertools
import json
from collections.abc import Iterator
from typing import Any

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)

ROWS_OF_BATCH = 4096  # rows that exist as Python objects
BATCHES_OF_GROUP = 16

REQUIRED = {
    "rank": pa.uint32(), "step": pa.uint64(), "micro_batch": pa.uint32(), "kind": pa.utf8(), "activation": pa.utf8(),
    "output_path": pa.utf8(), "call": pa.uint32(), "mode": pa.utf8(), "class": pa.utf8(), "depth": pa.int32(),
    "order": pa.uint32(), "dtype": pa.utf8(),
}  # fmt: skip
COUNTS = ("numel", "nan", "pos_inf", "neg_inf", "zero", "neg", "pos")
MOMENTS = ("min", "max", "mean", "std", "l1", "l2")
LISTS = ("sketch", "samples")
PLACE = {  # null of tensors that are no parts
    "global_shape": pa.list_(pa.int64()), "boxes": pa.list_(pa.int64()), "ranges": pa.list_(pa.int64()),
    "piece": pa.uint32(), "pieces": pa.uint32(), "partial": pa.bool_(), "ranks": pa.list_(pa.uint32()),
}  # fmt: skip


def schema_of(run: str, lists: list[str]) -> pa.Schema:
    """The columns of the CSV with types of their own; null is what is absent."""
    fields = [pa.field(name, kind, nullable=False) for name, kind in REQUIRED.items()]
    fields += [pa.field("shape", pa.list_(pa.int64()))]
    fields += [pa.field(name, pa.uint64()) for name in COUNTS]
    fields += [pa.field(name, pa.float64()) for name in MOMENTS]
    fields += [pa.field("hash", pa.uint64()), pa.field("inf", pa.uint64())]
    fields += [pa.field("hash_kind", pa.utf8()), pa.field("untrusted", pa.utf8())]
    fields += [pa.field(name, pa.list_(pa.float64())) for name in lists]
    fields += [pa.field(name, kind) for name, kind in PLACE.items()]
    return pa.schema(fields, metadata={"statcollect.run": run})


def value_of(name: str, value: Any) -> Any:
    """A member of the JSON object as the column's value. A double may be written as an integer, or as "NaN"."""
    if name == "untrusted":
        return " ".join(value) or None
    if value is None:
        return None
    if name == "hash":
        return int(value, 16)
    if name in MOMENTS:
        return float(value)
    return [float(component) for component in value] if name in LISTS else value


def batches_of(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while part := list(itertools.islice(rows, ROWS_OF_BATCH)):
        columns = [pa.array([value_of(field.name, row.get(field.name)) for row in part], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def main() -> None:
    path, *lists = sys.argv[1:]
    lines = map(json.loads, sys.stdin.buffer)
    schema = schema_of(next(lines)["run"], lists)
    batches = batches_of(lines, schema)
    with parquet.ParquetWriter(path, schema, compression="snappy") as writer:
        while group := list(itertools.islice(batches, BATCHES_OF_GROUP)):
            writer.write_table(pa.Table.from_batches(group), row_group_size=ROWS_OF_BATCH * BATCHES_OF_GROUP)


try:
    main()
except Exception as failure:
    print(" ".join(str(failure).split()) or type(failure).__name__, file=sys.stderr)
    sys.exit(1)
