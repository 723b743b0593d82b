"""The place of a shard in a logical tensor, as the C structure statagent_placement."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._layouts import placement as placements
from ..errors import InvalidArgumentError
from .library import Placement, Tensor

Box = tuple[Sequence[int], Sequence[int]]  # offset, size
_EXAMPLE = "such as compute(t[:, 5:9], global_shape=t.shape, offset=(0, 5))"


@functools.lru_cache(maxsize=65536)
def _made(placement: placements.Placement) -> Placement:
    shape, dims = placement.global_shape, len(placement.global_shape)
    boxes = [number for box in placement.boxes for side in box for number in side] if dims else []
    ranges = [number for span in placement.ranges for number in span]
    numbers = (ctypes.c_int64 * (dims + len(boxes) + len(ranges) + 1))(*shape, *boxes, *ranges)
    at = ctypes.addressof(numbers)
    made = Placement(
        ndim=dims, global_shape=at, boxes=at + 8 * dims, ranges=at + 8 * (dims + len(boxes)),
        box_count=len(boxes) // (2 * dims) if dims else 0, range_count=len(ranges) // 2,
        partial=int(placement.partial), piece=placement.piece, pieces=placement.pieces,
    )  # fmt: skip
    made.numbers = numbers
    _kept.append(made)
    return made


_kept: list[Placement] = []  # structures of tensors point to them for as long as the process lives


def structure_of(placement: placements.Placement) -> int:
    """The address of its C structure statagent_placement, valid from now on. Made once for equal placements."""
    return ctypes.addressof(_made(placement))


class Place:
    """What `compute` adds to its result, and to the C structure of the tensor."""

    def __init__(self, keys: dict[str, Any], global_shape: list[int] | None = None) -> None:
        self.keys = keys
        self._placement: Placement | None = None
        if global_shape is None:
            return
        boxes = [number for box in keys.get("boxes", []) if global_shape for side in box for number in side]
        ranges = [number for span in keys.get("flat", []) for number in span]
        dims = len(global_shape)
        self._numbers = (ctypes.c_int64 * (dims + len(boxes) + len(ranges) + 1))(*global_shape, *boxes, *ranges)
        at = ctypes.addressof(self._numbers)
        self._placement = Placement(
            ndim=dims, global_shape=at, boxes=at + 8 * dims, ranges=at + 8 * (dims + len(boxes)),
            box_count=len(boxes) // (2 * dims) if dims else 0, range_count=len(ranges) // 2,
        )  # fmt: skip

    @contextmanager
    def of(self, structure: Tensor) -> Iterator[None]:
        """The tensor's structure has this placement meanwhile."""
        if self._placement is not None:
            structure.placement = ctypes.addressof(self._placement)
        try:
            yield
        finally:
            structure.placement = None


def placed(tensor: Any, global_shape: Any, offset: Any, boxes: Any, flat: Any) -> Place:
    """The place that these arguments of `compute` describe. Raises InvalidArgumentError; that it fits the tensor is checked by the
    library."""
    given = [name for name, value in (("offset", offset), ("boxes", boxes), ("flat", flat)) if value is not None]
    if global_shape is None:
        if given:
            raise _refuse(f"{given[0]} without global_shape", f"the shape of the logical tensor as well, {_EXAMPLE}")
        return Place({})
    if len(given) > 1:
        raise _refuse(" and ".join(given), "one of offset, boxes and flat")
    shape = _numbers("global_shape", global_shape)
    keys: dict[str, Any] = {"global_shape": shape}
    if flat is not None:
        keys["flat"] = [tuple(_numbers("a range of flat", span, 2)) for span in _several("flat", flat, "[(0, 0)]")]
    elif boxes is not None:
        found = []
        for box in _several("boxes", boxes, "a box of size 0"):
            if not isinstance(box, (tuple, list)) or len(box) != 2:
                raise _refuse(f"a box is {box!r}", "(offset, size)")
            found.append(tuple(tuple(_numbers(what, side, len(shape))) for what, side in zip(("an offset", "a size"), box)))
        keys["boxes"] = found
    else:
        size = list(getattr(tensor, "shape", ()))
        at = [0] * len(shape) if offset is None else _numbers("offset", offset, len(shape))
        if len(size) != len(shape):
            raise _refuse(
                f"a tensor of {len(size)} dimensions, global_shape {tuple(shape)}",
                "as many dimensions; use flat for a flattened shard",
            )
        if offset is None and [int(n) for n in size] != shape:
            raise _refuse(
                f"a tensor of shape {tuple(size)}, global_shape {tuple(shape)} and no place", f"offset, boxes or flat, {_EXAMPLE}"
            )
        keys["boxes"] = [(tuple(at), tuple(int(n) for n in size))]
    return Place(keys, shape)


def _refuse(found: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"compute statistics of a shard: found {found}; expected {expected}")


def _several(name: str, values: Any, none: str) -> list[Any]:
    if not isinstance(values, (tuple, list)) or not values:
        raise _refuse(f"{name}={values!r}", f"a list of at least one; for an empty shard {none}")
    return list(values)


def _numbers(name: str, values: Any, count: int | None = None) -> list[int]:
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError:
        raise _refuse(f"{name}={values!r}", "whole numbers") from None
    if count is not None and len(numbers) != count:
        raise _refuse(f"{name} of {len(numbers)} numbers, {tuple(numbers)}", f"{count}")
    if any(not -(2**63) <= number < 2**63 for number in numbers):
        raise _refuse(f"{name}={values!r}", "numbers of 64 bits")
    return numbers
