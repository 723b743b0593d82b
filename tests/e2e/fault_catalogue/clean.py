"""Runs without a fault: baselines, and repeats of them that must not raise an alarm."""

# mypy: disable-error-code="method-assign, assignment"
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fault_catalogue import faults as _faults  # enters the baselines
from fault_catalogue.fault import BASES
from fault_catalogue.model import Attention, Gpt, Mlp
from fault_catalogue.training import PAD, Training


@dataclass(frozen=True)
class Clean:
    """A run that trains the same as its baseline, bit for bit or up to rounding."""

    name: str
    change: str
    plant: Callable[[Training], object]
    base: str = "plain"


CLEAN: dict[str, Clean] = {}


def clean(change: str, base: str = "plain") -> Callable[[Callable[[Training], None]], Callable[[Training], None]]:
    """Enters the function under its own name."""

    def enter(plant: Callable[[Training], None]) -> Callable[[Training], None]:
        name = plant.__name__
        CLEAN[name] = Clean(name, change, plant, base)
        return plant

    return enter


def _nothing(_: Training) -> None:
    return None


assert _faults
for _base in BASES:
    CLEAN[f"repeat_{_base}"] = Clean(f"repeat_{_base}", f"nothing ({_base})", _nothing, _base)


class Product(Protocol):
    """A linear layer's output."""

    def __call__(self, x: torch.Tensor, linear: nn.Linear) -> torch.Tensor: ...


def on_linears(training: Training, product: Product) -> None:
    """Every linear layer computes its product so."""

    def change(model: Gpt) -> None:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.forward = partial(product, linear=module)

    training.on_model.append(change)


def chunked(chunks: int) -> Product:
    def product(x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        parts = zip(x.chunk(chunks, dim=-1), linear.weight.chunk(chunks, dim=1))
        total = sum(functional.linear(part, weight) for part, weight in parts)
        assert isinstance(total, torch.Tensor)
        return total if linear.bias is None else total + linear.bias

    return product


@clean("two threads instead of one")
def two_threads(training: Training) -> None:
    training.change(threads=2)


@clean("products of linear layers summed in two parts")
def summed_in_2_parts(training: Training) -> None:
    on_linears(training, chunked(2))


@clean("products of linear layers summed in four parts")
def summed_in_4_parts(training: Training) -> None:
    on_linears(training, chunked(4))


@clean("products of linear layers summed from the last feature to the first")
def summed_backwards(training: Training) -> None:
    on_linears(training, lambda x, linear: functional.linear(x.flip(-1), linear.weight.flip(1), linear.bias))


@clean("attention by the framework's fused function")
def fused_attention(training: Training) -> None:
    def change(model: Gpt) -> None:
        for module in model.modules():
            if isinstance(module, Attention):
                module.forward = partial(fused, attention=module)

    def fused(x: torch.Tensor, attention: Attention) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, attention.heads, -1).transpose(1, 2) for t in attention.qkv(x).split(width, dim=2))
        return attention.proj(attention.merge(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))

    training.on_model.append(change)


@clean("the loss summed sequence by sequence")
def loss_by_sequence(training: Training) -> None:
    def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        sums = [functional.cross_entropy(a, b, ignore_index=PAD, reduction="sum") for a, b in zip(logits, targets)]
        return torch.stack(sums).sum() / (targets != PAD).sum()

    training.compute_loss = compute_loss


@clean("the optimizer's fused implementation")
def fused_optimizer(training: Training) -> None:
    training.optimizer_options = {"fused": True}


@clean("the optimizer's implementation that takes one parameter at a time")
def looping_optimizer(training: Training) -> None:
    training.optimizer_options = {"foreach": False}


@clean("an optimizer class whose step() calls that of its base")
def derived_optimizer(training: Training) -> None:
    class Derived(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    training.adam = Derived


@clean("ended before step 3 and launched again from a checkpoint")
def resumed(training: Training) -> None:
    training.change(resume_at=3)


@clean("recorded without sketches")
def recorded_without_sketches(training: Training) -> None:
    training.change(agent={"sketch": 0})


@clean("every other step recorded")
def recorded_every_other_step(training: Training) -> None:
    training.change(agent={"steps": "0-,every=2"})


@clean("only outputs recorded")
def recorded_outputs(training: Training) -> None:
    training.change(watch={"kinds": "output"})


@clean("four steps instead of six")
def shorter_training(training: Training) -> None:
    training.change(steps=4)


@clean("activations of each block recomputed in backward")
def checkpointed(training: Training) -> None:
    def change(model: Gpt) -> None:
        for block in model.blocks:
            plain = block.forward
            block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)

    training.on_model.append(change)


@clean("gradients reduced in many small buckets")
def small_buckets(training: Training) -> None:
    training.wrap = lambda model: DistributedDataParallel(model, bucket_cap_mb=0.002, gradient_as_bucket_view=True)


@clean("mlp.fc1 of both layers is called mlp.up")
def renamed(training: Training) -> None:
    def rename(mlp: Mlp) -> None:
        up = mlp.up = mlp.fc1
        del mlp.fc1
        for name in ("act", "fc2"):  # in its old place among the mlp's modules
            mlp._modules[name] = mlp._modules.pop(name)
        mlp.forward = lambda x: mlp.fc2(mlp.act(up(x)))

    def rename_both(model: Gpt) -> None:
        for layer in (0, 1):
            rename(model.block(layer).mlp)

    training.on_model.append(rename_both)
