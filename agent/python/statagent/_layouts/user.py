"""Layouts that the user declares: `watch(layouts={"*.qkv": shard(-1, group)})`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from .placement import Placement, whole


@dataclass(frozen=True)
class Sharded:
    """Split along one dimension over the ranks of a group. Made by `shard`."""

    dim: int
    rank: int
    size: int
    global_size: int | None

    def place(self, shape: tuple[int, ...]) -> Placement:
        if not -len(shape) <= self.dim < len(shape):
            raise InvalidArgumentError(f"place a tensor of shape {shape} by shard({self.dim}): found {len(shape)} dimensions")
        dim = self.dim % len(shape)
        total = shape[dim] * self.size if self.global_size is None else self.global_size
        each = -(-total // self.size)
        offset = min(each * self.rank, total)
        expected = min(each, total - offset)
        if shape[dim] != expected:
            raise InvalidArgumentError(
                f"place a tensor of shape {shape} by shard({self.dim}) over {self.size} ranks: found {shape[dim]} in that dimension; expected "
                f"{expected} of {total} on rank {self.rank} of the group; give global_size="
            )
        starts = tuple(offset if d == dim else 0 for d in range(len(shape)))
        return Placement(tuple(total if d == dim else n for d, n in enumerate(shape)), boxes=((starts, shape),))


@dataclass(frozen=True)
class Replicated:
    """The same on all ranks. Made by `replicate`."""

    def place(self, shape: tuple[int, ...]) -> Placement:
        return whole(shape)


def shard(dim: int, group: Any = None, global_size: int | None = None) -> Sharded:
    """A layout for `watch(layouts=...)`: the tensor is split along `dim` into equal parts, in the order of the group's ranks; the last parts may
    be smaller or empty, as torch.chunk makes them.

    group: a ProcessGroup, a one-dimensional DeviceMesh, or (rank, size); default: all ranks.
    global_size: of the whole tensor in that dimension, if the parts are not equal.

    Raises InvalidArgumentError."""
    try:
        at = operator.index(dim)
        total = None if global_size is None else operator.index(global_size)
    except TypeError:
        raise InvalidArgumentError(f"shard: dim is {dim!r} and global_size {global_size!r}; expected whole numbers") from None
    if total is not None and total < 0:
        raise InvalidArgumentError(f"shard: global_size is {total}; expected a number from 0")
    rank, size = position("shard", group)
    return Sharded(at, rank, size, total)


def replicate(group: Any = None) -> Replicated:
    """A layout for `watch(layouts=...)`: every rank of the group holds the same. `statctl ranks` and `diff` report differences.
    Raises InvalidArgumentError."""
    if not (hasattr(group, "get_local_rank") and hasattr(group, "ndim")):  # over a mesh of any dimensions
        position("replicate", group)
    return Replicated()


def position(what: str, group: Any) -> tuple[int, int]:
    """This rank's number in the group, and the group's size."""
    if isinstance(group, tuple) and len(group) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in group):
        rank, size = group
    elif hasattr(group, "get_local_rank") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise InvalidArgumentError(
                f"{what}: found a mesh of {group.ndim} dimensions; expected one of them, such as mesh['tp']"
            )
        rank, size = group.get_local_rank(), group.size()
    else:
        try:
            from torch import distributed

            rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        except Exception as error:
            raise InvalidArgumentError(
                f"{what}: found {group!r} as group ({error}); expected a ProcessGroup, a one-dimensional DeviceMesh, or (rank, size)"
            ) from error
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"{what}: this process is rank {rank} of {size} in the group; expected a member")
    return rank, size
