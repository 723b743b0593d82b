"""Fully sharded data parallelism: FSDP2 (`fully_shard`) or FSDP1 (`FullyShardedDataParallel`).

torchrun --nproc_per_node=2 examples/frameworks/fsdp.py --run-name fsdp2
torchrun --nproc_per_node=2 examples/frameworks/fsdp.py --run-name fsdp1 --version 1
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import tiny
import torch
from torch import distributed, nn

import statagent


def shard(model: tiny.Tiny, version: int) -> nn.Module:
    """Each block is a unit of its own, the rest another."""
    if version == 2:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    from torch.distributed.fsdp import FullyShardedDataParallel

    cpu = torch.device("cpu")
    for index, block in enumerate(model.blocks):
        model.blocks[index] = FullyShardedDataParallel(block, device_id=cpu, use_orig_params=True)
    return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = tiny.parser(__doc__)
    parser.add_argument("--version", type=int, choices=[1, 2], default=2)
    options = tiny.parse(parser, arguments)
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # about a view that nothing writes into
    plain = tiny.Tiny()
    norm = plain.get_submodule("blocks.1.ln")
    model = shard(plain, options.version)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # after sharding: it updates this rank's shards

    statagent.init(run=options.run, config={"version": options.version})
    statagent.watch(model, optimizer=optimizer)

    for step in range(options.steps):
        tiny.plant(options, step, norm)
        tokens, targets = tiny.batch(step, rank=rank)
        statagent.log_batch(tokens=tokens, targets=targets)
        loss = tiny.loss_of(model(tokens), targets)
        loss.backward()
        statagent.log_scalar("loss", loss)
        optimizer.step()
        optimizer.zero_grad()
        tiny.report(options, step, loss.item(), rank)
    shards = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    tiny.finish(options, shards, rank)


if __name__ == "__main__":
    main()
    distributed.destroy_process_group()
