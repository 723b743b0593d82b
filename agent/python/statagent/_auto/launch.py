"""Rank and world size of a process that no launcher has told them: torch's process group has them."""

from __future__ import annotations

import os
import sys
from typing import Any

_RANKS = ("STATAGENT_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LAUNCHES = ("STATAGENT_LAUNCH", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID")


def launch_arguments() -> dict[str, Any]:
    """Arguments of `init` for the ranks of one process group (torch.multiprocessing.spawn); none where a launcher's variables say more, or
    there is no group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    size = distributed.get_world_size()
    if size == 1:
        return {}
    found: dict[str, Any] = {}
    if not any(os.environ.get(name) for name in _RANKS):
        found = {"rank": distributed.get_rank(), "world_size": size}
    if not any(os.environ.get(name) for name in _LAUNCHES):
        found["launch"] = f"process group {_meeting_place()} {_parent()}"
    return found


def _meeting_place() -> str:
    """Where the ranks have met: the same in all of them."""
    store: Any = sys.modules["torch"].distributed.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):  # PrefixStore
        store = store.underlying_store
    return f"{getattr(store, 'host', '')}:{getattr(store, 'port', '')}{getattr(store, 'path', '')}"


def _parent() -> str:
    """The process that has spawned the ranks, which tells launches apart that meet at the same port; "" if nothing says that it did."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return ""
    pid = os.getppid()
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return f"{pid}:{file.read().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return f"{pid}"
