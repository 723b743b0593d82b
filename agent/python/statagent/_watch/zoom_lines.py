"""The document of a zoomed call: what is not a tensor about its operators, as lines of text, and the parts in which it is sent.

The library keeps printable text only, and leaves out what looks like a secret ("key=..."): lines are separated by '~', fields by '|', an
argument's name and value by '^'. In a field these, a backslash, '&' and control characters are written as \\xNN, except the '&' of a reference.

    in    NUMBER  LABEL  TENSOR                       a tensor that no operator of the call has computed; a later operator refers to &inNUMBER
    out   LABEL   REFERENCE                           a tensor that the call hands on: its result, or the gradient of an input
    op    NUMBER  NAME  FLAGS  FILE:LINE  FUNCTION  RANDOM  RESULTS  ARGUMENT...

FLAGS: i works in place, v returns a view. RANDOM: 16 hexadecimal digits of the generator's state before and after, as "before-after"; empty if
none was drawn. RESULTS: TENSOR or =VALUE of each, separated by ';'. TENSOR: dtype and shape, as f32[16,64]. ARGUMENT: name^VALUE, in which &3.0 is
the first result of operator 3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LINE_BYTES_MAX = 3800
_PART_BYTES_MAX = 4000  # of an event's field
_FIELDS_MAX = 48  # of an event, besides those that say what it is
_SPECIAL = frozenset("\\&|~^")
_TEXT_MAX = 200  # of one value
_ITEMS_MAX = 16  # of a list


def escaped(text: str, length_max: int = _TEXT_MAX) -> str:
    """The text of one field, without separators."""
    cut = text if len(text) <= length_max else text[: length_max - 3] + "..."
    if cut.isprintable() and not _SPECIAL.intersection(cut):
        return cut.encode("utf-8", "replace").decode()
    return "".join(
        each
        if each.isprintable() and each not in _SPECIAL
        else "".join(f"\\x{byte:02x}" for byte in each.encode("utf-8", "replace"))
        for each in cut
    )


def line(*fields: str) -> str:
    """One line, without its end. What does not fit is left out at the end."""
    made = "|".join(fields)
    if len(made.encode()) <= LINE_BYTES_MAX:
        return made
    return made.encode()[: LINE_BYTES_MAX - 4].decode("utf-8", "ignore") + "|..."


def tensor_text(tensor: Any, dtypes: dict[Any, str]) -> str:
    name = dtypes.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{name}[{','.join(str(int(size)) for size in tensor.shape)}]"


def value_text(value: Any) -> str:
    """A value that is not a tensor and holds none."""
    if isinstance(value, (list, tuple)):
        items = [value_text(each) for each in value[:_ITEMS_MAX]] + (["..."] if len(value) > _ITEMS_MAX else [])
        return f"[{', '.join(items)}]"
    if isinstance(value, (bool, int, float, complex, str)) or value is None:
        return escaped(repr(value))
    if type(value).__module__.partition(".")[0] == "torch":
        if type(value).__name__ == "Generator":
            return "a generator"
        return escaped(str(value))  # dtype, device, layout, memory format
    return escaped(f"a {type(value).__name__}")


def parts(lines: Iterable[str]) -> list[dict[str, str]]:
    """Fields of the events that carry the lines, each whole: "00", "01", ... in each event."""
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    waiting: list[str] = []
    size = 0

    def close_field() -> None:
        nonlocal waiting, size, fields
        if waiting:
            fields[f"{len(fields):02}"] = "~".join(waiting)
        waiting, size = [], 0
        if len(fields) == _FIELDS_MAX:
            events.append(fields)
            fields = {}

    for each in lines:
        length = len(each.encode()) + 1
        if size + length > _PART_BYTES_MAX:
            close_field()
        waiting.append(each)
        size += length
    close_field()
    if fields:
        events.append(fields)
    return events
