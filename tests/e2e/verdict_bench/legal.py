"""Legal changes: the same computation, rounded differently. Each is a function of a run before it trains."""

# mypy: disable-error-code="method-assign, assignment"
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from verdict_bench.blocks import Attention, RMSNorm
from verdict_bench.training import Batch, Family, Training


@dataclass(frozen=True)
class Legal:
    name: str
    change: str
    kinds: frozenset[str]  # of families that it applies to; empty: all
    plant: Callable[[Training], None]
    optional: bool = False  # takes long: recorded on request only
    idle: bool = False  # the same bits: no bugs on top of it

    def applies_to(self, family: Family) -> bool:
        return not self.kinds or bool(self.kinds & family.kinds_of_legal)


LEGAL: dict[str, Legal] = {}


def legal(
    change: str, *kinds: str, optional: bool = False, idle: bool = False
) -> Callable[[Callable[[Training], None]], Callable[[Training], None]]:
    """Enters the function under its own name."""

    def enter(plant: Callable[[Training], None]) -> Callable[[Training], None]:
        LEGAL[plant.__name__] = Legal(plant.__name__, change, frozenset(kinds), plant, optional, idle)
        return plant

    return enter


def of_family(family: Family, optional: bool = False) -> list[Legal]:
    return [each for each in LEGAL.values() if each.applies_to(family) and each.optional == optional]


# --- attention


@legal("attention by the other kernel: by hand, or scaled_dot_product_attention", "attention")
def attention_kernel(training: Training) -> None:
    for module in training.modules(Attention):
        module.kernel = "manual" if module.kernel == "fused" else "fused"


@legal("Transformers' attention by scaled_dot_product_attention", "hf_attention")
def hf_attention(training: Training) -> None:
    model: Any = training.models[""]
    model.set_attn_implementation("sdpa")


# --- passes


@legal("two micro-batches", "micro")
def micro_batches(training: Training) -> None:
    training.micro = 2


def _recomputed(training: Training, reentrant: bool) -> None:
    model: Any = training.models[""]
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
    else:
        model.checkpointing = reentrant


@legal("activations computed again in the backward pass", "checkpoint")
def checkpointed(training: Training) -> None:
    _recomputed(training, reentrant=False)


@legal("activations computed again in the backward pass, reentrant", "checkpoint")
def checkpointed_reentrant(training: Training) -> None:
    _recomputed(training, reentrant=True)


# --- products


class Product(Protocol):
    """A linear layer's output."""

    def __call__(self, x: torch.Tensor, linear: nn.Linear) -> torch.Tensor: ...


def _on_linears(training: Training, product: Product) -> None:
    for module in training.modules(nn.Linear):
        module.forward = partial(product, linear=module)


