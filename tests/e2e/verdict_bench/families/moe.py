"""Mixture of experts: transformer blocks whose MLP is two of four experts, chosen by a router; AdamW."""

from __future__ import annotations

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import Block, Mlp, counting_text
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH, EXPERTS, CHOSEN = 64, 80, 24, 8, 4, 2


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Mlp(WIDTH, 128) for _ in range(EXPERTS))
        self.share = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = self.router(tokens).softmax(-1).topk(CHOSEN, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            token, place = (chosen == index).nonzero(as_tuple=True)
            part = expert(tokens[token]) * weights[token, place, None]
            out = out.index_add(0, token, part.to(out.dtype))
        return out.view_as(x) * self.share


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, 4, causal=True, mlp=Experts()) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class MoeFamily(Family):
    name = "moe"
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "adam", "batched_loss"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Moe()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        text = counting_text(BATCH, TIME + 1, VOCABULARY, generator(self, step))
        return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["tokens"])
        return bugs.cross_entropy(training, logits.flatten(0, 1), batch["targets"].flatten())


FAMILY = MoeFamily()
BUGS = [
    bugs.module_output("blocks.1.mlp.experts.2", step=3),
    bugs.norm_eps("blocks.0.ln2"),
    bugs.module_output("blocks.0.mlp.router", step=2),
    bugs.epsilon(),
    bugs.gradient("blocks.1.mlp.experts.1.up.weight", step=1),
    bugs.weight("blocks.0.mlp.experts.3.down"),
    bugs.attention_scale("blocks.1.attn"),
    bugs.attribute("blocks.0.mlp", "share", shown=[("blocks.0.mlp", "output")]),
    bugs.learning_rate(step=2),
    bugs.weight("blocks.1.attn.o", step=3),
    bugs.loss_factor("head", step=2),
    bugs.activation("blocks.0.mlp.experts.0.act"),
    bugs.mask_leak("blocks.0.attn"),
    bugs.residual("blocks.0"),
    bugs.beta(1),
    bugs.weight_decay(),
    bugs.sign_flip("blocks.0.mlp.router.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("blocks.1.ln2", step=2),
]
