"""What is recorded of a subscribed model besides its tensors: its settings, and its weights as loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._runtime.agent import Agent
from ..._settings import checklist
from ..._torch.modules import Named, name_buffers, name_modules, name_parameters
from ..._watch.initial import record_initial

# Settings "module_of.LayerNorm_19" = "blocks.7.ln1": modules have their paths in the checklist, and numbers in the names of tensors. `diff`
# looks up the settings of a tensor's module by them.
SECTION = "module_of"


def describe(agent: Agent, root: Any, numbers: Mapping[Any, int], values: bool) -> None:
    """Sends the settings of the model, and with `values` its parameters and buffers as they are now. Never raises."""
    try:
        modules = name_modules(root)
        checklist.send_model(agent, root)
        checklist.send(agent, _names(modules, numbers))
        if values:
            record_initial(agent, _values(name_parameters(modules)), "weight")
            record_initial(agent, _values(name_buffers(modules)), "buffer")
    except Exception as error:
        agent.refuse(str(error), type(root).__name__, "weight")


def _names(modules: list[Named], numbers: Mapping[Any, int]) -> dict[str, str]:
    known = [(numbers.get(named.value), named) for named in modules]
    return {f"{SECTION}.{type(named.value).__name__}_{number}": named.name for number, named in known if number is not None}


def _values(tensors: list[Named]) -> list[tuple[Named, Any]]:
    """Without those that get their shape in the first pass."""
    import torch

    return [(named, named.value) for named in tensors if not torch.nn.parameter.is_lazy(named.value)]
