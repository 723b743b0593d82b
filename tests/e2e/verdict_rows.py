"""Trains the runs of test_verdict_rows: `python verdict_rows.py RUN ...`, with the collector's address in the environment.

A run is named FAMILY or FAMILY.CHANGE. Families are those of the benchmark of verdicts, or variants of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from verdict_bench import bugs, families
from verdict_bench.blocks import Attention, attend
from verdict_bench.families.gpt import LAYERS, WIDTH, GptFamily
from verdict_bench.families.moe import CHOSEN
from verdict_bench.families.seq2seq import Seq2seqFamily
from verdict_bench.legal import LEGAL
from verdict_bench.training import Batch, Family, Training, generator

Change = Callable[[Training], None]

STEPS = 8


class Float32Seq2seq(Seq2seqFamily):
    """The encoder-decoder without autocast."""

    bfloat16 = False


class Bfloat16Gpt(GptFamily):
    bfloat16 = True


class JointAttention(Attention):
    """Queries, keys and values of one projection: only a third of its bias has a gradient that is mathematically zero."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 4, causal=True)
        del self.q, self.k, self.v
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = attend(q, k, v, self.scale, self.mask(q, k), self.kernel)
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


class JointGpt(GptFamily):
    def models(self) -> dict[str, nn.Module]:
        models = super().models()
        for index in range(LAYERS):
            models[""].get_submodule(f"b.{index}").attn = JointAttention()
        return models

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        """Slow enough that differences grow past the tolerance some steps after the first."""
        made = super().optimizers(training)
        for group in made[""].param_groups:
            group["lr"] = 1e-3
        return made


class OtherOptimizer(JointGpt):
    """With an optimizer that divides by the gradient's size without keeping Adam's state, or that makes updates orthogonal."""

    def __init__(
        self, optimizer: Callable[..., torch.optim.Optimizer], lr: float, matrices: bool = False, **options: Any
    ) -> None:
        self._make = partial(optimizer, lr=lr, **options)
        self._matrices = matrices

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        return {"": self._make([p for p in parameters if p.dim() == 2 or not self._matrices])}


class OwnAdam(torch.optim.Optimizer):
    """Adam, with state of other names, and a beta that it does not tell."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.second, self._steps = 0.999, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self._steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, self.state[parameter], group["lr"])

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, state: Any, lr: float) -> None:
        if not state:
            state["m"], state["v"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        mean, squares = state["m"], state["v"]
        mean.lerp_(gradient, 0.1)
        squares.lerp_(gradient * gradient, 1 - self.second)
        size = (squares / (1 - 0.999**self._steps)).sqrt().add_(1e-8)
        parameter.addcdiv_(mean, size, value=-lr / (1 - 0.9**self._steps))


class OwnSigns(OwnAdam):
    """Without any state."""

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, state: Any, lr: float) -> None:
        parameter.add_(gradient.sign(), alpha=-lr)


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(20, 32, 5, padding=2), nn.BatchNorm1d(32)
        self.rnn, self.out = nn.GRU(32, 32, 2, bidirectional=True, batch_first=True), nn.Linear(64, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(functional.relu(self.bn(self.conv(x))).transpose(1, 2))
        return self.out(hidden)


class SpeechFamily(Family):
    """CTC: its gradient is an exponential of large logarithms. The convolution's bias stands before a BatchNorm."""

    name = "speech"

    def models(self) -> dict[str, nn.Module]:
        return {"": Speech()}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        return {"": torch.optim.Adagrad(training.models[""].parameters(), lr=1e-2, **training.optimizer_options)}

    def batch(self, step: int) -> Batch:
        source = generator(self, step)
        return {"x": torch.randn(8, 20, 60, generator=source), "targets": torch.randint(1, 12, (8, 6), generator=source)}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        likely = training.trained[""](batch["x"]).log_softmax(-1).transpose(0, 1)
        frames, samples, _ = likely.shape
        of_frames, of_targets = (torch.full((samples,), each) for each in (frames, batch["targets"].shape[1]))
        return functional.ctc_loss(likely, batch["targets"], of_frames, of_targets)


FAMILIES: dict[str, Family] = {
    "rmsprop": OtherOptimizer(torch.optim.RMSprop, 1e-3, momentum=0.9, centered=True),
    "adagrad": OtherOptimizer(torch.optim.Adagrad, 1e-2),
    "muon": OtherOptimizer(torch.optim.Muon, 1e-2, matrices=True),
    "ownadam": OtherOptimizer(OwnAdam, 1e-3),
    "ownsigns": OtherOptimizer(OwnSigns, 3e-4),
    "speech": SpeechFamily(),
    "seq2seq": Float32Seq2seq(),
    "bf16": Bfloat16Gpt(),
    "joint": JointGpt(),
    **{name: families.load(name).FAMILY for name in ("gan", "gpt", "cnn", "moe")},
}


def planted(bug: bugs.Bug, size: float) -> Change:
    def change(training: Training) -> None:
        bug.plant(training, size)

    return change


