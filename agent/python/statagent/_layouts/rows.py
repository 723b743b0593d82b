"""Rows in any order, such as the tokens of an expert: `watch(layouts={"*.experts.*": rows()})`."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InvalidArgumentError
from .placement import Placement
from .user import position


@dataclass(frozen=True)
class Rows:
    """The dimension whose entries are a set, of which each rank has a part. Made by `rows`."""

    dim: int = 0
    ranks: tuple[int, int] | None = None  # this rank's number, and how many there are

    def place(self, placed: Placement, ranks: tuple[int, int]) -> Placement | None:
        """The place of a tensor that, but for this dimension, lies at `placed`. None: it does not have that dimension, or is cut along it."""
        shape = placed.global_shape
        if not -len(shape) <= self.dim < len(shape) or placed.ranges or placed.pieces > 1:
            return None
        d = self.dim % len(shape)
        if any((offset[d], size[d]) != (0, shape[d]) for offset, size in placed.boxes):
            return None

        def along(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
            return (*numbers[:d], number, *numbers[d + 1 :])

        boxes = tuple((along(offset, 0), along(size, 1)) for offset, size in placed.boxes)
        return replace(placed, global_shape=along(shape, 1), boxes=boxes, piece=ranks[0], pieces=ranks[1], unordered=d)


def rows(dim: int = 0, group: Any = None) -> Rows:
    """A layout for `watch(layouts=...)`: along `dim`, the module's inputs and outputs have entries in an order that means nothing, such as the
    tokens that were sent to an expert. The entries of all ranks and calls form one set, which `diff` compares with that of a run on another
    number of ranks. Experts that are a list of modules beside their router need no layout.

    group: ranks with different entries, as in `shard`; the others have the same ones. Default: the data-parallel ranks of the model's
    wrapper, otherwise all.

    Applies together with `shard` or `replicate` of another pattern; not to parameters. Raises InvalidArgumentError."""
    try:
        at = operator.index(dim)
    except TypeError:
        raise InvalidArgumentError(f"rows: dim is {dim!r}; expected a whole number") from None
    return Rows(at, None if group is None else position("rows", group))
