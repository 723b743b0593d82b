"""The place of a rank's tensor in a logical tensor."""

from __future__ import annotations

from dataclasses import dataclass

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset, size


@dataclass(frozen=True)
class Placement:
    """Mirrors Placement in proto/statcollect/v1/stats.proto, which has the rules. Make it once for a tensor, not in every step: what the
    library needs of it is kept with the object."""

    global_shape: tuple[int, ...]
    boxes: tuple[Box, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    partial: bool = False
    piece: int = 0
    pieces: int = 1
    unordered: int | None = None  # the dimension whose entries are a set, such as the rows of an expert's tokens


def whole(shape: tuple[int, ...]) -> Placement:
    """The rank holds the whole tensor; ranks that hold the same are replicas."""
    return Placement(shape, boxes=(((0,) * len(shape), shape),))
