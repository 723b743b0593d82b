"""One training process (alone, or a rank of torchrun): records the runs that are named, one after another."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from fault_catalogue import clean, noise
from fault_catalogue.fault import BASES, FAULTS
from fault_catalogue.training import Training, connect_ranks


def make(name: str, rank: int, world: int) -> Training:
    """The training of a fault, a baseline or a clean repeat."""
    entry = FAULTS.get(name) or clean.CLEAN.get(name) or noise.NOISE.get(name)
    if entry is None:
        assert name.startswith("base-"), f"no run '{name}' in the catalogue"
        return Training(BASES[name.removeprefix("base-")], rank, world)
    training = Training(BASES[entry.base], rank, world)
    entry.plant(training)
    return training


def main(names: list[str]) -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.use_deterministic_algorithms(True)
    connect_ranks(world)
    for name in names:
        started = time.monotonic()
        make(name, rank, world).run(f"{name}.{world}")
        if rank == 0:
            print(f"{name}: {time.monotonic() - started:.2f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
