"""Normalising flow: affine couplings behind learned scales, trained by the exact likelihood; Adam with clipping."""

from __future__ import annotations

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

FEATURES, HIDDEN, BATCH, COUPLINGS = 12, 64, 80, 4


class Scale(nn.Module):
    """A learned scale and shift of every feature, and the logarithm of what it does to a volume."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale, self.shift = nn.Parameter(torch.zeros(FEATURES)), nn.Parameter(torch.zeros(FEATURES))
        self.gain = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.shift) * self.log_scale.exp() * self.gain


class Conditioner(nn.Module):
    """From one half of the features: the scale and the shift of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.act1 = nn.Linear(FEATURES // 2, HIDDEN), nn.Tanh()
        self.middle, self.act2 = nn.Linear(HIDDEN, HIDDEN), nn.Softplus()
        self.leave = nn.Linear(HIDDEN, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.act2(self.middle(self.act1(self.enter(x)))))


class Coupling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.net = Scale(), Conditioner()
        self.bound = 1.5

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What comes out, with its halves exchanged, and the logarithm of the determinant."""
        kept, changed = self.scale(x).chunk(2, dim=1)
        log_scale, shift = self.net(kept).chunk(2, dim=1)
        log_scale = self.bound * torch.tanh(log_scale / self.bound)
        out = torch.cat([changed * log_scale.exp() + shift, kept], dim=1)
        return out, log_scale.sum(1) + self.scale.log_scale.sum()


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling() for _ in range(COUPLINGS))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.zeros(len(x))
        for coupling in self.couplings:
            x, log_determinant = coupling(x)
            total = total + log_determinant
        return x, total


class FlowFamily(Family):
    name = "flow"
    clip = 1.0
    kinds_of_legal = frozenset(("one_model", "linear", "activation", "adam"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Flow()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {"": torch.optim.Adam(training.models[""].parameters(), lr=2e-3, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        """Points around a curve: every other feature is a function of its neighbour."""
        normal = torch.randn(BATCH, FEATURES, generator=generator(self, step))
        normal[:, 1::2] = normal[:, 0::2].square() - 1 + 0.3 * normal[:, 1::2]
        return {"points": normal}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        latent, log_determinant = training.trained[""](batch["points"])
        return (latent.square().sum(1) / 2 - log_determinant).mean()


FAMILY = FlowFamily()
BUGS = [
    bugs.attribute("couplings.1.scale", "gain"),
    bugs.module_output("couplings.2.net.middle", step=3),
    bugs.gradient("couplings.1.net.enter.weight", step=1),
    bugs.attribute("couplings.1", "bound", shown=[("couplings.1", "output")]),
    bugs.learning_rate(step=2),
    bugs.activation("couplings.2.net.act2", step=2),
    bugs.weight("couplings.3.net.leave"),
    bugs.weight("couplings.0.net.middle", step=3),
    bugs.loss_factor("couplings.3", step=2),
    bugs.gradient_term("couplings.3.net.leave.weight", step=3),
    bugs.feature("couplings.0.net.enter", step=2),
    bugs.clip(step=1),
    bugs.beta(1),
    bugs.epsilon(),
    bugs.batch_value("points", step=2),
    bugs.sign_flip("couplings.2.net.enter.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("couplings.1.net.act1", step=2),
    bugs.cast("couplings.2.net.leave"),
]
