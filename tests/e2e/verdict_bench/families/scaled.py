"""Autocast to float16 with a scaler of the loss and clipping, on the CPU, where only products are fast: an MLP; SGD."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import statagent
from verdict_bench import bugs
from verdict_bench.bugs import Bug
from verdict_bench.training import Batch, Family, Training, generator

FEATURES, HIDDEN, CLASSES, BATCH, SCALE = 24, 64, 8, 32, 1024.0


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU()
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)
        self.residual = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.residual * self.down(self.act(self.up(self.norm(x))))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.layers = nn.Linear(FEATURES, HIDDEN), nn.Sequential(*(Layer() for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.enter(points))))


class ScaledFamily(Family):
    name = "scaled"
    clip = 1.0
    float16 = True
    unscales = True  # before clipping
    kinds_of_legal = frozenset(("linear", "sgd", "batched_loss"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Mlp()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        return {"": torch.optim.SGD(training.models[""].parameters(), lr=0.1, momentum=0.9, **training.optimizer_options)}

    def watch_options(self) -> dict[str, Any]:
        return {"scaler": self.scaler}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=random)
        points = torch.randn(BATCH, FEATURES, generator=random) + torch.sin(labels[:, None] * torch.arange(FEATURES))
        return {"points": points, "labels": labels}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = training.trained[""](batch["points"])
        return bugs.cross_entropy(training, logits.float(), batch["labels"])

    def step(self, training: Training, batch: Batch) -> None:
        model, optimizer = training.models[""], training.optimizers[""]
        if training.step not in training.keep_gradients:
            optimizer.zero_grad()
        loss = training.compute_loss(training, batch)
        self.scaler.scale(loss * training.loss_factor()).backward()
        statagent.log_scalar("loss", loss)
        if self.unscales:
            self.scaler.unscale_(optimizer)
        assert self.clip is not None
        nn.utils.clip_grad_norm_(model.parameters(), self.clip * training.clip_factor())
        self.scaler.step(optimizer)
        self.scaler.update()


def clipped_while_scaled() -> Bug:
    def plant(training: Training, _: float) -> None:
        training.family.unscales = False  # type: ignore[attr-defined]

    return Bug(
        "clipped_while_scaled",
        plant,
        0,
        bugs.GRAD,
        (("*", "weight_grad"),),
        ("clip_norm", "gradient_scale", "loss_scale"),
        (1.0,),
    )


FAMILY = ScaledFamily()
BUGS = [
    clipped_while_scaled(),
    bugs.norm_eps("layers.1.norm"),
    bugs.module_output("layers.0.up", step=2),
    bugs.gradient("layers.1.down.weight", step=1),
    bugs.loss_factor("head", step=2),
    bugs.learning_rate(step=2),
    bugs.weight("layers.2.up"),
    bugs.residual("layers.1"),
    bugs.activation("layers.2.act"),
    bugs.momentum(),
    bugs.clip(step=1),
    bugs.sign_flip("layers.0.norm.weight", step=2),
    bugs.batch_order(step=3),
    bugs.label_smoothing("head"),
]
