"""Mixture density network: residual MLP with weights of learned length, the likelihood of a mixture of Gaussians; centred RMSprop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

FEATURES, WIDTH, PARTS, BATCH = 10, 64, 5, 128


class Directed(nn.Module):
    """A linear layer whose rows have a direction and a length."""

    def __init__(self) -> None:
        super().__init__()
        self.direction, self.length = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.gain = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.direction * (self.length / self.direction.norm(dim=1))[:, None]
        return functional.linear(x, weight, self.bias) * self.gain


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.act, self.leave = Directed(), nn.SiLU(), nn.Linear(WIDTH, WIDTH)
        self.residual = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.residual * self.leave(self.act(self.enter(x)))


class Mdn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.branches = nn.Linear(FEATURES, WIDTH), nn.Sequential(*(Branch() for _ in range(3)))
        self.share, self.mean, self.log_width = (nn.Linear(WIDTH, PARTS) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.branches(self.enter(x))
        return self.share(x).log_softmax(1), self.mean(x), self.log_width(x).clamp(-3, 3)


class MdnFamily(Family):
    name = "mdn"
    kinds_of_legal = frozenset(("one_model", "linear", "activation", "rmsprop"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Mdn()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        options = {"lr": 1e-3, "alpha": 0.95, "centered": True, "momentum": 0.5, **training.optimizer_options}
        return {"": torch.optim.RMSprop(training.models[""].parameters(), **options)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        x = torch.randn(BATCH, FEATURES, generator=random)
        upper = torch.rand(BATCH, generator=random) < 0.5
        noise = 0.1 * torch.randn(BATCH, generator=random)
        return {"x": x, "y": torch.where(upper, x[:, 0] + x[:, 1], x[:, 2] - 2) + noise}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        log_share, mean, log_width = training.trained[""](batch["x"])
        away = (batch["y"][:, None] - mean) * torch.exp(-log_width)
        return -torch.logsumexp(log_share - log_width - away.square() / 2, dim=1).mean()


FAMILY = MdnFamily()
BUGS = [
    bugs.attribute("branches.1.enter", "gain"),
    bugs.module_output("branches.2.leave", step=3),
    bugs.gradient("branches.0.enter.direction", step=1),
    bugs.residual("branches.0"),
    bugs.learning_rate(step=2),
    bugs.smoothing(),
    bugs.momentum(),
    bugs.weight("branches.1.leave"),
    bugs.weight("mean", step=3),
    bugs.loss_factor("share", "mean", "log_width", step=2),
    bugs.activation("branches.1.act", step=2),
    bugs.gradient_term("mean.weight", step=3),
    bugs.feature("enter", step=2),
    bugs.epsilon(),
    bugs.batch_value("x", step=2),
    bugs.sign_flip("branches.2.leave.bias", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("branches.2.act", step=2),
    bugs.cast("branches.0.leave"),
]
