"""Models and tensors with parts that cannot be recorded: the rest is recorded, what is left out is counted and reported in one event, and
the training computes the same bits with and without the watch."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent
from statagent._runtime.refusals import EVENTS_MAX, EVENTS_OF_REASON_MAX
from statagent.watch import KINDS

from .models import Calls, data, seeded
from .support import Recording

STEPS = 3


@dataclass
class Trained:
    """Losses or errors of the steps, and the final parameters."""

    results: list[str] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)


Step = Callable[[nn.Module, torch.optim.Optimizer, int], Any]


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    optimizer.zero_grad()
    loss = model(data(seed=step)).float().square().mean()
    loss.backward()
    optimizer.step()
    return float(loss)


def train(make: Callable[[], nn.Module], step: Step = one_step, watched: bool = True, prepare: Any = None) -> Trained:
    """STEPS steps of SGD; `prepare` is called with the model after it was watched."""
    model = seeded(make)
    spare = [nn.Parameter(torch.zeros(1))]  # for models without parameters
    optimizer = torch.optim.SGD([*model.parameters(), *spare], lr=0.1, momentum=0.9)
    made = statagent.watch(model, optimizer, kinds=set(KINDS)) if watched else None
    if prepare is not None:
        prepare(model)
    torch.manual_seed(7)
    done = Trained()
    for number in range(STEPS):
        try:
            done.results.append(str(step(model, optimizer, number)))
        except Exception as error:
            done.results.append(f"{type(error).__name__}: {error}")
    if made is not None:
        made.remove()
    done.weights = [p.detach().clone() for p in model.parameters() if not p.is_meta]
    return done


def same(make: Callable[[], nn.Module], step: Step = one_step, prepare: Any = None) -> Trained:
    """Trains without and with a watch, and finds no difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, watched = (train(make, step, on, prepare) for on in (False, True))
    assert plain.results == watched.results
    assert len(plain.weights) == len(watched.weights)
    assert all(torch.equal(a, b) for a, b in zip(plain.weights, watched.weights, strict=True))
    return watched


def told(recording: Recording) -> list[tuple[str, str, str]]:
    """Name, kind and reason of each event not_recorded about the model."""
    events = [fields for _, kind, _, fields in recording.events if kind == "not_recorded"]
    return [(f["name"], f["kind"], f["reason"]) for f in events if "outside of the model" not in f["reason"]]


