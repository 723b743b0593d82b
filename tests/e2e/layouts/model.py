"""A small GPT whose parts can be cut in every way. The weights and the batches follow from a seed, so they are equal under all layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)


@dataclass(frozen=True)
class Size:
    vocabulary: int = 61
    context: int = 12
    width: int = 32
    heads: int = 4
    layers: int = 2
    batch: int = 8  # sequences of the global batch
    dropout: float = 0
    tied: bool = False  # the head's weight is the embedding's


class Attention(nn.Module):
    """Causal attention. The rows of qkv are those of head 0's q, k and v, then head 1's and so on, so that a part of the rows is a part of
    the heads; the number of heads here follows from what qkv returns."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.qkv: nn.Module = nn.Linear(size.width, 3 * size.width)
        self.wo: nn.Module = nn.Linear(size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Each (batch, heads, context, width).
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, self.head_width)).transpose(1, 2).unbind(3)
        future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / self.head_width**0.5).masked_fill(future, float("-inf"))
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.fc1: nn.Module = nn.Linear(size.width, 4 * size.width)
        self.drop = Dropout(size.dropout)
        self.fc2: nn.Module = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(F.gelu(self.fc1(x))))


class Dropout(nn.Module):
    """A mask that follows from the element's place in the whole tensor: `part` of `parts` along the last dimension is here."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self._part, self._parts, self.calls = p, 0, 1, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.p == 0 or not self.training:
            return x
        self.calls += 1
        numbers = torch.Generator().manual_seed(7919 * self.calls)
        mask = torch.rand((*x.shape[:-1], x.shape[-1] * self._parts), generator=numbers) >= self.p
        return x * mask.chunk(self._parts, dim=-1)[self._part] / (1 - self.p)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(size.width)
        self.attn = Attention(size)
        self.ln2 = nn.LayerNorm(size.width)
        self.mlp = Mlp(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """Parts that a pipeline stage does not have are None."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens: nn.Embedding | Any = nn.Embedding(size.vocabulary, size.width)
        self.positions: nn.Embedding | Any = nn.Embedding(size.context, size.width)
        self.blocks: Any = nn.ModuleDict({str(i): Block(size) for i in range(size.layers)})
        self.norm: nn.Module | None = nn.LayerNorm(size.width)
        self.head: nn.Linear | Any = nn.Linear(size.width, size.vocabulary, bias=False)
        if size.tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def build(size: Size, seed: int = 1) -> Gpt:
    torch.manual_seed(seed)
    return Gpt(size)


def batch_of(size: Size, step: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of the global batch, (batch, context) each. The sequences have a pattern, so that there is something to learn."""
    numbers = torch.Generator().manual_seed(seed * 1_000_003 + step)
    start = torch.randint(size.vocabulary, (size.batch, 1), generator=numbers)
    stride = torch.randint(1, 5, (size.batch, 1), generator=numbers)
    noise = torch.randint(2, (size.batch, size.context + 1), generator=numbers)
    sequence = (start + stride * torch.arange(size.context + 1) + noise) % size.vocabulary
    return sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
