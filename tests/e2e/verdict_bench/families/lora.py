"""Low-rank adapters on a frozen transformer, the gradients of whose inputs a reentrant checkpoint needs; AdamW."""

from __future__ import annotations

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import Block, counting_text
from verdict_bench.training import Batch, Family, Training, generator

WIDTH, VOCABULARY, TIME, BATCH, LAYERS, RANK = 64, 80, 24, 8, 3, 4


class Adapted(nn.Module):
    """A frozen linear layer plus what passes through a few features."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, RANK, bias=False), nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)
        self.scaling = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x)) * self.scaling


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, 4, causal=True) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.requires_grad_(False)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attn.q, block.attn.v = Adapted(block.attn.q), Adapted(block.attn.v)  # type: ignore[assignment]
        self.checkpointing: bool | None = None  # with what `use_reentrant`

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        if self.checkpointing is not None:
            x.requires_grad_()
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpointing)
        return self.head(self.norm(x))


class LoraFamily(Family):
    name = "lora"
    kinds_of_legal = frozenset(("one_model", "attention", "linear", "norm", "adam", "batched_loss", "micro", "checkpoint"))

    def models(self) -> dict[str, nn.Module]:
        return {"": Lora()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        trained = [p for p in training.models[""].parameters() if p.requires_grad]
        return {"": torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.01, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        text = counting_text(BATCH, TIME + 1, VOCABULARY, generator(self, step))
        return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        logits = training.trained[""](batch["tokens"])
        return bugs.cross_entropy(training, logits.flatten(0, 1), batch["targets"].flatten())


FAMILY = LoraFamily()
BUGS = [
    bugs.scaled_gradients(
        bugs.attribute("blocks.1.attn.v", "scaling"),
        [("blocks.1.attn.v.b", "grad_output"), ("blocks.1.attn.v.b.weight", "weight_grad")],
    ),
    bugs.module_output("blocks.1.attn.q.b", step=3),
    bugs.norm_eps("blocks.2.ln2"),
    bugs.gradient("blocks.0.attn.v.a.weight", step=2),
    bugs.learning_rate(step=2),
    bugs.loss_factor("head", step=2),
    bugs.attention_scale("blocks.1.attn"),
    bugs.residual("blocks.0"),
    bugs.weight("blocks.1.mlp.up"),
    bugs.weight("blocks.2.attn.q.a"),
    bugs.activation("blocks.1.mlp.act", step=2),
    bugs.beta(1),
    bugs.weight_decay(),
    bugs.epsilon(),
    bugs.gradient_term("blocks.2.attn.q.b.weight", step=3),
    bugs.sign_flip("blocks.1.attn.v.b.weight", step=2),
    bugs.zero_grad(step=3),
    bugs.batch_order(step=3),
    bugs.permuted("blocks.2.ln1", step=2),
]
