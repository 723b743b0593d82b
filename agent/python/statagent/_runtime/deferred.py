"""Values of small tensors on a GPU, without waiting for the GPU.

A tensor is copied to pinned memory in the stream that computes it, followed by an event. Later calls check the event, and pass the copy on
once it has completed. `flush` and `close` wait for the remaining ones, within their timeout."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .forking import make_locks_of

PENDING_MAX = 512
ELEMENTS_MAX = 65536  # of one tensor
LOOKED_AT_MAX = 16  # values collected in one call of a training step
_POLL_SECONDS = 0.0005


class Pending(Protocol):
    """A copy in progress."""

    def ready(self) -> bool:
        """Whether the copy is complete. May raise an error of the device."""

    def value(self) -> Any:
        """The tensor in CPU memory. Call it once, after ready() has returned True."""


# Starts the copy of a tensor. May raise.
Copy = Callable[[Any], Pending]


class Deferred:
    """A queue of copies, passed on in the order of `add`. `lost` is called with the reason if a value will not arrive. Threads: any. Keeps no
    reference to the program's tensors."""

    def __init__(self, lost: Callable[[str], None], copy: Copy | None = None, pending_max: int = PENDING_MAX) -> None:
        self._copy, self._lost, self._pending_max = copy or start_copy, lost, pending_max
        self._pending: deque[tuple[str, Callable[[Any], None], Pending]] = deque()
        make_locks_of(self)

    def _make_locks(self) -> None:
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, what: str, tensor: Any, done: Callable[[Any], None]) -> None:
        """Calls done(the tensor in CPU memory): immediately if it is there, else during a later call of this object and in that call's
        thread. `what` names the value in messages. Never waits and never raises. If `pending_max` copies are in progress, the value is lost."""
        try:
            if not on_gpu(tensor):
                done(tensor.detach())
                return
            self.collect()
            if len(self._pending) >= self._pending_max or tensor.numel() > ELEMENTS_MAX:
                self._lost(f"{what}: {len(self._pending)} values are being copied from the GPU; expected fewer, or smaller ones")
                return
            self._pending.append((what, done, self._copy(tensor)))
        except Exception as error:
            self._lost(f"{what}: {error}")

    def collect(self, at_most: int = LOOKED_AT_MAX) -> None:
        """Passes on completed copies, in their order. Never waits and never raises."""
        if not self._pending:
            return
        with self._lock:
            for _ in range(min(at_most, len(self._pending))):
                if not self._collect_first():
                    return

    def _collect_first(self) -> bool:
        what, done, pending = self._pending[0]
        try:
            if not pending.ready():
                return False
            self._pending.popleft()
            done(pending.value())
        except Exception as error:
            if self._pending and self._pending[0][2] is pending:
                self._pending.popleft()
            self._lost(f"{what}: {error}")
        return True

    def drain(self, seconds: float) -> bool:
        """Waits at most this long until all copies are complete; returns whether they are."""
        deadline = time.monotonic() + seconds
        while self._pending:
            self.collect(len(self._pending))
            if self._pending and time.monotonic() >= deadline:
                return False
            if self._pending:
                time.sleep(_POLL_SECONDS)
        return True

    def drop(self) -> None:
        """Gives up incomplete copies, each of which is reported as lost."""
        with self._lock:
            while self._pending:
                self._lost(f"{self._pending.popleft()[0]}: its copy from the GPU was not complete at the end")


class _CudaCopy:
    __slots__ = ("_copy", "_event")

    def __init__(self, copy: Any, event: Any) -> None:
        self._copy, self._event = copy, event

    def ready(self) -> bool:
        return bool(self._event.query())

    def value(self) -> Any:
        return self._copy


def start_copy(tensor: Any) -> Pending:
    """Starts a copy to pinned memory, which torch caches, in the current stream of the tensor's device."""
    import torch

    with torch.no_grad(), torch.cuda.device(tensor.device):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is being captured; expected a value outside of it; log it after the replay")
        source = tensor.detach()
        copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        copy.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return _CudaCopy(copy, event)


def on_gpu(value: Any) -> bool:
    """Whether a value is a torch tensor on a CUDA device, so that reading it would wait."""
    return getattr(value, "is_cuda", False) is True and hasattr(value, "data_ptr")
