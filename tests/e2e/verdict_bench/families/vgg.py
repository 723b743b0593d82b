"""Plain CNN of 3x3 convolutions over 16 images at a time, max pooling, LeakyReLU and AdamW.

From 16 images on PyTorch without oneDNN computes 3x3 convolutions by Winograd's algorithm, which rounds about 30 times as coarsely."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

SIDE, BATCH, CLASSES = 16, 16, 10


class Vgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 1, 1)
        self.pool = nn.MaxPool2d(2)
        self.conv3, self.conv4 = nn.Conv2d(32, 32, 3, 1, 1), nn.Conv2d(32, 64, 3, 1, 1)
        self.act, self.norm = nn.LeakyReLU(0.1), nn.GroupNorm(8, 64)
        self.hidden, self.head = nn.Linear(64, 64), nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.pool(functional.relu(self.conv2(functional.relu(self.conv1(images)))))
        x = self.pool(self.act(self.norm(self.conv4(functional.leaky_relu(self.conv3(x), 0.1)))))
        return self.head(functional.gelu(self.hidden(x.mean((2, 3)))))


class VggFamily(Family):
    name = "vgg"
    kinds_of_legal = frozenset(("one_model", "convolution", "norm", "adam", "batched_loss", "linear"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Vgg()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=random)
        images = torch.randn(BATCH, 3, SIDE, SIDE, generator=random) + 0.3 * labels[:, None, None, None].cos()
        return {"images": images, "labels": labels}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        return bugs.cross_entropy(training, training.trained[""](batch["images"]), batch["labels"])


FAMILY = VggFamily()
BUGS = [
    bugs.module_output("conv3", step=2),
    bugs.weight("conv2"),
    bugs.gradient("conv4.weight", step=1),
    bugs.norm_eps("norm"),
    bugs.module_output("conv1"),
    bugs.learning_rate(step=2),
    bugs.slope("act"),
    bugs.weight("conv4", step=3),
    bugs.gradient("conv2.bias", step=2),
    bugs.loss_factor("head", step=2),
    bugs.batch_value("images", step=2),
    bugs.beta(0),
    bugs.epsilon(),
    bugs.weight_decay(),
    bugs.label_smoothing("head"),
    bugs.sign_flip("norm.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("act", step=2, dim=1),
    bugs.cast("conv3", step=0),
]
