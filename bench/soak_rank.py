"""A rank of a training that lasts as long as soak.py does: the real agent, 20 tensors a step, 50 steps a second. Ends at a line on standard
input, and prints what the agent counted."""

from __future__ import annotations

import json
import select
import sys

import numpy

import statagent

TENSORS = 20
ELEMENTS = 16_384
STEP_SECONDS = 0.02


def main() -> int:
    generator = numpy.random.default_rng(1)
    tensors = [generator.standard_normal(ELEMENTS, dtype=numpy.float32) for _ in range(TENSORS)]
    statagent.init(run="soak-rank", rank=0, world_size=1)
    steps = 0
    while not select.select([sys.stdin], [], [], STEP_SECONDS)[0]:
        for number, tensor in enumerate(tensors):
            tensor[steps % ELEMENTS] += 1
            statagent.inspect(f"layer.{number}", tensor)
        statagent.log_scalar("loss", 1 / (1 + steps))
        statagent.step()
        steps += 1
    statagent.close()
    print(json.dumps({"steps": steps} | statagent.counters()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
