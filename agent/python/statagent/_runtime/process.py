"""State of the process, with or without an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .callbacks import weak

EXIT_SECONDS = 2.0  # how long `close` waits by default, and at exit
_TRUE = ("1", "true", "yes", "on", "True", "TRUE")
_RANK_VARIABLES = ("STATAGENT_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")

_kept_watches: list[Callable[[], Any]] = []


def disabled() -> bool:
    """Whether STATAGENT_DISABLE makes everything a no-op."""
    return is_set("STATAGENT_DISABLE")


def is_set(switch: str) -> bool:
    """Whether an environment variable that is a switch is on."""
    return os.environ.get(switch, "") in _TRUE


def environment_rank() -> int:
    """The global rank as the launcher's variables give it, else 0."""
    for variable in _RANK_VARIABLES:
        text = os.environ.get(variable, "")
        if text.isdecimal():
            return int(text)
    return 0


def close_with_process(agent: Any) -> None:
    """Closes the agent when a child of multiprocessing ends. Forked ones leave by os._exit, which runs no other exit handlers."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    Finalize(None, agent.close, exitpriority=0)


def keep_until_next_init(watches: Iterable[Any]) -> None:
    """Watches of a closed agent whose hooks are part of compiled graphs: without the hooks, the graphs would be compiled again."""
    _kept_watches.extend(map(weak, watches))


def remove_kept_watches() -> None:
    for find in _kept_watches:
        watch = find()
        if watch is not None:
            watch.remove()
    _kept_watches.clear()
