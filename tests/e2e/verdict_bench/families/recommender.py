"""Recommender: bags of embeddings, a bottom and a top MLP, pairwise dot products; Adam."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, BATCH, BAG, FEATURES, SIZES = 64, 128, 5, 16, (200, 120, 60)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(size, WIDTH, mode="sum") for size in SIZES)
        self.bottom = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, WIDTH), nn.LayerNorm(WIDTH))
        pairs = (len(SIZES) + 1) * len(SIZES) // 2
        self.top = nn.Sequential(
            nn.Linear(WIDTH + pairs, 128),
            nn.BatchNorm1d(128),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(128, 64),
            nn.GELU(),
            nn.Linear(64, 1),
        )
        self.dot = 1.0

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(bag(ids[:, i]) for i, bag in enumerate(self.bags))], dim=1)
        products = (vectors @ vectors.transpose(1, 2)) * self.dot
        row, column = torch.tril_indices(products.shape[1], products.shape[1], -1)
        return self.top(torch.cat([bottom, products[:, row, column] / 8], dim=1)).squeeze(1)


class RecommenderFamily(Family):
    name = "recommender"
    kinds_of_legal = frozenset(("one_model", "linear", "norm", "adam", "bag"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Recommender()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.Adam(parameters, lr=2e-3, weight_decay=1e-5, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        ids = torch.stack([torch.randint(0, size, (BATCH, BAG), generator=random) for size in SIZES], dim=1)
        dense = torch.randn(BATCH, FEATURES, generator=random)
        return {"dense": dense, "ids": ids, "clicks": ((ids[:, 0].sum(1) % 7 > 3) ^ (dense[:, 0] > 0)).float()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["dense"], batch["ids"])
        return functional.binary_cross_entropy_with_logits(logits, batch["clicks"])


FAMILY = RecommenderFamily()
BUGS = [
    bugs.module_output("bags.1", step=2),
    bugs.norm_eps("bottom.3"),
    bugs.attribute("", "dot", shown=[("top.0", "output"), ("top.0", "input"), ("top", "input")]),
    bugs.weight_decay(),
    bugs.gradient("bags.0.weight", step=1),
    bugs.activation("top.2"),
    bugs.norm_eps("top.1"),
    bugs.learning_rate(step=2),
    bugs.weight("bags.2"),
    bugs.weight("top.4", step=3),
    bugs.loss_factor("top.6", step=2),
    bugs.dropout("top.3"),
    bugs.beta(1),
    bugs.epsilon(),
    bugs.batch_norm_momentum("top.1"),
    bugs.batch_value("dense", step=2),
    bugs.sign_flip("top.4.bias", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("top.5", step=2),
    bugs.cast("bottom.2", step=0),
]
