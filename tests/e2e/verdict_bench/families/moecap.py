"""Mixture of experts with room for so many tokens each: the first choice only, what finds no room is left out, a balancing loss; Adafactor."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.blocks import Attention, Mlp, counting_text
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH, EXPERTS, ROOM = 48, 64, 20, 8, 4, 56


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.temperature = 1.0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.gate(tokens) / self.temperature).softmax(-1)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = Router(), nn.ModuleList(Mlp(WIDTH, 96) for _ in range(EXPERTS))
        self.share = 1.0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the experts add, and how unevenly they were chosen."""
        tokens = x.reshape(-1, WIDTH)
        shares = self.router(tokens)
        share, chosen = shares.max(-1)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            mine = (chosen == index).nonzero().squeeze(1)[:ROOM]
            out = out.index_add(0, mine, expert(tokens[mine]) * share[mine, None])
        used = functional.one_hot(chosen, EXPERTS).float().mean(0)
        return out.view_as(x) * self.share, EXPERTS * (used * shares.mean(0)).sum()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(WIDTH), Attention(WIDTH, 4, causal=True)
        self.ln2, self.mlp = nn.LayerNorm(WIDTH), Experts()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.attn(self.ln1(x))
        added, uneven = self.mlp(self.ln2(x))
        return x + added, uneven


class MoeCap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.balance = 0.01

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, penalty = self.embed(tokens), torch.zeros(())
        for layer in self.layers:
            x, uneven = layer(x)
            penalty = penalty + uneven
        return self.head(self.norm(x)), self.balance * penalty


class MoeCapFamily(Family):
    name = "moecap"
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "batched_loss", "adafactor"))

    def models(self) -> dict[str, nn.Module]:
        return {"": MoeCap()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.Adafactor(parameters, lr=1e-2, weight_decay=0.01, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        text = counting_text(BATCH, TIME + 1, VOCABULARY, generator(self, step))
        return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits, penalty = training.trained[""](batch["tokens"])
        return bugs.cross_entropy(training, logits.flatten(0, 1), batch["targets"].flatten()) + penalty


FAMILY = MoeCapFamily()
BUGS = [
    bugs.norm_eps("layers.0.ln2"),
    bugs.attribute("layers.0.mlp.router", "temperature"),
    bugs.gradient("layers.0.attn.v.weight", step=1),
    bugs.module_output("layers.1.mlp.experts.2.up", step=3),
    bugs.attention_scale("layers.1.attn"),
    bugs.learning_rate(step=2),
    bugs.attribute("layers.0.mlp", "share", shown=[("layers.0.mlp", "output")]),
    bugs.attribute("", "balance", shown=[("@root", "output")]),
    bugs.weight("layers.1.attn.o"),
    bugs.weight("head", step=3),
    bugs.loss_factor("head", "layers.1", "layers.1.mlp", "layers.1.mlp.router", step=2),
    bugs.activation("layers.0.mlp.experts.0.act", step=2),
    bugs.gradient_term("head.weight", step=3),
    bugs.feature("layers.1.attn.q", step=2),
    bugs.weight_decay(),
    bugs.sign_flip("norm.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("layers.1.ln2", step=2),
    bugs.cast("layers.0.attn.o"),
]
