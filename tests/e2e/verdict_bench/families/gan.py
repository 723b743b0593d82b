"""GAN: generator and discriminator, each watched with an Adam of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import statagent
from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

NOISE, WIDTH, SIDE, BATCH = 64, 32, 16, 8


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn0 = nn.Linear(NOISE, 64 * 4 * 4), nn.BatchNorm2d(64)
        self.up1, self.bn1 = nn.ConvTranspose2d(64, WIDTH, 4, 2, 1), nn.BatchNorm2d(WIDTH)
        self.act, self.up2 = nn.ReLU(), nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn0(self.fc(noise).view(-1, 64, 4, 4)))
        return torch.tanh(self.up2(self.act(self.bn1(self.up1(x)))))


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(3, WIDTH, 4, 2, 1), nn.LeakyReLU(0.2)
        self.conv2, self.bn2, self.act2 = nn.Conv2d(WIDTH, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.LeakyReLU(0.2)
        self.conv3, self.norm, self.fc = nn.Conv2d(64, 64, 3, 1, 1), nn.GroupNorm(8, 64), nn.Linear(64 * 4 * 4, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.act2(self.bn2(self.conv2(self.act1(self.conv1(images)))))
        return self.fc(self.norm(self.conv3(x)).flatten(1)).squeeze(1)


class GanFamily(Family):
    name = "gan"
    kinds_of_legal = frozenset(("convolution", "linear", "norm", "adam"))

    def models(self) -> dict[str, nn.Module]:
        return {"gen": Generator(), "dis": Discriminator()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {
            name: torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999), **training.optimizer_options)
            for name, model in training.models.items()
        }

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        wave = torch.linspace(0, 6, SIDE)[None, None, None] + torch.rand(BATCH, 3, 1, 1, generator=random) * 3
        images = torch.sin(wave) * torch.rand(BATCH, 1, SIDE, 1, generator=random)
        return {"images": images, "noise": torch.randn(BATCH, NOISE, generator=random)}

    def step(self, training: Training, batch: Batch) -> None:
        gen, dis = training.trained["gen"], training.trained["dis"]
        if training.step not in training.keep_gradients:
            training.optimizers["dis"].zero_grad()
        fake = gen(batch["noise"])
        judged, forged = dis(batch["images"]), dis(fake.detach())
        ones, zeros = torch.ones_like(judged), torch.zeros_like(judged)
        bce = functional.binary_cross_entropy_with_logits
        loss = bce(judged, ones) + bce(forged, zeros)
        (loss * training.loss_factor()).backward()
        statagent.log_scalar("dis_loss", loss)
        training.optimizers["dis"].step()
        training.optimizers["gen"].zero_grad()
        loss = bce(dis(fake), ones)
        loss.backward()
        statagent.log_scalar("gen_loss", loss)
        training.optimizers["gen"].step()


FAMILY = GanFamily()
BUGS = [
    bugs.norm_eps("gen.bn1"),
    bugs.beta(0, optimizer="dis"),
    bugs.module_output("dis.conv2", step=2),
    bugs.learning_rate(step=2, optimizer="gen"),
    bugs.gradient("dis.conv3.weight", step=1),
    bugs.norm_eps("dis.norm"),
    bugs.slope("dis.act1"),
    bugs.weight("gen.up1"),
    bugs.weight("dis.conv3", step=3),
    bugs.loss_factor("dis.fc", step=2),
    bugs.epsilon(optimizer="gen"),
    bugs.beta(1, optimizer="gen"),
    bugs.batch_norm_momentum("gen.bn0"),
    bugs.gradient("gen.up2.weight", step=2),
    bugs.learning_rate(step=1, optimizer="dis"),
    bugs.batch_value("images", step=2),
    bugs.sign_flip("gen.bn1.weight", step=2),
    bugs.zero_grad(step=3, optimizer="dis"),
    bugs.batch_order(step=3),
    bugs.permuted("dis.act2", step=2, dim=1),
    bugs.cast("gen.up1", step=0),
]
