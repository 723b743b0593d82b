"""Scalars of a watched optimizer, recorded in every step.

    lr/group0            learning rate of each parameter group
    weight_decay/group0  in the first update, and whenever it has changed
    loss_scale           scale of the losses in this step, if there is a GradScaler
    found_inf            1 if its gradients had infinities or NaN, so that the update was skipped

With several optimizers in one watch: lr/0/group0, lr/1/group0. Optimizers of further watches without a name continue the numbers: lr/1/group0.
Those of watch(name="gen"): gen/lr/group0, gen/lr/0/group0.

The library adds grad_norm, the norm of all weight gradients that were recorded in the step.

The values are those that the update uses; a scheduler changes them afterwards. Nothing here raises, waits for a device or keeps a tensor."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from .._runtime.agent import Agent
from ..errors import InvalidArgumentError

GROUPS_MAX = 64  # parameter groups with scalars of their own
_FRAMES_MAX = 12  # between GradScaler.step and the optimizer's hook
_SEARCHES_MAX = 3  # updates in which a GradScaler is searched for


class TrainingScalars:
    """The scalars of one watch's optimizers. Threads: the training thread."""

    def __init__(self, agent: Agent, optimizers: list[Any], scaler: Any = None, watch_name: str = "") -> None:
        self._agent = agent
        self._watch_name = f"{watch_name}/" if watch_name else ""
        self._numbered: list[int] = []  # optimizers that this watch has given a number
        self._prefixes = self._number(optimizers, watch_name)
        self._decays: dict[str, float] = {}
        self._scaler = ScalerScalars(agent, scaler) if scaler is not None else None
        self._searches = 0

    def _number(self, optimizers: list[Any], watch_name: str) -> dict[int, str]:
        """Id of each optimizer -> the part of its scalars' names that distinguishes it from the others."""
        if watch_name:
            return {id(each): "" if len(optimizers) == 1 else f"{index}/" for index, each in enumerate(optimizers)}
        taken = self._agent.clock.optimizers.numbers
        new = [each for each in optimizers if id(each) not in taken]  # the watch that gave an optimizer its number logs it
        bare = not taken and len(optimizers) == 1
        for each in new:
            taken[id(each)] = min(set(range(len(taken) + 1)).difference(taken.values()))
            self._numbered.append(id(each))
        return {id(each): "" if bare else f"{taken[id(each)]}/" for each in new}

    def remove(self) -> None:
        for number in self._numbered:
            self._agent.clock.optimizers.numbers.pop(number, None)
        self._numbered = []
        if self._scaler is not None:
            self._scaler.remove()

    def before_update(self, optimizer: Any) -> None:
        """The optimizer is about to make an update."""
        agent = self._agent
        try:
            if agent.clock.optimizers.counts.get(id(optimizer), 0) == 0:
                self._log_groups(optimizer)
            if self._scaler is not None:
                self._scaler.updating()
            elif self._searches < _SEARCHES_MAX:
                self._searches += 1
                found = calling_scaler()
                if found is not None:
                    self._scaler = ScalerScalars(agent, found, given=False)
                    self._scaler.updating()
        except Exception as error:
            agent.refuse(f"scalars of the optimizer: {error}")

    def _log_groups(self, optimizer: Any) -> None:
        prefix = self._prefixes.get(id(optimizer))
        if prefix is None:
            return
        for index, group in enumerate(optimizer.param_groups[:GROUPS_MAX]):
            if "lr" in group:
                self._agent.log_scalar(f"{self._watch_name}lr/{prefix}group{index}", group["lr"], 0)
            decay = group.get("weight_decay")
            name = f"{self._watch_name}weight_decay/{prefix}group{index}"
            if isinstance(decay, (int, float)) and self._decays.get(name) != decay:
                self._decays[name] = float(decay)
                self._agent.log_scalar(name, decay, 0)


def check_scaler(scaler: Any) -> Any:
    """The argument `scaler` of `watch`. Raises InvalidArgumentError if it is not a GradScaler."""
    if scaler is None or _is_scaler(scaler):
        return scaler
    raise InvalidArgumentError(f"watch: found a {type(scaler).__name__} as scaler; expected a torch.amp.GradScaler")


def _is_scaler(value: Any) -> bool:
    return any("GradScaler" in base.__name__ for base in type(value).__mro__) and hasattr(value, "is_enabled")


def calling_scaler() -> Any:
    """The GradScaler whose step() makes the current update; None if there is none."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        owner = frame.f_locals.get("self") if frame.f_code.co_name in ("step", "_maybe_opt_step") else None
        if owner is not None and _is_scaler(owner):
            return owner
    return None


class ScalerScalars:
    """Scale and overflow of a GradScaler.

    `given`: the program has passed the scaler to `watch`. Then both are read just before its update(), which resets them, so that
    skipped updates are recorded too. A scaler that was found is not changed; it is read when the optimizer makes an update."""

    def __init__(self, agent: Agent, scaler: Any, given: bool = True) -> None:
        self.agent, self._scaler, self._given = agent, scaler, given
        self._update: tuple[int, int] | None = None  # step and micro-batch of an update that has not been logged
        if given:
            scaler.update = _Update(self, scaler)

    def remove(self) -> None:
        if isinstance(vars(self._scaler).get("update"), _Update):
            del self._scaler.update

    def updating(self) -> None:
        """The optimizer is about to make an update."""
        self._update = (self.agent.current_step(), self.agent.micro_batch)
        if not self._given:
            self.log()

    def log(self) -> None:
        """Logs both for the step of the update, or for the current one if the update was skipped."""
        scaler, agent = self._scaler, self.agent
        if agent.closed or not scaler.is_enabled():
            return
        step, micro_batch = self._update or (agent.current_step(), agent.micro_batch)
        self._update = None
        scale = scaler._scale if scaler._scale is not None else scaler._init_scale
        agent.log_number("loss_scale", scale, micro_batch, step)
        found = list(_found_inf(scaler))
        if found:
            agent.log_number("found_inf", _any(found), micro_batch, step)


def _found_inf(scaler: Any) -> Iterator[Any]:
    for state in scaler._per_optimizer_states.values():
        yield from state.get("found_inf_per_device", {}).values()


def _any(found: list[Any]) -> Any:
    """The maximum of flags, on the device of the first."""
    if len(found) == 1:
        return found[0]
    import torch

    with torch.no_grad():
        first = found[0].device
        return torch.stack([each.detach().reshape(()).to(first, non_blocking=True) for each in found]).amax()


class _Update:
    """Replaces update() of one GradScaler. A copy of the scaler has its class's method."""

    def __init__(self, scalars: ScalerScalars, scaler: Any) -> None:
        self._scalars, self._scaler = scalars, scaler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._scalars.log()
        except Exception as error:
            self._scalars.agent.refuse(f"scalars of the GradScaler: {error}")
        return type(self._scaler).update(self._scaler, *args, **kwargs)

    def __reduce__(self) -> Any:
        return (functools.partial, (type(self._scaler).update, self._scaler))
