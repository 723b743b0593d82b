"""Keys of tokens and statistics of rows: statagent.token_keys, statagent.compute_rows, Agent.record_rows."""

from __future__ import annotations

import array
import math
import struct
from typing import Any

import numpy
import pytest
import torch

import statagent

from .support import Recording

MASK = 2**64 - 1
START = 0x53544154544F4B45
ROW_SEED = 0x53544154524F5753
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def mix(seed: int, n: int) -> int:
    z = ((n + 1) * 0x9E3779B97F4A7C15 + seed) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def naive_keys(ids: list[int], before: int = START) -> list[int]:
    keys = []
    for token in ids:
        before = mix(before, token & MASK)
        keys.append(before)
    return keys


def naive_hash(data: bytes) -> int:
    data += bytes(-len(data) % 4)
    total = 0
    for word, (value,) in enumerate(struct.iter_unpack("<I", data)):
        key = (mix(0x5354415448415348, word % 512) & 0xFFFFFFFF) | 1
        total += (mix(0x53544154424C4F43, word // 512) | 1) * key * value
    return total & MASK


def naive_sketch(values: list[float]) -> list[float]:
    flip = mix(ROW_SEED, 0) & 1
    sums = [0.0] * 8
    for column, value in enumerate(values):
        minus = (mix(ROW_SEED, column // 64) >> (column % 64) & 1) ^ flip
        if math.isfinite(value):
            sums[column % 8] += -value if minus else value
    if len(values) == 1:
        sums[0] = values[0]
    return sums


def bytes_of(row: torch.Tensor) -> bytes:
    return bytes(row.contiguous().view(torch.uint8).tolist()) if row.numel() else b""


def check(found: dict[str, Any], row: torch.Tensor) -> None:
    values = row.double().tolist()
    assert found["hash"] == naive_hash(bytes_of(row))
    if all(map(math.isfinite, values)):
        assert found["l2"] == pytest.approx(min(math.hypot(*values), math.inf) if values else 0.0, rel=1e-6)
    else:
        assert math.isnan(found["l2"])
    assert found["sketch"] == pytest.approx(naive_sketch(values), rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [0, 1, 7, 8, 64, 129, 1025])
def test_rows_are_those_of_a_naive_model(dtype: torch.dtype, columns: int) -> None:
    rows = torch.randn(3, columns, dtype=torch.float64).to(dtype)
    for found, row in zip(statagent.compute_rows(rows), rows, strict=True):
        check(found, row)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_have_any_strides(dtype: torch.dtype) -> None:
    whole = torch.randn(40, 30, dtype=torch.float64).to(dtype)
    for rows in (whole.t(), whole[::3, 4:], whole[:, ::2], whole[0].expand(5, 30)):
        for found, row in zip(statagent.compute_rows(rows), rows.contiguous(), strict=True):
            check(found, row)


def test_what_is_not_finite_marks_the_norm_and_leaves_the_sketch() -> None:
    rows = torch.ones(3, 70)
    rows[0, 3], rows[1, 69], rows[2, 0] = math.nan, math.inf, 1e-45
    for found, row in zip(statagent.compute_rows(rows), rows, strict=True):
        check(found, row)
    assert statagent.compute_rows(torch.full((1, 2), 1e300, dtype=torch.float64))[0]["l2"] == math.inf


def test_a_row_of_one_column_keeps_its_value() -> None:
    rows = torch.tensor([[-1.5], [-math.inf], [0.0]])
    found = statagent.compute_rows(rows)
    assert [row["sketch"][0] for row in found] == [-1.5, -math.inf, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", [1, 8, 65, 100])
def test_parts_of_rows_add_up(dtype: torch.dtype, cut: int) -> None:
    rows = torch.randn(4, 200).to(dtype)
    left, right = statagent.compute_rows(rows[:, :cut]), statagent.compute_rows(rows[:, cut:], first_column=cut)
    for whole, a, b in zip(statagent.compute_rows(rows), left, right, strict=True):
        assert (a["hash"] + b["hash"]) & MASK == whole["hash"]
        assert math.hypot(a["l2"], b["l2"]) == pytest.approx(whole["l2"], rel=1e-6)
        assert [x + y for x, y in zip(a["sketch"], b["sketch"], strict=True)] == pytest.approx(whole["sketch"], abs=1e-4)


def test_no_rows_are_no_error() -> None:
    assert statagent.compute_rows(torch.empty(0, 5)) == []


@pytest.mark.parametrize("rows", [torch.ones(3), torch.ones(2, 2, 2)])
def test_only_a_matrix_has_rows(rows: torch.Tensor) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="expected two, rows and columns"):
        statagent.compute_rows(rows)


@pytest.mark.parametrize("column", [-1, 2**32, 1.0, True])
def test_the_first_column_is_a_whole_number(column: Any) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="first_column"):
        statagent.compute_rows(torch.ones(2, 2), first_column=column)


def test_keys_hash_each_token_with_all_before_it() -> None:
    ids = [[1, 2, 3], [1, 2, 4], [0, 2, 3]]
    expected = [naive_keys(row) for row in ids]
    found = statagent.token_keys(torch.tensor(ids))
    assert found.dtype == torch.int64 and [[key & MASK for key in row] for row in found.tolist()] == expected
    assert statagent.token_keys(numpy.array(ids)).tolist() == expected
    assert statagent.token_keys(numpy.array(ids, dtype=numpy.int32)).dtype == numpy.uint64
    assert statagent.token_keys(ids[0]) == array.array("Q", expected[0])
    assert expected[0][:2] == expected[1][:2] and expected[0][2] != expected[1][2] != expected[2][2]


def test_keys_go_on_from_a_cached_prefix() -> None:
    whole = statagent.token_keys(torch.tensor([[5, 6, 7, 8], [9, 6, 7, 8]]))
    rest = statagent.token_keys(torch.tensor([[7, 8], [7, 8]]), before=whole[:, 1])
    assert torch.equal(rest, whole[:, 2:])
    assert statagent.token_keys([6], before=naive_keys([5])[0])[0] == naive_keys([5, 6])[1]


def test_keys_of_nothing_are_none() -> None:
    assert len(statagent.token_keys([])) == 0
    assert statagent.token_keys(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0)


@pytest.mark.parametrize("ids", [torch.ones(2), torch.ones(1, 1, 1, dtype=torch.int64), ["a"]])
def test_keys_are_of_whole_numbers(ids: Any) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="token_keys"):
        statagent.token_keys(ids)


def test_there_is_a_key_before_each_sequence() -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="found 1 keys before 2 sequences"):
        statagent.token_keys(torch.ones(2, 2, dtype=torch.int64), before=[1])


def test_an_index_chooses_rows_of_the_matrix(agent: statagent.Agent) -> None:
    rows, keys = torch.arange(12.0).reshape(6, 2), statagent.token_keys([1, 2])
    agent.record_rows("fc", rows, keys, [0, 1], index=[5, 0])
    agent.record_rows("fc", rows, [], [], index=[], call=1)
    assert "dropped_refused" not in agent.counters()
    for bad in ([6, 0], [-1, 0], [0]):
        agent.record_rows("fc", rows, keys, [0, 1], index=bad, call=2)
    assert agent.counters()["dropped_refused"] == 3


def test_rows_on_a_gpu_that_the_library_cannot_use_are_refused_without_a_wait(
    agent: statagent.Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    class OnGpu(torch.Tensor):
        is_cuda = True

        def cpu(self, *_: Any) -> Any:
            waits.append("a copy to the CPU")
            return torch.ones(2, 3)

    monkeypatch.setattr(recording, "statagent_record_rows", lambda *_: 12, raising=False)  # as one that was built without CUDA
    agent.record_rows("layer", torch.ones(2, 3).as_subclass(OnGpu), [1, 2], [0, 1])
    assert waits == [] and agent.counters()["dropped_refused"] == 1
