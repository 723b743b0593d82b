"""Which tensors have been recorded in this step, to find inputs that no watched module has returned: residual sums, attention, functions
between modules. Those are recorded as kind `input` of the module that receives them.

A tensor is known if its address, version and layout are those of a recorded one. Recorded tensors are held by weak references, so that memory
that is reused for another tensor is not mistaken for the first one."""

from __future__ import annotations

import weakref
from typing import Any


class KnownTensors:
    """Tensors that were recorded in the current step. Threads: the training thread."""

    def __init__(self) -> None:
        # Address -> the tensor, its base if it is a view (else None), its version and number of elements (-1: not contiguous).
        self._known: dict[int, tuple[Any, Any, int, int]] = {}

    def clear(self) -> None:
        self._known.clear()

    def note(self, tensor: Any) -> None:
        """The tensor has been recorded, or need not be recorded."""
        base = tensor._base
        elements = tensor.numel() if tensor.is_contiguous() else -1
        held = None if base is None else weakref.ref(base)
        self._known[tensor.data_ptr()] = weakref.ref(tensor), held, tensor._version, elements

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor with these values in this layout has been noted."""
        found = self._known.get(tensor.data_ptr())
        if found is None or found[2] != tensor._version:
            return False
        reference, base, _, elements = found
        noted = reference()
        if noted is tensor:
            return True
        if noted is None and (base is None or base() is None):
            return False  # the memory may belong to another tensor now
        if elements == tensor.numel() and tensor.is_contiguous():
            return True
        return noted is not None and noted.shape == tensor.shape and bool(noted.stride() == tensor.stride())
