"""State that hooks keep between steps to be cheap must never show in their records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, compute

from .models import Calls, data
from .support import Recording

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.arange(12.0).reshape(3, 4),
    "other values": lambda: torch.arange(12.0).reshape(3, 4) - 5,
    "float64": lambda: torch.arange(12.0, dtype=torch.float64).reshape(3, 4),
    "bfloat16": lambda: torch.arange(12.0).reshape(3, 4).bfloat16(),
    "transposed": lambda: torch.arange(12.0).reshape(4, 3).t(),
    "same shape, other strides": lambda: torch.arange(24.0).reshape(3, 8)[:, ::2],
    "offset": lambda: torch.arange(15.0)[3:].reshape(3, 4),
    "other shape": lambda: torch.arange(6.0).reshape(3, 2),
    "flat": lambda: torch.arange(12.0),
    "no dimensions": lambda: torch.tensor(2.5),
    "empty": lambda: torch.ones(3, 0),
    "expanded": lambda: torch.ones(1, 4).expand(3, 4),
    "integers": lambda: torch.arange(12).reshape(3, 4),
    "complex": lambda: torch.arange(12.0).reshape(3, 4) * (1 + 2j),
    "conjugated": lambda: (torch.arange(12.0).reshape(3, 4) * (1 + 2j)).conj(),
    "negated lazily": lambda: (torch.arange(12.0).reshape(3, 4) * (1 + 2j)).conj().imag,
    "parameter": lambda: nn.Parameter(torch.arange(12.0).reshape(3, 4)),
}


@pytest.mark.parametrize("first", LAYOUTS)
def test_a_place_takes_any_layout_after_any_other(agent: Agent, recording: Recording, first: str) -> None:
    current: list[torch.Tensor] = []
    model = Calls(lambda self, x: self.inner(x), inner=Calls(lambda self, x: current[0]))
    statagent.watch(model, kinds={"output"}, include=["inner"])
    wanted = []
    for second in LAYOUTS:
        for name in (first, second, second):
            current[:] = [LAYOUTS[name]()]
            model(data())
            statagent.step()
            found = compute(current[0])
            wanted.append((found["dtype"], tuple(found["shape"]), found["hash"], found["l2"] or 0.0))
    assert recording.refusals == []
    assert [(r.dtype, r.shape, r.hash, r.l2) for r in recording.of("output")] == wanted


def test_a_place_refuses_what_it_cannot_read_and_goes_on(agent: Agent, recording: Recording) -> None:
    good = torch.ones(2, 2)
    outputs = [good, torch.ones(2, 2, device="meta"), good, torch.eye(2).to_sparse(), good, torch.ones(2, 2).to_mkldnn(), good]
    left = list(outputs)
    model = Calls(lambda self, x: self.inner(x), inner=Calls(lambda self, x: left.pop(0)))
    statagent.watch(model, kinds={"output"}, include=["inner"])
    for _ in outputs:
        model(data())
        statagent.step()
    assert [r.step for r in recording.of("output")] == [0, 2, 4, 6]
    assert statagent.counters()["dropped_refused"] == 3


def test_gradients_reach_every_hook_of_a_tensor_in_the_order_of_registration(agent: Agent, recording: Recording) -> None:
    order: list[str] = []
    kept: list[Any] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)  # the same tensor comes out of two modules
        y.register_hook(lambda _: order.append("user"))
        kept.append(y.register_hook(lambda _: order.append("removed")))
        kept.pop().remove()
        return y

    model = Calls(forward, inner=Calls(lambda self, x: x * 2))
    statagent.watch(model)
    model(data().requires_grad_()).sum().backward()
    assert order == ["user"]
    assert recording.names("grad_output") == ["inner", "Calls"]
    assert len({r.hash for r in recording.of("grad_output")}) == 1


def test_a_users_hook_that_changes_the_gradient_is_seen_by_hooks_after_it_only(agent: Agent, recording: Recording) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y.register_hook(lambda gradient: gradient * 3)
        return y

    x = data().requires_grad_()
    model = Calls(forward, inner=Calls(lambda self, x: x * 2))
    statagent.watch(model)
    model(x).sum().backward()
    inner, outer = recording.one("inner", "grad_output"), recording.one("Calls", "grad_output")
    assert outer.l2 == pytest.approx(3 * inner.l2)
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 6.0))


def test_a_tensor_that_had_a_users_hook_before_ours(agent: Agent, recording: Recording) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 3)
        return y

    model = Calls(lambda self, x: self.inner(x) + 0, inner=Calls(forward))
    statagent.watch(model)
    model(data().requires_grad_()).sum().backward()
    assert recording.one("inner", "grad_output").l2 == pytest.approx(3 * recording.one("Calls", "grad_output").l2)


def test_an_output_changed_in_place_afterwards_has_the_gradient_of_what_was_seen(agent: Agent, recording: Recording) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y.mul_(5)

    model = Calls(forward, inner=Calls(lambda self, x: x + 1))
    statagent.watch(model)
    model(data().requires_grad_()).sum().backward()
    inner, outer = recording.one("inner", "grad_output"), recording.one("Calls", "grad_output")
    assert inner.l2 == pytest.approx(5 * outer.l2)


def test_a_compiled_model_whose_first_steps_are_not_recorded_is_recorded_later(agent: Agent, recording: Recording) -> None:
    # torch.compile does not notice hooks that are added after it has compiled: they must be there from the start.
    model = Calls(lambda self, x: self.fc(x), fc=nn.Linear(8, 2))
    statagent.watch(model, steps="2-")
    compiled = torch.compile(model, backend="eager")
    for _ in range(4):
        compiled(data()).sum().backward()
        statagent.step()
    assert [r.step for r in recording.of("output") if r.name == "fc"] == [2, 3]


def test_a_parameter_that_changes_its_layout_is_read_right(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: self.fc(x), fc=nn.Linear(8, 8, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    statagent.watch(model, optimizer=optimizer, kinds={"weight", "weight_grad", "optimizer_state"})
    weight = next(model.parameters())
    wanted = []
    for change in (lambda: weight.data, lambda: weight.data.t(), lambda: weight.data.double(), lambda: weight.data.float()):
        weight.data = change()
        weight.grad = torch.ones_like(weight)
        optimizer.state.clear()
        optimizer.step()
        wanted.append((compute(weight)["dtype"], compute(weight)["hash"]))
    assert recording.refusals == []
    assert [(r.dtype, r.hash) for r in recording.of("weight") if r.mode == "train"] == wanted
    assert [r.dtype for r in recording.of("weight_grad")] == ["f32", "f32", "f64", "f32"]
    assert [r.path for r in recording.of("optimizer_state")] == ["momentum_buffer"] * 4


def test_optimizer_state_of_any_shape_is_recorded(agent: Agent, recording: Recording) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter] = {
                    "plain": torch.ones(2),
                    "nested": [torch.ones(3), {"deep": torch.ones(4)}],
                    7: torch.ones(5),
                }
            return super().step(closure)

    model = Calls(lambda self, x: self.fc(x), fc=nn.Linear(8, 2, bias=False))
    statagent.watch(model, optimizer=(optimizer := Odd(model.parameters(), lr=0.1)), kinds={"optimizer_state"})
    model(data()).sum().backward()
    optimizer.step()
    assert {r.path: r.shape for r in recording.of("optimizer_state")} == {
        "plain": (2,), "nested.0": (3,), "nested.1.deep": (4,), "7": (5,),
    }  # fmt: skip
