"""Where the parts of a tensor lie in the logical tensor that several ranks hold together, for the noise of a twin."""

from __future__ import annotations

import functools
import math

from .._layouts.placement import Box, Placement
from .._native.noise import Part, row_major


@functools.lru_cache(maxsize=4096)
def parts_of(placement: Placement | None, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """The parts of a tensor of this shape. (): it is the whole, or its place is not known."""
    if placement is None:
        return ()
    if placement.ranges:
        return _of_ranges(placement.ranges, shape)
    boxes, strides = placement.boxes, row_major(placement.global_shape)
    if not boxes or any(len(size) != len(shape) for _, size in boxes):
        return ()
    firsts = [sum(at * stride for at, stride in zip(offset, strides)) for offset, _ in boxes]
    if len(boxes) == 1:
        known = boxes[0][1] == shape and (firsts[0] or placement.global_shape != shape)
        return (Part(strides, firsts[0]),) if known else ()
    dim = _dim_of(boxes)
    if sum(size[dim] for _, size in boxes) != shape[dim]:
        return ()
    found, at = [], 0
    for (_, size), first in zip(boxes, firsts):
        found.append(Part(strides, first, dim, at, size[dim]))
        at += size[dim]
    return tuple(found)


def _of_ranges(ranges: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> tuple[Part, ...]:
    if len(shape) != 1 or sum(stop - start for start, stop in ranges) != math.prod(shape):
        return ()
    found, at = [], 0
    for start, stop in ranges:
        found.append(Part((1,), start, 0, at, stop - start))
        at += stop - start
    return tuple(found)


def _dim_of(boxes: tuple[Box, ...]) -> int:
    """The dimension along which the boxes follow each other in the tensor."""
    (offset, size), (other, other_size) = boxes[0], boxes[1]
    return next((d for d in range(len(size)) if offset[d] != other[d] or size[d] != other_size[d]), 0)
