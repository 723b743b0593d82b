"""Fingerprints of the random generators, as scalars of each recorded step, logged before its first training pass:

    rng/cpu, rng/cuda0   torch's default generators; of CUDA the current device's, once the program uses it
    rng/python           random, rng/numpy  numpy.random: if the program has imported them

A value is 53 bits of a hash of the state, as a whole number. Equal states have equal values; values of different states cannot be compared.
With the first ones, the settings `random.*.seeded` say whether the program has seeded the generators.
Nothing is imported or drawn, and nothing waits for a device."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from typing import Any

from .._native.tensors import capturing
from .._runtime.agent import Agent
from .._settings.checklist import send_seeds

_MASK = 2**53 - 1  # what a double holds exactly


def _hash(state: bytes, more: int = 0) -> int:
    return (int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little") ^ more) & _MASK


def _of_tensor(state: Any) -> int:
    return _hash(ctypes.string_at(state.data_ptr(), state.numel()))


def _cpu() -> tuple[str, int] | None:
    return "rng/cpu", _of_tensor(sys.modules["torch"].default_generator.get_state())


def _cuda() -> tuple[str, int] | None:
    cuda = sys.modules["torch"].cuda
    if not cuda.is_initialized() or capturing():
        return None
    device = cuda.current_device()
    return f"rng/cuda{device}", _of_tensor(cuda.default_generators[device].get_state())


def _python() -> tuple[str, int] | None:
    random = sys.modules.get("random")
    if random is None:
        return None
    _, words, gauss = random.getstate()
    return "rng/python", hash((words, gauss or 0.0)) & _MASK  # numbers, whose hash is the same in every process


def _numpy() -> tuple[str, int] | None:
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    state = module.get_state(legacy=False)
    rest = hash((int(state["state"].get("pos", 0)), float(state["gauss"]) if state["has_gauss"] else 0.0))
    return "rng/numpy", _hash(state["state"]["key"].tobytes(), rest)


class RandomStates:
    """Logs the fingerprints for one watch. Of several watches, the one that runs first in a step logs. Never raises."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._sources: list[Callable[[], tuple[str, int] | None]] = [_cpu, _cuda, _python, _numpy]

    def log(self) -> None:
        """Logs the current states, once in each step."""
        agent = self._agent
        step = agent.current_step()
        if agent.watches.random_states_of == step:
            return
        if agent.watches.random_states_of < 0:
            send_seeds(agent)
        agent.watches.random_states_of = step
        for source in list(self._sources):
            try:
                found = source()
            except Exception as error:
                self._sources.remove(source)  # an unsupported generator stays unsupported
                agent.report_not_recorded(source.__name__.strip("_"), "random state", str(error))
                continue
            if found is not None:
                agent.log_number(found[0], float(found[1]), 0)


def state_of_generator(torch: Any, device: Any, generator: Any = None) -> int | None:
    """A hash of the state of this generator, or else of the device's default one; None if the device has none that can be read."""
    if generator is None:
        if device.type == "cpu":
            generator = torch.default_generator
        elif device.type == "cuda":
            generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        else:
            return None
    return _of_tensor(generator.get_state())
