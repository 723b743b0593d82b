"""DistributedDataParallel without a line of statagent: under torchrun or mpirun, or with ranks that it spawns itself.

python ranks.py [--hand] [--spawn]
"""

from __future__ import annotations

import os
import socket
import sys

import plain
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

WORLD = 2


def train(rank: int, port: int = 0) -> None:
    if port:
        distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    else:
        distributed.init_process_group("gloo")
    torch.manual_seed(7)
    model = plain.small(plain.WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # before it is wrapped
    wrapped = DistributedDataParallel(model)
    plain.by_hand((wrapped, optimizer, ""))
    torch.manual_seed(rank)
    for _ in range(plain.STEPS):
        x = torch.randn(4, plain.WIDTH)
        loss = (wrapped(x) - x).square().mean()
        optimizer.zero_grad()
        if plain.HAND:
            import statagent

            statagent.log_scalar("loss", loss)
        loss.backward()
        optimizer.step()
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"rank {rank} weights {total!r} random {torch.rand(1).item()}\n", end="", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    if "--spawn" in sys.argv:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(train, args=(port,), nprocs=WORLD)  # type: ignore[attr-defined]
        return
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        os.environ |= {"RANK": os.environ["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": os.environ["OMPI_COMM_WORLD_SIZE"]}
    train(int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
