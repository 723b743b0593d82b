"""Lightning: `Trainer` with gradient accumulation, clipping and validation.

python examples/frameworks/lightning_trainer.py --run-name lightning
python examples/frameworks/lightning_trainer.py --run-name lightning --devices 2
python examples/frameworks/lightning_trainer.py --run-name lightning --package pytorch_lightning
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tiny
import torch
from torch.utils.data import DataLoader

MICRO_BATCHES = 2


def module_class(pl: Any) -> Any:
    class TinyModule(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, options: Any) -> None:
            super().__init__()
            self.model = tiny.Tiny()
            self.options = options

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            tiny.plant(self.options, self.global_step, self.model.get_submodule("blocks.1.ln"))
            tokens, targets = batch
            loss = tiny.loss_of(self.model(tokens), targets)
            self.log("head_norm", self.model.head.weight.detach().norm())
            tiny.report(self.options, self.global_step, loss.item(), self.global_rank)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            tokens, targets = batch
            self.log("val_loss", tiny.loss_of(self.model(tokens), targets))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return TinyModule


def main(arguments: Sequence[str] | None = None) -> None:
    parser = tiny.parser(__doc__)
    parser.add_argument("--package", choices=["lightning.pytorch", "pytorch_lightning"], default="lightning.pytorch")
    parser.add_argument("--devices", type=int, default=1, help="ranks, which Lightning starts by itself (default 1)")
    parser.add_argument("--save", help="file for a checkpoint at the end")
    parser.add_argument("--resume", help="checkpoint to continue from")
    options = tiny.parse(parser, arguments)
    pl = importlib.import_module(options.package)
    from statagent.integrations.lightning import StatagentCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(lightning|pytorch_lightning)\..*")
    batches = [tiny.batch(index, size=1) for index in range(4 * MICRO_BATCHES * options.steps * options.devices)]
    rows: Any = [(tokens[0], targets[0]) for tokens, targets in batches]
    module = module_class(pl)(options)
    trainer = pl.Trainer(
        max_steps=options.steps, accumulate_grad_batches=MICRO_BATCHES, gradient_clip_val=0.5, accelerator="cpu", devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        val_check_interval=4, limit_val_batches=1, callbacks=[StatagentCallback(run=options.run)],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(rows, batch_size=4), DataLoader(rows[:4], batch_size=4), ckpt_path=options.resume)
    if options.save:
        trainer.save_checkpoint(options.save)
    tiny.finish(options, module.parameters(), trainer.global_rank)


if __name__ == "__main__":
    main(sys.argv[1:])
