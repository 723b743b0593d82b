"""The place of a rank's samples in the global batch: `watch(layouts={"*": batch()})`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from .cuts import RANGES_MAX, Span, cut_again, joined
from .placement import Placement
from .user import position

ORDERS = ("interleaved", "blocks")


@dataclass(frozen=True)
class Batch:
    """The dimension of the samples, each of which is on one rank of a group. Made by `batch`."""

    dim: int | None
    order: str
    ranks: tuple[int, int] | None  # this rank's number, and how many there are; None: as the model's wrapper says
    micro_batches: int = 1  # of a step, which together have the global batch

    def count(self, shape: tuple[int, ...]) -> int | None:
        """The number of samples in a tensor of this shape. None: it does not have that dimension."""
        if self.dim is None or not -len(shape) <= self.dim < len(shape):
            return None
        return shape[self.dim]

    def place(self, placed: Placement, ranks: tuple[int, int], samples: int, micro_batch: int = 0) -> Placement | None:
        """The place of an activation in the global batch, if `placed` is its place in this rank's part of the micro-batch. `samples`: of this
        micro-batch on this rank. None: not known, because this dimension does not have them or is cut already, or the tensor would consist of too many boxes
        or of boxes that differ in two dimensions."""
        if micro_batch >= self.micro_batches > 1:
            raise InvalidArgumentError(
                f"place samples of micro-batch {micro_batch}, counted from 0, by batch(micro_batches={self.micro_batches}): expected at most "
                f"{self.micro_batches} in a step"
            )
        shape, boxes = placed.global_shape, placed.boxes
        if self.dim is None or self.count(shape) != samples or placed.ranges or placed.pieces > 1:
            return None
        dim, (rank, size) = self.dim % len(shape), ranks
        if any((offset[dim], extent[dim]) != (0, samples) for offset, extent in boxes):
            return None
        here = self._here(rank, size, samples, micro_batch if self.micro_batches > 1 else 0)
        return cut_again(placed, dim, samples * size * self.micro_batches, here) if len(here) <= RANGES_MAX else None

    def _here(self, rank: int, size: int, samples: int, micro_batch: int) -> tuple[Span, ...]:
        first = micro_batch * samples * size  # of the micro-batch
        if self.order == "blocks":
            return ((first + rank * samples, first + (rank + 1) * samples),)
        numbers = range(first + rank, first + samples * size, size)
        return joined([(number, number + 1) for number in numbers]) or ((0, 0),)


def batch(dim: int | None = 0, order: Any = "interleaved", group: Any = None, micro_batches: int = 1) -> Batch:
    """A layout for `watch(layouts=...)`: which samples of the global batch this rank has. `diff` then compares activations sample by sample
    with runs that have the same global batch on a different number of ranks; without it, only by extremes, mean and deviation.

    dim: the dimension of activations with one entry for each sample; None: the matching tensors do not consist of samples.
    order: the number, in the global batch, of sample k of the b samples of rank r of W: "interleaved": k * W + r, as in
    DistributedSampler; "blocks": r * b + k, as in Megatron and Accelerate. Or a DataLoader or DistributedSampler from which to read it.
    group: the data-parallel ranks: a ProcessGroup, a one-dimensional DeviceMesh, or (rank, size). Default: those of the model's wrapper or
    of the sampler, otherwise all ranks, unless these are the
    stages of a pipeline of torch.distributed.pipelining.
    micro_batches: how many micro-batches of a step form the global batch, in order (gradient accumulation). With 1, each micro-batch is a
    batch of its own.

    Applies to the model's inputs and to activations that match the pattern, together with `shard` or `replicate` of another pattern, if
    the dimension is as long as in the model's first input. Parameters and gradients are not affected. Raises InvalidArgumentError."""
    try:
        at = None if dim is None else operator.index(dim)
    except TypeError:
        raise InvalidArgumentError(
            f"batch: dim is {dim!r}; expected a whole number, or None for tensors without samples"
        ) from None
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise InvalidArgumentError(f"batch: micro_batches is {micro_batches!r}; expected a whole number from 1")
    ranks = None if group is None else position("batch", group)
    if isinstance(order, str):
        if order not in ORDERS:
            raise InvalidArgumentError(
                f"batch: order is {order!r}; expected one of {', '.join(ORDERS)}, a DataLoader or a DistributedSampler"
            )
        return Batch(at, order, ranks, micro_batches)
    found, dealt = _dealing(order)
    if ranks is not None and ranks != dealt:
        raise InvalidArgumentError(
            f"batch: the sampler distributes to rank {dealt[0]} of {dealt[1]}, and group says rank {ranks[0]} of {ranks[1]}; expected the same; "
            "leave out group="
        )
    return Batch(at, found, dealt, micro_batches)


def _dealing(loader: Any) -> tuple[str, tuple[int, int]]:
    """The order in which a data loader or sampler distributes samples to ranks; this rank's number among them, and how many there are."""
    batches = getattr(loader, "batch_sampler", None)
    several: tuple[Any, ...] = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    for sampler in several:
        if _is("DistributedSampler", "torch.", sampler):
            return "interleaved", (int(sampler.rank), int(sampler.num_replicas))
        if _is("BatchSamplerShard", "accelerate.", sampler):
            return "blocks", (int(sampler.process_index), int(sampler.num_processes))
    raise InvalidArgumentError(
        f"batch: found a {type(loader).__name__} as order, which does not say which samples each rank has; expected a DataLoader with torch's "
        "DistributedSampler or prepared by Accelerate, or 'interleaved' or 'blocks'"
    )


def _is(name: str, package: str, sampler: object) -> bool:
    """Whether the sampler is of that class, or of one derived from it that distributes samples in the same way."""
    for base in type(sampler).__mro__:
        if base.__name__ == name and base.__module__.startswith(package):
            return type(sampler).__iter__ is base.__iter__  # type: ignore[attr-defined]
    return False
