"""Group-relative policy optimization: texts that the policy samples are weighed by their reward beside others of the same prompt; AdamW."""

from __future__ import annotations

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.bugs import Bug
from verdict_bench.families.dpo import Policy
from verdict_bench.training import Batch, Family, Training, generator

PROMPTS, GROUP, PROMPT, TIME, VOCABULARY, TEMPERATURE = 3, 4, 8, 24, 80, 0.8


class GrpoFamily(Family):
    name = "grpo"
    clip = 1.0
    temperature = TEMPERATURE  # of what scores the texts
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "adam"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Policy()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        """`luck` decides what is sampled."""
        random = generator(self, step)
        prompts = torch.randint(1, VOCABULARY, (PROMPTS, PROMPT), generator=random).repeat_interleave(GROUP, 0)
        uniform = torch.rand(len(prompts), TIME - PROMPT, VOCABULARY, generator=random)
        return {"prompts": prompts, "luck": -(-uniform.clamp_min(1e-9).log()).log()}

    @torch.no_grad()
    def sampled(self, training: Training, batch: Batch) -> torch.Tensor:
        texts = torch.zeros(len(batch["prompts"]), TIME, dtype=torch.long)
        texts[:, :PROMPT] = batch["prompts"]
        for at in range(PROMPT, TIME):
            logits = training.trained[""](texts)[:, at - 1] / TEMPERATURE
            texts[:, at] = (logits + batch["luck"][:, at - PROMPT]).argmax(-1)
        return texts

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        texts = self.sampled(training, batch)
        rewards = (texts[:, PROMPT:] % 7).float().mean(1).view(PROMPTS, GROUP)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
        scores = (training.trained[""](texts)[:, PROMPT - 1 : -1] / self.temperature).log_softmax(-1)
        chosen = scores.gather(2, texts[:, PROMPT:, None])[..., 0]
        return -(advantages[:, None] * torch.exp(chosen - chosen.detach())).mean() - 1e-3 * chosen.mean()


def other_temperature() -> Bug:
    """Texts are scored with another temperature than they were sampled with."""

    def plant(training: Training, size: float) -> None:
        training.family.temperature = TEMPERATURE * (1 + size)  # type: ignore[attr-defined]

    shown = (("loss", "*"), ("head", "grad_output"), ("@root", "grad_output"))
    return Bug("temperature", plant, 0, ("loss", "backward"), shown)


FAMILY = GrpoFamily()
BUGS = [
    other_temperature(),
    bugs.module_output("blocks.1.mlp.up", step=3),
    bugs.gradient("blocks.0.attn.v.weight", step=1),
    bugs.norm_eps("blocks.1.ln2"),
    bugs.loss_factor("head", step=2),
    bugs.attention_scale("blocks.1.attn"),
    bugs.learning_rate(step=2),
    bugs.weight("blocks.0.mlp.down"),
    bugs.residual("blocks.0"),
    bugs.clip(step=1),
    bugs.beta(1),
    bugs.weight_decay(),
    bugs.epsilon(),
    bugs.sign_flip("blocks.1.ln1.weight", step=2),
    bugs.zero_grad(step=3),
]
