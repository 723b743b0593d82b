"""Over which ranks a model's batch is split, and which parameters are replicas, as far as its wrapper shows."""

from __future__ import annotations

import sys
from typing import Any

from .._torch import parts
from .cuts import cut_along, equal_part
from .placement import Placement, whole


def data_parallel(model: Any) -> tuple[int, int] | None:
    """This rank's number among those that have a part of the batch each, and how many they are. None: no wrapper shows it."""
    for module in parts.all_modules(model):
        classes = {base.__name__ for base in type(module).__mro__}
        if "DeepSpeedEngine" in classes:
            found = _deepspeed_ranks(module)
        elif "DistributedDataParallel" in classes:
            found = of_group(getattr(module, "process_group", None))
        elif "FullyShardedDataParallel" in classes:
            found = _fsdp1_ranks(module)
        elif "FSDPModule" in classes:
            found = _of_fsdp2(module)
        else:
            continue
        if found is not None:  # a module of fully_shard whose parameters are all in its parts does not say
            return found
    return None


def cuts_sequences(model: Any) -> bool:
    """Whether DeepSpeed splits sequences over ranks, which its modules do not show."""
    return any(
        type(module).__name__ == "DeepSpeedEngine" and getattr(module, "sequence_parallel_size", 1) > 1
        for module in parts.all_modules(model)
    )


def ulysses(model: Any) -> tuple[int, int] | None:
    """This rank's number among those that have a part of each sequence under DeepSpeed's Ulysses for Transformers, in order (batch, sequence, ...), and
    how many they are. None: it is not used."""
    return next(filter(None, map(_ulysses_ranks, parts.all_modules(model))), None)


def _ulysses_ranks(engine: Any) -> tuple[int, int] | None:
    groups = getattr(engine, "mpu", None) if type(engine).__name__ == "DeepSpeedEngine" else None
    if groups is None or not getattr(groups, "__name__", "").endswith(".parallel_state_sp"):
        return None
    return groups.get_sequence_parallel_rank(), groups.get_sequence_parallel_world_size()


def _deepspeed_ranks(engine: Any) -> tuple[int, int] | None:
    """With Ulysses the engine's group has the ranks that share sequences, too, which are neighbours in it."""
    found, sharing = of_group(getattr(engine, "data_parallel_group", None)), _ulysses_ranks(engine)
    everyone = of_group(getattr(engine, "seq_data_parallel_group", None)) if sharing is not None else None
    return found if sharing is None or everyone is None else (everyone[0] // sharing[1], everyone[1] // sharing[1])


class Replicas:
    """Parameters of DistributedDataParallel and DeepSpeed that every rank which has them has whole, with equal values, and those that the program's
    own tensor parallelism under DeepSpeed has cut, as their attributes say.

    If a wrapper's group is not all ranks, and DeepSpeed was not told which ones share tensors (mpu=), others may hold other parts: not known."""

    def __init__(self, model: Any) -> None:
        self._cuts: dict[int, tuple[int, int, int, int] | None] = {}  # dimension, part, parts, blocks; None: whole
        for module in parts.all_modules(model):
            kind = type(module).__name__
            group = {"DistributedDataParallel": "process_group", "DeepSpeedEngine": "seq_data_parallel_group"}.get(kind)
            tensor = _tensor_ranks(module) if kind == "DeepSpeedEngine" and _ulysses_ranks(module) is None else None
            if group is None or not (tensor is not None or _covers_all(of_group(getattr(module, group, None)))):
                continue
            ignored = set(getattr(module, "parameters_to_ignore", ()))
            for name, parameter in parts.named_parameters(module.module):
                if name not in ignored and not hasattr(parameter, "group_name"):  # DeepSpeed's experts are not on all ranks
                    self._cuts[id(parameter)] = None if tensor is None else _cut_of(parameter, *tensor)

    def has(self, parameter: Any) -> bool:
        return id(parameter) in self._cuts

    def place(self, parameter: Any, shape: tuple[int, ...]) -> Placement | None:
        """Of one that it has. None: not known."""
        cut = self._cuts[id(parameter)]
        if cut is None:
            return whole(shape)
        dim, part, parts, blocks = cut
        return cut_along(shape, {dim: equal_part(shape[dim], part, parts, blocks)}) if 0 <= dim < len(shape) else None

    def cuts_any(self) -> bool:
        return any(cut is not None for cut in self._cuts.values())


def _tensor_ranks(engine: Any) -> tuple[int, int] | None:
    """This rank's number among those that share tensors, and how many they are, as the program has told DeepSpeed."""
    mpu = getattr(engine, "mpu", None)
    for name in ("tensor_model_parallel", "slice_parallel", "model_parallel"):  # of new and older versions
        rank, size = (getattr(mpu, f"get_{name}_{what}", None) for what in ("rank", "world_size"))
        if rank is not None and size is not None:
            return int(rank()), int(size())
    return None


def _cut_of(parameter: Any, part: int, parts: int) -> tuple[int, int, int, int] | None:
    """As in Megatron. Dimension -1: not known."""
    marked = getattr(parameter, "tensor_model_parallel", False) or getattr(parameter, "model_parallel", False)
    if not marked or parts == 1:
        return None
    return getattr(parameter, "partition_dim", -1), part, parts, getattr(parameter, "partition_stride", 1)


def all_ranks() -> tuple[int, int] | None:
    """This process's number among all ranks, and how many there are. None: it is alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return of_group(distributed.group.WORLD)


def of_group(group: Any) -> tuple[int, int] | None:
    """This process's rank in a process group, and its size."""
    from torch import distributed

    return None if group is None else (distributed.get_rank(group), distributed.get_world_size(group))


def _covers_all(ranks: tuple[int, int] | None) -> bool:
    from torch import distributed

    total = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    return ranks is not None and ranks[1] == total


def _fsdp1_ranks(module: Any) -> tuple[int, int] | None:
    """With hybrid sharding there are two groups: shards within, replicas across."""
    inner, outer = of_group(getattr(module, "process_group", None)), of_group(getattr(module, "_inter_node_pg", None))
    if inner is None or outer is None:
        return inner
    return outer[0] * inner[1] + inner[0], outer[1] * inner[1]


def _of_fsdp2(module: Any) -> tuple[int, int] | None:
    try:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        info = groups[0].mesh_info
        rank, size = info.shard_mesh_rank, info.shard_mesh_size
    except (AttributeError, IndexError, TypeError):
        return None
    if hasattr(info, "replicate_mesh_rank"):  # hybrid sharding: replicas of shards
        return info.replicate_mesh_rank * size + rank, info.replicate_mesh_size * size
    return rank, size
