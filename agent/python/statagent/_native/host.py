"""The hot half of hooks in C, where the extension statagent_host is beside the library: base classes whose fields it reads, and methods that
do the most frequent case. Without it the same classes have Python attributes, and every case takes the way through ctypes.

STATAGENT_EXTENSION=0 leaves it out. docs/decisions/0066-hooks-in-c.md."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from ctypes import c_void_p, cast
from typing import Any

from ..errors import LibraryNotFoundError
from . import library

NAME = "statagent_host"
INTERFACE = 2  # kInterface of agent/host/module.cc: grows with every change of what the two expect of each other


class WatchCells:
    """Base of Watches."""


class AgentCells:
    """Base of Agent."""


class ClockCells:
    """Base of StepClock."""


class PassCells:
    """Base of Passes."""


class PlaceCells:
    """Base of Place: a structure for the library while it is not in use."""

    __slots__ = ("structure",)

    structure: Any

    def observe(self, agent: Any, handle: int, tensor: Any) -> bool:
        """Records the tensor if its layout is that of the last one; False: nothing has been done. May raise."""
        return False

    def keep(self, structure: Any, tensor: Any) -> None:
        """The structure is for tensors like this one."""
        self.structure = structure


class HookCells:
    """Base of the hooks of modules."""

    def _record_plain(self, output: Any) -> bool:
        """Records an output that is one tensor, of a training pass that is not recomputed; False: nothing has been done. May raise."""
        return False


def observe_each(agent: Any, items: list[tuple[int, Any, Any]]) -> None:
    """Agent.observe_at for each handle, place and tensor."""
    for handle, place, tensor in items:
        agent.observe_at(place, handle, tensor)


GradientOf: Callable[[Any, Any, int], Any] | None = None  # as _GradientOf of module_hooks.py


def _load() -> Any:
    """The extension, or None where it is not wanted, not there, or of another build."""
    supported = sys.implementation.name == "cpython" and sys.version_info >= (3, 10) and "t" not in sys.abiflags
    if os.environ.get("STATAGENT_EXTENSION") == "0" or not supported:
        return None
    try:
        path = library.find().with_name(f"{NAME}.abi3.so")
        loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
        spec = importlib.util.spec_from_loader(NAME, loader)
        if not path.is_file() or spec is None:
            return None
        found = importlib.util.module_from_spec(spec)
        loader.exec_module(found)
    except (ImportError, LibraryNotFoundError, OSError):
        return None
    return found if found.interface == INTERFACE else None


extension = _load()
if extension is not None:
    for _name in ("WatchCells", "AgentCells", "ClockCells", "PassCells", "PlaceCells", "HookCells", "GradientOf", "observe_each"):
        globals()[_name] = getattr(extension, _name)


def use_library(loaded: Any) -> None:
    """The extension calls this library's observe function itself; another library it calls as Python does."""
    if extension is not None and isinstance(loaded, library.Library):
        held, released = loaded.statagent_observe_held, loaded.statagent_observe
        extension.use_library(held, cast(held, c_void_p).value, released, cast(released, c_void_p).value)
