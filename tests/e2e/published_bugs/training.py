"""Trains runs of one number of ranks one after the other: python -m published_bugs.training JOBS.json, under torchrun if there are several."""

from __future__ import annotations

import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import statagent

from . import collectives as c
from . import pipeline
from .collectives import Grid
from .model import BATCH, CONTEXT, IGNORED, VOCABULARY, Net, Setup


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, the next ones, and those after them, of the global batch. Samples have different numbers of targets that count."""
    numbers = torch.Generator().manual_seed(1_000_003 + step)
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=numbers)
    stride = torch.randint(1, 5, (BATCH, 1), generator=numbers)
    noise = torch.randint(2, (BATCH, CONTEXT + 2), generator=numbers)
    text = (start + stride * torch.arange(CONTEXT + 2) + noise) % VOCABULARY
    inputs, targets, after = text[:, :CONTEXT], text[:, 1 : CONTEXT + 1].clone(), text[:, 2:].clone()
    for sample in range(BATCH):
        targets[sample, CONTEXT - sample :] = IGNORED if sample else targets[sample, CONTEXT:]
        after[sample, CONTEXT - sample - 1 :] = IGNORED
    return inputs.contiguous(), targets, after


def part_of(setup: Setup, batch: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """This rank's samples, and of these its part of the sequences."""
    grid = setup.grid
    inputs, targets, after = (setup.context(c.own(each, 0, grid.dp), 1) for each in batch)
    if setup.bug == "zigzag_targets":
        targets = c.own_zigzag(c.own(batch[1], 0, grid.dp), 1, grid.cp)
    if setup.bug == "rolled_targets":  # from this rank's part of the inputs, whose last token's successor is on the next rank
        mask = targets == IGNORED
        targets = inputs.roll(-1, 1).masked_fill(mask, IGNORED)
    return [inputs, targets, after]


def loss_of(setup: Setup, net: Net, parts: list[torch.Tensor]) -> torch.Tensor:
    """This rank's share: summed over cp and averaged over dp, the shares are the mean over all targets that count."""
    grid = setup.grid

    def share(losses: torch.Tensor, targets: torch.Tensor, local: bool) -> torch.Tensor:
        count = (targets != IGNORED).float().sum()
        if local:
            return losses.sum() / count / grid.cp.size
        return losses.sum() * grid.dp.size / c.total(count, grid.cp, grid.dp)

    loss = share(net(*parts), parts[1], setup.bug == "rank_mean")
    if setup.bug == "context_scale":
        loss = loss / grid.cp.size
    if net.second is not None:
        loss = loss + 0.3 * share(net.second, parts[2], setup.bug == "second_head_mean")
    if net.balance is not None:
        loss = loss + 0.5 * net.balance
    return loss


# Sums of gradients that a bug leaves out: over which axis, and of which parameters.
LEFT_OUT = {
    "final_norm": ("tp", "norm.*"),
    "router_sequence": ("tp", "*.router.weight"),
    "head_norm": ("tp", "*.head_norm.weight"),
    "context_group": ("cp", "*"),
    "norms_of_contexts": ("cp", "*.ln1.*"),
}


def is_expert(name: str) -> bool:
    return ".mlp.first" in name or ".mlp.second" in name


def reduce_gradients(setup: Setup, net: Net) -> None:
    """Sums over tp and cp and means over dp, after the backward pass."""
    grid, bug = setup.grid, setup.bug or ""

    def left_out(axis: str, name: str) -> bool:
        at, pattern = LEFT_OUT.get(bug, ("", ""))
        return at == axis and fnmatchcase(name, pattern)

    for name, parameter in net.named_parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        partial = (setup.sequence or name.endswith("head_norm.weight")) and not getattr(parameter, "cut", False)
        expert = is_expert(name)
        sums = {"tp": partial, "cp": True, "dp": not expert, "again": expert and bug != "expert_replicas"}
        for axis, due in sums.items():
            again = bug == "reduced_twice" and axis == "tp" and name.endswith(".shared.weight")
            if again or (due and not left_out(axis, name)):
                parameter.grad.copy_(c.total(parameter.grad, getattr(grid, axis)))
        if bug != "not_averaged" and not (bug == "expert_scale" and expert):
            parameter.grad.div_(grid.dp.size)


def clip(setup: Setup, net: Net) -> float:
    """Scales the gradients to a norm of at most `setup.clip`. Returns what it was."""
    grid, bug, total = setup.grid, setup.bug, torch.zeros(())
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        square = parameter.grad.square().sum()
        if getattr(parameter, "cut", False) and bug != "own_norm":
            taken_for_a_replica = bug == "sink_norm" and name.endswith("sink")
            square = c.total(square * (grid.tp.rank == 0 or not taken_for_a_replica), grid.tp)
        if is_expert(name):
            continue
        total += square
    experts = sum((p.grad.square().sum() for n, p in net.named_parameters() if is_expert(n)), torch.zeros(()))  # type: ignore[union-attr]
    if bug == "mean_of_norms":  # of each rank's own parameters
        norm = c.total((total + experts).sqrt(), grid.ep) / grid.ep.size
    else:
        norm = (total + c.total(experts * (grid.ep.rank == 0 or bug != "expert_norm"), grid.ep, grid.tp)).sqrt()
    for parameter in net.parameters():
        parameter.grad.mul_((setup.clip / (norm + 1e-6)).clamp(max=1))  # type: ignore[union-attr]
    return float(norm)


