"""What a compiled graph calls when it runs: recorders of modules, roots, inputs and attendants, by the number of their key.

Imports torch, so it may only be imported once torch is there."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

SEPARATOR = "\x1f"  # between names
FIELD = "\x1d"  # between a name and the path in it
UNREADABLE = "\x1e"  # before the path of a tensor of a subclass


class Recorder(Protocol):
    """Records one module. A call is whatever `begin` returned for it."""

    def active(self) -> bool:
        """Whether calls are recorded now."""

    def begin(self, paths: list[str], grad_enabled: bool) -> Any:
        """A call of the module begins. Returns None if it is not recorded."""

    def value(self, call: Any, path: str, tensor: Any) -> None: ...

    def gradient(self, call: Any, path: str, gradient: Any) -> None: ...

    def unhooked(self) -> Any:
        """The last call without gradients, which a reentrant checkpoint now recomputes; None if there is none."""

    def epoch(self) -> int:
        """A number that grows with each step."""

    def refuse(self, message: str) -> None: ...


class Root(Protocol):
    """Follows the passes of a watched model's root."""

    def enter_compiled(self, grad_enabled: bool) -> None: ...

    def leave_compiled(self) -> None: ...

    def note_backward(self) -> None: ...


class Inputs(Protocol):
    """Records the inputs of a root."""

    def see_all(self, found: list[tuple[str, str, Any]]) -> None:
        """Inputs as (name, path in it, tensor); the path of a bare tensor is ""."""


class Attendant(Protocol):
    """Follows how a root is called."""

    def attend_schema(self, training: bool, schema: str) -> None:
        """`schema` is equal for equal schemas; `read_schema` reads it."""


class Noisy(Protocol):
    """Puts noise into what a module of a twin returns."""

    def perturb(self, tensor: Any, path: str, gradient: bool) -> Any:
        """A new tensor, of the same layout. A function of the arguments and the step. Must not raise."""


@dataclasses.dataclass
class _Open:
    """A call whose gradients are still expected."""

    ticket: int
    call: Any
    site: int
    paths: set[str]


class Tickets:
    """Calls of one recorder whose gradients are still expected: those of this step and the last.

    Threads: one at a time, as for hooks."""

    def __init__(self) -> None:
        self._epoch = -1
        self._open: list[_Open] = []  # in the order of the calls
        self._older: list[_Open] = []

    def give(self, ticket: int, site: int, call: Any, paths: set[str], epoch: int) -> None:
        """Remembers a call. With ticket 0 its gradients are claimed by `take_last`."""
        if epoch != self._epoch:
            self._epoch, self._older, self._open = epoch, self._open, []
        if paths:
            self._open.append(_Open(ticket, call, site, paths))

    def again(self, site: int) -> int:
        """The ticket of the call that a checkpoint now recomputes, 0 if there is none. Autograd recomputes the last call first."""
        for found in reversed(self._open):
            if found.site == site and found.ticket > 0:
                found.site = -site  # the next recomputation belongs to an earlier call
                return found.ticket
        return 0

    def take(self, ticket: int, path: str) -> Any:
        """The call of a ticket, once for each path; then None."""
        return self._take(path, lambda found: found.ticket == ticket)

    def take_last(self, site: int, path: str) -> Any:
        """The last call that has not been taken for this path, or None."""
        return self._take(path, lambda found: found.site == site and found.ticket == 0)

    def _take(self, path: str, wanted: Callable[[_Open], bool]) -> Any:
        for calls in (self._open, self._older):
            for found in reversed(calls):
                if path in found.paths and wanted(found):
                    found.paths.discard(path)
                    if not found.paths:
                        calls.remove(found)
                    return found.call
        return None


@dataclasses.dataclass(eq=False)
class Entry:
    recorder: Recorder
    tickets: Tickets


# Each lives as long as the hooks that have its key.
entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
roots: weakref.WeakValueDictionary[int, Root] = weakref.WeakValueDictionary()
inputs_of: weakref.WeakValueDictionary[int, Inputs] = weakref.WeakValueDictionary()
attendants: weakref.WeakValueDictionary[int, Attendant] = weakref.WeakValueDictionary()
noises: dict[int, Noisy] = {}  # until the run ends
_key_numbers = itertools.count(1)
ticket_numbers = itertools.count(1)


class Key:
    """The number of a recorder or a root, and the tensor that carries it into graphs."""

    def __init__(
        self,
        recorder: Recorder | None = None,
        root: Root | None = None,
        inputs: Inputs | None = None,
        attendant: Attendant | None = None,
        noise: Noisy | None = None,
    ) -> None:
        self.number = next(_key_numbers)
        self.tensor = torch.tensor(self.number, dtype=torch.int64, device="cpu", requires_grad=False)
        if recorder is not None:
            self._entry = entries[self.number] = Entry(recorder, Tickets())
        if root is not None:
            roots[self.number] = root
        if inputs is not None:
            inputs_of[self.number] = inputs
        if attendant is not None:
            attendants[self.number] = attendant
        if noise is not None:
            noises[self.number] = noise

    def remove(self) -> None:
        """From now on, graphs that still carry the number record nothing."""
        entries.pop(self.number, None)
        roots.pop(self.number, None)
        inputs_of.pop(self.number, None)
        attendants.pop(self.number, None)
        noises.pop(self.number, None)
