"""Recommender with means of embeddings, a cross network, pairwise products and dropout of whole fields; Adagrad."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

DENSE, WIDTH, BATCH, BAG, SIZES = 12, 24, 96, 4, (150, 90, 60, 40, 20)
FIELDS = len(SIZES) + 1


class Cross(nn.Module):
    """Multiplies what entered the network into what has come of it so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.gain = 1.0

    def forward(self, entered: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * entered * self.linear(x)


class Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(size, WIDTH, mode="mean") for size in SIZES)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 48), nn.ReLU(), nn.Linear(48, WIDTH))
        self.drop = nn.Dropout(0.1)
        self.cross = nn.ModuleList(Cross(FIELDS * WIDTH) for _ in range(2))
        self.top = nn.Sequential(nn.Linear(FIELDS * WIDTH + FIELDS * (FIELDS - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        embedded = [bag(ids[:, field]) for field, bag in enumerate(self.bags)]
        fields = self.drop(torch.stack([self.bottom(dense), *embedded], dim=1))
        row, column = torch.tril_indices(FIELDS, FIELDS, -1)
        products = (fields @ fields.transpose(1, 2))[:, row, column]
        entered = crossed = fields.flatten(1)
        for cross in self.cross:
            crossed = cross(entered, crossed)
        return self.top(torch.cat([crossed, products], dim=1)).squeeze(1)


class DlrmFamily(Family):
    name = "dlrm"
    kinds_of_legal = frozenset(("one_model", "linear", "bag", "adagrad"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Dlrm()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.Adagrad(parameters, lr=0.02, weight_decay=1e-4, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        ids = torch.stack([torch.randint(0, size, (BATCH, BAG), generator=random) for size in SIZES], dim=1)
        dense = torch.randn(BATCH, DENSE, generator=random)
        return {"dense": dense, "ids": ids, "clicks": (dense[:, 0] + ids[:, 1, 0] % 3 > 1).float()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["dense"], batch["ids"])
        return functional.binary_cross_entropy_with_logits(logits, batch["clicks"])


FAMILY = DlrmFamily()
BUGS = [
    bugs.attribute("cross.1", "gain"),
    bugs.module_output("bags.2", step=2),
    bugs.gradient("cross.0.linear.weight", step=1),
    bugs.dropout("drop"),
    bugs.learning_rate(step=2),
    bugs.module_output("bottom.2", step=3),
    bugs.weight("bags.3"),
    bugs.weight("top.0", step=3),
    bugs.loss_factor("top.2", step=2),
    bugs.activation("top.1", step=2),
    bugs.gradient_term("bags.1.weight", step=3),
    bugs.feature("bottom.0", step=2),
    bugs.weight_decay(),
    bugs.epsilon(),
    bugs.batch_value("dense", step=2),
    bugs.sign_flip("bottom.0.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("bottom.1", step=2),
    bugs.cast("cross.0.linear"),
]
