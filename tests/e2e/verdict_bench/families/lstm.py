"""Language model of a two-layer LSTM: SGD with momentum, clipped."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import counting_text
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH = 64, 80, 16, 16


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm_in = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.second = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.drop, self.norm = nn.Dropout(0.2), nn.LayerNorm(WIDTH)
        self.hidden, self.act, self.head = nn.Linear(WIDTH, 128), nn.Tanh(), nn.Linear(128, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, _ = self.first(self.norm_in(self.embed(tokens)))
        x, _ = self.second(self.drop(x))
        return self.head(self.act(self.hidden(self.norm(x))))


class LstmFamily(Family):
    name = "lstm"
    clip = 0.5
    kinds_of_legal = frozenset(("one_model", "linear", "norm", "sgd", "batched_loss", "lstm"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Lstm()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {"": torch.optim.SGD(training.models[""].parameters(), lr=0.5, momentum=0.9, **training.optimizer_options)}

    def schedulers(self, training: Training) -> list[Any]:
        return [torch.optim.lr_scheduler.ExponentialLR(training.optimizers[""], 0.9)]

    def batch(self, step: int) -> Batch:
        text = counting_text(BATCH, TIME + 1, VOCABULARY, generator(self, step))
        return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["tokens"])
        return bugs.cross_entropy(training, logits.flatten(0, 1), batch["targets"].flatten())


FAMILY = LstmFamily()
BUGS = [
    bugs.norm_eps("norm"),
    bugs.dropout("drop"),
    bugs.module_output("hidden", step=3),
    bugs.momentum(),
    bugs.gradient("first.weight_hh_l0", step=1),
    bugs.clip(step=1),
    bugs.learning_rate(step=2),
    bugs.weight("second.weight_ih_l0"),
    bugs.weight("hidden", step=3),
    bugs.loss_factor("head", step=2),
    bugs.activation("act"),
    bugs.label_smoothing("head"),
    bugs.norm_eps("norm_in"),
    bugs.sign_flip("second.bias_ih_l0", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("norm", step=2),
    bugs.cast("hidden", step=0),
    bugs.scheduler_off_by_one(step=1),
]
