"""Vision transformer: patches by convolution, class token, fused attention, Lion with warm-up."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import Block, Lion
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, SIDE, PATCH, BATCH, CLASSES = 64, 16, 4, 8, 10


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2 + 1, WIDTH) * 0.1)
        self.layers = nn.Sequential(*(Block(WIDTH, 4, causal=False, kernel="fused", drop=0.1) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class VitFamily(Family):
    name = "vit"
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "lion", "batched_loss", "convolution"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Vit()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {"": Lion(training.models[""].parameters(), lr=3e-4, weight_decay=0.1, **training.optimizer_options)}

    def schedulers(self, training: Training) -> list[Any]:
        return [torch.optim.lr_scheduler.LambdaLR(training.optimizers[""], lambda step: min(1.0, (step + 1) / 5))]

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=random)
        images = torch.randn(BATCH, 3, SIDE, SIDE, generator=random) + 0.3 * labels[:, None, None, None].sin()
        return {"images": images, "labels": labels}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        return bugs.cross_entropy(training, training.trained[""](batch["images"]), batch["labels"])


FAMILY = VitFamily()
BUGS = [
    bugs.norm_eps("layers.1.ln2"),
    bugs.attention_scale("layers.1.attn"),
    bugs.module_output("layers.0.mlp.act", step=3),
    bugs.beta(1),
    bugs.gradient("layers.2.mlp.up.weight", step=1),
    bugs.dropout("layers.1.mlp.drop"),
    bugs.learning_rate(step=2),
    bugs.weight("layers.1.attn.q"),
    bugs.weight("patches", step=3),
    bugs.loss_factor("head", step=2),
    bugs.activation("layers.2.mlp.act"),
    bugs.residual("layers.0"),
    bugs.weight_decay(),
    bugs.label_smoothing("head"),
    bugs.scheduler_off_by_one(step=1),
    bugs.batch_value("images", step=2),
    bugs.sign_flip("layers.0.ln2.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("layers.1.ln1", step=2),
    bugs.cast("layers.1.attn.o", step=0),
]
