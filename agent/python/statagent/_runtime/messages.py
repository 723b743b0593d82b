"""The two lines of a run on standard error: what is recorded, at its first training pass, and what has become of it, at its end. The first rank
that records writes them; STATAGENT_QUIET leaves them out."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import process
from .log import write

_MODELS_MAX = 4  # in a line
_WAIT_SECONDS = 0.1
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Model:
    """A watched model, in words."""

    name: str  # of its watch
    class_name: str
    layers: int  # modules without parts
    parameters: int  # elements
    optimizers: tuple[str, ...]  # their classes

    def text(self) -> str:
        size = f"{self.layers} {'layer' if self.layers == 1 else 'layers'}, {short(self.parameters)} parameters"
        called = f"{self.name} ({self.class_name}, {size})" if self.name else f"{self.class_name} ({size})"
        return f"{called} with {_counted(self.optimizers)}" if self.optimizers else called


class Messages:
    """Of one run in this process. Threads: the training thread, and that of `close`."""

    def __init__(self, first: bool) -> None:
        """`first`: whether this is the rank that writes."""
        self._silent, self._pid = not first or process.is_set("STATAGENT_QUIET"), os.getpid()
        self._models: list[Model] = []
        self.steps = "every step"  # that are recorded
        self.first = ""  # where they begin, if not at 0
        self.left_out: list[str] = []  # models that change and are not recorded
        self.waiting = True  # for the first training pass or end of a step

    def add(self, model: Model) -> None:
        self._models.append(model)

    def begin(self, run: str) -> None:
        """Writes the first line, once."""
        if not self.waiting:
            return
        self.waiting = False
        if self._silent:
            return
        page = os.environ.get("STATAGENT_PAGE", "")
        what = ", ".join(filter(None, (_some([model.text() for model in self._models]), self.steps, self.first)))
        # Beside the training, which waits for nobody who reads standard error.
        text = f"recording run '{run}': {what}{f'; page {page}' if page else ''}"
        writing = threading.Thread(target=self._write, args=(text,), name="statagent-line", daemon=True)
        writing.start()
        writing.join(_WAIT_SECONDS)

    def end(self, run: str, steps: int, counters: Mapping[str, int]) -> None:
        """Writes the last line, unless nothing was recorded. `counters`: those of the agent."""
        made = counters["produced"]
        if not made:
            return
        lost = {name.removeprefix("dropped_"): count for name, count in counters.items() if name.startswith("dropped_") and count}
        waiting = counters["pending"]
        unconfirmed = lost.pop("closed", 0) if counters["acked"] else 0  # may have been sent, and stored
        fate = (
            [f"{sum(lost.values()):,} lost ({', '.join(f'{count:,} {cause}' for cause, count in lost.items())})"] if lost else []
        )
        fate += [f"{waiting:,} {'wait in the spill file' if counters.get('spilled') else 'not confirmed'}"] if waiting else []
        fate += [f"{unconfirmed:,} not confirmed by the time it closed"] if unconfirmed else []
        told = f"{steps:,} {'step' if steps == 1 else 'steps'}, {made:,} records, {', '.join(fate) or 'none lost'}"
        if self.left_out:
            told += f"; not recorded: {_some(self.left_out)}, whose weights change without an optimizer"
        following = f"; next: statctl diff {run} OTHER" if counters["acked"] else ""
        self._write(f"run '{run}': {told}{following}")

    def _write(self, text: str) -> None:
        if not self._silent and os.getpid() == self._pid and os.environ.get("STATAGENT_LOG") not in ("off", "error"):
            write(text)


def short(number: int) -> str:
    """1,234,567 as 1.2 M."""
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.3g} {letter}"
    return f"{number}"


def _counted(names: Sequence[str]) -> str:
    """AdamW; 2 Adam; Muon and AdamW."""
    counts = {name: names.count(name) for name in names}
    return _list([name if count == 1 else f"{count} {name}" for name, count in counts.items()])


def _some(models: Sequence[str]) -> str:
    """All of them, or the first and how many more."""
    rest = len(models) - _MODELS_MAX
    return _list([*models[:_MODELS_MAX], f"{rest} more"] if rest > 0 else models)


def _list(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
