"""Autoencoder with a codebook: convolutions with BatchNorm, the nearest code straight through, a commitment loss; Adam."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

SIDE, BATCH, WIDTH, CHANNELS, CODES = 16, 8, 24, 16, 32


class Quantizer(nn.Module):
    """Replaces each position's vector by the nearest code; its gradient passes as if nothing had been replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, CHANNELS) / 2)
        self.commitment = 0.25

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, channels, height, width], and the loss of codes and of the encoder's commitment to them."""
        vectors = x.permute(0, 2, 3, 1)
        flat = vectors.reshape(-1, CHANNELS)
        scores = flat @ self.codes.t() - self.codes.square().sum(1) / 2
        chosen = self.codes[scores.argmax(1)].view_as(vectors)
        loss = functional.mse_loss(chosen, vectors.detach()) + self.commitment * functional.mse_loss(vectors, chosen.detach())
        return (vectors + (chosen - vectors).detach()).permute(0, 3, 1, 2), loss


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.bn1, self.act1 = nn.Conv2d(3, WIDTH, 4, 2, 1), nn.BatchNorm2d(WIDTH), nn.ReLU()
        self.down, self.quantizer = nn.Conv2d(WIDTH, CHANNELS, 4, 2, 1), Quantizer()
        self.up, self.bn2, self.act2 = nn.ConvTranspose2d(CHANNELS, WIDTH, 4, 2, 1), nn.BatchNorm2d(WIDTH), nn.ReLU()
        self.leave = nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        coded, loss = self.quantizer(self.down(self.act1(self.bn1(self.enter(images)))))
        return self.leave(self.act2(self.bn2(self.up(coded)))), loss


class VqvaeFamily(Family):
    name = "vqvae"
    kinds_of_legal = frozenset(("one_model", "convolution", "norm", "adam"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Autoencoder()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {"": torch.optim.Adam(training.models[""].parameters(), lr=2e-3, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        ramp = torch.linspace(-3, 3, SIDE) * torch.rand(BATCH, 3, SIDE, 1, generator=random)
        return {"images": ramp.cos() + 0.1 * torch.randn(BATCH, 3, SIDE, SIDE, generator=random)}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        images, quantized = training.trained[""](batch["images"])
        return functional.mse_loss(images, batch["images"]) + quantized


FAMILY = VqvaeFamily()
BUGS = [
    bugs.norm_eps("bn2"),
    bugs.attribute("quantizer", "commitment", shown=[("quantizer", "output")]),
    bugs.gradient("quantizer.codes", step=1),
    bugs.module_output("down", step=2),
    bugs.batch_norm_momentum("bn1"),
    bugs.learning_rate(step=2),
    bugs.weight("up"),
    bugs.weight("leave", step=3),
    bugs.loss_factor("leave", "quantizer", step=2),
    bugs.activation("act2", step=2),
    bugs.gradient_term("enter.weight", step=3),
    bugs.feature("up", step=2, dim=1),
    bugs.beta(1),
    bugs.epsilon(),
    bugs.batch_value("images", step=2),
    bugs.sign_flip("bn1.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("act1", step=2, dim=1),
    bugs.cast("down"),
]