def _biased(total: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
    return total if linear.bias is None else total + linear.bias.to(total.dtype)


@legal("products of linear layers summed in two parts", "linear")
def split_k(training: Training) -> None:
    def product(x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        left, right = (functional.linear(a, b) for a, b in zip(x.chunk(2, -1), linear.weight.chunk(2, 1)))
        return _biased(left + right, linear)

    _on_linears(training, product)


@legal("two threads instead of one")
def threads(training: Training) -> None:
    training.threads = 2


@legal("products of linear layers summed from the last feature to the first", "linear")
def reversed_k(training: Training) -> None:
    _on_linears(training, lambda x, linear: functional.linear(x.flip(-1), linear.weight.flip(1), linear.bias))


@legal("products of linear layers row by row in three parts", "linear")
def row_blocks(training: Training) -> None:
    def product(x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).chunk(3)
        return torch.cat([functional.linear(part, linear.weight, linear.bias) for part in rows]).view(*x.shape[:-1], -1)

    _on_linears(training, product)


@legal("products of linear layers and convolutions summed in f64", "linear", "convolution")
def f64_products(training: Training) -> None:
    coarse = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[training.family.precision]

    def wide(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.to(coarse).double()

    def product(x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return functional.linear(wide(x), wide(linear.weight), wide(linear.bias)).to(coarse)

    def convolution(x: torch.Tensor, conv: nn.Conv2d) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            made = functional.conv2d(wide(x), wide(conv.weight), wide(conv.bias), conv.stride, conv.padding, groups=conv.groups)
            return made.to(coarse)

    _on_linears(training, product)
    for module in training.modules(nn.Conv2d):
        module.forward = partial(convolution, conv=module)


# --- convolutions


@legal("memory format channels_last", "convolution")
def channels_last(training: Training) -> None:
    training.channels_last = True


@legal("convolutions as products of unfolded patches", "convolution")
def unfolded(training: Training) -> None:
    def convolution(x: torch.Tensor, conv: Any) -> torch.Tensor:
        height, width = ((x.shape[i + 2] + 2 * conv.padding[i] - conv.kernel_size[i]) // conv.stride[i] + 1 for i in (0, 1))
        patches = functional.unfold(x, conv.kernel_size, padding=conv.padding, stride=conv.stride)
        out = conv.weight.flatten(1) @ patches
        return (out if conv.bias is None else out + conv.bias[:, None]).view(x.shape[0], -1, height, width)

    for module in training.modules(nn.Conv2d):
        if module.groups == 1:
            module.forward = partial(convolution, conv=module)


@legal("without oneDNN")
def onednn_off(training: Training) -> None:
    training.mkldnn = False


# --- norms, recurrences, bags


def _standardised(x: torch.Tensor, dims: tuple[int, ...], eps: float) -> torch.Tensor:
    wide = x.float()
    centred = wide - wide.mean(dims, keepdim=True)
    return (centred / torch.sqrt(centred.square().mean(dims, keepdim=True) + eps)).to(x.dtype)


def _layer_norm(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    return _standardised(x, (-1,), norm.eps) * norm.weight + norm.bias


def _rms_norm(x: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    wide = x.float()
    return (wide / torch.sqrt(wide.pow(2).sum(-1, keepdim=True) / wide.shape[-1] + norm.eps)).to(x.dtype) * norm.weight


def _group_norm(x: torch.Tensor, norm: nn.GroupNorm) -> torch.Tensor:
    grouped = _standardised(x.reshape(x.shape[0], norm.num_groups, -1), (2,), norm.eps).view(x.shape)
    return grouped * norm.weight[:, None, None] + norm.bias[:, None, None]


def _batch_norm(x: torch.Tensor, norm: nn.BatchNorm2d) -> torch.Tensor:
    dims = (0, *range(2, x.dim()))
    shape = (1, -1, *[1] * (x.dim() - 2))
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    if norm.training:
        out = _standardised(x, dims, norm.eps)
        with torch.no_grad():
            variance, mean = torch.var_mean(x, dims)
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance, norm.momentum)
            norm.num_batches_tracked += 1  # type: ignore[operator]
    else:
        out = (x - norm.running_mean.view(shape)) / torch.sqrt(norm.running_var.view(shape) + norm.eps)
    return out * norm.weight.view(shape) + norm.bias.view(shape)


@legal("normalisations by hand", "norm")
def norms_by_hand(training: Training) -> None:
    ways: dict[Any, Any] = {
        nn.LayerNorm: _layer_norm, RMSNorm: _rms_norm, nn.GroupNorm: _group_norm,
        nn.BatchNorm2d: _batch_norm, nn.BatchNorm1d: _batch_norm,
    }  # fmt: skip
    for kind, way in ways.items():
        for module in training.modules(kind):
            module.forward = partial(way, norm=module)


@legal("the recurrence step by step", "lstm")
def unrolled(training: Training) -> None:
    def forward(x: torch.Tensor, lstm: Any) -> tuple[torch.Tensor, Any]:
        h = c = x.new_zeros(x.shape[0], lstm.hidden_size)
        outputs = []
        for t in range(x.shape[1]):
            gates = functional.linear(x[:, t], lstm.weight_ih_l0, lstm.bias_ih_l0)
            i, f, g, o = (gates + functional.linear(h, lstm.weight_hh_l0, lstm.bias_hh_l0)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        # In the memory order of the layer's own output: a mask of dropout follows that.
        return torch.stack(outputs).transpose(0, 1), (h[None], c[None])

    for module in training.modules(nn.LSTM):
        module.forward = partial(forward, lstm=module)


@legal("bags of embeddings summed by hand", "bag")
def bags_by_hand(training: Training) -> None:
    def forward(ids: torch.Tensor, bag: Any) -> torch.Tensor:
        total = functional.embedding(ids.flip(1), bag.weight).sum(1)
        return total / ids.shape[1] if bag.mode == "mean" else total

    for module in training.modules(nn.EmbeddingBag):
        module.forward = partial(forward, bag=module)


@legal("activations by hand", "activation")
def activations_by_hand(training: Training) -> None:
    ways: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
        nn.Tanh: lambda x: 2 * torch.sigmoid(2 * x) - 1,
        nn.SiLU: lambda x: x * torch.sigmoid(x),
        nn.Softplus: lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    }
    for kind, way in ways.items():
        for module in training.modules(kind):
            module.forward = way


# --- losses and optimizers


@legal("the loss summed in four parts", "batched_loss")
def loss_in_parts(training: Training) -> None:
    import verdict_bench.bugs as bugs

    original = bugs.cross_entropy

    def in_parts(_: Training, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        parts = zip(logits.chunk(4), targets.chunk(4))
        smoothing = training.label_smoothing()
        total = sum(functional.cross_entropy(a, b, reduction="sum", label_smoothing=smoothing) for a, b in parts)
        assert isinstance(total, torch.Tensor)
        return total / len(targets)

    def compute(inner: Training, batch: Batch) -> torch.Tensor:
        bugs.cross_entropy = in_parts
        try:
            return training.family.loss(inner, batch)
        finally:
            bugs.cross_entropy = original

    training.compute_loss = compute


@legal("the optimizer's foreach form", "adam", "sgd", "adagrad", "rmsprop", "adafactor")
def foreach(training: Training) -> None:
    training.optimizer_options["foreach"] = True


@legal("the optimizer's fused form", "adam", "sgd", "adagrad")
def fused(training: Training) -> None:
    training.optimizer_options.pop("foreach", None)
    training.optimizer_options["fused"] = True


@legal("Lion's sums by lerp", "lion")
def lion_lerp(training: Training) -> None:
    training.optimizer_options["interpolate"] = True


# --- wrappers


@legal("DistributedDataParallel on one rank", "one_model", idle=True)
def ddp(training: Training) -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    training.wrap = DistributedDataParallel
    training.at_end.append(distributed.destroy_process_group)


@legal("compiled", "one_model", optional=True)
def compiled(training: Training) -> None:
    training.wrap = lambda model: torch.compile(model)  # type: ignore[return-value]
