"""What the watches of this process share."""

from __future__ import annotations

from typing import Any

from .._native.host import WatchCells
from . import process
from .callbacks import WeakList
from .known_tensors import KnownTensors
from .perturbation import Perturbation
from .placing import Placing


class Watches(WatchCells):
    """Each watch takes its part when it is attached, and gives it back when it ends.

    Invariant: a (name, kind) belongs to one watch at a time. Threads: that of `watch` and of the model; `remove` any."""

    def __init__(self) -> None:
        self.attached = WeakList()  # Hooks, each of which lives as long as its model
        self.claims: dict[tuple[str, str], Any] = {}  # (name, kind) -> the claims of its watch
        self.recordings: dict[str, dict[str, str]] = {}  # name of each watch -> what it records, as settings
        self.initial: set[tuple[str, str, int]] = set()  # (name, kind, id) of the values as loaded that have been recorded
        self.known = KnownTensors()  # inputs between modules; filled by the watches that record them
        self.placing: Placing | None = None  # where the models' tensors lie; None: this process is the only one
        self.random_states_of = -1  # the step whose random states were logged last
        self.perturbation: Perturbation | None = None  # what makes this run a twin of another
        self.noise_hooks: Any = None  # NoiseHooks of a twin's models, once one is watched

    def stop(self) -> None:
        """Values are no longer perturbed."""
        if self.noise_hooks is not None:
            self.noise_hooks.active = False

    def remove(self) -> None:
        """Takes all hooks away. Those in compiled graphs stay until the next `init`, which compiles the graphs again."""
        hooked = [*self.attached, *([] if self.noise_hooks is None else [self.noise_hooks])]
        in_graphs = [each for each in hooked if each.in_graph]
        process.keep_until_next_init(in_graphs)
        for each in [each for each in hooked if each not in in_graphs]:
            each.remove()
