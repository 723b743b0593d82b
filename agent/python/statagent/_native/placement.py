"""The place of a shard in a logical tensor, as the C structure statagent_placement."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Sequence
from typing import Any

from .._layouts import placement as placements
from ..errors import InvalidArgumentError
from .library import Placement, Tensor

Box = tuple[Sequence[int], Sequence[int]]  # offset, size
_EXAMPLE = "such as compute(t[:, 5:9], global_shape=t.shape, offset=(0, 5))"


def _make(placement: placements.Placement) -> Placement:
    shape, dims = placement.global_shape, len(placement.global_shape)
    boxes = [number for box in placement.boxes for side in box for number in side]
    ranges = [number for span in placement.ranges for number in span]
    if len(boxes) != 2 * dims * len(placement.boxes) or len(ranges) != 2 * len(placement.ranges):
        raise InvalidArgumentError(
            f"place a shard in the tensor of global shape {shape}: found a box or a range of another number of dimensions; expected "
            f"an offset and a size of {dims} numbers for each box, a start and a stop for each range"
        )
    numbers = (ctypes.c_int64 * (dims + len(boxes) + len(ranges) + 1))(*shape, *boxes, *ranges)
    at = ctypes.addressof(numbers)
    made = Placement(
        ndim=dims, global_shape=at, boxes=at + 8 * dims, ranges=at + 8 * (dims + len(boxes)),
        box_count=len(placement.boxes) if dims else 0, range_count=len(placement.ranges),
        partial=int(placement.partial), piece=placement.piece, pieces=placement.pieces,
        unordered=0 if placement.unordered is None else placement.unordered + 1,
    )  # fmt: skip
    made.numbers = numbers
    return made


_made = functools.lru_cache(maxsize=4096)(_make)


def put(structure: Tensor, placement: placements.Placement | None, again: bool = True) -> None:
    """The tensor of this structure lies there; None: not known. `again`: an equal placement is likely to come again. Raises
    InvalidArgumentError for a placement that has no C structure; whether it fits the tensor is checked by the library."""
    structure.placed = None if placement is None else (_made if again else _make)(placement)  # kept alive with the structure
    structure.placement = None if placement is None else ctypes.addressof(structure.placed)


def placement_of(
    attempted: str, tensor: Any, global_shape: Any, offset: Any, boxes: Any, flat: Any, partial: bool = False
) -> placements.Placement | None:
    """The placement that these arguments of `compute` and `observe` describe; None: they describe none. Raises InvalidArgumentError, which
    says what was `attempted`."""
    try:
        return _placement_of(tensor, global_shape, offset, boxes, flat, bool(partial))
    except _UnusableError as unusable:
        raise InvalidArgumentError(f"{attempted}: found {unusable.args[0]}; expected {unusable.args[1]}") from None


def _placement_of(
    tensor: Any, global_shape: Any, offset: Any, boxes: Any, flat: Any, partial: bool
) -> placements.Placement | None:
    given = [name for name, value in (("offset", offset), ("boxes", boxes), ("flat", flat)) if value is not None]
    if global_shape is None and given:
        raise _UnusableError(f"{given[0]} without global_shape", f"the shape of the logical tensor as well, {_EXAMPLE}")
    if global_shape is None:
        return placements.Placement(tuple(getattr(tensor, "shape", ())), partial=True) if partial else None
    if len(given) > 1:
        raise _UnusableError(" and ".join(given), "one of offset, boxes and flat")
    shape = _numbers("global_shape", global_shape)
    if flat is not None:
        ranges = [_pair("a range of flat", span) for span in _several("flat", flat, "[(0, 0)]")]
        return placements.Placement(shape, ranges=tuple(ranges), partial=partial)
    if boxes is not None:
        found = [_box(box, len(shape)) for box in _several("boxes", boxes, "a box of size 0")]
        return placements.Placement(shape, boxes=tuple(found), partial=partial)
    size = tuple(int(n) for n in getattr(tensor, "shape", ()))
    at = (0,) * len(shape) if offset is None else _numbers("offset", offset, len(shape))
    if len(size) != len(shape):
        raise _UnusableError(
            f"a tensor of {len(size)} dimensions, global_shape {shape}", "as many dimensions; use flat for a flattened shard"
        )
    if offset is None and size != shape:
        raise _UnusableError(f"a tensor of shape {size}, global_shape {shape} and no place", f"offset, boxes or flat, {_EXAMPLE}")
    return placements.Placement(shape, boxes=((at, size),), partial=partial)


class _UnusableError(Exception):
    """What was found, what was expected."""


def _box(box: Any, dims: int) -> placements.Box:
    if not isinstance(box, (tuple, list)) or len(box) != 2:
        raise _UnusableError(f"a box is {box!r}", "(offset, size)")
    return _numbers("an offset", box[0], dims), _numbers("a size", box[1], dims)


def _pair(name: str, span: Any) -> tuple[int, int]:
    start, stop = _numbers(name, span, 2)
    return start, stop


def _several(name: str, values: Any, none: str) -> list[Any]:
    if not isinstance(values, (tuple, list)) or not values:
        raise _UnusableError(f"{name}={values!r}", f"a list of at least one; for an empty shard {none}")
    return list(values)


def _numbers(name: str, values: Any, count: int | None = None) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(value) for value in values)
    except TypeError:
        raise _UnusableError(f"{name}={values!r}", "whole numbers") from None
    if count is not None and len(numbers) != count:
        raise _UnusableError(f"{name} of {len(numbers)} numbers, {numbers}", f"{count}")
    if any(not -(2**63) <= number < 2**63 for number in numbers):
        raise _UnusableError(f"{name}={values!r}", "numbers of 64 bits")
    return numbers
