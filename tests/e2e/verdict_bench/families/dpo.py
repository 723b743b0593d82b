"""Preferences: a policy is trained to prefer one text to another, measured against a frozen reference; AdamW."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.blocks import Block, counting_text
from verdict_bench.bugs import Bug
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH, LAYERS, BETA = 64, 80, 24, 6, 2, 0.2


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, 4, causal=True, kernel="fused") for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def likelihood(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of each text, in logarithms."""
    return logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None]).sum((1, 2))


class DpoFamily(Family):
    name = "dpo"
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "adam", "micro"))

    def models(self) -> dict[str, nn.Module]:
        policy = Policy()
        self.reference = copy.deepcopy(policy).eval().requires_grad_(False)  # before anything is planted
        return {"": policy}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, **training.optimizer_options)}

    def evaluated(self, training: Training) -> dict[str, nn.Module]:
        return {"reference": self.reference}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        chosen = counting_text(BATCH, TIME, VOCABULARY, random)
        noise = torch.randint(1, VOCABULARY, (BATCH, TIME), generator=random)
        rejected = torch.where(torch.arange(TIME) < TIME // 2, chosen, noise)
        return {"chosen": chosen, "rejected": rejected}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        margins = []
        for tokens in (batch["chosen"], batch["rejected"]):
            with torch.no_grad():
                known = likelihood(self.reference(tokens), tokens)
            margins.append(likelihood(training.trained[""](tokens), tokens) - known)
        return -functional.logsigmoid(BETA * (margins[0] - margins[1])).mean()


def reference_follows() -> Bug:
    """The reference has the policy's weights of the step before."""

    def plant(training: Training, _: float) -> None:
        def follow() -> None:
            reference = training.family.reference  # type: ignore[attr-defined]
            reference.load_state_dict(training.models[""].state_dict())

        for step in range(1, training.steps):
            training.at(step, follow)

    return Bug("reference_follows", plant, 1, bugs.FORWARD, (("reference.*", "output"),), (), (1.0,))


FAMILY = DpoFamily()
BUGS = [
    reference_follows(),
    bugs.module_output("blocks.1.mlp.up", step=3),
    bugs.loss_factor("head", step=2),
    bugs.norm_eps("blocks.1.ln2"),
    bugs.gradient("blocks.0.attn.v.weight", step=1),
    bugs.attention_scale("blocks.1.attn"),
    bugs.learning_rate(step=2),
    bugs.weight("blocks.0.mlp.down"),
    bugs.weight("blocks.1.attn.v", step=3),
    bugs.residual("blocks.0"),
    bugs.activation("blocks.0.mlp.act"),
    bugs.mask_leak("blocks.1.attn"),
    bugs.beta(1),
    bugs.weight_decay(),
    bugs.epsilon(),
    bugs.sign_flip("blocks.1.ln1.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("blocks.1.ln2", step=2),
]
