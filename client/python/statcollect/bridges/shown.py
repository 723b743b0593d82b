"""What a program recorded, as data for a reader that also follows instructions: escaped, limited in length, and quoted."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import unicodedata
from typing import Any, TypeVar

T = TypeVar("T")

TEXT_MAX = 1200  # characters of a sentence
NAME_MAX = 200  # characters of a name
LIST_MAX = 200  # entries of any list, whatever the caller asked for
# A name that cannot be read as a sentence: no blanks, nothing that ends a quotation.
PLAIN = re.compile(r"[\w.\-/\[\]@:+=,]{1,120}", re.ASCII)
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # controls, also of the direction of writing; separators of lines


def printable(text: str, most: int = TEXT_MAX) -> str:
    """The text with each control character as \\xNN or \\uNNNN, cut to `most` characters."""
    cut = text[:most]
    made = "".join(_escaped(each) if unicodedata.category(each) in _UNSEEN else each for each in cut)
    return made[:most] + "..." if len(text) > most or len(made) > most else made


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def quoted(name: str) -> str:
    """The name; in quotation marks unless it is a plain word."""
    return name if PLAIN.fullmatch(name) else json.dumps(printable(name, NAME_MAX), ensure_ascii=False)


def with_quotes(sentence: str, names: list[str]) -> str:
    """A sentence of the collector with those of the names quoted that are not plain words."""
    for name in sorted({name for name in names if name and not PLAIN.fullmatch(name)}, key=len, reverse=True):
        sentence = sentence.replace(name, quoted(name))
    return sentence


def clean(answer: T) -> T:
    """The same answer with every text printable, every list short, and no number that JSON lacks."""
    made: Any = answer
    if isinstance(answer, str):
        made = printable(answer)
    elif isinstance(answer, float) and not math.isfinite(answer):
        made = None
    elif isinstance(answer, (list, tuple)):
        made = [clean(each) for each in answer[:LIST_MAX]]
    elif isinstance(answer, dict):
        made = {clean(key): clean(value) for key, value in answer.items()}
    elif dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        fields = {field.name: clean(getattr(answer, field.name)) for field in dataclasses.fields(answer)}
        made = dataclasses.replace(answer, **fields)
    return made
