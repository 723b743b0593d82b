"""Plain PyTorch: gradient accumulation, automatic mixed precision, activation checkpointing.

python examples/frameworks/plain_torch.py --run-name plain --amp bf16 --checkpoint non_reentrant
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tiny
import torch
from torch.utils.checkpoint import checkpoint

import statagent

MICRO_BATCHES = 2
SCALE = 2.0**24  # too high on purpose: the first updates overflow, and the scaler skips them


class Checkpointed(tiny.Tiny):
    """Computes each block again in the backward pass instead of keeping what it computed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x) if self.kind == "none" else checkpoint(block, x, use_reentrant=self.kind == "reentrant")
        return self.head(x)


def autocast(kind: str) -> Any:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind)
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = tiny.parser(__doc__)
    parser.add_argument("--amp", choices=["none", "bf16", "fp16"], default="none", help="fp16 with a GradScaler")
    parser.add_argument("--checkpoint", choices=["none", "reentrant", "non_reentrant"], default="none")
    options = tiny.parse(parser, arguments)

    model = Checkpointed(options.checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=options.amp == "fp16")

    statagent.init(run=options.run, config={"amp": options.amp, "checkpoint": options.checkpoint, "micro_batches": MICRO_BATCHES})
    statagent.watch(model, optimizer=optimizer)

    for step in range(options.steps):
        tiny.plant(options, step, model.get_submodule("blocks.1.ln"))
        total = 0.0
        for micro_batch in range(MICRO_BATCHES):
            tokens, targets = tiny.batch(step, micro_batch)
            statagent.log_batch(tokens=tokens, targets=targets)
            with autocast(options.amp):
                loss = tiny.loss_of(model(tokens), targets) / MICRO_BATCHES
            statagent.log_scalar("loss", loss)
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(optimizer)  # ends the step of the run, unless the scaler skips the update
        scaler.update()
        optimizer.zero_grad()
        tiny.report(options, step, total)
    tiny.finish(options, model.parameters())


if __name__ == "__main__":
    main()
