"""Placements of tensors that are cut along their dimensions, and of ranges of the flattened tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from .placement import Box, Placement

Span = tuple[int, int]  # start, stop
RANGES_MAX = 4096  # of one shard, before a layout counts as not known


def equal_part(length: int, part: int, parts: int, blocks: int = 1) -> tuple[int, tuple[Span, ...]]:
    """The whole's length, and what the part-th of `parts` equal parts holds if a part has this length. `blocks`: the whole consists of that
    many blocks, each of which is cut (the gate and the input of a gated layer)."""
    each = length // blocks
    return length * parts, tuple(((k * parts + part) * each, (k * parts + part + 1) * each) for k in range(blocks))


def zigzag_part(length: int, part: int, parts: int) -> tuple[int, tuple[Span, ...]]:
    """As equal_part, for context parallelism: the whole has 2 * parts chunks, and each rank the part-th from the front and from the back."""
    each, last = length // 2, 2 * parts - 1 - part
    return length * parts, joined([(part * each, (part + 1) * each), (last * each, (last + 1) * each)])


def within(spans: tuple[Span, ...], start: int, stop: int) -> tuple[Span, ...]:
    """Elements start to stop of those that the spans hold."""
    found, before = [], 0
    for first, last in spans:
        begin, end = max(start - before, 0), min(stop - before, last - first)
        if begin < end:
            found.append((first + begin, first + end))
        before += last - first
    return joined(found)


def joined(spans: list[Span]) -> tuple[Span, ...]:
    """Spans that follow each other without a gap, as one."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1][1] == span[0]:
            found[-1] = (found[-1][0], span[1])
        else:
            found.append(span)
    return tuple(found)


def cut_along(shape: tuple[int, ...], cuts: Mapping[int, tuple[int, tuple[Span, ...]]]) -> Placement | None:
    """The placement of a tensor of this shape. `cuts`: by dimension, the whole's length and the part that is here. None: boxes would differ in two dimensions,
    or the tensor does not have what the spans hold."""
    spans = [cuts[d][1] if d in cuts else ((0, n),) for d, n in enumerate(shape)]
    if any(sum(stop - start for start, stop in here) != n for here, n in zip(spans, shape)):
        return None
    if sum(len(here) > 1 for here in spans) > 1:
        return None
    whole = tuple(cuts[d][0] if d in cuts else n for d, n in enumerate(shape))
    boxes: list[Box] = [
        (tuple(start for start, _ in box), tuple(stop - start for start, stop in box))
        for box in itertools.product(*(here or ((0, 0),) for here in spans))
    ]
    return Placement(whole, boxes=tuple(boxes))


def cut_again(placed: Placement, dim: int, length: int, spans: tuple[Span, ...]) -> Placement | None:
    """The place in the whole of a tensor whose place in this rank's part of it is `placed`. Of the whole's `length` entries along `dim`, the
    part has `spans`. None: boxes would differ in two dimensions."""
    here: dict[int, tuple[int, tuple[Span, ...]]] = {}
    for d, (total, held) in enumerate(zip(placed.global_shape, _held(placed))):
        if d == dim:
            total, held = length, joined([span for start, stop in held for span in within(spans, start, stop)]) or ((0, 0),)
        here[d] = total, held
    local = tuple(sum(stop - start for start, stop in held) for _, held in here.values())
    found = cut_along(local, here)
    return None if found is None else Placement(found.global_shape, found.boxes, partial=placed.partial)


def part_of(placement: Placement | None, start: int, stop: int) -> Placement | None:
    """Elements start to stop of the flattened tensor that has this placement. None: not known, or more than RANGES_MAX ranges."""
    if placement is None or placement.partial or placement.pieces > 1:
        return None
    held = placement.ranges or _ranges(placement)
    if held is None:
        return None
    here = within(held, start, stop)
    return Placement(placement.global_shape, ranges=here or ((0, 0),)) if len(here) <= RANGES_MAX else None


def _held(placement: Placement) -> list[tuple[Span, ...]]:
    """What its boxes hold along each dimension. They differ in one at most."""
    boxes, dims = placement.boxes, range(len(placement.global_shape))
    spans = [tuple((offset[d], offset[d] + size[d]) for offset, size in boxes) for d in dims]
    return [here if len(set(here)) > 1 else here[:1] for here in spans]


def _ranges(placement: Placement) -> tuple[Span, ...] | None:
    """Of the flattened whole, in the order of a tensor that consists of these boxes."""
    shape = placement.global_shape
    if not shape:
        return ((0, 1),)
    dims = _held(placement)
    last = len(shape)
    while last > 1 and dims[last - 1] == ((0, shape[last - 1]),):
        last -= 1
    inner = math.prod(shape[last:])
    rows = [[i for start, stop in dims[d] for i in range(start, stop)] for d in range(last - 1)]
    if math.prod(len(each) for each in rows) * len(dims[last - 1]) > RANGES_MAX:
        return None
    found = []
    for row in itertools.product(*rows):
        at = 0
        for d, index in enumerate(row):
            at = (at + index) * shape[d + 1]
        found += [((at + start) * inner, (at + stop) * inner) for start, stop in dims[last - 1]]
    return joined([span for span in found if span[0] < span[1]])
