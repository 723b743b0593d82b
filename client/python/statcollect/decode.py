"""Converts the collector's JSON to dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import AnswerError
from .fields import FieldType, field_types
from .rows import Rows

T = TypeVar("T")


def decode(cls: type[T], data: Any) -> T:
    """The answer as an object of class `cls`. Ignores fields that this version does not know. Raises AnswerError if it does not fit."""
    if not isinstance(data, Mapping):
        raise AnswerError(f"read a {cls.__name__} of the collector: found {str(data)[:80]!r}; expected an object")
    values: dict[str, Any] = {}
    made: type = cls
    for field in field_types(made):
        value = data.get(field.name)
        if value is None:
            values[field.name] = _absent(cls, field, field.name in data)
            continue
        try:
            values[field.name] = _value(field, value)
        except (TypeError, ValueError) as error:
            raise AnswerError(f"read {cls.__name__}.{field.name} of the collector: found {str(value)[:80]!r}; {error}") from error
    return cls(**values)


def _value(field: FieldType, value: Any) -> Any:
    if field.kind == "one":
        return decode(field.item, value)
    if field.kind == "rows":
        return Rows((decode(field.item, each) for each in value), field.item)
    if field.kind == "float":
        return float(value)  # also "NaN" and "Infinity"
    if field.kind == "int" and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError("expected an integer")
    if field.kind == "list":
        return [float(each) for each in value] if field.item == "float" else list(value)
    return value


def _absent(cls: type, field: FieldType, said: bool) -> Any:
    if field.optional:
        return None
    if field.kind == "rows":
        return Rows((), field.item)
    if field.kind in ("list", "dict"):
        return [] if field.kind == "list" else {}
    found = "null" if said else "nothing"
    raise AnswerError(
        f"read {cls.__name__}.{field.name} of the collector: found {found}; expected a value; use the same version of this package and of "
        "the collector"
    )
