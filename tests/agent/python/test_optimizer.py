"""Weights, their gradients and the optimizer's state; the end of the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, compute

from .models import Calls, Net, data, seeded
from .support import Recording


def update(model: nn.Module, *optimizers: torch.optim.Optimizer, seed: int = 0) -> None:
    model(data(seed=seed)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def test_gradients_come_before_the_update_weights_and_state_after_it(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    before = compute(net.head.weight)["hash"]
    statagent.watch(net, optimizer)
    net(data()).square().mean().backward()
    gradient = compute(net.head.weight.grad)["hash"]
    optimizer.step()
    assert recording.one("head.weight", "weight", mode="init").hash == before
    assert recording.one("head.weight", "weight_grad").hash == gradient
    assert recording.one("head.weight", "weight", mode="train").hash == compute(net.head.weight)["hash"] != before
    state = optimizer.state[net.head.weight]
    for name in ("exp_avg", "exp_avg_sq"):
        assert recording.one("head.weight", "optimizer_state", path=name).hash == compute(state[name])["hash"]
    assert {r.path for r in recording.of("optimizer_state")} == {"exp_avg", "exp_avg_sq"}, "counters are no state to compare"


def test_kinds_come_in_the_order_of_the_step(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    update(net, optimizer)
    kinds = list(dict.fromkeys(r.kind for r in recording.records if r.mode == "train"))
    assert kinds == ["batch", "output", "grad_output", "weight_grad", "weight", "optimizer_state"]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=True),
        lambda p: torch.optim.Adafactor(p, lr=0.1),
    ],
    ids=["sgd", "momentum", "adagrad", "rmsprop", "amsgrad", "adafactor"],
)
def test_every_optimizer_ends_its_step(agent: Agent, recording: Recording, make: Any) -> None:
    net = seeded(Net)
    optimizer = make(list(net.parameters()))
    statagent.watch(net, optimizer)
    for _ in range(3):
        update(net, optimizer)
    assert recording.ended_steps == [0, 1, 2]
    assert agent.current_step() == 3
    assert recording.refusals == []
    assert len(recording.of("weight", 2)) == len(list(net.parameters()))


def test_closure_of_lbfgs_is_part_of_the_step(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    statagent.watch(net, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(data()).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert recording.ended_steps == [0]
    assert [r.micro_batch for r in recording.of("output", 0) if r.name == "head"][:3] == [0, 1, 2]
    assert recording.refusals == []


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_that_a_closure_computes_are_those_of_its_step(agent: Agent, recording: Recording, by_name: bool) -> None:
    """As Lightning calls it: forward, backward and clipping within optimizer.step()."""

    def trained(watched: bool) -> list[torch.Tensor]:
        net = seeded(Net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        made = statagent.watch(net, optimizer) if watched else None
        gradients = []
        for step in range(2):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = net(data(seed=step)).square().mean()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.01)
                gradients.append(float(net.head.weight.grad.double().norm()))
                return loss

            loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert loss is not None and loss.numel() == 1
        if made is not None:
            made.remove()
            assert [recording.one("head.weight", "weight_grad", step=step).l2 for step in (0, 1)] == pytest.approx(gradients)
        return [p.detach().clone() for p in net.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))
    assert recording.ended_steps == [0, 1]
    assert recording.refusals == []


def test_parameters_without_gradient_are_left_out(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: self.used(x), used=nn.Linear(8, 2), unused=nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer)
    update(model, optimizer)
    assert set(recording.names("weight_grad")) == {"used.weight", "used.bias"}
    assert set(recording.names("optimizer_state")) == {"used.weight", "used.bias"}


class Derived(torch.optim.SGD):
    """Its step() and its base's are both wrapped by torch, so that each update calls the hooks twice."""

    failing = False

    def step(self, closure: Any = None) -> Any:
        if self.failing:
            raise RuntimeError("planned")
        return super().step(closure)


def test_derived_optimizer_that_calls_its_base_makes_one_update(agent: Agent, recording: Recording) -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # torch wraps a class when it is first used
    net = seeded(Net)
    optimizer = Derived(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    update(net, optimizer)
    optimizer.failing = True
    with pytest.raises(RuntimeError, match="planned"):
        update(net, optimizer, seed=1)
    optimizer.failing = False
    update(net, optimizer, seed=2)
    optimizer.zero_grad()
    optimizer.step(lambda: net(data(seed=3)).square().mean())
    assert recording.ended_steps == [0, 1, 2]
    assert len(recording.of("weight", 2)) == len(list(net.parameters()))


def test_second_update_without_a_forward_pass_is_told(
    agent: Agent, recording: Recording, capfd: pytest.CaptureFixture[str]
) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    update(net, optimizer)
    assert capfd.readouterr().err == ""
    optimizer.step()
    error = capfd.readouterr().err
    assert "ended step 1" in error and "twice" in error
    assert recording.ended_steps == [0, 1]


def test_step_ends_with_the_last_of_several_optimizers(agent: Agent, recording: Recording) -> None:
    a, b = nn.Linear(8, 8), nn.Linear(8, 2)
    model = Calls(lambda self, x: self.b(self.a(x)), a=a, b=b)
    optimizers = [torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)]
    statagent.watch(model, optimizers)
    for seed in range(2):
        update(model, *optimizers, seed=seed)
    assert recording.ended_steps == [0, 1]
    assert recording.names("weight", 1) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert recording.refusals == []


