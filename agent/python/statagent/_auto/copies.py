"""Models whose weights change although no optimizer updates them: averages of the weights (EMA), target networks, teachers that follow. They
are not recorded, and the run's last line says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

from .._native.tensors import capturing, plain_tensor_types
from .._runtime.agent import Agent
from .._runtime.callbacks import weak
from .._torch import parts
from .._torch.modules import class_name, unwrap
from .models import own_parameters, reachable_modules

_MODELS_MAX = 64
_PARAMETERS = 8  # of a model that are looked at, evenly spread
_ELEMENTS = 64  # of each, the first in memory
_following: Copies | None = None


def follow_copies(agent: Agent) -> None:
    """Looks for such models from now on, at the end of steps 1, 2, 4, 8, ..."""
    global _following
    _following = Copies(agent)


class Copies:
    """Of one agent. Reads variables of the program and some values of its models. Never raises, and waits for no GPU."""

    def __init__(self, agent: Agent) -> None:
        self._find_agent, self._steps = weak(agent), 0
        self._looked_at: dict[int, _Model] = {}  # by id
        agent.clock.ending_listeners.append(self._step_ends)

    def _step_ends(self) -> None:
        self._steps += 1
        if self._steps & (self._steps - 1) or capturing():
            return
        try:
            self._look(self._find_agent(), sys._getframe(1))
        except Exception:  # then nothing is said about them
            self._looked_at.clear()

    def _look(self, agent: Agent, frame: FrameType) -> None:
        for each in self._looked_at.values():
            if not each.reported:
                agent.deferred.add("a copy of the model", each.changed(), partial(self._report, each))
        updated = _updated(agent)
        for name, module in reachable_modules(frame):
            for path, part in _not_updated(module, updated):
                if id(part) not in self._looked_at:
                    self._add(_Model(".".join(filter(None, (name, path))), part), part)

    def _add(self, model: _Model, module: Any) -> None:
        """Of a wrapper (AveragedModel) and what it wraps only the wrapper is looked at, if both have a variable."""
        known = self._looked_at
        if len(known) < _MODELS_MAX and not any(model.parameters <= each.parameters for each in known.values()):
            inside = [known.pop(key) for key, each in list(known.items()) if each.parameters <= model.parameters]
            model.reported = any(each.reported for each in inside)
            known[id(module)] = model

    def _report(self, model: _Model, changed: Any) -> None:
        agent = self._find_agent()
        if changed and not model.reported and agent is not None:
            model.reported = True
            agent.messages.left_out.append(f"{model.name} ({model.class_name})")
            reason = f"weights of this {model.class_name} change, and no watched optimizer updates them"
            agent.report_not_recorded(model.name, "weight", reason)


class _Model:
    """A model, and some of its values as they were when it was seen first."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.class_name, self.reported = name, class_name(unwrap(module)), False
        self._alive = weak(module)
        found = [each for each in parts.all_parameters(module) if _is_readable(each)]
        self.parameters = {id(each) for each in found}
        spread = [each for each in found if each.device == found[0].device][:: max(1, len(found) // _PARAMETERS)][:_PARAMETERS]
        self._before = [(weak(each), _values(each).clone()) for each in spread]

    def changed(self) -> Any:
        """A tensor with one element: whether these values differ from those at first."""
        torch = sys.modules["torch"]
        pairs = [(found, before) for find, before in self._before if (found := find()) is not None and _is_readable(found)]
        differ = [(_values(now) != before).any() for now, before in pairs if now.device == before.device and now.numel()]
        return torch.stack(differ).any() if differ and self._alive() is not None else torch.zeros((), dtype=torch.bool)


def _updated(agent: Agent) -> set[int]:
    """Ids of the parameters that watched optimizers update. Of several ranks, those of the watched models, too: parameters that are cut over
    ranks come and go."""
    found = {key for hooks in agent.clock.optimizers.hooks.values() for each in hooks for key in each.updated}
    if agent.watches.placing is not None:
        roots = [hooks.find_root() for hooks in agent.watches.attached]
        found |= {key for root in roots if root is not None for key in own_parameters(root)}
    return found


def _not_updated(module: Any, updated: set[int]) -> Iterator[tuple[str, Any]]:
    """The outermost parts of the module of whose parameters none is updated, with their paths in it; "" is the module itself."""
    own = own_parameters(module)
    if own and own.isdisjoint(updated):
        yield "", module
    elif own and not own <= updated:
        for key, child in parts.children(module):
            for path, part in _not_updated(child, updated):
                yield (f"{key}.{path}" if path else f"{key}"), part


def _is_readable(parameter: Any) -> bool:
    plain = type(parameter) is sys.modules["torch"].nn.Parameter or type(parameter) in plain_tensor_types()
    return plain and not parameter.is_meta and parameter.numel() > 0 and parameter.layout is sys.modules["torch"].strided


def _values(parameter: Any) -> Any:
    """Its first elements in memory, as bits: NaN equals itself."""
    torch = sys.modules["torch"]
    values = parameter.detach()
    step = values.storage_offset()
    room = values.untyped_storage().nbytes() // values.element_size() - step
    return values.as_strided((min(_ELEMENTS, values.numel(), room),), (1,)).view(torch.uint8)
