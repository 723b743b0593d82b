"""Small models that the tests watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.ln(x)).tanh()


class Net(nn.Module):
    """Two blocks and a head. `checkpoints`: None, "reentrant" or "non_reentrant"."""

    def __init__(self, width: int = 8, checkpoints: str | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 3)
        self.checkpoints = checkpoints

    def block(self, index: int) -> Block:
        block = self.blocks[index]
        assert isinstance(block, Block)
        return block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.checkpoints is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpoints == "reentrant")
        return self.head(x)


class Calls(nn.Module):
    """Any function of (self, x) as forward, over the submodules given."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._forward = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward(self, x)


@dataclass
class Output:
    hidden: torch.Tensor
    extra: dict[str, Any]


class Nested(nn.Module):
    """Tensors and other things in several containers."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"out": Output(x * 2, {"pair": (x + 1, None, "text", x.long()), "number": 3}), "last": [x - 1]}


def data(rows: int = 4, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return make()
