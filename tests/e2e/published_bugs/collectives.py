"""Collectives with gradients, over the ranks of one axis of a grid of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed


@dataclass(frozen=True)
class Axis:
    """The ranks over which one thing is split: this rank's number among them, and how many they are."""

    group: Any = None
    rank: int = 0
    size: int = 1

    @property
    def here(self) -> tuple[int, int]:
        return self.rank, self.size


@dataclass(frozen=True)
class Grid:
    """tp: tensors; cp: sequences; dp: samples; of their ranks, ep: experts, which the ranks of `again` have once more."""

    tp: Axis = Axis()
    cp: Axis = Axis()
    dp: Axis = Axis()
    ep: Axis = Axis()
    again: Axis = Axis()

    @staticmethod
    def of(tp: int = 1, cp: int = 1, dp: int = 1, ep: int = 0) -> Grid:
        """Neighbours are of one tp group, then of one cp group, then of one dp group. All ranks make all groups, in the same order. `ep`: of the
        dp ranks; 0: all."""
        ep = ep or dp
        ranks = torch.arange(tp * cp * dp).reshape(dp, cp, tp)
        experts = ranks.reshape(dp // ep, ep, cp, tp)
        return Grid(_axis(ranks, 2), _axis(ranks, 1), _axis(ranks, 0), _axis(experts, 1), _axis(experts, 0))


def _axis(ranks: torch.Tensor, dim: int) -> Axis:
    size, found = ranks.shape[dim], Axis()
    if size == 1:
        return found
    for line in ranks.movedim(dim, -1).reshape(-1, size).tolist():
        group = distributed.new_group(line)
        if distributed.get_rank() in line:
            found = Axis(group, line.index(distributed.get_rank()), size)
    return found


def total(x: torch.Tensor, *axes: Axis) -> torch.Tensor:
    """The sum over the ranks of all axes, without a gradient."""
    x = x.detach().contiguous().clone()
    for axis in axes:
        if axis.size > 1:
            distributed.all_reduce(x, group=axis.group)
    return x


def gathered(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    """The parts of all ranks, one after the other, without a gradient."""
    if axis.size == 1:
        return x.detach()
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(axis.size)]
    distributed.all_gather(parts, x.detach().contiguous(), group=axis.group)
    return torch.cat(parts, dim)


def own(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    return x.chunk(axis.size, dim)[axis.rank].contiguous()


def own_zigzag(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    """The chunks number r and 2N - 1 - r of 2N: as much of what a causal mask leaves as the other ranks have."""
    chunks = x.chunk(2 * axis.size, dim)
    return torch.cat([chunks[axis.rank], chunks[2 * axis.size - 1 - axis.rank]], dim)


class _Both(torch.autograd.Function):
    """`forth` forward, `back` backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forth: Any, back: Any) -> torch.Tensor:
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(gradient), None, None


def _same(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def enter(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Something whole into ranks that each use it for a part: their gradients are summed."""
    return x if axis.size == 1 else _Both.apply(x, _same, lambda g: total(g, axis))


def leave(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Partial sums into a whole."""
    return x if axis.size == 1 else _Both.apply(x, lambda v: total(v, axis), _same)


def leave_summing_twice(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """As leave, with a gradient that is summed although it is whole."""
    return _Both.apply(x, lambda v: total(v, axis), lambda g: total(g, axis))


def join(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    """Parts into a whole that each rank uses for something of its own: the gradients are summed and split."""
    if axis.size == 1:
        return x
    return _Both.apply(x, lambda v: gathered(v, dim, axis), lambda g: own(total(g, axis), dim, axis))


def join_same(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    """Parts into a whole that all ranks use for the same: each takes its part of the gradient."""
    if axis.size == 1:
        return x
    return _Both.apply(x, lambda v: gathered(v, dim, axis), lambda g: own(g, dim, axis))


def sum_parts(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    """Partial sums into parts of the whole."""
    if axis.size == 1:
        return x
    return _Both.apply(x, lambda v: own(total(v, axis), dim, axis), lambda g: gathered(g, dim, axis))


def _exchanged(x: torch.Tensor, to: list[int], from_: list[int], axis: Axis) -> torch.Tensor:
    received = x.new_empty((sum(from_), *x.shape[1:]))
    distributed.all_to_all_single(received, x.detach().contiguous(), from_, to, group=axis.group)
    return received


def counts(to: list[int], axis: Axis) -> list[int]:
    """How many rows each rank of the axis sends here, if this one sends so many to each."""
    return to if axis.size == 1 else _exchanged(torch.tensor(to), [1] * axis.size, [1] * axis.size, axis).tolist()


def exchange(x: torch.Tensor, to: list[int], from_: list[int], axis: Axis) -> torch.Tensor:
    """Rows to other ranks, in their order, and theirs from there; their gradients go back."""
    if axis.size == 1:
        return x
    return _Both.apply(x, lambda v: _exchanged(v, to, from_, axis), lambda g: _exchanged(g, from_, to, axis))
