"""The user's layouts, by pattern."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..errors import InvalidArgumentError
from .samples import Batch
from .user import Replicated, Sharded


class Rules:
    """The first pattern that matches a name wins: one of `shard` and `replicate`, and one of `batch`."""

    def __init__(self, layouts: Mapping[str, Any] | None) -> None:
        if layouts is not None and not isinstance(layouts, Mapping):
            raise InvalidArgumentError(
                f"watch: layouts is a {type(layouts).__name__}; expected {{'*.qkv': statagent.shard(-1, group)}}"
            )
        self._rules = list((layouts or {}).items())
        for pattern, layout in self._rules:
            if not isinstance(pattern, str) or not isinstance(layout, (Sharded, Replicated, Batch)):
                raise InvalidArgumentError(
                    f"watch: layouts holds {pattern!r}: {layout!r}; expected a pattern of names and statagent.shard, statagent.replicate or "
                    "statagent.batch"
                )

    def find(self, name: str) -> Sharded | Replicated | None:
        """How the tensor is split, apart from the batch."""
        return next((each for pattern, each in self._rules if not isinstance(each, Batch) and fnmatchcase(name, pattern)), None)

    def batch(self, name: str) -> Batch | None:
        """Which samples are here."""
        return next((each for pattern, each in self._rules if isinstance(each, Batch) and fnmatchcase(name, pattern)), None)

    def by_micro_batch(self) -> bool:
        """Whether micro-batches hold different samples of one batch."""
        return any(isinstance(each, Batch) and each.micro_batches > 1 for _, each in self._rules)

    def unused(self, names: list[str]) -> list[str]:
        """Patterns that match none of the names; not those of `batch`, which may be of inputs, whose names are not known yet."""
        patterns = [pattern for pattern, each in self._rules if not isinstance(each, Batch)]
        return [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
