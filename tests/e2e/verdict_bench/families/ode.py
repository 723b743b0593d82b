"""Neural ODE: a field of sines, integrated with the same weights over and over (Runge-Kutta); SGD with Nesterov's momentum."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

FEATURES, STATE, HIDDEN, BATCH, STRIDES, TARGETS = 8, 24, 64, 64, 4, 3


class Sine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frequency = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.frequency * x)


class Field(nn.Module):
    """The derivative of a state at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.act, self.leave = nn.Linear(STATE + 1, HIDDEN), Sine(), nn.Linear(HIDDEN, STATE)

    def forward(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.leave(self.act(self.enter(torch.cat([state, time.expand(len(state), 1)], dim=1))))


class Ode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.field, self.norm = nn.Linear(FEATURES, STATE), Field(), nn.LayerNorm(STATE)
        self.leave = nn.Linear(STATE, TARGETS)
        self.stride = 1 / STRIDES

    def advanced(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        half = self.stride / 2
        first = self.field(state, time)
        second = self.field(state + half * first, time + half)
        third = self.field(state + half * second, time + half)
        fourth = self.field(state + self.stride * third, time + self.stride)
        return state + self.stride / 6 * (first + 2 * second + 2 * third + fourth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.enter(x)
        for index in range(STRIDES):
            state = self.advanced(state, torch.tensor(index / STRIDES))
        return self.leave(self.norm(state))


class OdeFamily(Family):
    name = "ode"
    kinds_of_legal = frozenset(("one_model", "linear", "norm", "sgd"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Ode()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        options = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3, **training.optimizer_options}
        return {"": torch.optim.SGD(training.models[""].parameters(), **options)}

    def batch(self, step: int) -> Batch:
        x = torch.randn(BATCH, FEATURES, generator=generator(self, step))
        return {"x": x, "targets": torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3:].abs().mean(1)], dim=1)}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        return functional.smooth_l1_loss(training.trained[""](batch["x"]), batch["targets"], beta=0.5)


FAMILY = OdeFamily()
FIELD = [("field", "output"), ("field", "input"), ("field.enter", "output"), ("field.enter", "input")]
BUGS = [
    bugs.attribute("field.act", "frequency"),
    bugs.norm_eps("norm"),
    bugs.gradient("field.leave.weight", step=1),
    bugs.attribute("", "stride", shown=FIELD),
    bugs.momentum(first=0),  # Nesterov's form uses it in the first step already
    bugs.learning_rate(step=2),
    bugs.weight("enter"),
    bugs.weight("field.enter", step=3),
    bugs.module_output("field", step=2),
    bugs.loss_factor("leave", step=2),
    bugs.gradient_term("field.enter.weight", step=3),
    bugs.feature("enter", step=2),
    bugs.activation("field.act", step=2),
    bugs.weight_decay(),
    bugs.batch_value("x", step=2),
    bugs.sign_flip("norm.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("field.act", step=2),
    bugs.cast("leave"),
]
