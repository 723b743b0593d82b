"""Other ways to train a family: in bf16 autocast, for longer, on two ranks. Each makes a family and its bugs of a family and its bugs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from verdict_bench.bugs import Bug, late
from verdict_bench.training import Family

RANKS = 2
STEPS = 50
Made = tuple[Family, list[Bug]]


def _named(family: Family, suffix: str, **changed: Any) -> Family:
    made = copy.copy(family)
    made.name = f"{family.name}_{suffix}"
    for attribute, value in changed.items():
        setattr(made, attribute, value)
    return made


def bf16(family: Family, bugs: Sequence[Bug]) -> Made:
    return _named(family, "bf16", bfloat16=True), list(bugs)


def long(family: Family, bugs: Sequence[Bug]) -> Made:
    """The bugs that can begin late do so."""
    others = [replace(bug, later=None) for bug in bugs if bug.later is None]
    moved = late(bugs, STEPS * 2 // 3)
    turns = [bug for turn in zip(moved, others) for bug in turn]
    return _named(family, f"{STEPS}steps", steps=STEPS), turns + others[len(moved) :] + moved[len(others) :]


def ddp2(family: Family, bugs: Sequence[Bug]) -> Made:
    return _on_ranks(family, "ddp2", DistributedDataParallel), list(bugs)


def fsdp2(family: Family, bugs: Sequence[Bug]) -> Made:
    """Without the bugs that hook a parameter's gradient, which the shards do not call."""
    hooked = ("gradient_of", "term_of", "sign_of")
    return _on_ranks(family, "fsdp2", sharded), [bug for bug in bugs if not bug.name.startswith(hooked)]


def _on_ranks(family: Family, suffix: str, wrap: Callable[[nn.Module], nn.Module]) -> Family:
    """The changes that wrap a single process's model do not apply."""
    return _named(family, suffix, ranks=RANKS, wrap=wrap, kinds_of_legal=family.kinds_of_legal - {"one_model"})


def sharded(model: nn.Module) -> nn.Module:
    """Each part of a list of modules by itself, and the rest together."""
    mesh = init_device_mesh("cpu", (RANKS,))
    for parts in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for part in parts:
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


SETUPS: dict[str, Callable[[Family, Sequence[Bug]], Made]] = {
    "bf16": bf16, "50steps": long, "ddp2": ddp2, "fsdp2": fsdp2,
}  # fmt: skip
