"""A small decoder-only transformer, and the mistakes that the demo can plant in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass
class Config:
    """Sizes of the model; `width` must be a multiple of `heads`."""

    vocabulary: int = 256
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 64


class Attention(nn.Module):
    """Causal self-attention. [batch, time, width] -> [batch, time, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = 1.0 / math.sqrt(config.width // config.heads)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) * self.scale
        future = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(batch, time, width))


class Mlp(nn.Module):
    """Two linear layers with a GELU between. [batch, time, width] -> [batch, time, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, 4 * config.width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.ln2 = nn.LayerNorm(config.width)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """Token ids [batch, time] -> logits [batch, time, vocabulary]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tok = nn.Embedding(config.vocabulary, config.width)
        self.pos = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(_initialise)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tok(tokens) + self.pos(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.05)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# --- mistakes: functions of the model and a layer number that change what the model computes


def _block(model: Gpt, layer: int) -> Block:
    block = model.blocks[layer]
    assert isinstance(block, Block)
    return block


def _ln_eps(model: Gpt, layer: int) -> None:
    _block(model, layer).ln2.eps = 1e-3


def _attn_scale(model: Gpt, layer: int) -> None:
    attention = _block(model, layer).attn
    attention.scale = 1.0 / math.sqrt(attention.qkv.in_features)


def _bf16_sublayer(model: Gpt, layer: int) -> None:
    mlp = _block(model, layer).mlp
    exact = mlp.forward

    def in_bfloat16(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return exact(x).to(x.dtype)

    mlp.forward = in_bfloat16  # type: ignore[method-assign]


def _gelu_tanh(model: Gpt, layer: int) -> None:
    _block(model, layer).mlp.act.approximate = "tanh"


def _causal_mask(model: Gpt, layer: int) -> None:
    attention = _block(model, layer).attn

    def sees_one_token_ahead(x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, attention.heads, -1).transpose(1, 2) for t in attention.qkv(x).split(width, dim=2))
        future = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(2)
        scores = ((q @ k.transpose(-2, -1)) * attention.scale).masked_fill(future, float("-inf"))
        return attention.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, time, width))

    attention.forward = sees_one_token_ahead  # type: ignore[method-assign]


def _dropped_bias(model: Gpt, layer: int) -> None:
    # As after a conversion that lost the bias: without effect while the bias is zero. Multiplying by zero gives every parameter a gradient,
    # which DistributedDataParallel requires.
    fc1 = _block(model, layer).mlp.fc1
    fc1.forward = lambda x: functional.linear(x, fc1.weight, fc1.bias * 0)  # type: ignore[method-assign, assignment]


BUGS: dict[str, tuple[str, Callable[[Gpt, int], None] | None]] = {
    "none": ("no mistake", None),
    "ln_eps": ("ln2 of the layer has eps 1e-3 instead of 1e-5", _ln_eps),
    "attn_scale": ("attention scores are divided by sqrt(width) instead of sqrt(width of a head)", _attn_scale),
    "bf16_sublayer": ("the layer's mlp runs in bfloat16", _bf16_sublayer),
    "gelu_tanh": ("the layer's GELU is the tanh approximation", _gelu_tanh),
    "causal_mask": ("the layer's attention sees one token ahead", _causal_mask),
    "dropped_bias": ("the layer's mlp.fc1 ignores its bias", _dropped_bias),
    "lr": ("the learning rate is 1 % too high", None),
    "grad_sync": ("gradients are not averaged over the ranks", None),
}
