"""Trainings by frameworks without a line of statagent, or with `--hand` as docs/frameworks.md says.

python trainers.py transformers|lightning|accelerate [--hand]
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

HAND = "--hand" in sys.argv
WIDTH = 16


def finish(parameters: Iterable[torch.Tensor]) -> None:
    weights = hashlib.sha256()
    for parameter in parameters:
        weights.update(parameter.detach().double().numpy().tobytes())
    print("weights", weights.hexdigest()[:16], "random", torch.rand(1).item())


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, rows: int) -> None:
        self._tokens = torch.randint(0, 50, (rows, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


def use_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed

    set_seed(1)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes))  # type: ignore[arg-type]
    callbacks: list[Any] = []
    if HAND:
        from statagent.integrations.transformers import StatagentCallback

        callbacks = [StatagentCallback()]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=1,
            eval_strategy="steps", eval_steps=2, save_strategy="no", use_cpu=True, disable_tqdm=True, report_to=[], seed=1,
        )  # fmt: skip
        trainer = Trainer(model, settings, train_dataset=Tokens(64), eval_dataset=Tokens(4), callbacks=callbacks)
        trainer.remove_callback(PrinterCallback)  # it prints timings
        trainer.train()
        print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        print(
            "callbacks",
            sorted(type(each).__name__ for each in trainer.callback_handler.callbacks if "tatagent" not in repr(each)),
        )
    finish(model.parameters())


def use_lightning() -> None:
    import logging
    import warnings

    import lightning

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = (self.model(batch[0]) - batch[0]).square().mean()
            self.log("train_loss", loss, on_step=True)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", (self.model(batch[0]) - batch[0]).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    lightning.seed_everything(3, verbose=False)
    callbacks: list[Any] = []
    if HAND:
        from statagent.integrations.lightning import StatagentCallback

        callbacks = [StatagentCallback()]
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, WIDTH)), batch_size=4)
    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_steps=4, accumulate_grad_batches=2, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, logger=False,
            enable_checkpointing=False, default_root_dir=folder, callbacks=callbacks,
        )  # fmt: skip
        trainer.fit(module, data, data)
    finish(module.parameters())


def use_accelerate() -> None:
    from accelerate import Accelerator

    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, WIDTH)), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    if HAND:
        import statagent

        statagent.init()
        statagent.watch(model, optimizer=optimizer)
    for (x,) in data:
        with accelerator.accumulate(model):
            loss = (model(x) - x).square().mean()
            if HAND:
                import statagent

                statagent.log_scalar("loss", loss / 2)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    finish(model.parameters())


if __name__ == "__main__":
    globals()[f"use_{sys.argv[1]}"]()
