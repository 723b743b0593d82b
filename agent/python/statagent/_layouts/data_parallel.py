"""Over which ranks a model's batch is split, and which parameters are replicas, as far as its wrapper shows."""

from __future__ import annotations

import sys
from typing import Any

from .._torch import parts


def data_parallel(model: Any) -> tuple[int, int] | None:
    """This rank's number among those that have a part of the batch each, and how many they are. None: no wrapper shows it."""
    for module in parts.all_modules(model):
        classes = {base.__name__ for base in type(module).__mro__}
        if "DeepSpeedEngine" in classes:
            found = of_group(getattr(module, "data_parallel_group", None))
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


class Replicas:
    """Parameters that every rank of the job has whole, with equal values: those of DistributedDataParallel or DeepSpeed over all ranks.

    If their group is smaller, other ranks may hold other parts of the model, or other parts of its tensors: not known."""

    def __init__(self, model: Any) -> None:
        self._parameters: set[int] = set()
        for module in parts.all_modules(model):
            kind = type(module).__name__
            group = {"DistributedDataParallel": "process_group", "DeepSpeedEngine": "seq_data_parallel_group"}.get(kind)
            if group is None or not _covers_all(of_group(getattr(module, group, None))):
                continue
            ignored = set(getattr(module, "parameters_to_ignore", ()))
            self._parameters.update(
                id(p) for name, p in parts.named_parameters(module.module) if name not in ignored and not hasattr(p, "group_name")
            )  # group_name: DeepSpeed's experts, which are not on all ranks

    def has(self, parameter: Any) -> bool:
        return id(parameter) in self._parameters


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
