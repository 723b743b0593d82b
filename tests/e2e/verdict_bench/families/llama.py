"""Llama-style decoder in bf16 autocast: RoPE, RMSNorm, SwiGLU, no biases; AdamW."""

from __future__ import annotations

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import Attention, RMSNorm, counting_text
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH, LAYERS = 64, 96, 24, 8, 3


class SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((WIDTH, 160), (WIDTH, 160), (160, WIDTH)))
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.attn = RMSNorm(WIDTH), Attention(WIDTH, 4, causal=True, kernel="fused", rope=10_000.0, bias=False)
        self.n2, self.mlp = RMSNorm(WIDTH), SwiGlu()
        self.residual = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.n1(x))
        return x + self.residual * self.mlp(self.n2(x))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class LlamaFamily(Family):
    name = "llama"
    bfloat16 = True
    clip = 1.0
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "adam"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Llama()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        options = {"lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1, **training.optimizer_options}
        return {"": torch.optim.AdamW(training.models[""].parameters(), **options)}

    def batch(self, step: int) -> Batch:
        text = counting_text(BATCH, TIME + 1, VOCABULARY, generator(self, step))
        return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["tokens"])
        return bugs.cross_entropy(training, logits.float().flatten(0, 1), batch["targets"].flatten())


FAMILY = LlamaFamily()
BUGS = [
    bugs.norm_eps("layers.1.n2"),
    bugs.rope_base("layers.1.attn"),
    bugs.module_output("layers.0.mlp.gate", step=3),
    bugs.beta(1),
    bugs.gradient("layers.2.mlp.down.weight", step=1),
    bugs.mask_leak("layers.1.attn"),
    bugs.attention_scale("layers.2.attn"),
    bugs.learning_rate(step=2),
    bugs.weight("layers.0.attn.v"),
    bugs.weight("layers.2.mlp.up", step=3),
    bugs.loss_factor("head", step=2),
    bugs.activation("layers.1.mlp.act"),
    bugs.residual("layers.0"),
    bugs.clip(step=1),
    bugs.weight_decay(),
    bugs.label_smoothing("head"),
    bugs.sign_flip("layers.1.n1.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("layers.1.n1", step=2),
]
