"""Rows of dataclasses as tables of pandas, polars and Arrow. Each library is imported when its table is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import StatcollectError
from .fields import FieldType, field_types

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


@dataclass(frozen=True)
class Column:
    """`path`: the fields from the row to the value; `kind` as in FieldType."""

    path: tuple[str, ...]
    kind: str
    optional: bool
    item: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


def columns(row_type: type, above: tuple[str, ...] = (), optional: bool = False) -> list[Column]:
    """The columns of a table of such rows. Lists of dataclasses and dictionaries are columns of text (JSON)."""
    found = []
    for field in field_types(row_type):
        path, maybe = (*above, field.name), optional or field.optional
        if field.kind == "one":
            found += columns(field.item, path, maybe)
        else:
            found.append(_column(field, path, maybe))
    return found


def _column(field: FieldType, path: tuple[str, ...], optional: bool) -> Column:
    if field.kind in ("rows", "dict"):
        return Column(path, "json", optional, "")
    return Column(path, field.kind, optional, field.item or "")


def value_at(row: Any, column: Column) -> Any:
    """What the row has there; None if it is absent."""
    for name in column.path:
        row = getattr(row, name)
        if row is None:
            return None
    return _text(row) if column.kind == "json" else row


def _text(value: Any) -> str:
    import json

    plain = [dataclasses.asdict(each) for each in value] if isinstance(value, list) else value
    return json.dumps(plain)


def _values(rows: Sequence[Any], row_type: type) -> list[tuple[Column, list[Any]]]:
    return [(column, [value_at(row, column) for row in rows]) for column in columns(row_type)]


def _library(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StatcollectError(
            f"make a table with {name}: {error}; expected it to be installed; run pip install {package}"
        ) from error


def to_pandas(rows: Sequence[Any], row_type: type) -> pandas.DataFrame:
    library = _library("pandas", "pandas")
    made = {}
    for column, values in _values(rows, row_type):
        kind = {"int": "Int64" if column.optional else "int64", "float": "float64"}.get(column.kind, "object")
        if column.kind == "bool" and not column.optional:
            kind = "bool"
        made[column.name] = library.Series(values, dtype=kind)
    frame: pandas.DataFrame = library.DataFrame(made)
    return frame


def to_polars(rows: Sequence[Any], row_type: type) -> polars.DataFrame:
    library = _library("polars", "polars")
    plain = {"int": library.Int64, "float": library.Float64, "bool": library.Boolean}
    made = []
    for column, values in _values(rows, row_type):
        kind = plain.get(column.kind, library.String)
        if column.kind == "list":
            kind = library.List(plain.get(column.item, library.String))
        made.append(library.Series(column.name, values, dtype=kind))
    frame: polars.DataFrame = library.DataFrame(made)
    return frame


def to_arrow(rows: Sequence[Any], row_type: type) -> pyarrow.Table:
    library = _library("pyarrow", "pyarrow")
    plain = {"int": library.int64(), "float": library.float64(), "bool": library.bool_()}
    fields, arrays = [], []
    for column, values in _values(rows, row_type):
        kind = plain.get(column.kind, library.string())
        if column.kind == "list":
            kind = library.list_(plain.get(column.item, library.string()))
        fields.append(library.field(column.name, kind, nullable=column.optional))
        arrays.append(library.array(values, type=kind))
    return library.Table.from_arrays(arrays, schema=library.schema(fields))
