"""Pipelines of torch: two stages, each on one rank, or on two ranks that have samples of their own; two micro-batches, twice in a step."""

from __future__ import annotations

from typing import Any

import torch
from layouts.cuts import keep_stage
from layouts.model import Gpt, Size, batch_of, build, loss_of
from torch import distributed, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

import statagent

from . import collectives as c
from .collectives import Axis, Grid

MICRO_BATCHES, PASSES = 2, 2


def train(options: dict[str, Any], run: str, steps: int) -> None:
    bug, tied = options.get("bug"), options.get("tied", False)
    size = Size(layers=4, tied=tied)
    model = build(size)
    if not distributed.is_initialized():
        _train_whole(model, size, run, steps)
        return
    grid = Grid.of(tp=2, dp=distributed.get_world_size() // 2)  # tp: the stages
    stage, dp = grid.tp.rank, grid.dp
    _keep(model, stage, bug)
    schedule = _schedule(model, grid, bug)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    statagent.init(run=run, if_exists="replace", launch=f"{run}-1")
    said = None if dp.size == 1 else {"*.weight": statagent.replicate(), "*.bias": statagent.replicate()}
    statagent.watch(model, optimizer=optimizer, layouts=said)
    for step in range(steps):
        inputs, targets = (c.own(each, 0, dp) for each in batch_of(size, step))
        total = torch.zeros(())
        for x, y in zip(inputs.chunk(PASSES), targets.chunk(PASSES)):
            losses: list[torch.Tensor] = []
            if bug == "wiped":
                model.zero_grad()
            if stage == 0:
                schedule.step(x)
            else:
                schedule.step(target=y, losses=losses)
                total += torch.stack(losses).detach().sum()
        if bug == "divided_again":
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(MICRO_BATCHES)
        _reduce(model, grid, tied, bug)
        if stage == 1:
            statagent.log_scalar(
                "loss", float(total) / {"loss_sum": targets.numel(), "scaled_gradients": MICRO_BATCHES}.get(bug or "", 1)
            )
        optimizer.step()
        optimizer.zero_grad()
    statagent.close(timeout=20)


def _train_whole(model: Gpt, size: Size, run: str, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    statagent.init(run=run, if_exists="replace", launch=f"{run}-1")
    statagent.watch(model, optimizer=optimizer)
    for step in range(steps):
        inputs, targets = batch_of(size, step)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        statagent.log_scalar("loss", float(loss))
        optimizer.step()
        optimizer.zero_grad()
    statagent.close(timeout=20)


def _keep(model: Gpt, stage: int, bug: str | None) -> None:
    first = {name: {k: v.clone() for k, v in block.state_dict().items()} for name, block in model.blocks.items()}
    keep_stage(model, stage, 2)
    if bug == "local_names" and stage == 1:  # a checkpoint's layers are looked up by their number within the stage
        for number, block in enumerate(model.blocks.values()):
            block.load_state_dict(first[str(number)])
    if bug == "stage_division" and stage == 1:
        del model.blocks["2"]


def _schedule(model: Gpt, grid: Grid, bug: str | None) -> Any:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if bug == "loss_sum":
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return loss_of(logits, targets) / (PASSES if bug == "scaled_gradients" else MICRO_BATCHES * PASSES)

    stage = PipelineStage(model, grid.tp.rank, 2, torch.device("cpu"), group=grid.tp.group)
    return Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss, scale_grads=bug == "scaled_gradients")


def _reduce(model: Gpt, grid: Grid, tied: bool, bug: str | None) -> None:
    """Means over the data-parallel ranks, and the sum of a table that both stages have."""
    parameters: list[nn.Parameter] = list(model.parameters())
    table: Any = None if not tied else model.tokens.weight if grid.tp.rank == 0 else model.head.weight
    if table is not None and bug != "tied_after_scatter":
        _sum(table, grid.tp)
    if bug != "tied_after_scatter":
        for parameter in parameters:
            parameter.grad.copy_(c.total(parameter.grad, grid.dp) / grid.dp.size)  # type: ignore[union-attr, arg-type]
        return
    # A distributed optimizer: each rank has the mean of its half of the flattened gradients. The table is in different halves on the stages.
    flat = torch.cat([p.grad.flatten() for p in parameters])  # type: ignore[union-attr]
    half, mean = (len(flat) + 1) // 2, c.total(flat, grid.dp) / grid.dp.size
    mine = slice(half * grid.dp.rank, half * (grid.dp.rank + 1))
    flat[mine] = mean[mine]
    _spread(flat, parameters)
    assert table is not None
    _sum(table, grid.tp)
    flat = torch.cat([p.grad.flatten() for p in parameters])  # type: ignore[union-attr]
    _spread(torch.cat(_of_owners(flat, half, grid.dp)), parameters)


def _sum(table: nn.Parameter, stages: Axis) -> None:
    assert table.grad is not None
    table.grad.copy_(c.total(table.grad, stages))


def _spread(flat: torch.Tensor, parameters: list[nn.Parameter]) -> None:
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.grad.copy_(part.view_as(parameter))  # type: ignore[union-attr]


def _of_owners(flat: torch.Tensor, half: int, dp: Axis) -> list[torch.Tensor]:
    """Of each rank, the half of the gradients that it owns: what its optimizer uses."""
    everywhere = c.gathered(flat.unsqueeze(0), 0, dp)
    return [everywhere[rank, half * rank : half * (rank + 1)] for rank in range(dp.size)]
