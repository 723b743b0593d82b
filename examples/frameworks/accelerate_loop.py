"""Hugging Face Accelerate: a loop of one's own with `accumulate`.

python examples/frameworks/accelerate_loop.py --run-name accelerate
accelerate launch --multi_gpu --num_processes 2 examples/frameworks/accelerate_loop.py --run-name accelerate
"""

from __future__ import annotations

from collections.abc import Sequence

import tiny
import torch
from accelerate import Accelerator

import statagent

MICRO_BATCHES = 2


def main(arguments: Sequence[str] | None = None) -> None:
    options = tiny.parse(tiny.parser(__doc__), arguments)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    plain = tiny.Tiny()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(plain, optimizer)

    statagent.init(run=options.run, config={"micro_batches": MICRO_BATCHES})
    statagent.watch(model, optimizer=optimizer)  # what prepare() returned

    rank = accelerator.process_index
    for step in range(options.steps):
        tiny.plant(options, step, plain.get_submodule("blocks.1.ln"))
        for micro_batch in range(MICRO_BATCHES):
            tokens, targets = tiny.batch(step, micro_batch, rank)
            statagent.log_batch(tokens=tokens, targets=targets)
            with accelerator.accumulate(model):
                loss = tiny.loss_of(model(tokens), targets)
                statagent.log_scalar("loss", loss)
                accelerator.backward(loss)
                optimizer.step()  # the last micro-batch's makes the update, which ends the step
                optimizer.zero_grad()
            tiny.report(options, step, loss.item(), rank)
    tiny.finish(options, model.parameters(), rank)


if __name__ == "__main__":
    main()
