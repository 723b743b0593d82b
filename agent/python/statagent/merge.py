"""Statistics of a logical tensor from those of its shards."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .errors import InvalidArgumentError

_COUNTS = ("nan", "pos_inf", "neg_inf", "zero", "neg", "pos")
_MOMENTS = ("min", "max", "mean", "std", "l1", "l2")
_RUNS_MAX = 1_000_000

Box = tuple[Sequence[int], Sequence[int]]  # offset, size


def merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Statistics of a logical tensor from those of its shards.

    parts: dictionaries of `compute(shard, global_shape=..., offset=... | boxes=... | flat=...)`, or of an earlier `merge`, in any order. A
    dictionary without a place is the whole tensor.

    Returns a dictionary like that of `compute` for the logical tensor: numel, counts, hash, min and max are exactly those of the elements
    that the parts hold; mean, std, l1, l2 and sketch are so to rounding; samples are dropped. "complete" tells whether the parts tile the
    whole tensor. "global_shape" and "boxes" or "flat" say what they hold.

    Parts that were computed with partial=True are sums still to be reduced, and may lie in the same place. Only their sketches add up, and
    only if all elements are finite: everything else in the result is None.

    Raises InvalidArgumentError (a ValueError) for parts that overlap, or that differ in global shape, dtype or width of the sketch.
    """
    parts = list(parts)
    _check_alike(parts)
    first = parts[0]
    shape = _global_shape(first)
    partial = bool(first.get("partial"))
    places = _distinct_places(parts) if partial else [_place(part) for part in parts]
    held, kind, pieces = _tile(shape, places)
    result: dict[str, Any] = {"numel": held, "shape": list(shape), "dtype": first["dtype"]}
    if partial:
        result.update(dict.fromkeys((*_COUNTS, *_MOMENTS, "hash")))
        finite = all(not part[name] for part in parts for name in ("nan", "pos_inf", "neg_inf"))
        result["sketch"] = _sketch(parts) if finite and all(part["sketch"] is not None for part in parts) else None
        result["partial"] = True
    else:
        result.update((name, sum(part[name] for part in parts)) for name in _COUNTS)
        result.update(_moments([part for part in parts if part["mean"] is not None]))
        result["hash"] = sum(part["hash"] for part in parts) % 2**64
        result["sketch"] = _sketch(parts)
    result["samples"] = []
    if not partial and all("exponents" in part for part in parts):
        result["exponents"] = _exponents(parts)
    result["global_shape"] = list(shape)
    result[kind] = pieces
    result["complete"] = held == math.prod(shape)
    return result


# --- what the parts are


def _refuse(found: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"merge statistics of shards: {found}; expected {expected}")


def _check_alike(parts: list[Any]) -> None:
    if not parts:
        raise _refuse("there are no parts", "at least one dictionary of compute(shard, global_shape=...)")
    needed = {"numel", "shape", "dtype", "hash", "sketch", *_COUNTS, *_MOMENTS}
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or not needed <= part.keys():
            raise _refuse(f"part {number} is {type(part).__name__} without all statistics", "dictionaries of compute or merge")
    first = parts[0]
    for number, part in enumerate(parts):
        for what, mine, its in (
            ("global shape", _global_shape(first), _global_shape(part)),
            ("dtype", first["dtype"], part["dtype"]),
            ("partial", bool(first.get("partial")), bool(part.get("partial"))),
        ):
            if mine != its:
                raise _refuse(f"{what} of part {number} is {its}, of part 0 {mine}", "shards of one tensor")
        widths = {len(p["sketch"]) for p in (first, part) if p["sketch"] is not None}
        if len(widths) > 1:
            raise _refuse(
                f"part {number} has a sketch of {len(part['sketch'])} sums, part 0 of {len(first['sketch'])}",
                "the same `sketch` for all",
            )


def _global_shape(part: dict[str, Any]) -> tuple[int, ...]:
    return tuple(part.get("global_shape", part["shape"]))


# ("boxes", boxes) or ("flat", ranges), which may be hashed.
_Place = tuple[str, tuple[Any, ...]]


def _place(part: dict[str, Any]) -> _Place:
    if "flat" in part:
        return "flat", tuple((start, stop) for start, stop in part["flat"])
    shape = _global_shape(part)
    boxes = part.get("boxes", [((0,) * len(shape), shape)])
    return "boxes", tuple((tuple(offset), tuple(size)) for offset, size in boxes)


def _distinct_places(parts: list[dict[str, Any]]) -> list[_Place]:
    return list(dict.fromkeys(_place(part) for part in parts))


# --- how they tile the tensor