class Odd(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def beside(**odd: Any) -> Callable[[], nn.Module]:
    """A model that calls `odd` on its input, ignores what comes out, and trains a linear layer."""

    def make() -> nn.Module:
        modules = {name: Odd(function) for name, function in odd.items()}
        return Calls(lambda self, x: ([getattr(self, name)(x) for name in odd], self.fc(x))[1], **modules, fc=nn.Linear(8, 1))

    return make


def quantised(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8)


# --- outputs that are not tensors, or not plain ones ---

# name: what the module returns, what the event's reason says, refused records a step (0: there was no record to make)
ODD_OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], Any], str, int]] = {
    "none": (lambda x: None, "found None; expected a tensor", 0),
    "text": (lambda x: "text", "found a str without tensors", 0),
    "number": (lambda x: 1.5, "found a float without tensors", 0),
    "empty_list": (lambda x: [], "found a list without tensors", 0),
    "generator": (lambda x: (y for y in [x]), "found a generator, which iteration would use up", 0),
    "object": (lambda x: type("Result", (), {"hidden": x})(), "found a Result without tensors", 0),
    "quantised": (quantised, "torch.qint8", 1),
    "meta": (lambda x: torch.empty(3, device="meta"), "on the meta device", 1),
    "sparse_coo": (lambda x: x.detach().to_sparse(), "layout torch.sparse_coo", 1),
    "sparse_csr": (lambda x: x.detach().to_sparse_csr(), "layout torch.sparse_csr", 1),
    "nested": (lambda x: torch.nested.nested_tensor([x[:1].detach(), x[1:].detach()]), "a nested torch tensor", 1),
    "jagged": (lambda x: torch.nested.nested_tensor([x[:1].detach(), x[1:].detach()], layout=torch.jagged), "a nested torch tensor", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD_OUTPUTS)
def test_odd_output_is_told_once_and_everything_else_is_recorded(agent: Agent, recording: Recording, case: str) -> None:
    make, reason, refused = ODD_OUTPUTS[case]
    same(beside(odd=make))
    found = told(recording)
    assert [(name, kind) for name, kind, _ in found] == [("odd", "output")], found
    assert reason in found[0][2]
    assert statagent.counters().get("dropped_refused", 0) == refused * STEPS
    for step in range(STEPS):
        assert recording.names("output", step) == ["fc", "Calls"]
        assert recording.names("weight_grad", step) == ["fc.weight", "fc.bias"]


def fake_view() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(40)[8:]


def freed_view() -> Any:
    tensor = torch.ones(40)
    view = tensor[8:]
    tensor.untyped_storage().resize_(0)  # as FSDP frees gathered parameters
    return view


# Their data_ptr() is not null but the offset into a storage that does not exist.
VIEWS_OF_NOTHING: dict[str, Callable[[], Any]] = {
    "meta": lambda: torch.empty(40, device="meta")[8:],
    "fake": fake_view,
    "freed": freed_view,
    "zero": lambda: torch._efficientzerotensor(40)[8:],
}


@pytest.mark.parametrize("case", VIEWS_OF_NOTHING)
def test_view_of_memory_that_is_not_there_is_never_read(agent: Agent, recording: Recording, case: str) -> None:
    real = iter([True, False, False])

    class Sometimes(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.ones(40)[8:] if next(real) else VIEWS_OF_NOTHING[case]()

    model = Calls(lambda self, x: (self.odd(x), self.fc(x))[1], odd=Sometimes(), fc=nn.Linear(8, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(statagent.TensorTypeError):
            statagent.compute(VIEWS_OF_NOTHING[case]())
        statagent.watch(model)
        for _ in range(3):  # the first pass teaches the layout
            model(data())
            statagent.step()
    assert [r.step for r in recording.of("output") if r.name == "odd"] == [0]
    assert statagent.counters()["dropped_refused"] == 2
    assert [(name, kind) for name, kind, _ in told(recording)] == [("odd", "output")]


def test_generator_is_left_for_the_caller(agent: Agent, recording: Recording) -> None:
    def make() -> nn.Module:
        modules = {"halves": Calls(lambda self, x: (y * 2 for y in [x])), "fc": nn.Linear(8, 1)}
        return Calls(lambda self, x: self.fc(next(self.halves(x))), **modules)

    assert not [result for result in same(make).results if "Error" in result]


def test_sparse_gradient_is_told_once(agent: Agent, recording: Recording) -> None:
    def make() -> nn.Module:
        modules = {"emb": nn.Embedding(10, 8, sparse=True), "fc": nn.Linear(8, 1)}
        return Calls(lambda self, x: self.fc(self.emb((x[:, 0].abs() * 3).long())), **modules)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        optimizer.param_groups[0]["momentum"] = 0  # SGD has no momentum for sparse gradients
        return one_step(model, optimizer, number)

    same(make, step)
    assert [(name, kind) for name, kind, _ in told(recording)] == [("emb.weight", "weight_grad")]
    assert statagent.counters()["dropped_refused"] == STEPS


def test_number_of_events_is_bounded(agent: Agent, recording: Recording) -> None:
    model = seeded(beside(**{f"odd{i}": (lambda x: None) for i in range(40)}))
    statagent.watch(model)
    model(data())
    events = [text for _, kind, text, _ in recording.events if kind == "not_recorded"]
    assert len(events) == EVENTS_OF_REASON_MAX
    assert events[-1].endswith("(further ones are counted, not reported)")
    for i in range(40):
        agent.refuse(f"some reason {'x' * i}", "name")
    assert len([1 for _, kind, *_ in recording.events if kind == "not_recorded"]) == EVENTS_MAX
    assert statagent.counters()["dropped_refused"] == 40


def test_a_shape_that_changes_is_no_new_reason(agent: Agent, recording: Recording) -> None:
    for i in range(8):
        agent.refuse(f"statistics of a tensor: found shape [{i}]", "x", "output")
    assert told(recording) == [("x", "output", "found shape [0]")]


# --- values at the time of the hook ---


def test_output_changed_in_place_afterwards_is_recorded_as_it_was(agent: Agent, recording: Recording) -> None:
    seen: list[float] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        view = self.view(y)
        seen.extend([float(y.detach().double().norm()), float(view.detach().double().norm())])
        view.add_(1)  # writes into y, too
        y[:, 4:].mul_(2)
        return self.last(y)

    def make() -> nn.Module:
        return Calls(forward, first=nn.Linear(8, 8), view=Calls(lambda self, x: x[:, :4]), last=nn.Linear(8, 1))

    same(make)
    assert told(recording) == []
    for step in range(STEPS):
        first, view = recording.one("first", "output", step=step), recording.one("view", "output", step=step)
        # `seen` holds the run without a watch first.
        assert (first.l2, view.l2) == pytest.approx(tuple(seen[2 * (STEPS + step) : 2 * (STEPS + step) + 2]), rel=1e-6)


def test_hooks_of_others_keep_their_order_and_effect(agent: Agent, recording: Recording) -> None:
    order: list[str] = []

    def hook(name: str, factor: float) -> Callable[..., Any]:
        def apply(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
            order.append(name)
            return output * factor

        return apply

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        model[0].register_forward_hook(hook("before", 2.0))
        model[0].register_full_backward_hook(lambda *_: order.append("backward"))
        return model

    def after(model: nn.Module) -> None:
        model.get_submodule("0").register_forward_hook(hook("after", 3.0))

    same(make, prepare=after)
    assert order == ["before", "after", "backward"] * 2 * STEPS
    assert told(recording) == [] and recording.refusals == []
    # Ours was between the two: what the module hands on after the first, a third of what the second one makes of it.
    first, second_input = recording.one("0", "output", step=0), recording.one("1", "input", step=0)
    assert second_input.l2 == pytest.approx(3 * first.l2, rel=1e-6)


# --- what happens to the model after watch ---


def test_model_without_parameters(agent: Agent, recording: Recording) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        x = data(seed=number).requires_grad_()
        model(x).square().mean().backward()
        optimizer.step()
        return float(x.grad.sum()) if x.grad is not None else 0.0

    same(Doubled, step)
    assert recording.names("output") == ["Doubled"] * STEPS
    assert recording.names("grad_output") == ["Doubled"] * STEPS


@pytest.mark.parametrize("move", ["bfloat16", "double", "half", "to_cpu"])
def test_model_moved_after_watch_is_followed(agent: Agent, recording: Recording, move: str) -> None:
    dtypes = {"bfloat16": torch.bfloat16, "double": torch.float64, "half": torch.float16, "to_cpu": torch.float32}

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        if number == 1:
            model.to("cpu") if move == "to_cpu" else getattr(model, move)()
        optimizer.param_groups[0]["momentum"] = 0  # its buffers stay behind
        optimizer.zero_grad()
        loss = model(data(seed=number).to(next(model.parameters()).dtype)).float().square().mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    same(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), step)
    expected = {torch.bfloat16: "bf16", torch.float64: "f64", torch.float16: "f16", torch.float32: "f32"}[dtypes[move]]
    for name, kind in (("0", "output"), ("0.weight", "weight"), ("0.weight", "weight_grad"), ("0", "grad_output")):
        assert recording.one(name, kind, step=2).dtype == expected
    assert told(recording) == []


def test_parameter_assigned_anew_is_told_and_followed_once_the_optimizer_has_it(agent: Agent, recording: Recording) -> None:
    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> float:
        if number == 1:
            model[0].weight = nn.Parameter(torch.ones(8, 8))
        if number == 2:
            optimizer.add_param_group({"params": [model[0].weight]})
        return one_step(model, optimizer, number)

    same(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), step)
    found = told(recording)
    assert [(name, kind) for name, kind, _ in found] == [("0.weight", "weight")]
    assert "still updates the old one, which the model no longer uses" in found[0][2]
    assert "0.weight" not in recording.names("weight", 1)
    assert recording.one("0.weight", "weight", step=2).l2 > 7  # 8 before the update, less than 2 at watch()
    assert recording.one("0.weight", "weight_grad", step=2).l2 > 0


def test_parameters_given_to_the_optimizer_later_are_recorded_from_then_on(agent: Agent, recording: Recording) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    statagent.watch(model, optimizer)
    one_step(model, optimizer, 0)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    one_step(model, optimizer, 1)
    assert recording.names("weight_grad", 0) == ["1.weight", "1.bias"]
    assert recording.names("weight_grad", 1) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_weights_tied_after_watch_are_recorded_as_the_model_has_them(agent: Agent, recording: Recording) -> None:
    def tie(model: Any) -> None:
        model[1].weight = model[0].weight

    def weight(name: str, step: int) -> Any:
        return recording.one(name, "weight", step=step, mode="train")

    same(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), prepare=tie)
    for step in range(STEPS):
        assert weight("0.weight", step).hash == weight("1.weight", step).hash


def test_lazy_module_is_told_at_watch_and_recorded_from_its_first_pass(agent: Agent, recording: Recording) -> None:
    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> float:
        optimizer.param_groups[0]["momentum"] = 0
        return one_step(model, optimizer, number)

    same(lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 1)), step)
    found = told(recording)
    assert {(name, kind) for name, kind, _ in found} == {("0.weight", "weight"), ("0.bias", "weight")}
    assert all("lazy module without a shape yet" in reason for *_, reason in found)
    assert recording.names("output", 0) == ["0", "1", "Sequential"]
    assert recording.names("weight", 1) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_forward_that_raises_is_followed_by_a_step_recorded_as_ever(agent: Agent, recording: Recording) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        if float(x.detach()[0, 0]) == float(data(seed=1)[0, 0]):
            raise RuntimeError("out of luck")
        return self.last(y)

    result = same(lambda: Calls(forward, fc=nn.Linear(8, 8), last=nn.Linear(8, 1)))
    assert result.results[1] == "RuntimeError: out of luck"
    # The step that failed had no update, so the next pass is its second call and ends it.
    ended = recording.records[-1].step
    assert ended == 1
    assert [(r.name, r.call) for r in recording.of("output", 1)] == [("fc", 0), ("fc", 1), ("last", 0), ("Calls", 0)]
    assert sorted(recording.names("grad_output", 1)) == ["Calls", "fc", "last"]
    assert told(recording) == []


