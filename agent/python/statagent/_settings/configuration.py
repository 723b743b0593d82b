"""The user's configuration, flattened to the form in which it is stored."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError

SETTINGS_MAX = 4096  # the library's limit
ENTRIES_MAX = 4000  # of the user's; the rest is for the checklist
DEPTH_MAX = 16
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object or function, which differs between processes


def flatten_configuration(config: Any) -> dict[str, str]:
    """Nested mappings, sequences and dataclasses as {"model.layers": "4"}. Raises InvalidArgumentError for anything else, and for more than
    ENTRIES_MAX entries or DEPTH_MAX levels."""
    if config is None:
        return {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if not isinstance(config, Mapping):
        raise InvalidArgumentError(
            f"read the configuration: found a {type(config).__name__}; expected a mapping, as config={{'lr': 0.1}}"
        )
    flat: dict[str, str] = {}
    _flatten_into(flat, "", config, 0)
    return flat


def _flatten_into(flat: dict[str, str], key: str, value: Any, depth: int) -> None:
    if len(flat) >= ENTRIES_MAX:
        raise InvalidArgumentError(f"read the configuration: more than {ENTRIES_MAX} entries; expected fewer; leave the data out")
    if depth >= DEPTH_MAX:
        raise InvalidArgumentError(f"read the configuration: '{key}' is nested deeper than {DEPTH_MAX} levels; expected fewer")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping) and (value or not key):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)) and value:
        items = enumerate(value)
    else:
        flat[key] = _text(value)
        return
    for name, child in items:
        _flatten_into(flat, f"{key}.{name}" if key else str(name) or "_", child, depth + 1)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    try:
        return value if isinstance(value, str) else _ADDRESS.sub("", str(value))
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def environment_configuration() -> dict[str, str]:
    """The content of STATAGENT_CONFIG, a JSON object or @FILE with one, flattened. Raises InvalidArgumentError."""
    text = os.environ.get("STATAGENT_CONFIG", "")
    if not text:
        return {}
    source = "STATAGENT_CONFIG"
    try:
        if text.startswith("@"):
            source = f"STATAGENT_CONFIG={text}"
            text = Path(text[1:]).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"read {source}: {error}; expected a JSON object, or @FILE with one") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f'read {source}: found a JSON {type(found).__name__}; expected an object, as {{"lr": 0.1}}')
    return flatten_configuration(found)
