"""DistributedDataParallel with gradient accumulation.

torchrun --nproc_per_node=2 examples/frameworks/ddp.py --run-name ddp
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tiny
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import statagent

MICRO_BATCHES = 2


def main(arguments: Sequence[str] | None = None) -> None:
    parser = tiny.parser(__doc__)
    parser.add_argument("--bug-rank", type=int, default=-1, help="this rank does not average its gradients from --bug-step on")
    options = tiny.parse(parser, arguments)
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    model = DistributedDataParallel(tiny.Tiny())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    statagent.init(run=options.run, config={"micro_batches": MICRO_BATCHES})
    statagent.watch(model, optimizer=optimizer)  # names are those of the model inside

    for step in range(options.steps):
        if options.bug_rank < 0:
            tiny.plant(options, step, model.module.get_submodule("blocks.1.ln"))
        for micro_batch in range(MICRO_BATCHES):
            tokens, targets = tiny.batch(step, micro_batch, rank)
            statagent.log_batch(tokens=tokens, targets=targets)
            with model.no_sync() if micro_batch + 1 < MICRO_BATCHES else contextlib.nullcontext():
                loss = tiny.loss_of(model(tokens), targets) / MICRO_BATCHES
                loss.backward()
            statagent.log_scalar("loss", loss)
            tiny.report(options, step, loss.item(), rank)
        if rank == options.bug_rank and step >= options.bug_step:
            model.module.get_submodule("head").weight.grad *= 1.5  # what a broken all-reduce leaves behind
        optimizer.step()
        optimizer.zero_grad()
    tiny.finish(options, model.parameters(), rank)


if __name__ == "__main__":
    main()
    distributed.destroy_process_group()
