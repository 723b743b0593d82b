"""Inverted residuals with linear bottlenecks, norms that call their own kernel, and a moving average that is evaluated after every step; AdamW."""

from __future__ import annotations

import copy

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.bugs import Bug
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, SIDE, BATCH, CLASSES = 12, 16, 8, 10


class NormAct(nn.BatchNorm2d):
    """A norm and what follows it, as one module: its children see what its own operations put out."""

    def __init__(self, channels: int, act: bool = True) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU6() if act else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(super().forward(x)))


class Inverted(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        inner = 4 * width
        self.expand, self.bn1 = nn.Conv2d(width, inner, 1, bias=False), NormAct(inner)
        self.depth, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), NormAct(inner)
        self.project, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), NormAct(out, act=False)
        self.residual = 1.0 if width == out and stride == 1 else 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn3(self.project(self.bn2(self.depth(self.bn1(self.expand(x))))))
        return x * self.residual + out if self.residual else out


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), NormAct(WIDTH)
        self.blocks = nn.Sequential(Inverted(WIDTH, WIDTH, 1), Inverted(WIDTH, 24, 2), Inverted(24, 24, 1), Inverted(24, 24, 1))
        self.last, self.bn2 = nn.Conv2d(24, 48, 1, bias=False), NormAct(48)
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.bn2(self.last(self.blocks(self.bn(self.stem(images)))))
        return self.fc(x.mean((2, 3)))


class MobileFamily(Family):
    name = "mobile"
    kinds_of_legal = frozenset(("one_model", "convolution", "linear", "adam", "batched_loss"))
    copies_buffers = True

    def models(self) -> dict[str, nn.Module]:
        return {"": Mobile()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {"": torch.optim.AdamW(training.models[""].parameters(), lr=2e-3, weight_decay=0.05, **training.optimizer_options)}

    def evaluated(self, training: Training) -> dict[str, nn.Module]:
        self.average = copy.deepcopy(training.models[""]).eval().requires_grad_(False)
        return {"ema": self.average}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=random)
        waves = torch.cos(torch.arange(SIDE) * (1 + labels[:, None, None, None]) / 4).expand(BATCH, 3, SIDE, SIDE)
        return {"images": waves + torch.randn(BATCH, 3, SIDE, SIDE, generator=random), "labels": labels}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        return bugs.cross_entropy(training, training.trained[""](batch["images"]), batch["labels"])

    @torch.no_grad()
    def after_step(self, training: Training) -> None:
        model = training.models[""]
        for average, weight in zip(self.average.parameters(), model.parameters()):
            average.lerp_(weight, 0.1)
        if self.copies_buffers:
            for copied, buffer in zip(self.average.buffers(), model.buffers()):
                copied.copy_(buffer)
        self.average(training.laid_out(self.batch(1000)["images"]))


def buffers_not_copied() -> Bug:
    """The moving average keeps the running statistics of the first step's model. Its evaluations belong to the next step."""

    def plant(training: Training, _: float) -> None:
        training.family.copies_buffers = False  # type: ignore[attr-defined]

    return Bug("buffers_not_copied", plant, 1, bugs.FORWARD, (("ema.*", "output"), ("ema.*", "buffer")), (), (1.0,))


FAMILY = MobileFamily()
BUGS = [
    buffers_not_copied(),
    bugs.attribute("blocks.1.bn2", "eps", shown=[("blocks.1.bn2", "output"), ("blocks.1.bn2.drop", "output")], add=2.0),
    bugs.module_output("blocks.2.depth", step=2),
    bugs.gradient("blocks.0.expand.weight", step=1),
    bugs.label_smoothing("fc"),
    bugs.learning_rate(step=2),
    bugs.batch_norm_momentum("blocks.1.bn1"),
    bugs.residual("blocks.2"),
    bugs.weight("blocks.3.project"),
    bugs.loss_factor("fc", step=2),
    bugs.activation("blocks.2.bn1.act", step=2),
    bugs.beta(1),
    bugs.weight_decay(),
    bugs.batch_value("images", step=2),
    bugs.sign_flip("blocks.1.bn3.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.feature("blocks.3.project", step=2, dim=1),
]
