"""The arguments of a framework's trainer as settings `trainer.*`: numbers, switches and choices. Left out are texts that name something,
such as folders, runs and models, because they differ between equal runs; and secrets."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any

from .._runtime.agent import Agent
from .._runtime.failures import redact
from .checklist import send
from .environment import text

ENTRIES_MAX = 400
_DEPTH_MAX = 4
_ITEMS_MAX = 16  # of a list of numbers or choices
_CHOICE = re.compile(r"[A-Za-z0-9_+-]{1,32}")  # no path, address or sentence
# Words of a key whose text, if it has one, names something.
_NAMING = frozenset((
    "checkpoint", "dir", "directory", "entity", "file", "folder", "host", "hub", "id", "model", "name", "names", "organization", "path",
    "project", "prefix", "repo", "revision", "suffix", "tag", "tags", "to", "url", "user",
))  # fmt: skip
# What differs between the ranks or launches of one training.
_OF_LAUNCH = frozenset((
    "local_rank", "process_index", "local_process_index", "node_rank", "machine_rank", "resume_from_checkpoint",
))  # fmt: skip


def trainer_settings(arguments: Any) -> dict[str, str]:
    """{"trainer.learning_rate": "5e-05"} for an object with `to_dict()`, a dataclass or a mapping; at most ENTRIES_MAX entries. Raises what the
    object's own code raises."""
    found: dict[str, str] = {}
    _collect("trainer", _content(arguments), 0, found)
    return found


def send_trainer(agent: Agent, arguments: Any) -> None:
    """Sends these settings, except those that the user has set. Never raises."""
    try:
        found = trainer_settings(arguments)
    except Exception as error:
        found = {"checklist.trainer": f"unknown: {type(error).__name__}"}
    send(agent, found)


def _content(value: Any) -> Mapping[Any, Any]:
    """The entries of an object with some; else none."""
    if isinstance(value, Mapping):
        return value
    if callable(getattr(value, "to_dict", None)):
        content = value.to_dict()
        return content if isinstance(content, Mapping) else {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return {}


def _collect(prefix: str, content: Mapping[Any, Any], depth: int, found: dict[str, str]) -> None:
    for name, value in content.items():
        if len(found) >= ENTRIES_MAX:
            return
        if not isinstance(name, str) or name.startswith("_"):
            continue
        key = f"{prefix}.{name}"
        shown = _setting(name, value)
        if shown is not None:
            if redact(key, shown) == shown:
                found[key] = shown
        elif depth < _DEPTH_MAX:
            _collect(key, _content(value), depth + 1, found)


def _setting(name: str, value: Any) -> str | None:
    """A number, a switch, a choice, or a short list of these, as text; None for anything else."""
    if isinstance(value, enum.Enum):
        value = value.value
    if name in _OF_LAUNCH or name.endswith("port"):
        return None
    if isinstance(value, str) or value is None:
        named = not _NAMING.isdisjoint(name.lower().split("_"))
        return text(value) if not named and (value is None or _CHOICE.fullmatch(value)) else None
    if isinstance(value, (bool, int, float)):
        return text(value)
    if isinstance(value, (list, tuple)) and 0 < len(value) <= _ITEMS_MAX:
        items = [_setting(name, item) for item in value]
        return f"({', '.join(item for item in items if item is not None)})" if None not in items else None
    return None
