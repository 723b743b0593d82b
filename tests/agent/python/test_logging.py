"""inspect, log_scalar, log_batch, step, counters: the functions that a training script calls itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, compute

from .models import Net, data, seeded
from .support import Recording


def test_inspect_returns_the_same_tensor_and_records_it_and_its_gradient(agent: Agent, recording: Recording) -> None:
    x = data().requires_grad_()
    y = x * 2
    assert statagent.inspect("doubled", y) is y
    (y * 3).sum().backward()
    assert recording.one("doubled", "inspect").hash == compute(x * 2)["hash"]
    assert recording.one("doubled", "inspect_grad").hash == compute(torch.full((4, 8), 3.0))["hash"]
    assert x.grad is not None and torch.equal(x.grad, torch.full((4, 8), 6.0))


@pytest.mark.parametrize(
    "value",
    [np.arange(3.0), torch.arange(3), torch.zeros(0), torch.tensor(1.0), torch.tensor([True])],
    ids=["numpy", "integer", "empty", "0d", "bool"],
)
def test_inspect_takes_anything_with_elements(agent: Agent, recording: Recording, value: Any) -> None:
    assert statagent.inspect("value", value) is value
    assert recording.one("value", "inspect").shape == tuple(value.shape)


def test_inspect_counts_its_calls_in_each_step(agent: Agent, recording: Recording) -> None:
    for _ in range(2):
        for _ in range(3):
            statagent.inspect("x", data())
        statagent.step()
    assert [(r.step, r.call) for r in recording.of("inspect")] == [(s, c) for s in (0, 1) for c in (0, 1, 2)]
    assert {r.depth for r in recording.of("inspect")} == {-1}


@pytest.mark.parametrize("value", [None, "text", [1.0], torch.zeros(2, device="meta"), torch.eye(2).to_sparse()])
def test_inspect_of_something_else_is_counted_and_returned(agent: Agent, recording: Recording, value: Any) -> None:
    assert statagent.inspect("odd", value) is value
    assert recording.records == []
    assert statagent.counters()["dropped_refused"] == 1


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "x" * 2000, 3, None, "\x1b[31m"])
def test_hostile_names_are_counted_not_raised(agent: Agent, recording: Recording, name: Any) -> None:
    statagent.inspect(name, data())
    statagent.log_scalar(name, 1.0)
    assert recording.records == []
    assert recording.scalars == []
    assert statagent.counters()["dropped_refused"] == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0), (2.5, 2.5), (True, 1.0), (torch.tensor(3.5), 3.5), (torch.tensor([4.0], requires_grad=True), 4.0),
        (np.float32(0.5), 0.5), (np.array(7), 7.0), (torch.tensor(2, dtype=torch.int64), 2.0), (math.inf, math.inf),
    ],
)  # fmt: skip
def test_scalars_are_numbers_or_tensors_of_one_element(agent: Agent, recording: Recording, value: Any, expected: float) -> None:
    statagent.log_scalar("loss", value)
    assert recording.scalars == [(0, "loss", expected, 0)]


def test_nan_is_a_value(agent: Agent, recording: Recording) -> None:
    statagent.log_scalar("loss", math.nan)
    assert math.isnan(recording.scalars[0][2])


@pytest.mark.parametrize("value", [None, "text", torch.zeros(3), [1.0], 1j, torch.zeros(0)])
def test_scalars_of_other_kinds_are_counted_not_raised(agent: Agent, recording: Recording, value: Any) -> None:
    statagent.log_scalar("loss", value)
    assert recording.scalars == []
    assert statagent.counters()["dropped_refused"] == 1


def test_batch_is_fingerprinted_by_name_and_path(agent: Agent, recording: Recording) -> None:
    ids = torch.arange(12).reshape(3, 4)
    statagent.log_batch(ids=ids, mask=np.ones(3, bool), nested={"a": ids + 1, "b": [ids + 2, None]}, nothing=None)
    assert [(r.name, r.path) for r in recording.of("batch")] == [("ids", ""), ("mask", ""), ("nested", "a"), ("nested", "b.0")]
    assert recording.one("ids", "batch").hash == compute(ids)["hash"]
    statagent.log_batch(text=["a", "b"])
    assert statagent.counters()["dropped_refused"] == 1


def test_counters_add_up_at_every_moment(agent: Agent) -> None:
    for step in range(50):
        statagent.inspect("x", data())
        statagent.log_scalar("loss", step)
        statagent.log_scalar("loss", "wrong")
        counts = statagent.counters()
        assert counts["produced"] == counts["acked"] + counts["pending"] + sum(
            n for name, n in counts.items() if name.startswith("dropped_")
        )
        statagent.step()
    assert counts["produced"] >= 150
    statagent.close(timeout=0)
    after = statagent.counters()
    assert after["pending"] == 0
    assert after["produced"] == sum(n for name, n in after.items() if name.startswith("dropped_"))


def test_small_buffer_drops_and_counts(recording: Recording) -> None:
    statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0, buffer_records_max=64)
    for _ in range(5000):
        statagent.inspect("x", torch.zeros(1))
    counts = statagent.counters()
    assert sum(n for name, n in counts.items() if name.startswith("dropped_")) > 0
    assert counts["produced"] >= 5000


def test_flush_gives_up_in_time_without_a_collector(agent: Agent) -> None:
    statagent.log_scalar("loss", 1.0)
    assert statagent.flush(timeout=0.05) is False


def test_after_close_everything_is_ignored(agent: Agent, recording: Recording) -> None:
    statagent.close(timeout=0)
    before = statagent.counters()
    x = data()
    assert statagent.inspect("x", x) is x
    statagent.log_scalar("loss", 1.0)
    statagent.log_batch(x=x)
    statagent.step()
    assert statagent.flush() is True
    assert statagent.close() is True
    assert recording.records == []
    assert statagent.counters() == before


def test_before_init_nothing_is_recorded_and_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    x = data()
    for _ in range(3):
        assert statagent.inspect("x", x) is x
        statagent.log_scalar("loss", 1.0)
        statagent.step()
    assert statagent.counters() == {"produced": 0, "acked": 0, "pending": 0}
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_observing_from_many_threads_loses_nothing(agent: Agent, recording: Recording) -> None:
    import threading

    tensors = [torch.full((64,), float(i)) for i in range(8)]

    def work(index: int) -> None:
        for _ in range(200):
            agent.observe(f"thread.{index}", tensors[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recording.refusals == []
    for index in range(8):
        found = [r for r in recording.records if r.name == f"thread.{index}"]
        assert sorted(r.call for r in found) == list(range(200))
        assert {r.hash for r in found} == {compute(tensors[index])["hash"]}, "another thread's tensor was read"


def test_events_carry_their_step_and_fields(agent: Agent, recording: Recording) -> None:
    agent.log_event("note", "something happened", {"layer": "blocks.1", "n": 3})  # type: ignore[dict-item]
    statagent.step()
    agent.log_event("note", "again")
    assert recording.events == [(0, "note", "something happened", {"layer": "blocks.1", "n": "3"}), (1, "note", "again", {})]


@pytest.mark.parametrize("kind", ["", "a\0b", 3, None, "x" * 100_000], ids=["empty", "nul", "number", "none", "huge"])
def test_events_that_cannot_be_named_are_counted_not_raised(agent: Agent, recording: Recording, kind: Any) -> None:
    agent.log_event(kind, "text")
    assert recording.events == []
    assert statagent.counters()["dropped_refused"] == 1


# --- scalars after the update of a watched optimizer ---


def losses(recording: Recording, name: str = "loss") -> list[tuple[int, float, int]]:
    return [(step, value, micro_batch) for step, found, value, micro_batch in recording.scalars if found == name]


@pytest.mark.parametrize("steps", [None, "0-1"], ids=["recorded", "outside of the window"])
@pytest.mark.parametrize("parts", [False, True], ids=["model", "parts"])
def test_scalar_after_the_update_belongs_to_its_step(agent: Agent, recording: Recording, steps: str | None, parts: bool) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer, steps=steps)
    for step in range(4):
        if step == 3:
            statagent.log_scalar("before", 3.0)  # nothing of step 3 has begun
        out = net[1](net[0](data())) if parts else net(data())
        statagent.log_scalar("within", float(step))
        out.sum().backward()
        optimizer.step()
        statagent.log_scalar("loss", float(step))
        statagent.log_scalar("val_loss", step * 10.0)
    for name, factor in (("within", 1.0), ("loss", 1.0), ("val_loss", 10.0)):
        assert losses(recording, name) == [(step, step * factor, 0) for step in range(4)]
    assert losses(recording, "before") == [(2, 3.0, 0)]


def test_evaluation_after_the_update_opens_no_step(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    net(data()).sum().backward()
    optimizer.step()
    net.eval()
    with torch.no_grad():
        net(data())
    statagent.log_scalar("val_loss", 1.0)
    assert losses(recording, "val_loss") == [(0, 1.0, 0)]


def test_scalar_after_the_update_keeps_the_last_micro_batch(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    for index in range(4):
        net(data()).sum().backward()
        if index % 2:
            optimizer.step()
        statagent.log_scalar("loss", float(index))
    assert losses(recording) == [(0, 0.0, 0), (0, 1.0, 1), (1, 2.0, 0), (1, 3.0, 1)]


@pytest.mark.parametrize("begin", ["log_batch", "inspect", "explicit step", "the same name"])
def test_scalar_belongs_to_the_next_step_once_that_has_begun(agent: Agent, recording: Recording, begin: str) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if begin == "explicit step":
        statagent.watch(net)
        net(data()).sum().backward()
        statagent.step()
    else:
        statagent.watch(net, optimizer)
        net(data()).sum().backward()
        statagent.log_scalar("loss", 0.0)
        optimizer.step()
    if begin == "log_batch":
        statagent.log_batch(x=data())
    elif begin == "inspect":
        statagent.inspect("x", data())
    statagent.log_scalar("loss", 1.0)
    assert losses(recording)[-1] == (1, 1.0, 0)


@pytest.mark.parametrize("name", [["a"], {}, 3, None])
def test_names_that_are_no_text_do_no_harm(agent: Agent, name: Any) -> None:
    statagent.log_scalar(name, 1.0)
    assert statagent.counters()["dropped_refused"] == 1
