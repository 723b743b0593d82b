"""The baseline's model: a small GPT, every step of which a fault can replace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model; `width` is a multiple of `heads`."""

    vocabulary: int = 48
    layers: int = 2
    width: int = 32
    heads: int = 2
    context: int = 16
    hidden: int = 64
    dropout: float = 0.0
    tied: bool = False
    shared: bool = False  # the second block is the first one, called once more
    key_bias: bool = False  # see clean.py: a gradient that is nothing but rounding noise
    inspected: bool = False  # attention's probabilities are recorded with statagent.inspect


class Attention(nn.Module):
    """Causal self-attention. [batch, time, width] -> [batch, time, width]."""

    def __init__(self, sizes: Sizes, name: str) -> None:
        super().__init__()
        self.heads, self.name, self.inspected = sizes.heads, name, sizes.inspected
        self.scale = 1.0 / math.sqrt(sizes.width // sizes.heads)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=sizes.key_bias)
        self.proj = nn.Linear(sizes.width, sizes.width)

    def probabilities(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """[batch, heads, time, head width] twice -> [batch, heads, time, time]."""
        return self.softmax(self.masked(q @ k.transpose(-2, -1) * self.scale))

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(future, float("-inf"))

    def softmax(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(dim=-1)

    def merge(self, mixed: torch.Tensor) -> torch.Tensor:
        """[batch, heads, time, head width] -> [batch, time, width]."""
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        probabilities = self.probabilities(q, k)
        if self.inspected:
            import statagent

            probabilities = statagent.inspect(f"{self.name}.probs", probabilities)
        return self.proj(self.merge(probabilities @ v))


class Mlp(nn.Module):
    """Two linear layers with a GELU between. [batch, time, width] -> [batch, time, width]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.width, sizes.hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(sizes.hidden, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, sizes: Sizes, name: str) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(sizes.width)
        self.attn = Attention(sizes, f"{name}.attn")
        self.ln2 = nn.LayerNorm(sizes.width)
        self.mlp = Mlp(sizes)
        self.drop = nn.Dropout(sizes.dropout) if sizes.dropout else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        y = self.mlp(self.ln2(x))
        return x + (y if self.drop is None else self.drop(y))


class Gpt(nn.Module):
    """Token ids [batch, time] -> logits [batch, time, vocabulary]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tok = nn.Embedding(sizes.vocabulary, sizes.width)
        self.pos = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, f"blocks.{i}") for i in range(sizes.layers))
        self.ln_f = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.apply(_initialise)
        if sizes.shared:
            self.blocks[1] = self.blocks[0]
        if sizes.tied:
            self.head.weight = self.tok.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))

    def block(self, layer: int) -> Block:
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return block


def _initialise(module: nn.Module) -> None:
    # Biases are not zero, so that what is done to them shows in the first step.
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.15)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.normal_(module.bias, std=0.05)
