"""Over which ranks a model's batch is cut, as far as its wrapper says."""

from __future__ import annotations

from typing import Any


def data_parallel(model: Any) -> tuple[int, int] | None:
    """This rank's number among those that have a part of the batch each, and how many they are. None: no wrapper says so."""
    for module in model.modules():
        classes = {base.__name__ for base in type(module).__mro__ if base.__module__.startswith("torch.")}
        if "DistributedDataParallel" in classes or "FullyShardedDataParallel" in classes:
            return _of_group(module)
        if "FSDPModule" in classes:
            return _of_fsdp2(module)
    return None


def replicates(model: Any) -> bool:
    """Whether every rank has all parameters whole, with equal values: under DistributedDataParallel."""
    return any(type(module).__name__ == "DistributedDataParallel" for module in model.modules())


def _of_group(module: Any) -> tuple[int, int] | None:
    from torch import distributed

    if getattr(module, "_inter_node_pg", None) is not None:  # hybrid sharding: two groups
        return None
    group = getattr(module, "process_group", None)
    if group is None:
        return None
    return distributed.get_rank(group), distributed.get_world_size(group)


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