def _tile(shape: tuple[int, ...], places: list[_Place]) -> tuple[int, str, list[Any]]:
    """Elements that the places hold together, and the places: "boxes" or "flat", and those. Raises for an overlap."""
    if all(kind == "boxes" for kind, _ in places):
        boxes = [box for _, pieces in places for box in pieces]
        _check_boxes(shape, [box for box in boxes if math.prod(box[1])])
        return sum(math.prod(size) for _, size in boxes), "boxes", boxes
    ranges = sorted(
        span for kind, pieces in places for span in (_runs(shape, pieces) if kind == "boxes" else pieces) if span[0] < span[1]
    )
    for before, after in zip(ranges, ranges[1:]):
        if after[0] < before[1]:
            raise _refuse(f"elements {after[0]} to {min(before[1], after[1])} are in two parts", "shards that do not overlap")
    return sum(stop - start for start, stop in ranges), "flat", ranges


def _check_boxes(shape: tuple[int, ...], boxes: list[Box]) -> None:
    if len(boxes) < 2:
        return
    if not shape:
        raise _refuse("two parts hold the one element of a 0-dimensional tensor", "shards that do not overlap")
    # A sweep along the dimension that tells most boxes apart.
    along = max(range(len(shape)), key=lambda d: len({offset[d] for offset, _ in boxes}))
    active: list[Box] = []
    for box in sorted(boxes, key=lambda b: b[0][along]):
        active = [other for other in active if other[0][along] + other[1][along] > box[0][along]]
        for other in active:
            if all(
                begin < its_begin + its_size and its_begin < begin + size
                for begin, size, its_begin, its_size in zip(box[0], box[1], other[0], other[1])
            ):
                raise _refuse(
                    f"the boxes at {tuple(other[0])} of size {tuple(other[1])} and at {tuple(box[0])} of size {tuple(box[1])} overlap",
                    "shards that do not overlap (of replicas, one)",
                )
        active.append(box)


def _runs(shape: tuple[int, ...], boxes: Sequence[Box]) -> Iterator[tuple[int, int]]:
    """Ranges of the flattened tensor that the boxes hold."""
    for offset, size in boxes:
        if not math.prod(size):
            continue
        last = len(shape)
        inner = 1
        while last > 0 and size[last - 1] == shape[last - 1]:
            last -= 1
            inner *= shape[last]
        rows = math.prod(size[: max(0, last - 1)])
        if rows > _RUNS_MAX:
            raise _refuse(f"a box of {rows:,} rows beside ranges of the flattened tensor", "all parts as boxes, or all as `flat`")
        for row in range(rows):
            start, stride, rest = 0, inner, row
            for d in range(last - 1, -1, -1):
                index = offset[d]
                if d < last - 1:
                    rest, within = divmod(rest, size[d])
                    index += within
                start += index * stride
                stride *= shape[d]
            yield start, start + (size[last - 1] if last else 1) * inner


# --- what adds up


def _add(values: Iterable[float]) -> float:
    values = list(values)
    try:
        return math.fsum(values)
    except OverflowError:  # on the way, or in the end
        return sum(values)


def _sketch(parts: list[dict[str, Any]]) -> list[float]:
    largest = sys.float_info.max
    return [max(-largest, min(largest, _add(sums))) for sums in zip(*(part["sketch"] for part in parts))]


def _moments(parts: list[dict[str, Any]]) -> dict[str, float | None]:
    """Of parts that have finite elements."""
    if not parts:
        return dict.fromkeys(_MOMENTS)
    counts = [part["zero"] + part["neg"] + part["pos"] for part in parts]
    count = sum(counts)
    low, high = min(part["min"] for part in parts), max(part["max"] for part in parts)
    mean = math.fsum(part["mean"] * (n / count) for part, n in zip(parts, counts))
    mean = min(max(mean, low), high)
    # In units of a power of two near the largest number, so that no square overflows.
    unit = 2.0 ** (math.frexp(max(abs(low), abs(high)))[1] - 1) or 1.0
    deviations = math.fsum(
        n * ((part["std"] / unit) ** 2 + (part["mean"] / unit - mean / unit) ** 2) for part, n in zip(parts, counts)
    )
    return {
        "min": low,
        "max": high,
        "mean": mean,
        "std": math.sqrt(deviations / count) * unit,
        "l1": _add(part["l1"] for part in parts),
        "l2": math.hypot(*(part["l2"] for part in parts)),
    }


def _exponents(parts: list[dict[str, Any]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for part in parts:
        for exponent, n in part["exponents"].items():
            total[exponent] = total.get(exponent, 0) + n
    return dict(sorted(total.items()))
