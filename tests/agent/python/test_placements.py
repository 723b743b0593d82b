"""Shards of logical tensors, from what users say to what the library is given."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

import statagent
from statagent import Agent, compute
from statagent._layouts.placement import Placement
from statagent._native import library

from .support import Recording


def test_observed_shards_add_up_to_the_whole(agent: Agent, recording: Recording) -> None:
    t = torch.randn(6, 40)
    agent.observe("plain", t)
    for begin, end in ((0, 7), (7, 33), (33, 40)):
        agent.observe("columns", t[:, begin:end], global_shape=t.shape, offset=(0, begin))
    agent.observe("flat", t.flatten()[:101], global_shape=t.shape, flat=[(0, 101)])
    agent.observe("flat", t.flatten()[101:], global_shape=t.shape, flat=[(101, 240)])
    agent.observe(
        "zigzag", torch.cat([t[:, :7], t[:, 33:]], 1), global_shape=t.shape, boxes=[((0, 0), (6, 7)), ((0, 33), (6, 7))]
    )
    agent.observe("zigzag", t[:, 7:33], global_shape=t.shape, boxes=[((0, 7), (6, 26))])
    whole = compute(t)["hash"]
    assert recording.one("plain", "inspect").hash == whole
    for name in ("columns", "flat", "zigzag"):
        assert sum(r.hash for r in recording.records if r.name == name) % 2**64 == whole, name
    places = [r.placement for r in recording.records if r.name == "columns"]
    assert places == [Placement((6, 40), boxes=(((0, a), (6, b - a)),)) for a, b in ((0, 7), (7, 33), (33, 40))]
    assert [r.placement for r in recording.records if r.name == "flat"][1] == Placement((6, 40), ranges=((101, 240),))
    assert not recording.refusals


def test_arrays_and_partial_sums_have_places_too(agent: Agent, recording: Recording) -> None:
    array = np.arange(6.0).reshape(2, 3)
    agent.observe("array", array, global_shape=(4, 3), offset=(2, 0), partial=True)
    agent.observe("sum", array, partial=True)
    agent.observe("whole", array, global_shape=(2, 3))
    agent.observe("number", torch.tensor(2.0), global_shape=())
    assert recording.one("array", "inspect").placement == Placement((4, 3), boxes=(((2, 0), (2, 3)),), partial=True)
    assert recording.one("sum", "inspect").placement == Placement((2, 3), partial=True)
    assert recording.one("whole", "inspect").placement == Placement((2, 3), boxes=(((0, 0), (2, 3)),))
    assert recording.one("number", "inspect").placement == Placement(())


def test_a_tensor_of_the_same_layout_has_no_place_of_the_one_before(agent: Agent, recording: Recording) -> None:
    t = torch.randn(4, 8)
    agent.observe("left", t, global_shape=(4, 16), offset=(0, 0))
    agent.observe("right", t, global_shape=(4, 16), offset=(0, 8))
    agent.observe("none", t)
    assert recording.one("none", "inspect").placement is None
    assert recording.one("none", "inspect").hash == compute(t)["hash"]
    assert recording.one("left", "inspect").hash != recording.one("right", "inspect").hash


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"offset": (0, 0)}, "observe 'x': found offset without global_shape"),
        ({"global_shape": (4, 6)}, "found a tensor of shape (2, 3), global_shape (4, 6) and no place"),
        ({"global_shape": (4, 6), "offset": (0, 4)}, "the box at (0, 4) of size (2, 3) extends beyond dimension 1"),
        ({"global_shape": (4, 6), "boxes": [((0, 0), (1, 3)), ((0, 0), (1, 3))]}, "boxes overlap"),
        ({"global_shape": (4, 6), "flat": [(0, 7)]}, "the shard has 6 elements; expected 7"),
        ({"global_shape": (2, 3), "offset": "ab"}, "expected whole numbers"),
        ({"global_shape": (2**40, 2**40), "offset": (0, 0)}, "more than 2^62 elements"),
    ],
)
def test_places_that_do_not_fit_are_counted_and_reported(
    agent: Agent, recording: Recording, arguments: dict[str, Any], message: str
) -> None:
    agent.observe("x", torch.ones(2, 3), **arguments)
    agent.observe("y", torch.ones(2, 3))
    assert [r.name for r in recording.records] == ["y"]
    assert recording.records[0].placement is None
    assert statagent.counters()["dropped_refused"] == 1
    (event,) = [e for e in recording.events if e[1] == "not_recorded"]
    assert message in event[2] and event[3]["name"] == "x", event


def test_a_watched_models_layouts_are_kept_from_step_to_step(agent: Agent, recording: Recording) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    layouts = {"0": statagent.shard(-1, (1, 2)), "*.weight": statagent.shard(0, (1, 2))}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    statagent.watch(model, optimizer=optimizer, layouts=layouts)
    for _ in range(3):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    outputs = [r for r in recording.of("output") if r.name == "0"]
    assert [r.placement for r in outputs] == [Placement((5, 16), boxes=(((0, 8), (5, 8)),))] * 3
    assert {r.placement for r in recording.of("output") if r.name == "1"} == {None}
    weights = [r for r in recording.of("weight") if r.name == "0.weight"]
    assert {r.placement for r in weights} == {Placement((16, 4), boxes=(((8, 0), (8, 4)),))} and len(weights) >= 3


def test_the_structure_is_that_of_the_header() -> None:
    assert ctypes.sizeof(library.Placement) == 64
    assert library.Placement.partial.offset == 48
