"""Hooks on an optimizer: gradients before its update, weights and state after it, then the end of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._modules import Named
from ._tensors import Place, plain_tensor_types
from .agent import Agent
from .flatten import flatten


class OptimizerHooks:
    """One watched optimizer. Its second update within a step gets call index 1, and so on."""

    def __init__(
        self, agent: Agent, optimizer: Any, parameters: list[Named], kinds: frozenset[str], wanted: Callable[[], bool]
    ) -> None:
        self._agent, self._optimizer, self._kinds, self._wanted = agent, optimizer, kinds, wanted
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._parameters = [named for named in parameters if id(named.value) in own]
        self._removables = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        self._plain = plain_tensor_types()
        self._places: dict[tuple[int, str, str], Place] = {}  # by parameter, kind and path
        agent.optimizers.setdefault(id(optimizer), 0)

    def remove(self) -> None:
        for removable in self._removables:
            removable.remove()
        self._agent.optimizers.pop(id(self._optimizer), None)

    def _before(self, *_: Any) -> None:
        if not self._wanted() or "weight_grad" not in self._kinds:
            return
        for named in self._parameters:
            if named.value.grad is not None:
                self._record(named, "weight_grad", "", named.value.grad)

    def _after(self, *_: Any) -> None:
        if self._wanted():
            for named in self._parameters:
                if "weight" in self._kinds:
                    self._record(named, "weight", "", named.value)
                if "optimizer_state" in self._kinds:
                    self._record_state(named)
        self._end_step()

    def _record_state(self, named: Named) -> None:
        try:
            state = self._optimizer.state.get(named.value, {})
            plain = type(state) is dict and all(type(key) is str and type(value) in self._plain for key, value in state.items())
            for path, tensor in state.items() if plain else flatten(state):
                if tensor.dim() > 0:  # counters of updates are 0-d
                    self._record(named, "optimizer_state", path, tensor)
        except Exception as error:
            self._agent.refuse(f"state of '{named.name}': {error}")

    def _record(self, named: Named, kind: str, path: str, tensor: Any) -> None:
        agent = self._agent
        try:
            call = agent.optimizers.get(id(self._optimizer), 0)
            handle = agent.intern(named.name, kind, path, 0, call, "train", named.parent, named.class_name, named.depth)
        except Exception as error:
            agent.refuse(str(error))
            return
        if type(tensor) not in self._plain:
            agent.observe_handle(handle, tensor)
            return
        key = (id(named), kind, path)
        place = self._places.get(key) or self._places.setdefault(key, Place())
        agent.observe_at(place, handle, tensor)

    def _end_step(self) -> None:
        """The step is over when every watched optimizer has made its update."""
        updates = self._agent.optimizers
        if id(self._optimizer) in updates:
            updates[id(self._optimizer)] += 1
        if all(updates.values()):
            self._agent.end_step()