# --- torch.func, TorchScript ---


def test_vmap_and_grad_of_a_watched_model_are_told(agent: Agent, recording: Recording) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        from torch.func import functional_call, grad, vmap

        parameters = {name: p.detach() for name, p in model.named_parameters()}
        loss = lambda p, x: functional_call(model, p, (x,)).square().mean()  # noqa: E731
        per_sample = vmap(grad(loss), (None, 0))(parameters, data(seed=number))
        return one_step(model, optimizer, number) + sum(float(g.sum()) for g in per_sample.values())

    same(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), step)
    found = told(recording)
    assert {kind for _, kind, _ in found} >= {"output"} and len(found) <= EVENTS_OF_REASON_MAX
    assert all("inside of vmap, grad or another torch.func transform" in reason for *_, reason in found)
    for step_number in range(STEPS):  # the ordinary pass of each step is there
        assert sorted(set(recording.names("output", step_number))) == ["0", "1", "Sequential"]
        assert recording.names("weight", step_number)[-4:] == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("how", ["script", "trace"])
def test_parts_of_torchscript_modules_are_told(agent: Agent, recording: Recording, how: str) -> None:
    def make() -> nn.Module:
        part = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = torch.jit.script(part) if how == "script" else torch.jit.trace(part, torch.ones(1, 8))
        return Calls(lambda self, x: self.fc(self.part(x)), part=compiled, fc=nn.Linear(8, 1))

    same(make)
    names = {name for name, _, _ in told(recording)}
    assert names >= {"part.0", "part.1"}
    assert ("part" in names) != ("part" in recording.names("output"))  # either recorded or reported
    assert recording.names("weight", 2) == ["part.0.weight", "part.0.bias", "fc.weight", "fc.bias"]


