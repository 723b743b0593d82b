"""The user's layouts, by pattern."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..errors import InvalidArgumentError
from .rows import Rows
from .samples import Batch
from .sequences import Sequence
from .user import Replicated, Sharded

_OF_INPUTS = (Batch, Sequence)  # also of the model's inputs


class Rules:
    """The first pattern that matches a name wins: one of `shard` and `replicate`, one of `rows`, of `batch`, and of `sequence`."""

    def __init__(self, layouts: Mapping[str, Any] | None) -> None:
        if layouts is not None and not isinstance(layouts, Mapping):
            raise InvalidArgumentError(
                f"watch: layouts is a {type(layouts).__name__}; expected {{'*.qkv': statagent.shard(-1, group)}}"
            )
        self._rules = [
            (pattern, each)
            for pattern, value in (layouts or {}).items()
            for each in (value if isinstance(value, (tuple, list)) else (value,))
        ]
        for pattern, layout in self._rules:
            if not isinstance(pattern, str) or not isinstance(layout, (Sharded, Replicated, Rows, *_OF_INPUTS)):
                raise InvalidArgumentError(
                    f"watch: layouts holds {pattern!r}: {layout!r}; expected a pattern of names and statagent.shard, statagent.replicate, "
                    "statagent.rows, statagent.batch or statagent.sequence"
                )

    def find(self, name: str) -> Sharded | Replicated | None:
        """How the tensor is split, apart from the batch."""
        return self._first(name, (Sharded, Replicated))

    def rows(self, name: str) -> Rows | None:
        """Whether the order of its rows means nothing."""
        return self._first(name, (Rows,))

    def batch(self, name: str) -> Batch | None:
        """Which samples are here."""
        return self._first(name, (Batch,))

    def sequence(self, name: str) -> Sequence | None:
        """Which tokens of them are here."""
        return self._first(name, (Sequence,))

    def _first(self, name: str, classes: tuple[type, ...]) -> Any:
        return next((each for pattern, each in self._rules if isinstance(each, classes) and fnmatchcase(name, pattern)), None)

    def by_micro_batch(self) -> bool:
        """Whether each micro-batch has places of its own: other samples of one batch, or sequences of other lengths."""
        layouts = [each for _, each in self._rules]
        return any(isinstance(each, Batch) and each.micro_batches > 1 for each in layouts) or any(
            isinstance(each, Sequence) and each.lengths is not None for each in layouts
        )

    def unused(self, names: list[str]) -> list[str]:
        """Patterns that match none of the names; not those of `batch` and `sequence`, which may be of inputs, whose names are not known yet."""
        patterns = [pattern for pattern, each in self._rules if not isinstance(each, _OF_INPUTS)]
        return [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
