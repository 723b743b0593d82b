"""The place of a rank's part of each sequence: `watch(layouts={"*": sequence(group=context_parallel)})`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from .cuts import RANGES_MAX, Span, cut_again, equal_part, joined, zigzag_part
from .placement import Placement
from .user import position

PARTS = {"blocks": equal_part, "zigzag": zigzag_part}


@dataclass(frozen=True)
class Sequence:
    """The dimension of the tokens, of which each rank of a group has some. Made by `sequence`."""

    dim: int
    order: str
    ranks: tuple[int, int]  # this rank's number, and how many there are
    lengths: Callable[[], Iterable[Any]] | None = None  # of packed sequences, whole
    gradients: bool = False  # of activations, too

    def count(self, shape: tuple[int, ...]) -> int | None:
        """The number of tokens along that dimension of a tensor of this shape. None: it does not have the dimension."""
        return shape[self.dim] if -len(shape) <= self.dim < len(shape) else None

    def here(self, tokens: int) -> tuple[int, tuple[Span, ...]]:
        """The number of tokens of all ranks, and those of this rank, which has so many. Raises InvalidArgumentError."""
        if self.lengths is None:
            if self.order == "zigzag" and tokens % 2:
                raise InvalidArgumentError(
                    f"place {tokens} tokens by sequence(order='zigzag'): found an odd number; expected two chunks of equal length on each rank"
                )
            return PARTS[self.order](tokens, *self.ranks)
        lengths = [int(length) for length in self.lengths()]
        rank, size = self.ranks
        each = size * (2 if self.order == "zigzag" else 1)
        uneven = [length for length in lengths if length < 0 or length % each]
        if uneven or sum(lengths) != tokens * size:
            raise InvalidArgumentError(
                f"place {tokens} tokens by sequence(lengths=...) over {size} ranks: found {len(lengths)} sequences with {sum(lengths)} tokens"
                + (f", one of {uneven[0]}" if uneven else "")
                + f"; expected multiples of {each} (with padding), {tokens * size} in all"
            )
        spans: list[Span] = []
        start = 0
        for length in lengths:
            _, part = PARTS[self.order](length // size, rank, size)
            spans += [(start + first, start + last) for first, last in part if first < last]
            start += length
        return start, joined(spans)

    def place(self, placed: Placement, whole: tuple[int, tuple[Span, ...]], tokens: int) -> Placement | None:
        """The place of an activation in the whole sequences, if `placed` is its place in this rank's part of them. `whole`: what `here` said
        of this rank's tokens. None: not known, because this dimension does not have them."""
        length, spans = whole
        if placed.ranges or placed.pieces > 1 or self.count(placed.global_shape) != tokens or len(spans) > RANGES_MAX:
            return None
        return cut_again(placed, self.dim % len(placed.global_shape), length, spans)


def sequence(
    dim: int = 1,
    order: str = "blocks",
    group: Any = None,
    lengths: Callable[[], Iterable[Any]] | None = None,
    gradients: bool = False,
) -> Sequence:
    """A layout for `watch(layouts=...)`: context parallelism, in which each rank has some tokens of every sequence.

    dim: the dimension of activations with one entry for each token.
    order: "blocks": rank r of W has the r-th of W parts; "zigzag": of 2 * W chunks the r-th from the front and the r-th from the back,
    as ring attention deals them out.
    group: the ranks that share sequences: a ProcessGroup, a one-dimensional DeviceMesh, or (rank, size). Default: all.
    lengths: for sequences that are packed into one dimension and dealt out one by one: a function that returns the lengths of those in the
    coming pass, over all ranks and with padding. It is called for each pass, before the model; on a GPU's tensor it would wait.
    gradients: each rank's loss is its share of the whole one (its sum, divided by the tokens of all ranks), so that gradients of activations
    are those of one rank and are compared, too. With a mean over each rank's own tokens they would differ by a factor.

    Applies to the model's inputs and to activations that match the pattern, together with `batch`, and with `shard` or `replicate` of
    another pattern, if the dimension is as long as in the model's first input. Inside attention that has whole sequences and some heads
    (Ulysses), use `shard`. Parameters and their gradients are not affected. Raises InvalidArgumentError."""
    try:
        at = operator.index(dim)
    except TypeError:
        raise InvalidArgumentError(f"sequence: dim is {dim!r}; expected a whole number") from None
    if order not in PARTS:
        raise InvalidArgumentError(f"sequence: order is {order!r}; expected one of {', '.join(PARTS)}")
    if lengths is not None and not callable(lengths):
        raise InvalidArgumentError(f"sequence: lengths is {lengths!r}; expected a function that returns them for each pass")
    return Sequence(at, order, position("sequence", group), lengths, bool(gradients))
