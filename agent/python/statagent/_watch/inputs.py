"""Inputs of a watched model: fingerprints of the batch, unless the program logs them itself, and names for the densities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from .._runtime.agent import Agent
from ..flatten import flatten
from .density import DensityObserver


class InputObserver:
    """Called with the root's arguments before each of its passes. `training`: whether that pass is recorded as training. Never raises.

    A fingerprint is a record of kind `batch` under the name of the argument; its path is the place in the argument. Left out are tensors that
    need a gradient, because they are not data, and all inputs of a micro-batch for which log_batch has been called."""

    def __init__(
        self, agent: Agent, root: Any, density: DensityObserver | None, fingerprints: bool, training: Callable[[], bool]
    ) -> None:
        self._agent, self._density, self._fingerprints, self._training = agent, density, fingerprints, training
        self.names = _argument_names(root)

    def __call__(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        if not self._training():
            return
        begun = perf_counter_ns()
        try:
            found = []
            for name, value in self._named(args, kwargs):
                parts = flatten(value)
                bare = len(parts) == 1 and parts[0][1] is value
                found += [(name, "" if bare else path, tensor) for path, tensor in parts]
            self._see(found)
        except Exception as error:
            self._agent.refuse(f"inputs of the model: {error}")
        self._agent.clock.note_spent(begun)

    def see_all(self, found: list[tuple[str, str, Any]]) -> None:
        """As a call, in a compiled graph."""
        if not self._training():
            return
        begun = perf_counter_ns()
        try:
            self._see(found)
        except Exception as error:
            self._agent.refuse(f"inputs of the model: {error}")
        self._agent.clock.note_spent(begun)

    def _see(self, found: list[tuple[str, str, Any]]) -> None:
        agent = self._agent
        logged = not self._fingerprints or agent.clock.batch_is_logged()
        for name, path, tensor in found:
            if self._density is not None:
                self._density.note_input(f"{name}.{path}" if path else name, tensor)
            if not logged and not tensor.requires_grad:
                agent.observe(name, tensor, "batch", path)

    def _named(self, args: Any, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Arguments with their names. Positional ones without a name have their number."""
        names = [*self.names, *(str(i) for i in range(len(self.names), len(args)))]
        return [*zip(names, args), *kwargs.items()]


def _argument_names(root: Any) -> list[str]:
    """Names of the positional arguments of the model's forward()."""
    try:
        found = inspect.signature(root.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
