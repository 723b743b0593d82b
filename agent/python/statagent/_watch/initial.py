"""Parameters and buffers as they are before training, in mode "init"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._runtime.agent import Agent
from .._torch.modules import Named
from ..errors import StatagentError
from .arguments import Kind


def record_initial(agent: Agent, tensors: Iterable[tuple[Named, Any]], kind: Kind) -> None:
    """Records each tensor once in the run: a second watch of the model finds those of the first. None is left out. Never raises."""
    for named, tensor in tensors:
        if tensor is None or (named.name, kind, id(named.value)) in agent.watches.initial:
            continue
        try:
            handle = agent.intern(named.name, kind, "", 0, 0, "init", named.parent, named.class_name, named.depth)
        except StatagentError as error:
            agent.refuse(str(error), named.name, kind)
            continue
        agent.watches.initial.add((named.name, kind, id(named.value)))
        agent.observe_handle(handle, tensor)
