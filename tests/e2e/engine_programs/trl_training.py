"""Three steps of TRL's GRPO: trl_training.py RUN MODEL TO. Saves the model after each in TO/checkpoint-N, and in TO/sequences.json what the steps were
trained on. As docs/engines.md says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import GRPOConfig, GRPOTrainer

from statagent.integrations.transformers import StatagentCallback


def words() -> Any:
    """w3 to w499, one token each."""
    numbers = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i for i in range(3, 500)}}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def main(run: str, model: str, to: str) -> None:
    tokenizer, trained = words(), []

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        trained.append([[*tokenizer(prompt)["input_ids"], *ids] for prompt, ids in zip(prompts, completion_ids)])
        return [float(sum(ids) % 7) for ids in completion_ids]

    settings = GRPOConfig(
        output_dir=to, max_steps=3, per_device_train_batch_size=4, num_generations=2, max_completion_length=9, learning_rate=1e-3,
        save_steps=1, save_only_model=True, use_cpu=True, bf16=False, disable_tqdm=True, report_to=[], seed=1, gradient_checkpointing=False,
    )  # fmt: skip
    prompts = [" ".join(f"w{3 + (7 * row + word * word) % 490}" for word in range(4 + row % 5)) for row in range(8)]
    trainer = GRPOTrainer(
        model, reward, settings, train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer, callbacks=[StatagentCallback(run=run, watch={"tokens": True})],
    )  # fmt: skip
    trainer.train()
    Path(to, "sequences.json").write_text(json.dumps(trained), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:4])
