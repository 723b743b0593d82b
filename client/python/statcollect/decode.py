"""JSON of the collector to dataclasses, by the text of their annotations, which are of few kinds."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import AnswerError
from .rows import Rows

T = TypeVar("T")
_PLAIN = {"int", "float", "str", "bool"}


@dataclass(frozen=True)
class FieldType:
    """`kind`: int, float, str, bool, list, dict, rows or one; `item`: the dataclass of the last two, or the name of a list's item."""

    name: str
    kind: str
    optional: bool
    item: Any = None


@functools.cache
def field_types(cls: type) -> tuple[FieldType, ...]:
    """What the fields of a dataclass hold."""
    return tuple(_parse(cls, field.name, str(field.type)) for field in dataclasses.fields(cls))


def _parse(cls: type, name: str, text: str) -> FieldType:
    bare = text.removesuffix(" | None")
    optional = bare != text
    if bare in _PLAIN:
        return FieldType(name, bare, optional)
    inside = bare[bare.find("[") + 1 : -1]
    if bare.startswith("dict["):
        return FieldType(name, "dict", optional)
    of = vars(sys.modules[cls.__module__])
    if bare.startswith("list["):
        return FieldType(name, "list", optional, inside if inside in _PLAIN else "str")
    if bare.startswith("Rows["):
        return FieldType(name, "rows", optional, of[inside])
    return FieldType(name, "one", optional, of[bare]) if dataclasses.is_dataclass(of[bare]) else FieldType(name, "str", optional)


def decode(cls: type[T], data: Any) -> T:
    """The answer as `cls`. Fields that this version does not know are left out. Raises AnswerError if it is not one."""
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
