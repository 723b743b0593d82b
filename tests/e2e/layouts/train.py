"""Trains runs of one number of ranks one after the other: python -m layouts.train JOBS.json, under torchrun if there are several ranks."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import statagent

from .cuts import LAYOUTS, Job
from .model import Size, batch_of, build


def optimizer_of(job: Job, layout: str) -> Any:
    if layout == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(job.parameters, torch.optim.AdamW, lr=3e-3)
    return torch.optim.AdamW(job.parameters, lr=3e-3, foreach=False)


def train(name: str, run: str | None, steps: int, size: Size, bug: str | None = None) -> list[float]:
    """Returns the losses of this rank's part of the batches. Without a run, nothing is recorded."""
    layout = replace(LAYOUTS[name], bug=bug)
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    job = layout.cut(build(size), size, layout)
    optimizer = job.optimizer or optimizer_of(job, name)
    update = job.update or optimizer.step
    if run is not None:
        statagent.init(run=run, if_exists="replace", launch=f"{run}-1")
        extra: dict[str, Any] = {} if job.layouts is None else {"layouts": job.layouts}
        statagent.watch(job.watched, optimizer=optimizer, **extra)
    losses = []
    for step in range(steps):
        inputs, targets = (layout.part_of(tensor, rank) for tensor in batch_of(size, step))
        loss = job.step(inputs, targets)
        losses.append(float(loss))
        if run is not None and losses[-1] == losses[-1]:
            statagent.log_scalar("loss", losses[-1])
        update()
        optimizer.zero_grad()
    if run is not None:
        statagent.close(timeout=20)
    return losses


def main() -> None:
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("gloo")
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        losses = train(job["layout"], job.get("run"), job["steps"], Size(**job.get("size", {})), job.get("bug"))
        print(
            json.dumps(
                {"layout": job["layout"], "bug": job.get("bug"), "rank": int(os.environ.get("RANK", "0")), "losses": losses}
            ),
            flush=True,
        )
        if distributed.is_initialized():
            distributed.barrier()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
