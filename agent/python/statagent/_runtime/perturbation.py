"""Twins of a run: the same training again, with noise in the last places (docs/twins.md). What is asked for, and the noise itself."""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._native.noise import NoiseWriter, Part
from ..errors import InvalidArgumentError
from .log import warn_once

EVENT = "not_perturbed"
ULPS_MAX = 1 << 20
SEED_MAX = (1 << 32) - 1
VARIABLE = "STATAGENT_PERTURB"
_TWIN = re.compile(r"(.+)\.twin-[0-9]+-[0-9]+")  # as common/twin_name.h has it
_EXAMPLE = '"1", "32,2" or "1,1,once"'


@dataclass(frozen=True)
class Perturbation:
    """ULPS[,SEED][,once]: noise of up to `ulps` units in the last place; `once`: in the weights as loaded, and nowhere later."""

    base: str  # the run that this one is a twin of
    ulps: int
    seed: int
    once: bool

    @property
    def run(self) -> str:
        """The twin's name."""
        return f"{self.base}.twin-{self.ulps}-{self.seed}"

    def settings(self) -> dict[str, str]:
        """What the run's configuration says about it. The collector reads these."""
        return {
            "recording.perturb": f"{self.ulps}",
            "recording.perturb_seed": f"{self.seed}",
            "recording.perturb_mode": "once" if self.once else "leaf",
            "recording.perturb_base": self.base,
        }


def find_perturbation(argument: Any, run: str | None) -> Perturbation | None:
    """That of the argument `perturb` of `init`, else of STATAGENT_PERTURB; None without one. `run`: of `init`. Raises InvalidArgumentError."""
    source, value = ("perturb", argument) if argument is not None else (VARIABLE, os.environ.get(VARIABLE, ""))
    base = run or os.environ.get("STATAGENT_RUN", "")
    if value in ("", None) or not base:  # without a name, the library says what is missing
        return None
    ulps, seed, once = _parse(source, value)
    found = _TWIN.fullmatch(base)
    if found:
        raise InvalidArgumentError(
            f"init: {source} is {value!r:.80}, and the run is '{base}', which is a twin already; expected the run that it is a twin of; "
            f"use run='{found[1]}', or leave {source} out"
        )
    return Perturbation(base, ulps, seed, once)


def _parse(source: str, value: Any) -> tuple[int, int, bool]:
    expected = (
        f"expected ULPS[,SEED][,once] with ULPS from 1 to {ULPS_MAX} and SEED from 0 to {SEED_MAX}, such as {_EXAMPLE}; "
        "leave it out to record the run itself"
    )
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    once = len(parts) > 1 and parts[-1] == "once"
    numbers = parts[:-1] if once else parts
    if not 1 <= len(numbers) <= 2 or not all(re.fullmatch("[0-9]{1,12}", number) for number in numbers):
        raise InvalidArgumentError(f"init: {source} is {value!r:.80}; {expected}")
    ulps, seed = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 1
    if not 1 <= ulps <= ULPS_MAX or seed > SEED_MAX:
        raise InvalidArgumentError(f"init: {source} is {value!r:.80}; {expected}")
    return ulps, seed, once


def report_unperturbed(agent: Any) -> Callable[[], None]:
    """A flush listener that says at close if nothing of a twin has been perturbed. It does not keep the agent alive."""
    reference = weakref.ref(agent)

    def report() -> None:
        found = reference()
        if found is not None and found.closing and found.watches.noise_hooks is None:
            reason = "no model was watched, so nothing of this twin is perturbed; expected statagent.watch(model)"
            warn_once("not perturbed", f"twin '{found.run}': {reason}")
            found.log_event(EVENT, reason)

    return report


class Noise:
    """The noise of a twin. Equal for the same tensor, step and values: whoever computes it again (a checkpoint, a replica, a second run of the
    twin) gets the same, and no random generator is used. Threads: any."""

    def __init__(self, perturbation: Perturbation) -> None:
        """Precondition: torch is imported."""
        self.perturbation = perturbation
        self.step = 0  # of the run
        self._writer = NoiseWriter(perturbation.ulps)
        self.takes = self._writer.takes

    def key(self, name: str, kind: str, path: str = "") -> int:
        """The key of a tensor."""
        text = "\0".join((f"{self.perturbation.seed}", name, kind, path))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def noisy(self, tensor: Any, key: int, parts: tuple[Part, ...] = ()) -> Any:
        """The tensor with noise, whose gradient is that of the tensor. Precondition: plain, takes(tensor)."""
        if tensor.requires_grad:
            return tensor + self._writer.noisy(tensor, key, self.step, parts, difference=True)
        return self._writer.noisy(tensor, key, self.step, parts)

    def difference(self, tensor: Any, key: int, parts: tuple[Part, ...] = ()) -> Any:
        """What the noise adds to the tensor, exactly: the sum is the tensor with noise."""
        return self._writer.noisy(tensor, key, self.step, parts, difference=True)

    def add(self, tensor: Any, key: int, parts: tuple[Part, ...] = ()) -> None:
        """The noise in place, unseen by autograd."""
        self._writer.add(tensor, key, self.step, parts)