def test_scripted_root_is_refused_with_a_way_out(agent: Agent) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(8, 8))
    with pytest.raises(statagent.InvalidArgumentError, match=r"does not accept hooks.*watch the module that was scripted"):
        statagent.watch(scripted)


# --- copies and files ---


def test_apply_state_dict_copies_and_pickles_of_a_watched_model(agent: Agent, recording: Recording) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        others = [copy.deepcopy(model), torch.load(stored, weights_only=False)]
        model.apply(lambda module: None)
        model.load_state_dict(model.state_dict())
        extra = sum(float(other(data()).sum()) for other in others)
        return one_step(model, optimizer, number) + extra

    same(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), step)
    for number in range(STEPS):
        assert recording.names("output", number) == ["0", "1", "Sequential"]
    assert told(recording) == []


def test_model_saved_while_watched_loads_without_the_package(agent: Agent, tmp_path: Any) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
    statagent.watch(model, kinds={"output", "input", "grad_output"})
    torch.save(model, tmp_path / "model.pt")
    script = f"""
import sys, torch
model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
print(float(model(torch.ones(1, 8)).detach()), "statagent" in sys.modules)
"""
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], env=bare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        assert done.stdout.split() == [str(float(model(torch.ones(1, 8)))), "False"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_watched_as_far_as_they_take_hooks(agent: Agent, recording: Recording) -> None:
    import torch._dynamo  # as torch.compile and optimizers import it: graphs of the model's classes are looked for then

    assert torch._dynamo is not None
    model = nn.Sequential(torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 1))
    statagent.watch(model, kinds={"output"})
    model(data()).sum().backward()
    assert {"1", "Sequential"} <= set(recording.names("output"))


