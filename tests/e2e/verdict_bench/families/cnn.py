"""Residual CNN with BatchNorm, dropout, SGD with momentum, StepLR and a validation loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

import statagent
from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, SIDE, BATCH, CLASSES = 32, 16, 8, 10


class Stage(nn.Module):
    def __init__(self, width: int, out: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, out, 3, stride, 1), nn.BatchNorm2d(out)
        self.act = nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1), nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(width, out, 1, stride)
        self.residual = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.bn1(self.conv1(x)))
        return functional.relu(self.skip(x) + self.residual * self.bn2(self.conv2(hidden)))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, WIDTH, 3, 1, 1), nn.BatchNorm2d(WIDTH)
        self.stages = nn.Sequential(Stage(WIDTH, WIDTH, 1), Stage(WIDTH, 64, 2), Stage(64, 64, 1))
        self.drop, self.fc = nn.Dropout(0.1), nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stages(functional.relu(self.bn(self.stem(images))))
        return self.fc(self.drop(x.mean((2, 3))))


class CnnFamily(Family):
    name = "cnn"
    kinds_of_legal = frozenset(("one_model", "convolution", "norm", "sgd", "batched_loss", "linear"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Cnn()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4, **training.optimizer_options)}

    def schedulers(self, training: Training) -> list[Any]:
        return [torch.optim.lr_scheduler.StepLR(training.optimizers[""], 4, 0.5)]

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=random)
        images = torch.randn(BATCH, 3, SIDE, SIDE, generator=random) + 0.3 * labels[:, None, None, None].sin()
        return {"images": images, "labels": labels}

    def after_step(self, training: Training) -> None:
        if training.step % 2 == 1:
            model, held_out = training.models[""], self.batch(5000)
            model.eval()
            with torch.no_grad():
                images = training.laid_out(held_out["images"])
                statagent.log_scalar("val_loss", functional.cross_entropy(model(images), held_out["labels"]))
            model.train()

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        return bugs.cross_entropy(training, training.trained[""](batch["images"]), batch["labels"])


FAMILY = CnnFamily()
BUGS = [
    bugs.norm_eps("stages.1.bn1"),
    bugs.batch_norm_momentum("stages.1.bn2"),
    bugs.module_output("stages.0.conv2", step=2),
    bugs.scheduler_off_by_one(step=4),
    bugs.gradient("stages.2.conv1.weight", step=1),
    bugs.learning_rate(step=2),
    bugs.momentum(),
    bugs.weight("stages.1.conv1"),
    bugs.weight("fc", step=3),
    bugs.loss_factor("fc", step=2),
    bugs.residual("stages.1"),
    bugs.dropout("drop"),
    bugs.weight_decay(),
    bugs.label_smoothing("fc"),
    bugs.batch_value("images", step=2),
    bugs.sign_flip("stages.0.bn1.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("stages.0.act", step=2, dim=1),
    bugs.cast("stages.1.skip", step=0),
]
