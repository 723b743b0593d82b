"""Encoder-decoder transformer in bf16 autocast: one tied embedding for source, target and output, a custom autograd Function as gate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import Attention, counting_text
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, SOURCE, TARGET, BATCH = 64, 80, 24, 20, 8


class SmoothGate(torch.autograd.Function):
    """x * tanh(x), with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        t = torch.tanh(x)
        return grads[0] * (t + x * (1 - t * t))


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SmoothGate.apply(x)


class Layer(nn.Module):
    def __init__(self, cross: bool):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(WIDTH), Attention(WIDTH, 4, causal=cross, bias=True)
        self.lnx = nn.LayerNorm(WIDTH) if cross else None
        self.cross = Attention(WIDTH, 4, causal=False) if cross else None
        self.ln2, self.up, self.gate, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), Gate(), nn.Linear(128, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.residual = 1.0

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        if self.cross is not None and self.lnx is not None:
            x = x + self.cross(self.lnx(x), memory)
        return x + self.residual * self.drop(self.down(self.gate(self.up(self.ln2(x)))))


class Seq2seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.positions = nn.Parameter(torch.randn(max(SOURCE, TARGET), WIDTH) * 0.1)
        self.encoder = nn.ModuleList(Layer(cross=False) for _ in range(2))
        self.decoder = nn.ModuleList(Layer(cross=True) for _ in range(2))
        self.norm_e, self.norm_d = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(source) + self.positions[: source.shape[1]]
        for layer in self.encoder:
            x = layer(x)
        memory = self.norm_e(x)
        y = self.embed(target) + self.positions[: target.shape[1]]
        for layer in self.decoder:
            y = layer(y, memory)
        return self.head(self.norm_d(y))


class Seq2seqFamily(Family):
    name = "seq2seq"
    bfloat16 = True
    clip = 1.0
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "adam"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Seq2seq()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        source = counting_text(BATCH, SOURCE, VOCABULARY, random)
        target = source.flip(1)[:, :TARGET]
        return {"source": source, "target": target[:, :-1].contiguous(), "labels": target[:, 1:].contiguous()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["source"], batch["target"])
        return bugs.cross_entropy(training, logits.float().flatten(0, 1), batch["labels"].flatten())


FAMILY = Seq2seqFamily()
BUGS = [
    bugs.norm_eps("encoder.1.ln2"),
    bugs.attention_scale("decoder.0.cross"),
    bugs.module_output("decoder.1.gate", step=2),
    bugs.learning_rate(step=2),
    bugs.gradient("encoder.0.up.weight", step=1),
    bugs.clip(step=1),
    bugs.weight("decoder.0.attn.v"),
    bugs.weight("encoder.1.down", step=3),
    bugs.loss_factor("head", step=2),
    bugs.mask_leak("decoder.1.attn"),
    bugs.residual("encoder.0"),
    bugs.dropout("decoder.0.drop"),
    bugs.beta(0),
    bugs.weight_decay(),
    bugs.label_smoothing("head"),
    bugs.sign_flip("decoder.1.ln2.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("encoder.1.ln1", step=2),
    bugs.attention_scale("encoder.1.attn", step=2),
]