# --- models that are not the one that was watched ---


def test_watched_model_that_never_ran_is_told_at_close(agent: Agent, recording: Recording) -> None:
    model = nn.Linear(8, 1)
    statagent.watch(model)
    trained = copy.deepcopy(model)
    trained(data()).sum().backward()
    assert statagent.flush(timeout=0) in (True, False)
    assert told(recording) == [], "it may still come"
    statagent.close(timeout=0)
    (name, kind, reason), *others = told(recording)
    assert (name, kind, others) == ("", "output", [])
    assert "the watched Linear was never run" in reason and "a copy that was made after watch()" in reason


@pytest.mark.parametrize("whole", [True, False])
def test_model_that_ran_is_not_told_at_close(agent: Agent, recording: Recording, whole: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    statagent.watch(model)
    (model if whole else model[0])(data())
    statagent.step()
    statagent.close(timeout=0)
    assert told(recording) == []


def test_update_without_a_pass_of_the_watched_model_is_told(agent: Agent, recording: Recording) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer=optimizer)
    for _ in range(3):
        optimizer.step()
    statagent.close(timeout=0)
    found = told(recording)
    assert [(name, kind) for name, kind, _ in found] == [("", "output")] * 2
    assert "optimizer.step() ended step 0, in which the watched model was not run" in found[0][2]
    assert "was never run" in found[1][2]
