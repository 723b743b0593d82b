"""Tensor and sequence parallelism written by hand with plain tensors, in the manner of Megatron, and the mistakes that are made in it.

Every rank of the group holds a part of each matrix. Between the matrices, activations are whole (`sequence` False) or cut along the
sequence, dimension 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from .model import Gpt, Size


def _sum(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous().clone()
    distributed.all_reduce(x)
    return x


def _gather(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=1)


def _own_part(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(distributed.get_world_size(), dim=1)[distributed.get_rank()].contiguous()


class _Enter(torch.autograd.Function):
    """Whole activations into a cut matrix: each rank's gradient is a part of the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sequence: bool) -> torch.Tensor:
        ctx.sequence = sequence
        return _gather(x) if sequence else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        summed = _sum(gradient)
        return (_own_part(summed) if ctx.sequence else summed), None


class _Leave(torch.autograd.Function):
    """Each rank's part of the sum into whole activations."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sequence: bool) -> torch.Tensor:
        ctx.sequence = sequence
        return _own_part(_sum(x)) if sequence else _sum(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (_gather(gradient) if ctx.sequence else gradient), None


def _parameter(whole: torch.Tensor, dim: int) -> nn.Parameter:
    """This rank's part, with the attributes that Megatron-Core sets."""
    part: Any = nn.Parameter(whole.detach().tensor_split(distributed.get_world_size(), dim)[distributed.get_rank()].clone())
    part.tensor_model_parallel, part.partition_dim, part.partition_stride = True, dim, 1
    return part


class ColumnParallel(nn.Module):
    """This rank's part of the output's features."""

    def __init__(self, whole: nn.Linear, sequence: bool) -> None:
        super().__init__()
        self.sequence = sequence
        self.weight = _parameter(whole.weight, 0)
        self.bias = None if whole.bias is None else _parameter(whole.bias, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(_Enter.apply(x, self.sequence), self.weight, self.bias)


class RowParallel(nn.Module):
    """This rank's part of the input's features; the output is summed over the ranks."""

    def __init__(self, whole: nn.Linear, sequence: bool, bias_on_every_rank: bool) -> None:
        super().__init__()
        self.sequence, self.bias_on_every_rank = sequence, bias_on_every_rank
        self.weight = _parameter(whole.weight, 1)
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias_on_every_rank:
            return _Leave.apply(F.linear(x, self.weight, self.bias), self.sequence)
        return _Leave.apply(F.linear(x, self.weight), self.sequence) + self.bias


class VocabularyParallel(nn.Module):
    """This rank's rows of the embedding's table."""

    def __init__(self, whole: nn.Embedding, sequence: bool, wrong_offset: bool) -> None:
        super().__init__()
        self.sequence = sequence
        self.weight = _parameter(whole.weight, 0)
        rank, sizes = distributed.get_rank(), [len(p) for p in whole.weight.tensor_split(distributed.get_world_size())]
        self.first = sum(sizes[:rank]) - (1 if wrong_offset and rank > 0 else 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = x - self.first
        elsewhere = (row < 0) | (row >= len(self.weight))
        found = F.embedding(row.masked_fill(elsewhere, 0), self.weight).masked_fill(elsewhere.unsqueeze(-1), 0)
        return _Leave.apply(found, self.sequence)


class SplitRows(nn.Module):
    """The whole table of positions, of which this rank's part of the sequence takes its rows."""

    def __init__(self, whole: nn.Embedding) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.embedding(x.chunk(distributed.get_world_size())[distributed.get_rank()], self.weight)


def cut(model: Gpt, size: Size, sequence: bool, bug: str | None) -> list[nn.Parameter]:
    """Replaces the parts of a whole model. Returns parameters whose gradients are still to be summed over the ranks after a backward pass,
    because each rank saw only its part of the sequence."""
    if bug == "qkv_interleaved":  # taken as all q, all k, all v
        for block in model.blocks.values():
            for each in (block.attn.qkv.weight, block.attn.qkv.bias):
                each.data = each.data.unflatten(0, (size.heads, 3, -1)).transpose(0, 1).flatten(0, 2).contiguous()
    model.tokens = VocabularyParallel(model.tokens, sequence, bug == "vocabulary_offset")
    if sequence:
        model.positions = SplitRows(model.positions)
    for block in model.blocks.values():
        block.attn.qkv = ColumnParallel(block.attn.qkv, sequence)
        block.attn.wo = RowParallel(block.attn.wo, sequence, bug == "bias_on_every_rank")
        block.mlp.fc1 = ColumnParallel(block.mlp.fc1, sequence)
        block.mlp.fc2 = RowParallel(block.mlp.fc2, sequence, False)
        block.mlp.drop._parts = distributed.get_world_size()
        block.mlp.drop._part = 0 if bug == "dropout_seed" else distributed.get_rank()
    model.head = GatheredHead(model.head, sequence)
    if not sequence:
        return []
    forgotten = (".ln1.", ".ln2.", "norm.") if bug == "norm_gradient" else ()
    whole = [(name, p) for name, p in model.named_parameters() if not hasattr(p, "tensor_model_parallel")]
    return [p for name, p in whole if not any(part in name for part in forgotten)]


class GatheredHead(ColumnParallel):
    """Its output is whole, so that every rank computes the whole loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _GatherColumns.apply(super().forward(x))


class _GatherColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        sizes = torch.zeros(distributed.get_world_size(), dtype=torch.int64)
        sizes[distributed.get_rank()] = x.shape[-1]
        distributed.all_reduce(sizes)
        ctx.sizes = sizes.tolist()
        padded = F.pad(x, (0, max(ctx.sizes) - x.shape[-1]))
        parts = [torch.empty_like(padded) for _ in ctx.sizes]
        distributed.all_gather(parts, padded.contiguous())
        return torch.cat([part[..., :n] for part, n in zip(parts, ctx.sizes)], dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.split(ctx.sizes, dim=-1)[distributed.get_rank()].contiguous()
