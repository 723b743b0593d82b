"""Building blocks of several families. Bugs change the attributes that are plain numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head attention over x, or from x over `memory`. `kernel`: manual, fused."""

    def __init__(
        self, width: int, heads: int, causal: bool, kernel: str = "manual", rope: float | None = None, bias: bool = True
    ):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.heads, self.causal, self.kernel, self.rope = heads, causal, kernel, rope
        self.scale = 1 / math.sqrt(width // heads)
        self.leak = 0.0  # weight of what the mask hides, beside 1 of what it shows

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        source = x if memory is None else memory
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        if self.rope is not None:
            q, k = rotated(q, self.rope), rotated(k, self.rope)
        mixed = attend(q, k, v, self.scale, self.mask(q, k), self.kernel)
        return self.o(mixed.transpose(1, 2).reshape(x.shape))

    def mask(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
        if not self.causal:
            return None
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        fill = math.log(self.leak) if self.leak > 0 else -math.inf
        return torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, fill)


def attend(q: Any, k: Any, v: Any, scale: float, mask: torch.Tensor | None, kernel: str) -> torch.Tensor:
    """[batch, heads, time, features]; mask is added to the scores."""
    if kernel == "fused":
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = (q @ k.transpose(-2, -1)) * scale
    return torch.softmax(scores if mask is None else scores + mask, dim=-1) @ v


def rotated(x: torch.Tensor, base: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] * base ** (-torch.arange(half) / half)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()], dim=-1).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, drop: float = 0.0):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class Block(nn.Module):
    """Pre-norm transformer block; `residual` scales what the second branch adds."""

    def __init__(
        self, width: int, heads: int, causal: bool, kernel: str = "manual", drop: float = 0.0, mlp: nn.Module | None = None
    ):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), Attention(width, heads, causal, kernel)
        self.ln2, self.mlp = nn.LayerNorm(width), mlp or Mlp(width, 4 * width, drop)
        self.residual = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.residual * self.mlp(self.ln2(x))


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum. `interpolate`: the same sums by lerp, which rounds differently."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0,
                 interpolate: bool = False):  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "interpolate": interpolate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (first, second), lr = group["betas"], group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                mixed = torch.lerp(p.grad, m, first) if group["interpolate"] else m * first + p.grad * (1 - first)
                p.mul_(1 - lr * group["weight_decay"]).sub_(mixed.sign_(), alpha=lr)
                if group["interpolate"]:
                    m.lerp_(p.grad, 1 - second)
                else:
                    m.mul_(second).add_(p.grad, alpha=1 - second)


def counting_text(batch: int, time: int, vocabulary: int, random: torch.Generator) -> torch.Tensor:
    """Tokens [batch, time] that count with a stride a sequence and some noise."""
    first = torch.randint(1, vocabulary, (batch, 1), generator=random)
    stride = torch.randint(1, 6, (batch, 1), generator=random)
    noise = torch.randint(0, 2, (batch, time), generator=random)
    return 1 + (first + stride * torch.arange(time) + noise) % (vocabulary - 1)
