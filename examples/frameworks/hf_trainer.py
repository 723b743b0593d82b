"""Hugging Face Transformers: `Trainer` with gradient accumulation, evaluation and checkpoints, on a model made from a configuration.

python examples/frameworks/hf_trainer.py --run-name trainer
torchrun --nproc_per_node=2 examples/frameworks/hf_trainer.py --run-name trainer
python examples/frameworks/hf_trainer.py --run-name trainer --steps 14 --output OUT --resume     # continues where OUT ended
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from statagent.integrations.transformers import StatagentCallback


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, rows: int) -> None:
        self._tokens = torch.cat([tiny.batch(step, size=1)[0] for step in range(rows)])

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


class Say(TrainerCallback):
    """Prints the losses, and makes the mistake of --bug-step."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        tiny.plant(self._options, state.global_step, model.transformer.h[1].ln_2)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        for name in ("loss", "eval_loss"):
            if name in logs:
                tiny.report(self._options, state.global_step - 1, logs[name], args.process_index)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = tiny.parser(__doc__)
    parser.add_argument("--output", help="folder for checkpoints (default: a temporary one)")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --output")
    options = tiny.parse(parser, arguments)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=options.output or folder,
            max_steps=options.steps,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=5,
            save_strategy="steps",
            save_steps=5,
            seed=1,
            full_determinism=False,
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
        )
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=tiny.VOCABULARY, n_positions=tiny.TIME, n_embd=32, n_layer=2, n_head=2,
                resid_pdrop=0.1, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            )
        )  # fmt: skip
        callbacks = [Say(options), StatagentCallback(run=options.run)]
        trainer = Trainer(model, settings, train_dataset=Rows(64), eval_dataset=Rows(4), callbacks=callbacks)
        trainer.train(resume_from_checkpoint=options.resume)
        tiny.finish(options, model.parameters(), settings.process_index)


if __name__ == "__main__":
    main()
