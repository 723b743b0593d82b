"""Shared by the examples: arguments, a model that trains in a second, its data, and the lines that they print."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn import functional

import statagent

VOCABULARY, TIME = 32, 12


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every example; --bug-step plants one subtle mistake for `statctl diff` to find."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Not --run alone: torchrun takes that for an abbreviation of its own options.
    made.add_argument(
        "--run-name",
        "--run",
        dest="run",
        default=os.environ.get("STATAGENT_RUN"),
        help="name of the run (default: STATAGENT_RUN)",
    )
    made.add_argument("--steps", type=int, default=10, help="optimizer steps (default 10)")
    made.add_argument("--no-agent", action="store_true", help="train without statcollect: STATAGENT_DISABLE=1")
    made.add_argument("--bug-step", type=int, default=-1, help="from this step on the second layer norm has another eps")
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the arguments, and seeds what is random."""
    found = made.parse_args(arguments)
    if found.no_agent:
        os.environ["STATAGENT_DISABLE"] = "1"  # every call of statagent does nothing
    else:
        os.environ.pop("STATAGENT_DISABLE", None)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return found


class Block(nn.Module):
    """Pre-norm multi-layer perceptron. [batch, time, width] -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(functional.gelu(self.fc1(self.ln(x))))


class Tiny(nn.Module):
    """Token ids [batch, time] -> logits [batch, time, VOCABULARY]."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(step: int, micro_batch: int = 0, rank: int = 0, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int64 [size, TIME]: a function of the arguments only."""
    generator = torch.Generator().manual_seed(1_000_000 * rank + 1_000 * step + micro_batch)
    tokens = torch.randint(VOCABULARY, (size, TIME), generator=generator)
    return tokens, (tokens * 3 + 1) % VOCABULARY


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def plant(arguments: argparse.Namespace, step: int, norm: nn.Module) -> None:
    """The mistake of --bug-step."""
    if step == arguments.bug_step:
        norm.eps = 1e-2  # type: ignore[assignment]


def report(arguments: argparse.Namespace, step: int, loss: float, rank: int = 0) -> None:
    _say(f"{arguments.run} rank {rank} step {step} loss {loss!r}")


def finish(arguments: argparse.Namespace, weights: Iterable[torch.Tensor], rank: int = 0) -> None:
    """Ends the agent; prints the hash of the weights' bytes and what became of the records."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy().tobytes() if weight.numel() else b"-")
    _say(f"{arguments.run} rank {rank} weights {digest.hexdigest()}")
    statagent.close(timeout=10)
    counts = statagent.counters()
    dropped = sum(number for name, number in counts.items() if name.startswith("dropped_"))
    _say(f"{arguments.run} rank {rank} records: {counts['produced']} produced, {counts['acked']} stored, {dropped} dropped")


def _say(line: str) -> None:
    """Ranks share the terminal: one write, on a line of its own even if another rank's library has begun one."""
    before = "\n" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), f"{before}{line}\n".encode())