def test_optimizer_that_updates_twice_in_a_step_gets_calls(agent: Agent, recording: Recording) -> None:
    a, b = nn.Linear(8, 8), nn.Linear(8, 2)
    model = Calls(lambda self, x: self.b(self.a(x)), a=a, b=b)
    often, seldom = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (a, b))
    statagent.watch(model, [often, seldom])
    update(model, often)
    update(model, often, seldom)
    assert recording.ended_steps == [0]
    assert [r.call for r in recording.of("weight", 0) if r.name == "a.weight" and r.mode == "train"] == [0, 1]
    assert recording.refusals == []


def test_step_is_ignored_with_a_watched_optimizer(agent: Agent, recording: Recording, capfd: pytest.CaptureFixture[str]) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    for _ in range(2):
        update(net, optimizer)
        statagent.step()
    assert recording.ended_steps == [0, 1]
    assert capfd.readouterr().err.count("step()") == 1


def test_state_loaded_from_a_checkpoint_is_followed(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    update(net, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    net.load_state_dict(net.state_dict())
    agent.set_step(10)
    update(net, optimizer)
    assert recording.one("head.weight", "optimizer_state", path="exp_avg", step=10)
    assert recording.ended_steps == [0, 10]
    with pytest.raises(ValueError, match="step"):
        agent.set_step(3)


def test_scheduler_wrapping_step_changes_nothing(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        update(net, optimizer)
        scheduler.step()
    assert recording.ended_steps == [0, 1]


needs_scaler = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="no GradScaler of the CPU in this torch")


def scaled_updates(net: Net, optimizer: torch.optim.Optimizer) -> None:
    """Two updates: one whose gradients overflow, at scale 8, and one at scale 4."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for overflow in (True, False):
        loss = net(data()).square().mean() * (float("inf") if overflow else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def plain_gradient_hash(scale: float) -> int:
    net = seeded(Net)
    (net(data()).square().mean() * scale).backward()
    return int(compute(net.head.weight.grad)["hash"])


@needs_scaler
def test_update_that_the_gradient_scaler_skips_does_not_end_the_step(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    scaled_updates(net, optimizer)
    assert recording.ended_steps == [0]
    assert [r.micro_batch for r in recording.of("output", 0) if r.name == "head"] == [0, 1]
    assert recording.one("head.weight", "weight_grad").hash == plain_gradient_hash(1.0), "without the scale"
    assert recording.refusals == []


@needs_scaler
def test_fused_optimizer_unscales_and_skips_inside_its_step(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=True)
    statagent.watch(net, optimizer)
    scaled_updates(net, optimizer)
    assert recording.ended_steps == [0, 1]
    assert recording.one("head.weight", "weight_grad", step=1).hash == plain_gradient_hash(4.0), "with the scale"
    assert recording.refusals == []


def test_a_parameter_that_the_optimizer_leaves_out_later_stays_recorded(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    update(net, optimizer)
    group = optimizer.param_groups[0]
    group["params"] = [parameter for parameter in group["params"] if parameter is not net.head.weight]
    update(net, optimizer)
    update(net, optimizer)
    weights = [r.hash for r in recording.of("weight") if r.name == "head.weight" and r.mode == "train"]
    assert len(weights) == 3 and weights[0] == weights[1] == weights[2]
    gradients = [r.hash for r in recording.of("weight_grad") if r.name == "head.weight"]
    assert len(set(gradients)) == 3


@pytest.mark.parametrize("how", ["method", "function"])
@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, Derived])
def test_compiled_update_is_recorded_as_an_eager_one(agent: Agent, recording: Recording, how: str, optimizer_class: Any) -> None:
    def run(compiled: bool, watched: bool) -> tuple[list[tuple[Any, ...]], list[torch.Tensor]]:
        torch._dynamo.reset()
        start = len(recording.records)
        net = seeded(Net)
        optimizer: Any = optimizer_class(net.parameters(), lr=0.1)
        made = statagent.watch(net, optimizer, updates="0-") if watched else None
        step = optimizer.step
        if compiled:
            step = torch.compile(optimizer.step if how == "method" else lambda: optimizer.step(), backend="aot_eager")
        for number in range(4):
            net(data(seed=number)).square().mean().backward()
            step()
            optimizer.zero_grad()
        if made is not None:
            made.remove()
        records = recording.records[start:]
        first = records[0].step if records else 0
        kept = [(r.step - first, r.kind, r.name, r.path, r.call, r.mode, r.shape) for r in records]
        return kept, [p.detach().clone() for p in net.parameters()]

    eager, _ = run(compiled=False, watched=True)
    compiled, weights = run(compiled=True, watched=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    assert compiled == eager
    assert recording.refusals == [] and recording.ended_steps == list(range(8))
    _, plain = run(compiled=True, watched=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True))


def test_optimizer_of_two_watches_ends_each_step_once(agent: Agent, recording: Recording) -> None:
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    first = statagent.watch(encoder, optimizer=optimizer, name="encoder")
    statagent.watch(decoder, optimizer=optimizer, name="decoder")

    def train() -> None:
        decoder(encoder(torch.ones(2, 4))).sum().backward()
        optimizer.step()

    train()
    train()
    assert recording.ended_steps == [0, 1]
    for name in ("encoder.weight", "decoder.weight"):
        assert [r.step for r in recording.of("weight_grad") if r.name == name] == [0, 1]
    first.remove()
    train()
    assert recording.ended_steps == [0, 1, 2]
