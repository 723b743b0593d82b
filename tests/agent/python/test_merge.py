"""Shards of a logical tensor: compute with a place, and merge."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from statagent import InvalidArgumentError, compute, merge

EXACT = ("numel", "shape", "dtype", "nan", "pos_inf", "neg_inf", "zero", "neg", "pos", "min", "max", "hash")


def expect_whole(merged: dict[str, Any], whole: dict[str, Any]) -> None:
    assert {key: merged[key] for key in EXACT} == {key: whole[key] for key in EXACT}
    assert merged["complete"] is True
    if whole["mean"] is None:
        assert merged["mean"] is None
        return
    for key in ("mean", "std", "l1", "l2"):
        assert merged[key] == pytest.approx(whole[key], rel=1e-6, abs=1e-6 * whole["l2"]), key
    assert merged["sketch"] == pytest.approx(whole["sketch"], abs=1e-6 * whole["l2"])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64, torch.int64]
)
def test_boxes_of_a_tensor_add_up(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    t = (torch.randn(24, 37) * 40).to(dtype)
    whole = compute(t, sketch=32)
    parts = [compute(t[:, a:b], sketch=32, global_shape=t.shape, offset=(0, a)) for a, b in ((0, 5), (5, 9), (9, 37))]
    expect_whole(merge(parts), whole)
    expect_whole(merge([merge(parts[:2]), parts[2]]), whole)
    rows = [compute(t[a:b], sketch=32, global_shape=t.shape, offset=(a, 0)) for a, b in ((11, 24), (0, 11), (11, 11))]
    expect_whole(merge(rows), whole)


def test_zigzag_and_flat_ranges_add_up() -> None:
    torch.manual_seed(2)
    t = torch.randn(3, 40, 7)
    whole = compute(t)
    zigzag = []
    for rank in range(4):
        pieces = [(5 * rank, 5), (5 * (7 - rank), 5)]
        local = torch.cat([t[:, begin : begin + size] for begin, size in pieces], dim=1)
        boxes = [((0, begin, 0), (3, size, 7)) for begin, size in pieces]
        zigzag.append(compute(local, global_shape=t.shape, boxes=boxes))
    expect_whole(merge(zigzag), whole)
    flat = t.flatten()
    ranges = [[(0, 13), (500, 840)], [(13, 17)], [(17, 500)]]
    shards = [compute(torch.cat([flat[a:b] for a, b in spans]), global_shape=t.shape, flat=spans) for spans in ranges]
    expect_whole(merge(shards), whole)
    # Boxes beside ranges: rows 1 and 2 are elements 280 to 840.
    expect_whole(
        merge(
            [compute(flat[:280], global_shape=t.shape, flat=[(0, 280)]), compute(t[1:], global_shape=t.shape, offset=(1, 0, 0))]
        ),
        whole,
    )


def test_random_grids_add_up() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(150):
        shape = [rng.randint(1, 30) for _ in range(rng.randint(1, 3))]
        t = np.array([rng.gauss(0, 1) for _ in range(math.prod(shape))], dtype="f4").reshape(shape)
        boxes: list[list[tuple[int, int]]] = [[]]
        for size in shape:
            places = sorted({0, size, rng.randint(0, size), rng.randint(0, size)})
            boxes = [[*box, span] for box in boxes for span in zip(places, places[1:])]
        parts = [
            compute(t[tuple(slice(*span) for span in box)], global_shape=shape, offset=[span[0] for span in box]) for box in boxes
        ]
        rng.shuffle(parts)
        expect_whole(merge(parts), compute(t))
        if len(parts) > 1:
            assert merge(parts[1:])["complete"] is False


def test_a_part_without_a_place_is_the_whole() -> None:
    t = np.arange(12, dtype="f8").reshape(3, 4)
    expect_whole(merge([compute(t)]), compute(t))
    expect_whole(merge([compute(t, global_shape=(3, 4))]), compute(t))
    expect_whole(merge([compute(np.float32(3), global_shape=(), offset=())]), compute(np.float32(3)))


def test_what_is_missing_is_said() -> None:
    t = np.zeros((4, 4), dtype="f4")
    part = merge([compute(t[:2], global_shape=(4, 4), offset=(0, 0))])
    assert part["complete"] is False and part["numel"] == 8 and part["hash"] == 0 and part["zero"] == 8


def test_nothing_finite_and_empty_shards() -> None:
    t = np.array([np.nan, np.inf, 2.0, 4.0])
    parts = [compute(t[a:b], global_shape=(4,), offset=(a,)) for a, b in ((0, 2), (2, 4), (4, 4))]
    merged = merge(parts)
    expect_whole(merged, compute(t))
    assert merged["mean"] == 3 and merged["std"] == 1
    assert merge(parts[:1])["mean"] is None


def test_huge_numbers_do_not_overflow() -> None:
    t = np.array([1.5e308, -1.5e308, 1.5e308, -1.5e308])
    merged = merge([compute(t[i : i + 1], global_shape=(4,), offset=(i,)) for i in range(4)])
    assert merged["mean"] == 0 and merged["std"] == pytest.approx(1.5e308)
    assert merged["l1"] == math.inf and all(math.isfinite(s) for s in merged["sketch"])


def test_exponents_add_up_and_samples_are_dropped() -> None:
    t = np.array([1.0, 2.0, 3.0, 0.25])
    merged = merge([compute(t[a : a + 2], samples=2, exponents=True, global_shape=(4,), offset=(a,)) for a in (0, 2)])
    assert merged["exponents"] == compute(t, exponents=True)["exponents"]
    assert merged["samples"] == []


def test_partial_sums_compare_by_sketch() -> None:
    torch.manual_seed(3)
    a, b = torch.randint(-99, 99, (2, 6, 50)).float()
    parts = []
    for t in (a, b):
        for rows in (slice(0, 2), slice(2, 6)):
            parts.append(compute(t[rows], global_shape=(6, 50), offset=(rows.start, 0), partial=True))
    assert parts[0]["partial"] is True and parts[0]["hash"] is not None
    merged = merge(parts)
    assert merged["sketch"] == compute(a + b)["sketch"]
    assert merged["complete"] is True and merged["numel"] == 300
    for key in ("hash", "min", "max", "mean", "std", "l1", "l2", "zero"):
        assert merged[key] is None, key
    assert merge([parts[0], parts[2]])["complete"] is False
    with pytest.raises(ValueError, match="partial of part 1"):
        merge([parts[0], compute(a[2:], global_shape=(6, 50), offset=(2, 0))])
    unknown = compute(torch.full((2, 50), math.nan), global_shape=(6, 50), offset=(0, 0), partial=True)
    assert merge([parts[0], unknown])["sketch"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"offset": (0, 0)}, "without global_shape"),
        ({"global_shape": (4, 6)}, "and no place"),
        ({"global_shape": (4,), "offset": (0,)}, "as many dimensions"),
        ({"global_shape": (4, 6), "offset": (0,)}, "offset of 1 numbers"),
        ({"global_shape": (4, 6), "offset": (0, 4)}, "extends beyond dimension 1"),
        ({"global_shape": (4, 6), "offset": (-1, 0)}, "negative number in dimension 0"),
        ({"global_shape": (4, -6), "offset": (0, 0)}, "a size is negative"),
        ({"global_shape": (4, 6), "offset": (0.5, 0)}, "whole numbers"),
        ({"global_shape": (4, 6), "offset": (2**70, 0)}, "numbers of 64 bits"),
        ({"global_shape": 24, "flat": [(0, 6)]}, "whole numbers"),
        ({"global_shape": (4, 6), "boxes": []}, "a list of at least one"),
        ({"global_shape": (4, 6), "boxes": [(0, 0)]}, "whole numbers"),
        ({"global_shape": (4, 6), "boxes": [(0, 0, 2, 3)]}, "offset, size"),
        ({"global_shape": (4, 6), "boxes": [((0, 0), (1, 3)), ((0, 0), (1, 3))]}, "overlap"),
        ({"global_shape": (4, 6), "boxes": [((0, 0), (2, 2))]}, r"expected \(2, 2\)"),
        ({"global_shape": (4, 6), "flat": []}, "a list of at least one"),
        ({"global_shape": (4, 6), "flat": [(0, 3), (2, 5)]}, "ranges overlap"),
        ({"global_shape": (4, 6), "flat": [(0, 7)]}, "expected 7"),
        ({"global_shape": (4, 6), "flat": [(6, 0)]}, "from 6 to 0"),
        ({"global_shape": (4, 6), "flat": [(20, 26)]}, "from 20 to 26"),
        ({"global_shape": (4, 6), "flat": [(0, 6)], "offset": (0, 0)}, "offset and flat"),
    ],
)
def test_places_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    t = np.zeros((2, 3), dtype="f4")
    with pytest.raises(InvalidArgumentError, match=message):
        compute(t, **arguments)
    assert compute(t)["zero"] == 6  # the structure keeps nothing of the refused place


def test_parts_that_do_not_belong_together_are_refused() -> None:
    t = np.ones((4, 6), dtype="f4")
    part = compute(t[:2], global_shape=(4, 6), offset=(0, 0))

    def refused(message: str, *parts: Any) -> None:
        with pytest.raises(ValueError, match=message):
            merge(parts)

    refused("no parts")
    refused("without all statistics", part, {"numel": 3})
    refused("part 1 is int", part, 3)
    refused("overlap", part, part)
    refused("overlap", part, compute(t[1:], global_shape=(4, 6), offset=(1, 0)))
    refused("elements 6 to 8 are in two parts", part, compute(t[0, :2], global_shape=(4, 6), flat=[(6, 8)]))
    refused("global shape of part 1", part, compute(t[2:], global_shape=(5, 6), offset=(2, 0)))
    refused("dtype of part 1", part, compute(t[2:].astype("f8"), global_shape=(4, 6), offset=(2, 0)))
    refused("sketch of 32", part, compute(t[2:], sketch=32, global_shape=(4, 6), offset=(2, 0)))
    refused("overlap", compute(t), compute(t))