def swapped_betas(training: Training, optimizer: str) -> None:
    def swap(inner: Training) -> None:
        for group in inner.optimizers[optimizer].param_groups:
            group["betas"] = group["betas"][::-1]

    training.on_optimizers.append(swap)


def other_second(training: Training) -> None:
    def change(inner: Training) -> None:
        own = inner.optimizers[""]
        assert isinstance(own, OwnAdam)
        own.second = 0.998

    training.on_optimizers.append(change)


def unrecorded_eps(training: Training) -> None:
    """In a forward() of its own, so that no setting of the module shows it."""
    norm = training.module("b.2.ln2")

    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, 2e-5)

    bugs.wrap(norm, forward)


def experts_backwards(training: Training) -> None:
    """Executes the experts of each block from the last to the first."""

    def forward(mixture: Any, _: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = mixture.router(tokens).softmax(-1).topk(CHOSEN, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for index in reversed(range(len(mixture.experts))):
            token, place = (chosen == index).nonzero(as_tuple=True)
            out = out.index_add(0, token, mixture.experts[index](tokens[token]) * weights[token, place, None])
        return out.view_as(x) * mixture.share

    for block in training.models[""].blocks:  # type: ignore[union-attr]
        bugs.wrap(block.mlp, partial(forward, block.mlp))


def swapped_blocks(training: Training) -> None:
    """Executes the second block before the first."""
    model: Any = training.models[""]

    def forward(_: Any, tokens: torch.Tensor) -> torch.Tensor:
        x = model.tok(tokens) + model.pos(torch.arange(tokens.shape[1]))
        for index in (1, 0, *range(2, LAYERS)):
            x = model.b[index](x)
        return model.head(model.n(x))

    bugs.wrap(model, forward)


def micro_batches(training: Training) -> None:
    """Accumulates the gradients of four quarters of the batch."""
    whole = training.compute_loss

    def in_quarters(inner: Training, batch: Batch) -> torch.Tensor:
        quarters = [dict(zip(batch, part)) for part in zip(*(tensor.chunk(4) for tensor in batch.values()))]
        losses = []
        for quarter in quarters:
            losses.append(whole(inner, quarter) / 4)
            if quarter is not quarters[-1]:
                losses[-1].backward()
        return sum((loss.detach() for loss in losses[:-1]), losses[-1])

    training.compute_loss = in_quarters


threads, channels_last, kernel, onednn_off = (
    LEGAL[name].plant for name in ("threads", "channels_last", "attention_kernel", "onednn_off")
)
eps = planted(bugs.norm_eps("b.2.ln2"), 5e-6)  # 2e-5 instead of 1e-5

CHANGES: dict[str, list[Change]] = {
    "seq2seq": [],
    "seq2seq.threads": [threads],
    "gan": [],
    "gan.last": [channels_last],  # where sums of BatchNorm are shared out among threads
    "gan.last_threads": [channels_last, threads],
    "gan.dis_betas": [partial(swapped_betas, optimizer="dis")],
    "bf16": [],
    "bf16.kernel_threads": [kernel, threads],  # on some processors bfloat16 products are the same on two threads
    "gpt": [],
    "gpt.kernel": [kernel],
    "gpt.micro": [micro_batches],
    "gpt.micro_bias": [micro_batches, planted(bugs.gradient("b.1.attn.v.bias", 2), 0.01)],
    "gpt.swapped": [swapped_blocks],
    "joint": [],
    "joint.kernel": [kernel],
    "joint.eps": [eps],
    "joint.kernel_eps": [kernel, eps],
    "joint.kernel_unrecorded": [kernel, unrecorded_eps],
    "cnn": [],
    "cnn.momentum": [planted(bugs.batch_norm_momentum("stages.1.bn1"), 1.0)],
    "cnn.schedule": [planted(bugs.scheduler_off_by_one(4), 1.0)],
    "cnn.rate": [planted(bugs.learning_rate(step=3), 1.0)],  # a step that a validation follows
    **{run: [] for run in ("rmsprop", "adagrad", "muon", "ownadam", "ownsigns", "speech")},
    **{f"{run}.kernel": [kernel] for run in ("rmsprop", "adagrad", "muon", "ownadam", "ownsigns")},
    "ownadam.kernel_second": [kernel, other_second],
    **{f"{run}.kernel_eps": [kernel, eps] for run in ("rmsprop", "muon")},
    "speech.onednn_off": [onednn_off],
    "moe": [],
    "moe.order_threads": [experts_backwards, threads],
    "moe.expert": [planted(bugs.module_output("blocks.1.mlp.experts.2", step=3), 1e-3)],
}


def main() -> None:
    torch.set_num_threads(1)
    for run in sys.argv[1:]:
        family = FAMILIES[run.partition(".")[0]]
        Training(family, steps=STEPS, optimizer_options={"foreach": False}).run(run, CHANGES[run])


if __name__ == "__main__":
    main()
