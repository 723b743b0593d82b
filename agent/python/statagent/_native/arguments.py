"""Python values as arguments of the C interface. Each function raises InvalidArgumentError for a value that it cannot convert."""

from __future__ import annotations

import ctypes
import math
import numbers
from collections.abc import Iterable
from typing import Any

from ..errors import InvalidArgumentError

_TIMEOUT_MAX_SECONDS = 86400.0
_INT64_MAX = 2**63 - 1


def encode(what: str, text: Any) -> bytes:
    """A string as UTF-8. `what` names it in the error."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} is {text!r}, a {type(text).__name__}; expected a string")
    if "\0" in text:
        raise InvalidArgumentError(f"{what} is {text!r}; expected a string without NUL characters")
    return text.encode("utf-8", "replace")


def encode_all(texts: Iterable[str]) -> Any:
    """Strings as a C array of at least one element. NUL characters become spaces."""
    encoded = [text.replace("\0", " ").encode("utf-8", "replace") for text in texts]
    return (ctypes.c_char_p * max(1, len(encoded)))(*encoded)


def whole_number(what: str, value: Any) -> int:
    """An integer from 0 to 2**63 - 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= int(value) <= _INT64_MAX:
        raise InvalidArgumentError(f"{what} is {value!r}; expected a whole number from 0")
    return int(value)


def milliseconds(what: str, seconds: Any) -> int:
    """A duration in seconds as milliseconds, at most a day."""
    good = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not good or math.isnan(seconds) or seconds < 0:
        raise InvalidArgumentError(f"{what} is {seconds!r}; expected seconds from 0")
    return round(min(float(seconds), _TIMEOUT_MAX_SECONDS) * 1000)


def number_of(what: str, value: Any) -> float:
    """A number, or the one element of a tensor or array, which waits for its device."""
    size = getattr(value, "numel", None)
    if size is None and hasattr(value, "shape"):
        size = math.prod(value.shape)
    if callable(size):
        size = size()
    if size is not None and size != 1:
        raise InvalidArgumentError(f"{what}: found a tensor of {size} elements; expected one")
    try:
        if hasattr(value, "detach"):
            value = value.detach()
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{what}: found {type(value).__name__} ({error}); expected a number") from error
