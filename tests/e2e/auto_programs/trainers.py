"""Trainings by frameworks without a line of statagent, or with `--hand` as docs/frameworks.md says.

python trainers.py transformers|lightning|accelerate|trl_dpo|trl_grpo|timm [--hand]
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


def tokenizer() -> Any:
    """Of words w3 to w49, one token each."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i for i in range(3, 50)}}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def sentences(rows: int, words: int, seed: int) -> list[str]:
    numbers = torch.randint(3, 50, (rows, words), generator=torch.Generator().manual_seed(seed))
    return [" ".join(f"w{number}" for number in row) for row in numbers.tolist()]


def language_model() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

    set_seed(1)
    sizes = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
    }  # fmt: skip
    return Qwen2ForCausalLM(Qwen2Config(**sizes))  # type: ignore[arg-type]


def train_with_trl(trainer: Any) -> None:
    from transformers import PrinterCallback

    if HAND:
        from statagent.integrations.transformers import StatagentCallback

        trainer.add_callback(StatagentCallback())
    trainer.remove_callback(PrinterCallback)  # it prints timings
    trainer.train()
    print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    finish(trainer.model.parameters())


def use_trl_dpo() -> None:
    import copy

    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    model = language_model()
    rows = [
        {"prompt": prompt, "chosen": f" {chosen}", "rejected": f" {rejected}"}
        for prompt, chosen, rejected in zip(sentences(16, 6, 1), sentences(16, 8, 2), sentences(16, 5, 3), strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        settings = DPOConfig(
            output_dir=folder, max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=1, learning_rate=1e-3,
            save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True, report_to=[], seed=1, gradient_checkpointing=False,
        )  # fmt: skip
        reference = copy.deepcopy(model)
        train_with_trl(
            DPOTrainer(model, reference, settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer())
        )


def use_trl_grpo() -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(set(completion.split()))) for completion in completions]

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, max_steps=4, per_device_train_batch_size=4, num_generations=4, max_completion_length=6, logging_steps=1,
            learning_rate=1e-3, save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True, report_to=[], seed=1, beta=0.04,
            gradient_checkpointing=False,
        )  # fmt: skip
        rows = Dataset.from_list([{"prompt": prompt} for prompt in sentences(16, 6, 1)])
        saved = f"{folder}/model"  # the trainer asks for the model's own configuration by its path
        language_model().save_pretrained(saved)
        model = AutoModelForCausalLM.from_pretrained(saved)
        train_with_trl(GRPOTrainer(model, reward, settings, train_dataset=rows, processing_class=tokenizer()))


def use_timm() -> None:
    """What timm's own training script does with its parts: mixed images, soft targets, an averaged model, a schedule for each update."""
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV3, random_seed

    random_seed(1, 0)
    model = timm.create_model("resnet10t", num_classes=10, drop_rate=0.1)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.9)
    average = ModelEmaV3(model, decay=0.9)
    schedule, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=2, warmup_epochs=1, step_on_epochs=False, updates_per_epoch=4
    )
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=10, label_smoothing=0.1)
    loss_of = SoftTargetCrossEntropy()
    if HAND:
        import statagent

        statagent.init()
        statagent.watch(model, optimizer=optimizer)
    model.train()
    for step in range(4):
        images, targets = mixup(torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,)))
        loss = loss_of(model(images), targets)
        if HAND:
            import statagent

            statagent.log_scalar("loss", loss)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model, step=step)
        schedule.step_update(num_updates=step)
        print("loss", loss.item())
    finish([*model.parameters(), *average.module.parameters()])


if __name__ == "__main__":
    globals()[f"use_{sys.argv[1]}"]()
