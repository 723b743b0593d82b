"""The arguments of `init` as options of the library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._native.arguments import encode, encode_all, milliseconds, whole_number
from .._native.library import Options
from ..errors import InvalidArgumentError

_NEVER_EMPTY = {
    "run": "a name, as run='base', or None and STATAGENT_RUN",
    "ranks": "the ranks that record, as ranks='0,8-15', or None for all",
}


def make_options(texts: Mapping[str, Any], numbers: Mapping[str, Any], connect_timeout: Any, required: Any) -> Options:
    """texts, numbers: arguments by name, None where the library reads STATAGENT_<NAME> or takes its default. connect_timeout: seconds.
    Raises InvalidArgumentError, which names the argument."""
    options = Options()
    for name, text in texts.items():
        if text is not None:
            if text == "" and name in _NEVER_EMPTY:
                raise InvalidArgumentError(f"init: {name} is ''; expected {_NEVER_EMPTY[name]}")
            setattr(options, name, encode(f"init: {name}", text))
    for name, number in numbers.items():
        setattr(options, name, -1 if number is None else whole_number(f"init: {name}", number))
    options.connect_timeout_ms = _connect_timeout_ms(connect_timeout)
    if required is not None and not isinstance(required, (bool, int)):
        raise InvalidArgumentError(f"init: required is {required!r}; expected True or False")
    options.required = -1 if required is None else int(bool(required))
    return options


def add_settings(options: Options, settings: Mapping[str, str]) -> None:
    """The run's configuration, flattened."""
    options.config_keys, options.config_values = encode_all(settings), encode_all(settings.values())
    options.config_count = len(settings)


def join_requests(option: str, requests: Any, example: str) -> str | None:
    """Captures or exponents, one text or several, as the one text that the library reads."""
    if requests is None or isinstance(requests, str):
        return requests
    texts = list(requests) if isinstance(requests, (list, tuple, set, frozenset)) else [requests]
    for text in texts:
        if not isinstance(text, str) or ";" in text:
            raise InvalidArgumentError(f"init: {option} has {text!r}; expected texts such as {example!r}, without ';'")
    return "; ".join(texts)


def _connect_timeout_ms(seconds: Any) -> int:
    if seconds is None:
        text = os.environ.get("STATAGENT_CONNECT_TIMEOUT", "")
        if not text:
            return -1
        try:
            seconds = float(text)
        except ValueError:
            raise InvalidArgumentError(f"init: STATAGENT_CONNECT_TIMEOUT is {text!r}; expected seconds from 0") from None
    return milliseconds("init: connect_timeout", seconds)
