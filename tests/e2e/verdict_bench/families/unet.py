"""Small diffusion U-Net: GroupNorm, SiLU, time embedding, attention in the middle; Adam."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.blocks import Attention
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, SIDE, BATCH, LEVELS = 32, 16, 8, 100


class Residual(nn.Module):
    def __init__(self, width: int, out: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, width), nn.Conv2d(width, out, 3, 1, 1)
        self.act, self.time = nn.SiLU(), nn.Linear(64, out)
        self.norm2, self.conv2 = nn.GroupNorm(8, out), nn.Conv2d(out, out, 3, 1, 1)
        self.skip = nn.Conv2d(width, out, 1)
        self.residual = 1.0

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.residual * self.conv2(self.act(self.norm2(hidden)))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time1, self.time_act, self.time2 = nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64)
        self.enter, self.down1 = nn.Conv2d(3, WIDTH, 3, 1, 1), Residual(WIDTH, WIDTH)
        self.pool, self.down2 = nn.Conv2d(WIDTH, 64, 3, 2, 1), Residual(64, 64)
        self.norm, self.attn = nn.GroupNorm(8, 64), Attention(64, 4, causal=False)
        self.up = nn.ConvTranspose2d(64, WIDTH, 4, 2, 1)
        self.up1, self.leave = Residual(2 * WIDTH, WIDTH), nn.Conv2d(WIDTH, 3, 3, 1, 1)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        angles = times[:, None] * torch.exp(-torch.arange(16) / 3.0)
        time = self.time2(self.time_act(self.time1(torch.cat([angles.sin(), angles.cos()], dim=1))))
        high = self.down1(self.enter(images), time)
        low = self.down2(self.pool(high), time)
        tokens = self.norm(low).flatten(2).transpose(1, 2)
        low = low + self.attn(tokens).transpose(1, 2).reshape(low.shape)
        return self.leave(self.up1(torch.cat([self.up(low), high], dim=1), time))


class UnetFamily(Family):
    name = "unet"
    kinds_of_legal = frozenset(("one_model", "attention", "convolution", "linear", "norm", "adam"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Unet()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {"": torch.optim.Adam(training.models[""].parameters(), lr=1e-3, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        wave = torch.linspace(0, 6, SIDE)[None, None, None] + torch.rand(BATCH, 3, 1, 1, generator=random) * 3
        clean, noise = torch.sin(wave).expand(-1, -1, SIDE, -1), torch.randn(BATCH, 3, SIDE, SIDE, generator=random)
        times = torch.randint(0, LEVELS, (BATCH,), generator=random).float()
        share = (times / LEVELS)[:, None, None, None]
        return {"images": (1 - share).sqrt() * clean + share.sqrt() * noise, "noise": noise, "times": times}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        return functional.mse_loss(training.trained[""](batch["images"], batch["times"]), batch["noise"])


FAMILY = UnetFamily()
BUGS = [
    bugs.norm_eps("down2.norm2"),
    bugs.attention_scale("attn"),
    bugs.module_output("up", step=2),
    bugs.learning_rate(step=2),
    bugs.gradient("down1.conv1.weight", step=1),
    bugs.residual("down1", shown=[("down1", "output")]),
    bugs.weight("pool"),
    bugs.weight("down2.time", step=3),
    bugs.loss_factor("leave", step=2),
    bugs.activation("time_act"),
    bugs.beta(0),
    bugs.epsilon(),
    bugs.module_output("time2", step=3),
    bugs.norm_eps("up1.norm1"),
    bugs.batch_value("times", step=2),
    bugs.sign_flip("down2.norm1.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("down2.act", step=2, dim=1),
    bugs.cast("pool", step=0),
]
