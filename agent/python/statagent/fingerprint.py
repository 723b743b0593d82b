"""`fingerprint`: records a model's parameters where no watched optimizer does, such as in the engine that a trainer sends its weights to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._layouts import experts
from ._layouts.layouts import ModelLayouts, layouts_of
from ._layouts.merged import Merged, Part, is_packed
from ._layouts.placement import Placement
from ._layouts.sharded import Shards
from ._layouts.slices import name_originals
from ._runtime import by_hand, process
from ._runtime.agent import Agent
from ._runtime.current import current_agent
from ._runtime.log import warn_once
from ._torch.modules import Named, name_modules, name_parameters
from ._watch.arguments import check_model, check_name
from .errors import InvalidArgumentError, StatagentError

if TYPE_CHECKING:
    import torch

    from ._watch.arguments import Model

__all__ = ["fingerprint"]


def fingerprint(model: Model, step: int | None = None, dtype: torch.dtype | None = None, name: str = "") -> int:
    """Records every parameter of the model as it is now, for `statctl weights`. Returns how many; 0 in a step that is not recorded.

    step: the trainer's step whose weights these should be. This step begins here and ends when the call returns; the numbers may only
    grow. Default: the current step, which does not end.
    dtype: parameters are cast to it first, as a receiver's are, so that their bits can be compared.
    name: a prefix that distinguishes two models, as of `watch`.

    Cost: one pass over each parameter; with `dtype` also a copy of one at a time.
    Raises InvalidArgumentError for an argument that cannot be used, and StatagentError if no agent is running."""
    by_hand.note()
    if process.disabled():
        return 0
    agent = current_agent()
    if agent is None or not agent.running:
        found = "none" if agent is None else "one that is closed"
        raise StatagentError(
            f"fingerprint: found {found} as this process's agent; expected a running one; call statagent.init() first"
        )
    check_model(model, "fingerprint")
    check_name(name, "fingerprint")
    _check_dtype(dtype)
    if agent.idle:
        return 0
    if step is not None:
        if agent.clock.optimizers.counts:
            raise InvalidArgumentError(
                f"fingerprint: found step={step} in a program whose watched optimizer counts the steps; expected none: the weights belong to "
                "the current step"
            )
        agent.set_step(step)
    count = _record(agent, model, dtype, name)
    if step is not None:
        agent.end_step()
    return count


def _check_dtype(dtype: Any) -> None:
    import torch

    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidArgumentError(
            f"fingerprint: found {dtype!r:.60} as dtype; expected one of floating point, as torch.bfloat16"
        )


def _record(agent: Agent, model: Any, dtype: Any, prefix: str) -> int:
    found = experts.find(model)
    modules = name_modules(model, prefix, found.keys)
    parameters = name_originals(model, modules, name_parameters(modules, prefix), prefix)
    shards = Shards(model, parameters, [], prefix)
    agent.clock.begin_step()
    if not agent.clock.wanted:
        return 0
    packed = next((named.name for named in parameters if is_packed(named)), None)
    if packed is not None:
        reason = (
            f"found {packed} without elements: the engine keeps its weights only in a form that its kernels need; expected them as they were "
            "loaded; call agent.set_step(step) before the engine loads them, and its plugin records them then"
        )
        warn_once("packed weights", f"fingerprint: {reason}; no weight is recorded")
        agent.report_not_recorded("", "weight", reason)
        return 0
    places, merged = layouts_of(model, modules, parameters, None, found, shards), Merged(modules)
    count = 0
    with agent.clock.gate.recording():
        for named, weight in _weights(parameters, shards):
            try:
                count += _observe(
                    agent, named, weight if dtype is None else weight.detach().to(dtype), places, merged.parts(named, weight)
                )
            except Exception as error:
                agent.refuse(str(error), named.name, "weight")
    return count


def _weights(parameters: list[Named], shards: Shards) -> Iterator[tuple[Named, Any]]:
    """This rank's part of each."""
    for named in parameters:
        weight = shards.weight(named)
        if weight is not None:
            yield named, weight


def _observe(agent: Agent, named: Named, weight: Any, places: ModelLayouts | None, parts: list[Part] | None) -> int:
    """In mode "eval", so that it is not taken for what an update in the same step leaves. Returns how many parameters it is."""
    if parts is None:
        placed = None if places is None else places.place(named.name, "weight", "", 0, weight)
        _record_one(agent, named, named.name, named.parent, weight, placed)
        return 1
    for part in parts:
        _record_one(agent, named, part.name, part.parent, weight[part.start : part.stop], part.placement)
    return len(parts)


def _record_one(agent: Agent, named: Named, name: str, parent: str, weight: Any, placed: Placement | None) -> None:
    handle = agent.intern(name, "weight", "", 0, 0, "eval", parent, named.class_name, named.depth)
    agent.observe_handle(handle, weight, placed)
