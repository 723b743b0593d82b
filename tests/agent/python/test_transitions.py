"""Graph transitions: which changes of inputs, modules and modes become events, and which do not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent
from statagent._watch.transitions import EVENTS_MAX, Transitions

from .models import Net, data, seeded


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor | None = None


class Takes(nn.Module):
    """A model that takes anything."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.fc(data())


@pytest.fixture
def told(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Fields of the events so far."""
    found: list[dict[str, str]] = []
    real = agent.log_event

    def log_event(kind: str, text: str, fields: Any = None, **more: Any) -> None:
        assert kind == "graph_transition" and text
        found.append(dict(fields))
        real(kind, text, fields, **more)

    monkeypatch.setattr(agent, "log_event", log_event)
    return found


@pytest.fixture
def takes(agent: Agent) -> Iterator[Any]:
    model = Takes()
    transitions = Transitions(agent, model)
    yield model
    transitions.remove()


def changes(told: list[dict[str, str]]) -> list[tuple[str, str, str, str]]:
    return [(t["reason"], t["element"], t["from"], t["to"]) for t in told if t["reason"] != "first"]


def test_first_schema_is_recorded_once(takes: Any, told: list[dict[str, str]]) -> None:
    for rows in (4, 4, 7):
        takes(torch.zeros(rows, 8), labels=None)
    assert [(t["mode"], t["reason"], t["to"]) for t in told] == [("train", "first", "0: float32 rank 2, labels: None")]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (([data()], {}), ([data().double()], {}), ("0", "float32 rank 2", "float64 rank 2")),
        (([data()], {}), ([data()[0]], {}), ("0", "float32 rank 2", "float32 rank 1")),
        (([data()], {}), ([data()], {"labels": data().long()}), ("labels", "absent", "int64 rank 2")),
        (([data()], {"mask": None}), ([data()], {"mask": data()}), ("mask", "None", "float32 rank 2")),
        (([data()], {"cache": True}), ([data()], {"cache": False}), ("cache", "True", "False")),
        (([data()], {}), ([data().requires_grad_()], {}), ("0", "float32 rank 2", "float32 rank 2, needs gradient")),
        (([{"ids": data()}], {}), ([{"ids": data(), "extra": data()}], {}), ("0.extra", "absent", "float32 rank 2")),
        (([(data(), [data()])], {}), ([(data(), [])], {}), ("0.1.0", "float32 rank 2", "absent")),
        (([Batch(data())], {}), ([Batch(data(), data())], {}), ("0.mask", "None", "float32 rank 2")),
        (([[data()]], {}), ([(data(),)], {}), ("0", "list", "tuple")),
    ],
    ids=["dtype", "rank", "added", "none", "bool", "gradient", "mapping", "removed", "dataclass", "container"],
)
def test_changed_input_is_named(takes: Any, told: list[dict[str, str]], before: Any, after: Any, expected: Any) -> None:
    takes(*before[0], **before[1])
    takes(*after[0], **after[1])
    assert changes(told) == [("input_schema", *expected)]


def test_other_sizes_and_numbers_are_no_transition_unless_asked_for(agent: Agent, told: list[dict[str, str]]) -> None:
    for sizes in (False, True):
        model = Takes()
        transitions = Transitions(agent, model, sizes=sizes)
        model(data(4), 3, "x", scale=0.1)
        model(data(5), 4, "y", scale=0.2)
        transitions.remove()
    assert changes(told) == [("input_schema", "0", "float32 shape (4, 8)", "float32 shape (5, 8)")]


def test_schemas_that_come_again_are_not_reported_again(takes: Any, told: list[dict[str, str]]) -> None:
    for _ in range(50):
        takes(data())
        takes(data(), mask=data())
    assert [t["reason"] for t in told] == ["first", "input_schema"]


def test_training_and_evaluation_have_schemas_of_their_own(takes: Any, told: list[dict[str, str]]) -> None:
    takes(data(), labels=data())
    takes.eval()(data())
    takes.train()(data(), labels=data())
    assert [(t["mode"], t["reason"]) for t in told] == [
        ("train", "first"), ("eval", "train_eval"), ("eval", "first"), ("train", "train_eval"),
    ]  # fmt: skip
    assert (told[1]["from"], told[1]["to"]) == ("train", "eval")


def test_evaluation_with_the_inputs_of_training_is_told(takes: Any, told: list[dict[str, str]]) -> None:
    takes(data())
    takes.eval()(data())
    assert [(t["mode"], t["reason"]) for t in told] == [("train", "first"), ("eval", "train_eval"), ("eval", "first")]


def test_events_are_bounded_and_say_so(takes: Any, told: list[dict[str, str]]) -> None:
    for number in range(100):
        takes(**{f"x{number}": data()})
    inputs = [t for t in told if t["reason"] == "input_schema"]
    assert len(inputs) == EVENTS_MAX + 1
    assert inputs[-1]["element"] == "further ones are not reported"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: setattr(m, "head", nn.Identity()), ("modules", "head", "Linear", "Identity")),
        (lambda m: m.head.add_module("lora", nn.Linear(1, 1)), ("modules", "head.lora", "absent", "Linear")),
        (lambda m: delattr(m.blocks[1], "ln"), ("modules", "blocks.1.ln", "LayerNorm", "absent")),
        (
            lambda m: setattr(m, "head", nn.Linear(8, 3)),
            ("modules", "head", "Linear", "another Linear"),
        ),
        (lambda m: setattr(m.blocks[1], "ln", nn.LayerNorm(8)), ("modules", "blocks.1.ln", "LayerNorm", "another LayerNorm")),
        (lambda m: m.head.weight.requires_grad_(False), ("requires_grad", "head.weight", "True", "False")),
        (lambda m: m.blocks.requires_grad_(False), ("requires_grad", "blocks.0.ln.weight and 7 more", "True", "False")),
    ],
    ids=["replaced", "added", "removed", "replaced by its like", "replaced inside", "frozen", "blocks frozen"],
)
def test_changed_model_is_named_at_the_next_step(agent: Agent, told: list[dict[str, str]], change: Any, expected: Any) -> None:
    model = seeded(Net)
    Transitions(agent, model)
    agent.end_step()
    assert told == []
    change(model)
    agent.end_step()
    agent.end_step()
    assert changes(told) == [expected]


def test_large_models_are_looked_at_now_and_then(agent: Agent, told: list[dict[str, str]]) -> None:
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(1000)])
    transitions = Transitions(agent, model)
    assert transitions._parameters_every > 30
    model[999].requires_grad_(False)
    for _ in range(transitions._parameters_every):
        agent.end_step()
    assert changes(told) == [("requires_grad", "999.weight and 1 more", "True", "False")]


def test_recompilation_is_told_with_its_reason(agent: Agent, told: list[dict[str, str]]) -> None:
    torch.compiler.reset()
    model = Takes()
    compiled = torch.compile(model.fc, backend="eager", dynamic=False)
    Transitions(agent, model)
    compiled(torch.zeros(4, 8))
    agent.end_step()
    assert told == [], "the first graph is no transition"
    for _ in range(3):
        compiled(torch.zeros(4, 8))
        agent.end_step()
    assert told == []
    compiled(torch.zeros(4, 8, dtype=torch.float32).requires_grad_())
    agent.end_step()
    assert [t["reason"] for t in told] == ["recompilation"]


def test_watching_breaks_no_graph(agent: Agent, told: list[dict[str, str]]) -> None:
    torch.compiler.reset()
    inner, outer = nn.Sequential(nn.Linear(8, 2)), nn.Sequential(nn.Linear(8, 2))
    Transitions(agent, inner)
    torch.compile(inner, backend="eager", fullgraph=True)(data())
    compiled = torch.compile(outer, backend="eager", fullgraph=True)
    Transitions(agent, compiled)
    compiled(data())
    assert [t["reason"] for t in told] == ["first", "first"], "inside of a graph and in front of one"


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, batch: dict[str, Any], scale: bool = False, mask: Any = None) -> torch.Tensor:
        x = self.fc(batch["x"].float()) * (2 if scale else 1)
        return x if mask is None else x * mask


@pytest.mark.parametrize("within", [False, True])
def test_changes_in_front_of_a_compiled_graph_are_told_as_in_eager_mode(
    agent: Agent, told: list[dict[str, str]], within: bool
) -> None:
    def run(compiled: bool) -> list[dict[str, str]]:
        torch._dynamo.reset()
        told.clear()
        model = seeded(Several)
        with statagent.watch(model, kinds={"output"}):
            call: Any = model
            if compiled and within:
                call = torch.compile(lambda *args, **kwargs: model(*args, **kwargs), backend="eager", fullgraph=True)
            elif compiled:
                model.compile(backend="eager", fullgraph=True)
            for args, kwargs in (
                (({"x": data()},), {}),
                (({"x": data()},), {}),
                (({"x": data()},), {"scale": True}),
                (({"x": data().double()},), {"scale": True}),
                (({"x": data()},), {"mask": torch.ones(4, 2)}),
                (({"x": data()},), {}),
            ):
                call(*args, **kwargs).sum().backward()
            model.eval()
            call({"x": data()})
            call({"x": data(rows=6)})
        return [fields for fields in told if fields["reason"] != "recompilation"]

    eager, compiled = run(False), run(True)
    assert compiled == eager
    assert [(f["reason"], f["element"]) for f in eager] == [
        ("first", "inputs"), ("input_schema", "scale"), ("input_schema", "0.x"), ("input_schema", "0.x"), ("input_schema", "scale"),
        ("input_schema", "mask"), ("train_eval", "root"), ("first", "inputs"),
    ]  # fmt: skip


def test_copies_are_not_watched_and_removed_hooks_tell_nothing(agent: Agent, told: list[dict[str, str]]) -> None:
    model = Takes()
    transitions = Transitions(agent, model)
    copy.deepcopy(model)(data())
    assert told == []
    transitions.remove()
    model(data())
    agent.end_step()
    assert told == []
    assert not model._forward_pre_hooks


def test_trouble_with_inputs_is_counted_and_training_goes_on(takes: Any, told: list[dict[str, str]]) -> None:
    class Odd(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("no")

    assert takes(Odd()).shape == (4, 2)
    assert statagent.counters()["dropped_refused"] == 1
