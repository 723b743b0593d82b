"""A watched model and its optimizer are freed when the program drops them, and everything that was attached goes with them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent
from statagent._watch import density

from .models import Net, data, seeded
from .support import Recording

CYCLES = 40
EVERYTHING: dict[str, Any] = {"memory": ["modules", "peaks"], "between": True, "updates": "0-", "eval": True}


def model_with_buffers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model(data()).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(autouse=True)
def quick_collections() -> Iterator[None]:
    """Looks only at what a test has made."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def gone(*references: Any) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


@pytest.mark.parametrize("keep", ["nothing", "watch", "optimizer"])
@pytest.mark.parametrize("trains", [True, False])
def test_watched_models_are_freed_while_the_agent_runs(agent: Agent, recording: Recording, keep: str, trains: bool) -> None:
    references, kept = [], []
    for number in range(CYCLES):
        model = seeded(model_with_buffers)
        optimizer = torch.optim.Adam(model.parameters())
        watch = statagent.watch(model, optimizer, name="" if trains else f"m{number}", **EVERYTHING)
        if trains:
            step(model, optimizer)
        references.append(weakref.ref(model))
        kept.append({"nothing": None, "watch": watch, "optimizer": optimizer}[keep])
        del model, optimizer, watch
        gc.collect()  # its names are free for the next one
    assert gone(*references)
    assert recording.refusals == []
    assert recording.ended_steps == (list(range(CYCLES)) if trains else [])


@pytest.mark.parametrize("trains", [True, False])
def test_an_optimizer_is_freed_while_its_model_lives(agent: Agent, recording: Recording, trains: bool) -> None:
    model = seeded(model_with_buffers)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = torch.optim.Adam(model.parameters())
    statagent.watch(model, [optimizer, other], **EVERYTHING)
    if trains:
        step(model, optimizer, other)
    reference = weakref.ref(optimizer)
    del optimizer
    assert gone(reference)
    steps = agent.current_step()
    step(model, other)
    assert agent.current_step() == steps + 1, "the step does not wait for an update of the optimizer that is gone"
    assert list(agent.clock.optimizers.counts) == [id(other)]


def test_everything_that_was_attached_goes_with_the_model(agent: Agent, recording: Recording) -> None:
    from statagent._compile import registry

    gc.collect()
    before = [len(each) for each in (registry.entries, registry.roots, registry.inputs_of, registry.attendants)]
    model = seeded(model_with_buffers)
    optimizer = torch.optim.Adam(model.parameters())
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    statagent.watch(model, optimizer, **EVERYTHING)
    step(model, optimizer)
    assert len(hooks[0]) == len(hooks[1]) == 1
    reference = weakref.ref(model)
    parameters = list(model.parameters())
    del model
    assert gone(reference)
    assert not hooks[0] and not hooks[1], "the optimizer has no hooks left"
    optimizers = agent.clock.optimizers
    assert agent.watches.claims == {} and optimizers.counts == {} and optimizers.hooks == {} and optimizers.numbers == {}
    assert list(agent.watches.attached) == [] and list(density._observers) == [] and density._wrapped == []
    assert [len(each) for each in (registry.entries, registry.roots, registry.inputs_of, registry.attendants)] == before
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # without the watched model
    assert agent.current_step() == 1


def test_names_are_free_once_the_model_is_gone(agent: Agent, recording: Recording) -> None:
    model = seeded(Net)
    statagent.watch(model)
    with pytest.raises(statagent.InvalidArgumentError, match="is already watched"):
        statagent.watch(seeded(Net))
    gc.disable()  # a notebook's cell runs again before the garbage collector does
    try:
        model = seeded(Net)
        statagent.watch(model)
    finally:
        gc.enable()
    model(data())
    assert "head" in recording.names("output")


def test_a_watch_whose_result_is_dropped_goes_on(agent: Agent, recording: Recording) -> None:
    model = seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer)
    for _ in range(3):
        gc.collect()
        step(model, optimizer)
    assert recording.ended_steps == [0, 1, 2]
    for kind in ("output", "grad_output", "weight", "weight_grad"):
        assert recording.of(kind, 2)


def test_a_watch_can_still_be_removed(agent: Agent, recording: Recording) -> None:
    model = seeded(Net)
    watch = statagent.watch(model)
    gc.collect()
    model(data())
    count = len(recording.records)
    watch.remove()
    watch.remove()
    model(data())
    assert len(recording.records) == count > 0
    assert agent.watches.claims == {}
    with statagent.watch(model):
        model(data())
    assert len(recording.records) > count


def test_the_agent_is_freed_with_its_watches(recording: Recording) -> None:
    agent = statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0)
    model = seeded(model_with_buffers)
    optimizer = torch.optim.Adam(model.parameters())
    statagent.watch(model, optimizer, **EVERYTHING)
    step(model, optimizer)
    reference = weakref.ref(model)
    agent.close(timeout=0)
    del model, optimizer
    assert gone(reference), "a closed agent keeps no model"


def test_a_compiled_model_is_freed(agent: Agent, recording: Recording) -> None:
    model = seeded(model_with_buffers)
    compiled: Any = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(compiled, optimizer)
    step(compiled, optimizer)
    assert recording.of("output", 0)
    reference = weakref.ref(optimizer)
    del optimizer
    assert gone(reference)
    kept = weakref.ref(model)
    del model, compiled
    torch._dynamo.reset()  # its cache keeps what it has compiled
    assert gone(kept)
