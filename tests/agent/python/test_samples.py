"""Where the samples of ranks and micro-batches lie in the global batch."""

from __future__ import annotations

from typing import Any

import pytest

import statagent
from statagent._layouts.placement import whole
from statagent._layouts.samples import batch


@pytest.mark.parametrize("order", ["interleaved", "blocks"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (1, 3), (2, 1), (2, 4), (4, 2), (3, 5)])
def test_each_sample_is_in_one_place(order: str, ranks: int, micro_batches: int) -> None:
    each = 2
    seen: list[int] = []
    for rank in range(ranks):
        samples = batch(order=order, micro_batches=micro_batches)
        for number in range(micro_batches):
            placed = samples.place(whole((each, 7)), (rank, ranks), each, number)
            assert placed is not None and placed.global_shape == (ranks * micro_batches * each, 7)
            here = [row for offset, size in placed.boxes for row in range(offset[0], offset[0] + size[0])]
            first = number * ranks * each
            assert len(here) == each and all(first <= row < first + ranks * each for row in here)
            seen += here
    assert sorted(seen) == list(range(ranks * micro_batches * each))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, None])
def test_a_wrong_number_of_micro_batches_is_refused(wrong: Any) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match=r"micro_batches.*expected a whole number from 1"):
        batch(micro_batches=wrong)


def test_a_micro_batch_too_many_is_refused() -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="expected at most 2 in a step"):
        batch(micro_batches=2).place(whole((4, 3)), (0, 1), 4, 2)
