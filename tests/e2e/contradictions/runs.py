"""Trains the runs of test_contradictions, one after another: `python runs.py`, with the collector's address in the environment.

Each is a small training that differs from another one in what once made an answer contradict itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import statagent

Batch = dict[str, torch.Tensor]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.inp(x)))


class Conv(nn.Module):
    """Has nothing in common with Mlp but the batch and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act, self.head = nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Linear(18, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.stem(x[:, None])).flatten(1))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Embedding(16, 8), nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.out(self.emb(input_ids) * attention_mask[..., None].float())


class Normalised(nn.Module):
    def __init__(self, evaluating: bool = False) -> None:
        super().__init__()
        self.a, self.bn = nn.Linear(8, 8), nn.BatchNorm1d(8)
        if evaluating:
            self.bn.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.a(x))


def numbers(step: int) -> Batch:
    return {"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(step))}


def tokens(step: int, masked: int = 3) -> Batch:
    ids = torch.randint(0, 16, (4, 8), generator=torch.Generator().manual_seed(step))
    mask = torch.ones(4, 8, dtype=torch.int64)
    mask[:, 8 - masked :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def train(
    run: str,
    model: Callable[[], nn.Module] = Mlp,
    data: Callable[[int], Batch] = numbers,
    steps: int = 4,
    log: Callable[[torch.Tensor, int], torch.Tensor] = lambda loss, _: loss,
    before: Callable[[int, Any], None] = lambda *_: None,
    recorded: str | None = None,  # the steps whose tensors are; losses are in all
) -> None:
    torch.manual_seed(0)
    statagent.init(run=run, required=True, steps=recorded)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = statagent.watch(net, optimizer=optimizer)
    for step in range(steps):
        before(step, net)
        batch = data(step)
        statagent.log_batch(**batch)
        loss = net(*batch.values()).square().mean()
        statagent.log_scalar("loss", log(loss, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.remove()
    assert statagent.close(timeout=20)


def other_eps(at: int) -> Callable[[int, Any], None]:
    def change(step: int, net: Any) -> None:
        if step == at:
            net.norm.eps = 0.5

    return change


def scaled(factor: float) -> Callable[[int, Any], None]:
    """The output of a module, by less than any tolerance, in a way that no setting shows."""

    def change(step: int, net: Any) -> None:
        if step == 0:
            net.norm.register_forward_hook(lambda _, __, out: out * factor)

    return change


def like_it(step: int, net: Any) -> None:
    if step == 2:
        net.norm = nn.LayerNorm(8, eps=0.5)


def main() -> None:
    train("mlp")
    train("again")
    train("conv", Conv)
    train("mask", Masked, tokens)
    train("mask_full", Masked, lambda step: tokens(step, masked=0))
    train("loss_twice", log=lambda loss, _: 2 * loss)
    train("loss_nan", log=lambda loss, step: -(loss * float("nan")) if step >= 2 else loss)
    train("eps", before=other_eps(2))
    train("like", before=like_it)
    train("long", steps=20)
    train("long_eps", steps=20, before=other_eps(12))
    train("bn", Normalised)
    train("bn_eval", lambda: Normalised(evaluating=True))
    train("shade", before=scaled(1 + 1e-5))
    train("shade_repeat", before=scaled(1 + 1.2e-5))
    train("window", steps=5, recorded="2-3")


if __name__ == "__main__":
    main()
