"""Hooks on an optimizer: gradients before its update, weights and state after it, then the end of the step."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import Any

from .._layouts.sharded import Shards
from .._native.tensors import Place, capturing, plain_tensor_types
from .._runtime.agent import Agent
from .._runtime.callbacks import WeakList, weak
from .._runtime.log import warn_once
from .._torch.modules import Named
from .._torch.passing import passes_on
from ..flatten import flatten

_DEPTH = 2  # frames between a hook and torch's step(): the function that is registered, and step() itself

RUN_THE_WATCHED = (
    "expected a forward pass of it before each update; a copy that was made after watch(), or loaded from a file, is a different model: "
    "watch the one that is trained"
)


def goes_in_list(tensor: Any) -> bool:
    """Whether a tensor is observed together with others, because it is on a GPU, where each call costs a kernel launch."""
    return bool(tensor.is_cuda)


class OptimizerHooks:
    """One watched optimizer. Updates within a step have call indexes 0, 1, ... Belongs to the watch of the model; the optimizer and this keep
    each other alive in no direction.

    `shards`: what of the parameters is in other tensors. `wanted`: whether this step is recorded. `parameters_wanted`: whether parameters, gradients and state are recorded in it. `trained`: whether
    the model has been run in it."""

    def __init__(
        self,
        agent: Agent,
        optimizer: Any,
        parameters: list[Named],
        shards: Shards,
        kinds: frozenset[str],
        wanted: Callable[[], bool],
        trained: Callable[[], bool],
        parameters_wanted: Callable[[], bool],
    ) -> None:
        self._agent, self._clock, self._kinds, self._wanted, self.trained = agent, agent.clock, kinds, wanted, trained
        self._find_optimizer, self._key = weak(optimizer), id(optimizer)
        self._parameters_wanted, self._shards = parameters_wanted, shards
        self._updating: FrameType | None = None  # the caller of the hooks while an update runs
        self._model_parameters = parameters
        self._of_torch = WeakList([optimizer])
        self.updated: list[int] = []  # ids of what the optimizer updates
        self._parameters: list[Named] = []  # those of the model's parameters that it updates, as they are now
        self._follow_parameters()
        self._removables = self._attach(optimizer)
        self._plain = plain_tensor_types()
        self._places: dict[tuple[int, str, str], Place] = {}  # by parameter, kind and path
        self._entries: dict[tuple[int, str, str, int], tuple[str, int, Place]] = {}  # as _entry returns them, with the name
        self._list: list[tuple[int, Place, Any]] = []  # handles, places and tensors for one call of the library
        self._each: list[tuple[int, Place, Any]] = []  # those that are observed one by one
        self.on_phase: Callable[[str], None] | None = None  # called with "pre_optimizer", "post_optimizer"; must not raise
        self.before_update: list[Callable[[Any], None]] = []  # called with the optimizer before each update; must not raise
        self.zooms: list[Any] = []  # of zoom_regions: told when an update begins and ends; must not raise
        self.updates_wanted: Callable[[], bool] | None = None  # whether this step's updates themselves are recorded
        self._before_update: list[tuple[Named, Any]] = []  # copies of the weights, while such an update runs
        agent.clock.optimizers.counts.setdefault(self._key, 0)
        agent.clock.optimizers.hooks.setdefault(self._key, WeakList()).append(self)
        # Whichever goes first, the other one does not wait for updates that cannot come, and has no hooks left.
        self._endings = [
            weakref.finalize(self, _hooks_gone, weak(agent), self._key, self._removables),
            *_when_gone(optimizer, _optimizer_gone, weak(agent), self._key),
        ]
        for ending in self._endings:
            ending.atexit = False

    def _attach(self, optimizer: Any) -> list[Any]:
        """Registers hooks; returns what removes them."""
        before, after = weakref.WeakMethod(self._before), weakref.WeakMethod(self._after)

        def call_before(*arguments: Any) -> Any:
            method = before()
            return None if method is None else method(*arguments)

        def call_after(*arguments: Any) -> None:
            method = after()
            if method is not None:
                method(*arguments)

        return [optimizer.register_step_pre_hook(call_before), optimizer.register_step_post_hook(call_after)]

    @property
    def _optimizer(self) -> Any:
        """None if it is gone."""
        return self._find_optimizer()

    def _follow_parameters(self) -> None:
        """Follows parameters that were replaced in a module since `watch`, and groups that were added to the optimizer or changed."""
        updated = [id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]]
        assigned = [index for index, named in enumerate(self._model_parameters) if named.current() is not named.value]
        if not assigned and updated == self.updated:
            return
        self.updated, own = updated, set(updated)
        if assigned:
            self._model_parameters = list(self._model_parameters)
        for index in assigned:
            before = self._model_parameters[index]
            self._model_parameters[index] = dataclasses.replace(before, value=before.current())
            if id(before.value) in own and id(before.current()) not in own:
                self._agent.report_not_recorded(
                    before.name, "weight",
                    "the parameter was replaced after watch(), and the optimizer still updates the old one, which the model no longer uses; "
                    "expected it to update the new one; add that to the optimizer (add_param_group)",
                )  # fmt: skip
        # A parameter that the optimizer no longer updates is still recorded, so that a diff shows that it stopped changing.
        own.update(id(named.value) for named in self._parameters if named.value is named.current())
        self._parameters = [named for named in self._model_parameters if id(named.value) in own]

    def remove(self) -> None:
        for ending in self._endings:
            ending.detach()
        others = self._clock.optimizers.hooks.get(self._key)
        if others is not None:
            others.remove(self)
        _hooks_gone(lambda: self._agent, self._key, self._removables)

    def _within_update(self) -> bool:
        """Whether a hook was called inside another update of the same optimizer. torch wraps the step() of each class, so the hooks run twice
        if a class's step() calls that of its base: that is one update. A failed update is no longer on the stack."""
        if self._updating is None:
            return False
        frame = sys._getframe(_DEPTH + 1).f_back  # above the hook's caller
        while frame is not None and frame is not self._updating:
            frame = frame.f_back
        return frame is not None

    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hook before step(). With a closure, which computes the gradients, the update begins after the closure's first call (Lightning always
        has one). Returns new arguments for step(), or None. torch passes the optimizer itself as the first argument."""
        if self._within_update():
            return None
        self._updating = sys._getframe(_DEPTH)
        self._clock.begin_step()
        first = 1 if args and args[0] is optimizer else 0
        if len(args) > first and callable(args[first]):
            return (*args[:first], _ThenOnce(args[first], self._begin_update), *args[first + 1 :]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": _ThenOnce(kwargs["closure"], self._begin_update)}
        self._begin_update()
        return None

    def _begin_update(self) -> None:
        begun = perf_counter_ns()
        with self._clock.gate.recording():  # no other thread ends the step, which would restart the call indexes
            self._record_before()
        self._clock.note_spent(begun)
        for zoom in self.zooms:
            zoom.begin(self._of_torch, self._updating, self._clock.optimizers.counts.get(self._key, 0))

    def _record_before(self) -> None:
        if self.on_phase is not None:
            self.on_phase("pre_optimizer")
        for attend in self.before_update:
            for optimizer in self._of_torch:
                attend(optimizer)
        updates_wanted = self.updates_wanted is not None and self.updates_wanted()
        if not (updates_wanted or self._parameters_wanted()):
            return
        try:
            self._follow_parameters()
            if updates_wanted:
                self._before_update = [(named, weight.detach().clone()) for named, weight in self._weights()]
        except Exception as error:
            self._before_update = []
            self._agent.refuse(str(error))
        if not self._parameters_wanted():
            return
        if "weight_grad" not in self._kinds:
            return
        self._record_gradients()
        self._observe_list()

    def _after(self, *_: Any) -> None:
        if self._within_update():
            return
        self._updating = None
        self._end_update()

    def _end_update(self) -> None:
        for zoom in self.zooms:
            zoom.end()
        begun = perf_counter_ns()
        with self._clock.gate.recording():
            self._record_updates()
            if self._parameters_wanted():
                self._record_after()
                self._observe_list()
        if self.on_phase is not None:
            self.on_phase("post_optimizer")
        self._clock.note_spent(begun)
        self._end_step()

    def _record_gradients(self) -> None:
        for named in self._parameters:
            gradient = named.value.grad
            part = None if gradient is None else self._shards.of_flat(named, gradient)
            if part is not None:
                self._record(named, "weight_grad", "", part)

    def _record_after(self) -> None:
        for named in self._parameters:
            weight = self._shards.weight(named) if "weight" in self._kinds else None
            if weight is not None:
                self._record(named, "weight", "", weight)
            if "optimizer_state" in self._kinds:
                self._record_state(named)

    def _weights(self) -> list[tuple[Named, Any]]:
        """This rank's part of each weight."""
        found = [(named, self._shards.weight(named)) for named in self._parameters]
        return [(named, weight) for named, weight in found if weight is not None]

    def _record_updates(self) -> None:
        """Records the change of each weight as kind optimizer_state, path "update", in float32 or wider, so that it is exact."""
        import torch

        before, self._before_update = self._before_update, []
        now = {named.name: weight for named, weight in self._weights()} if before else {}
        while before:  # frees each copy after its use
            named, weight = before.pop(0)
            try:
                with torch.no_grad():
                    dtype = torch.promote_types(weight.dtype, torch.float32)
                    update = now[named.name].detach().to(dtype) - weight.to(dtype)
                self._record(named, "optimizer_state", "update", update)
            except Exception as error:
                self._agent.refuse(str(error), named.name, "optimizer_state")

    def _record_state(self, named: Named) -> None:
        try:
            state = self._optimizer.state.get(named.value)
            if state is None:  # ZeroRedundancyOptimizer keeps that of its own share in an optimizer inside
                state = getattr(getattr(self._optimizer, "optim", None), "state", {}).get(named.value, {})
            for path, tensor in self._tensors(state):
                part = self._shards.of_flat(named, tensor)
                if part is not None:
                    self._record(named, "optimizer_state", path, part)
        except Exception as error:
            self._agent.refuse(str(error), named.name, "optimizer_state")

    def _tensors(self, state: Any) -> list[tuple[str, Any]]:
        plain = type(state) is dict and all(type(key) is str and type(value) in self._plain for key, value in state.items())
        found = list(state.items()) if plain else flatten(state)
        return [(path, tensor) for path, tensor in found if tensor.dim() > 0]  # counters of updates are 0-d

    def _record(self, named: Named, kind: str, path: str, tensor: Any) -> None:
        agent = self._agent
        try:
            handle, place = self._entry(named, kind, path)
        except Exception as error:
            agent.refuse(str(error), named.name, kind)
            return
        if type(tensor) not in self._plain:
            agent.observe_handle(handle, tensor)
            return
        if goes_in_list(tensor):
            self._list.append((handle, place, tensor))
        elif path == "update":  # a copy, which is not kept longer than needed
            agent.observe_at(place, handle, tensor)
        else:
            self._each.append((handle, place, tensor))

    def _entry(self, named: Named, kind: str, path: str) -> tuple[int, Place]:
        """Handle and place of what is recorded of a parameter in this update. Raises StatagentError."""
        call = self._clock.optimizers.counts.get(self._key, 0)
        found = self._entries.get((id(named), kind, path, call))
        if found is None or found[0] != named.name:  # another parameter may have the number of one that is gone
            handle = self._agent.intern(named.name, kind, path, 0, call, "train", named.parent, named.class_name, named.depth)
            place = self._places.setdefault((id(named), kind, path), Place())
            found = self._entries[(id(named), kind, path, call)] = named.name, handle, place
        return found[1], found[2]

    def _observe_list(self) -> None:
        """Sends the collected tensors to the library, and releases them."""
        if self._each:
            items, self._each = self._each, []
            self._agent.observe_each(items)
        if self._list:
            items, self._list = self._list, []
            self._agent.observe_list(items)

    def _end_step(self) -> None:
        """Ends the step if no other watched optimizer is waited for, unless the update is being captured into a CUDA graph. If several
        watches have this optimizer, the hooks of the last one end the step, because torch calls hooks in the order of registration."""
        hooks = list(self._clock.optimizers.hooks.get(self._key, [self]))
        if hooks and hooks[-1] is not self:
            return
        if capturing():
            self._clock.optimizers.replayed = True
            return
        if self._clock.optimizers.note_update(self._key):
            if self._wanted() and not any(each.trained() for each in hooks):
                reason = (
                    f"optimizer.step() ended step {self._agent.current_step()}, in which the watched model was not run; {RUN_THE_WATCHED}; "
                    "if step() is called twice in a row, the second update counts as a step of its own"
                )
                warn_once("untrained step", reason)
                self._agent.report_not_recorded("", "output", reason)
            self._agent.end_step(by_optimizer=True)


def _hooks_gone(find_agent: Callable[[], Any], key: int, removables: list[Any]) -> None:
    """Nothing watches the optimizer any more, or another watch still does."""
    for removable in removables:
        removable.remove()
    agent = find_agent()
    if agent is not None and not agent.clock.optimizers.hooks.get(key):
        agent.clock.optimizers.forget(key)


def _optimizer_gone(find_agent: Callable[[], Any], key: int) -> None:
    agent = find_agent()
    if agent is not None:
        agent.clock.optimizers.forget(key)


def _when_gone(value: Any, call: Callable[..., None], *arguments: Any) -> list[Any]:
    """Calls the function when the object is gone; nothing for one that allows no weak references."""
    try:
        return [weakref.finalize(value, call, *arguments)]
    except TypeError:
        return []


class _ThenOnce:
    """A closure that calls `then` after its first call."""

    def __init__(self, closure: Callable[[], Any], then: Callable[[], None]) -> None:
        self._closure, self._then = closure, then
        self._done = False

    @passes_on
    def __call__(self) -> Any:
        result = self._closure()
        if not self._done:
            self._done = True
            self._then()
        return result
