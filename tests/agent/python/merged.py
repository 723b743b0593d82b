"""Puts the records of several ranks together by their placements, as the collector does."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest

from .layouts_ranks import Found
from .support import Record

Key = tuple[int, str, str, str, int, str]  # step, name, kind, path, call, mode


def by_tensor(ranks: list[Found], label: str) -> dict[Key, list[Record]]:
    """Records of all ranks and micro-batches under a label of layouts_watched."""
    found: dict[Key, list[Record]] = defaultdict(list)
    for number, rank in enumerate(ranks):
        assert not rank.error, f"rank {number}:\n{rank.error}"
        assert rank.facts[label]["refusals"] == []
        for r in rank.facts[label]["records"]:
            found[r.step, r.name, r.kind, r.path, r.call, r.mode].append(r)
    return found


def merged(records: list[Record]) -> tuple[tuple[int, ...], float, int]:
    """Shape, l2 and hash of the whole. Replicas must be alike, and the parts must tile it."""
    distinct: dict[Any, Record] = {}
    for r in records:
        assert r.placement is not None and not r.placement.partial, r
        same = distinct.setdefault((r.placement, r.micro_batch), r)
        assert same.l2 == pytest.approx(r.l2, rel=1e-6), (r, same)
    held: dict[Any, int] = defaultdict(int)
    for r in distinct.values():
        assert r.placement is not None
        held[r.placement.global_shape, r.placement.piece, r.micro_batch] += math.prod(r.shape)
    for (shape, _, _), elements in held.items():
        assert elements == math.prod(shape), (shape, records)
    (shape,) = {shape for shape, _, _ in held}
    return shape, math.hypot(*(r.l2 for r in distinct.values())), sum(r.hash for r in distinct.values()) % 2**64


def check_parameters(plain: Found, label: str, ranks: list[Found], cut: str) -> None:
    """Of each parameter, gradient and state that the plain run recorded, the parts of all ranks tile the tensor and have its values."""
    whole, parts = by_tensor([plain], label), by_tensor(ranks, cut)
    kinds = ("weight", "weight_grad", "optimizer_state")
    wanted = {key: records for key, records in whole.items() if key[2] in kinds}
    assert {key[0] for key in wanted} >= {0, 1} and {key[2] for key in wanted} == set(kinds)
    for key, (record,) in wanted.items():
        assert parts[key], f"{key} is missing"
        shape, l2, content = merged(parts[key])
        assert shape == record.shape, (key, shape)
        assert l2 == pytest.approx(record.l2, rel=1e-5, abs=1e-7), key
        if key[5] == "init":
            assert content == record.hash, key
    surplus = {key for key in parts if key[2] in kinds} - set(wanted)
    assert not surplus
