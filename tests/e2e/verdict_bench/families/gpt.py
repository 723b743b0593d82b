"""Decoder-only transformer: learned positions, LayerNorm, GELU, AdamW with decay groups, clipped."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import Block, counting_text
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH, LAYERS = 64, 96, 32, 8, 4


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)
        self.b = nn.ModuleList(Block(WIDTH, 4, causal=True) for _ in range(LAYERS))
        self.n, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.b:
            x = block(x)
        return self.head(self.n(x))


class GptFamily(Family):
    name = "gpt"
    clip = 1.0
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "adam", "batched_loss"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Gpt()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        named = list(training.models[""].named_parameters())
        decayed = [p for name, p in named if p.dim() > 1]
        others = [p for name, p in named if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return {"": torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        text = counting_text(BATCH, TIME + 1, VOCABULARY, generator(self, step))
        return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["tokens"])
        return bugs.cross_entropy(training, logits.flatten(0, 1), batch["targets"].flatten())


FAMILY = GptFamily()
BUGS = [
    bugs.norm_eps("b.2.ln2"),
    bugs.attention_scale("b.1.attn"),
    bugs.module_output("b.1.mlp.up", step=3),
    bugs.learning_rate(step=2),
    bugs.gradient("b.2.attn.v.weight", step=1),
    bugs.loss_factor("head", step=2),
    bugs.weight("b.0.mlp.down"),
    bugs.weight("b.3.attn.v", step=3),
    bugs.activation("b.0.mlp.act"),
    bugs.mask_leak("b.2.attn"),
    bugs.residual("b.1"),
    bugs.label_smoothing("head"),
    bugs.beta(1),
    bugs.weight_decay(),
    bugs.epsilon(),
    bugs.clip(step=1),
    bugs.sign_flip("b.1.ln1.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("b.2.ln1", step=2),
    bugs.cast("b.1.mlp.down", step=0),
]
