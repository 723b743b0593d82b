"""The types of the answers' fields, derived from the text of their annotations."""

from __future__ import annotations

import dataclasses
import functools
import sys
from dataclasses import dataclass
from typing import Any

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