def layouts(setup: Setup, net: Net) -> dict[str, Any] | None:
    """What the user of such a model says to watch."""
    grid, said, between = setup.grid, dict[str, Any](), setup.between
    if (grid.tp.size, grid.cp.size, grid.dp.size) == (1, 1, 1):
        return None
    if grid.tp.size > 1:
        tp = grid.tp.here
        rows = ("tokens.weight", "head*.weight", "*.qkv.*", "*.fc1.weight", "*.fc1.bias", "*.sink", "*.mlp.first*")
        said |= dict.fromkeys(rows, statagent.shard(0, tp))
        said |= dict.fromkeys(("*.wo.weight", "*.fc2.weight", "*.mlp.second*"), statagent.shard(1, tp))
        said |= dict.fromkeys(("*.qkv", "*.fc1", "head", "head2"), statagent.shard(-1, tp))
        said["*.head_norm"] = statagent.shard(2, tp)
    replicas = dict.fromkeys(("*.weight", "*.bias", "*.sink", "*.mlp.first*", "*.mlp.second*"), statagent.replicate())
    said |= {pattern: layout for pattern, layout in replicas.items() if pattern not in said}
    between = setup.between
    if between.size > 1:
        said |= dict.fromkeys(("criterion*", "Net"), statagent.replicate())
        said |= {"positions": statagent.shard(0, between.here), "*": statagent.shard(1, between.here)}
    else:
        said["*"] = statagent.replicate()
    names = [name for name, _ in (*net.named_modules(), *net.named_parameters())] + ["Net"]
    said = {pattern: layout for pattern, layout in said.items() if any(fnmatchcase(name, pattern) for name in names)}
    for name, dim in (("positions", 0), ("*", 1)):
        parts: list[Any] = []
        if grid.cp.size > 1:
            parts.append(statagent.sequence(dim, "zigzag" if setup.zigzag else "blocks", grid.cp.here, gradients=True))
        if grid.dp.size > 1:
            parts.append(statagent.batch(dim - 1, order="blocks", group=grid.dp.here) if dim else statagent.batch(None))
        said[name] = (*filter(None, (said.pop(name, None),)), *parts)  # the first pattern that matches wins: "*" is the last
    return said


def train(options: dict[str, Any], run: str, steps: int) -> None:
    cuts = {axis: options.pop(axis) for axis in ("tp", "cp", "dp", "ep") if axis in options}
    setup = Setup(grid=Grid.of(**cuts) if cuts else Grid(), **options)
    torch.manual_seed(1)
    net = Net(setup)
    mine = list(net.parameters())
    if setup.zero:  # each rank updates some parameters, and hands them to the others
        mine = [p for i, p in enumerate(mine) if i % setup.grid.dp.size == setup.grid.dp.rank]
    optimizer = torch.optim.AdamW(mine, lr=3e-3, foreach=False)
    statagent.init(run=run, if_exists="replace", launch=f"{run}-1")
    said = layouts(setup, net)
    statagent.watch(net, optimizer=optimizer, layouts=said)
    for step in range(steps):
        parts = part_of(setup, batch_of(step))
        loss = loss_of(setup, net, parts)
        loss.backward()
        reduce_gradients(setup, net)
        if setup.clip:
            statagent.log_scalar("norm_before_clipping", clip(setup, net))
        logged = c.total(loss, setup.grid.cp)
        if net.balance is not None:  # of which each part of the sequence has a share
            logged += 0.5 * (c.total(net.balance, setup.between) - net.balance.detach())
        statagent.log_scalar("loss", float(logged))
        optimizer.step()
        if setup.zero:
            hand_out(setup, net)
            if step + 1 < steps:
                statagent.fingerprint(net)  # no rank's optimizer updates what it was handed
        net.zero_grad()
    statagent.close(timeout=20)


def hand_out(setup: Setup, net: Net) -> None:
    for i, (name, parameter) in enumerate(net.named_parameters()):
        if setup.grid.dp.size > 1 and (setup.bug != "not_handed_out" or name != "head.weight"):
            distributed.broadcast(parameter.data, src=i % setup.grid.dp.size, group=setup.grid.dp.group)


def main() -> None:
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("gloo")
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        (pipeline.train if job["pipeline"] else train)(job["options"], job["run"], job["steps"])
        if distributed.is_initialized():
            distributed.barrier()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
