"""Causal language models of Transformers, small and with random weights: padded texts, AdamW with decay groups, clipped.

Each architecture is a family, such as `hf_llama`. Their bugs take turns, so that a few of each cover all kinds."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from verdict_bench import bugs
from verdict_bench.blocks import counting_text
from verdict_bench.bugs import Bug
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH, LAYERS = 64, 96, 24, 8, 2
PAD, EOS, HIDDEN = 0, 1, -100  # HIDDEN: a label that the loss leaves out
NEEDS = "transformers"
NORM = "post_attention_layernorm"
BRANCH = "model.layers.1.mlp.down_proj"

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": 16}, "qwen2": {}, "qwen3": {}, "granite": {}, "olmo2": {}, "smollm3": {},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16}, "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


class HfFamily(Family):
    clip = 1.0
    summed_loss = True

    def __init__(self, architecture: str):
        self.architecture, self.name = architecture, f"hf_{architecture}"
        kernels = () if architecture == "gemma2" else ("hf_attention",)
        self.kinds_of_legal = frozenset(("one_model", "linear", "adam", "micro", "checkpoint", *kernels))

    def models(self) -> dict[str, nn.Module]:
        import transformers

        config = transformers.AutoConfig.for_model(
            self.architecture, vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=2,
            use_cache=False, tie_word_embeddings=False, **ARCHITECTURES[self.architecture],
        )  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        if self.architecture == "mixtral":
            model.set_experts_implementation("eager")  # one after the other, each with the tokens that chose it
        return {"": model}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        named = list(training.models[""].named_parameters())
        decayed = [p for name, p in named if p.dim() > 1]
        others = [p for name, p in named if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return {"": torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        """Rows of several lengths, behind which there is padding. `share`: what a token's loss counts for."""
        random = generator(self, step)
        ids = 2 + counting_text(BATCH, TIME, VOCABULARY - 2, random)
        lengths = torch.randint(TIME // 2, TIME + 1, (BATCH, 1), generator=random)
        mask = torch.arange(TIME) < lengths
        ids = torch.where(torch.arange(TIME) == lengths - 1, EOS, torch.where(mask, ids, PAD))
        labels = functional.pad(torch.where(mask, ids, HIDDEN)[:, 1:], (0, 1), value=HIDDEN)
        share = (labels != HIDDEN) / (labels != HIDDEN).sum()
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels, "share": share}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return token_loss(logits, batch)


def token_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1), batch["labels"].flatten(), ignore_index=HIDDEN, reduction="none"
    )
    return (losses * batch["share"].flatten()).sum()


# --- bugs as they have been reported of training scripts


def changed_batch(name: str, key: str, change: Any) -> Bug:
    """In micro-batches, integers are compared by their extremes only, so that the loss may be the first to show it."""

    def plant(training: Training, _: float) -> None:
        original = training.batch
        training.batch = lambda step: change(original(step))

    return Bug(name, plant, 0, ("batch", "loss"), ((key, "batch"), ("loss", "*")), (), (1.0,))


def _shifted_twice(batch: Batch) -> Batch:
    return {**batch, "labels": functional.pad(batch["labels"][:, 1:], (0, 1), value=HIDDEN)}


def _without_end(batch: Batch) -> Batch:
    """Padding is the end's token, and so is what marks the end."""
    return {**batch, "labels": batch["labels"].masked_fill(batch["labels"] == EOS, HIDDEN)}


def decayed_norms() -> Bug:
    """All norms but the last are among the parameters that decay."""

    def plant(training: Training, _: float) -> None:
        norms = {id(p) for name, p in training.models[""].named_parameters() if "layernorm" in name}

        def move(_: Training) -> None:
            decayed, others = training.optimizers[""].param_groups
            decayed["params"] += [p for p in others["params"] if id(p) in norms]
            others["params"] = [p for p in others["params"] if id(p) not in norms]

        training.on_optimizers.append(move)

    return Bug("decayed_norms", plant, 0, bugs.OPTIMIZER, (("*layernorm*", "*"),), ("weight_decay",), (1.0,))


def bent_logits() -> Bug:
    """The loss is computed of logits that pass a soft limit first, as a fused loss does for another model."""

    def plant(training: Training, size: float) -> None:
        def compute(inner: Training, batch: Batch) -> torch.Tensor:
            logits = inner.trained[""](input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            return token_loss(logits.div(1 / size).tanh().mul(1 / size), batch)

        training.compute_loss = compute

    return Bug(
        "bent_logits",
        plant,
        0,
        ("loss", "backward"),
        (("loss", "*"), ("lm_head", "grad_output"), ("@root", "grad_output")),
        (),
        (0.3,),
    )


def attention_scaling(training_path: str = "model.layers.1.self_attn") -> Bug:
    shown = [(training_path, "output"), (f"{training_path}.o_proj", "output"), (f"{training_path}.o_proj", "input")]
    return bugs.attribute(training_path, "scaling", shown=shown)


def _bugs(architecture: str) -> list[Bug]:
    norm, eps = f"model.layers.1.{NORM}", "eps" if architecture == "gemma2" else "variance_epsilon"
    branch = "model.layers.1.mlp.experts" if architecture == "mixtral" else BRANCH
    found = [
        changed_batch("shifted_labels", "labels", _shifted_twice),
        decayed_norms(),
        bent_logits(),
        changed_batch("end_not_trained", "labels", _without_end),
        attention_scaling(),
        bugs.attribute(norm, eps, step=3, add=2.0),
        bugs.module_output(branch, step=2),
        bugs.gradient("model.layers.0.self_attn.v_proj.weight", step=1),
        bugs.loss_factor("lm_head", step=2),
        bugs.learning_rate(step=2),
        bugs.weight("model.layers.0.self_attn.o_proj"),
        bugs.beta(1),
        bugs.clip(step=1),
        bugs.zero_grad(step=3),
        bugs.weight("model.layers.1.self_attn.v_proj", step=3),
        bugs.sign_flip(f"{norm}.weight", step=2),
        bugs.batch_order(step=3),
        bugs.epsilon(),
    ]
    first = 3 * list(ARCHITECTURES).index(architecture) % len(found)
    return [*found[first:], *found[:first]]


WAYS = {architecture: partial(lambda name, *_: (HfFamily(name), _bugs(name)), architecture) for architecture in ARCHITECTURES}
FAMILY, BUGS = WAYS["llama"]()
