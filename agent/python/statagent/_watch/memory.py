"""Memory at each phase of the step: of torch's allocator on a GPU, and of the process as the operating system reports it. All in bytes.

Cost of a phase: two calls of the operating system on a CPU, one read of the allocator's counters on a GPU; no synchronisation. In a training
step all of it is out of the caches, so little Python runs: what changes once a step is measured once a step, the device too."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .._runtime.agent import Agent
from .._runtime.callbacks import WeakList, weak
from .._torch import parts
from .._torch.autograd import in_backward
from .._torch.modules import Named
from ..errors import InvalidArgumentError
from ..flatten import flatten

PHASES = "phases"
MODULES = "modules"
PEAKS = "peaks"
_CHOICES = (PHASES, MODULES, PEAKS)
_OUTSIDE = ("host_free", "host_total", "device_free", "device_total")  # of the machine and the device
_MEASURE_AGAIN_STEPS = 100  # how often values that rarely change are measured


def check_memory(memory: Any) -> frozenset[str]:
    """The argument `memory` of `watch` as names of _CHOICES; the phases are part of each choice."""
    if memory is None or memory is False:
        return frozenset()
    if memory is True:
        return frozenset([PHASES])
    if isinstance(memory, str):
        memory = [memory]
    found = list(memory) if isinstance(memory, Iterable) else [memory]
    if not all(isinstance(name, str) and name in _CHOICES for name in found):
        raise InvalidArgumentError(
            f"watch: memory is {memory!r}; expected True, False, 'modules' (also what each module adds), 'peaks' (the maximum within "
            "each step; resets torch's peak counters), or a list of these"
        )
    return frozenset([PHASES, *found])


class MemoryObserver:
    """Records the memory of one watched model. Never raises while training. Threads: the training thread and autograd's."""

    def __init__(self, agent: Agent, root: Any, optimizers: list[Any], choices: frozenset[str]) -> None:
        self._agent, self._root, self._optimizers, self._choices = agent, root, WeakList(optimizers), choices
        self._process = _Process()
        self._step = -1
        self._device: int | None = None  # the index of the GPU that the model is on in this step; None on a CPU
        self._found: dict[str, int] = {}  # bytes, as last measured
        self._measured_at: dict[str, int] = {}
        self._peak_since_start = 0
        self._sizes: list[tuple[Any, int]] = []  # weak references to parameters, with their bytes
        self._gradients_of = -1  # step in which gradients were measured last

    @property
    def modules_wanted(self) -> bool:
        return MODULES in self._choices

    def phase(self, name: str) -> None:
        """The step has reached this phase. Phases may come in any order."""
        try:
            self._begin()
            found, device = self._found, self._device
            self._process.read(found)
            if device is not None:
                found.update(self._allocator(device))
            self._measure_model(name)
            self._agent.log_memory(name, found, "cpu" if device is None else f"cuda:{device}")
        except Exception as error:
            self._agent.refuse(f"memory at {name}: {error}")

    def module_hooks(self, named: Named, wanted: Callable[[], bool]) -> tuple[Callable[..., None], Callable[..., None]]:
        """Hooks before and after a module's forward pass that record how much memory it added and by how much it raised the peak, including
        the modules inside of it."""
        before: list[tuple[int, int]] = []  # a module may call itself

        def enter(*_: Any) -> None:
            if wanted() and not in_backward():
                before.append(self._in_use())

        def leave(*_: Any) -> None:
            if not before or in_backward():
                return
            used, peak = before.pop()
            if not wanted():
                before.clear()
                return
            used_now, peak_now = self._in_use()
            found = {"allocated_delta": used_now - used, "peak_delta": max(0, peak_now - peak)}
            device = self._device
            self._agent.log_memory("post_forward", found, "cpu" if device is None else f"cuda:{device}", named.name)

        return enter, leave

    def _in_use(self) -> tuple[int, int]:
        """Bytes in use now, and the maximum so far: of the allocator on a GPU, else resident memory."""
        self._begin()
        found = self._allocator(self._device) if self._device is not None else self._process.read({})
        return (
            found.get("allocated", found.get("host_rss", 0)),
            found.get("max_allocated", found.get("host_max_rss", 0)),
        )

    def _begin(self) -> None:
        """The first time in a step: measures the machine, the device and the model, and starts the step's peak."""
        step = self._agent.current_step()
        if step == self._step:
            return
        self._step = step
        found, device = self._found, self._device_of_model()
        if device != self._device:
            found.clear()
            self._measured_at.clear()
            self._device = device
        for name in _OUTSIDE:
            found.pop(name, None)
        found.update(_machine())
        self._measure("parameter", self._parameters)
        self._measure("buffer", lambda: parts.all_buffers(self._root))
        if device is None:
            return
        cuda = sys.modules["torch"].cuda
        if not cuda.is_current_stream_capturing():
            found["device_free"], found["device_total"] = cuda.mem_get_info(device)
        if PEAKS in self._choices:
            self._peak_since_start = max(self._peak_since_start, cuda.max_memory_allocated(device))
            cuda.reset_peak_memory_stats(device)

    def _allocator(self, device: int) -> dict[str, int]:
        statistics = sys.modules["torch"].cuda.memory_stats_as_nested_dict(device)
        allocated = statistics["allocated_bytes"]["all"]
        reserved = statistics["reserved_bytes"]["all"]
        inactive = statistics["inactive_split_bytes"]["all"]
        found = {
            "allocated": allocated["current"], "max_allocated": max(allocated["peak"], self._peak_since_start),
            "reserved": reserved["current"], "max_reserved": reserved["peak"],
            "inactive": inactive["current"], "max_inactive": inactive["peak"],
        }  # fmt: skip
        if PEAKS in self._choices:
            found["step_max_allocated"] = allocated["peak"]
        return found

    def _device_of_model(self) -> int | None:
        for module in parts.all_modules(self._root):
            for _, parameter in parts.parameters(module):
                return int(parameter.get_device()) if getattr(parameter, "is_cuda", False) else None
        return None

    def _measure_model(self, phase: str) -> None:
        """Bytes of what this phase may have changed of the model's tensors on this rank."""
        if phase == "post_backward" or (phase == "pre_optimizer" and self._gradients_of != self._step):
            self._gradients_of = self._step
            # A gradient is as large as its parameter.
            self._found["gradient"] = sum(
                size for find, size in self._sizes if (parameter := find()) is not None and parameter.grad is not None
            )
        elif phase == "post_optimizer" and self._optimizers:
            self._measure("optimizer_state", self._optimizer_tensors)

    def _parameters(self) -> list[Any]:
        found = parts.all_parameters(self._root)
        self._sizes = [(weak(parameter), _bytes_of([parameter])) for parameter in found]
        return found

    def _measure(self, name: str, tensors: Callable[[], Iterable[Any]]) -> None:
        last = self._measured_at.get(name)
        if last is not None and 0 <= self._step - last < _MEASURE_AGAIN_STEPS:
            return
        before = self._found.get(name)
        self._found[name] = _bytes_of(tensors())
        if before == self._found[name]:  # unchanged, so it is measured less often
            self._measured_at[name] = self._step

    def _optimizer_tensors(self) -> Iterable[Any]:
        for optimizer in self._optimizers:
            for _, tensor in flatten(list(optimizer.state.values())):
                yield tensor


def _bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of this rank's part of each tensor. Tensors without memory count as 0."""
    total = 0
    for tensor in tensors:
        tensor = getattr(tensor, "_local_tensor", tensor)
        try:
            if tensor.device.type != "meta":
                total += tensor.numel() * tensor.element_size()
        except Exception:  # lazy parameters have no size yet
            continue
    return total


class _Process:
    """Resident memory of this process, as far as the system reports it."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
        self._unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
        try:
            self._statm: Any = open("/proc/self/statm", "rb", buffering=0)  # noqa: SIM115 (read often)
        except OSError:
            self._statm = None
        try:
            import resource

            self._usage: Any = functools.partial(resource.getrusage, resource.RUSAGE_SELF)
        except ImportError:
            self._usage = None

    def read(self, found: dict[str, int]) -> dict[str, int]:
        """`found`, with what there is now."""
        if self._statm is not None:
            found["host_rss"] = int(os.pread(self._statm.fileno(), 128, 0).split()[1]) * self._page
        if self._usage is not None:
            # The two counters are updated at different moments.
            found["host_max_rss"] = max(self._usage().ru_maxrss * self._unit, found.get("host_rss", 0))
        return found


def _machine() -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        with open("/proc/meminfo", "rb", buffering=0) as meminfo:
            lines = meminfo.read(512).splitlines()
        for line in lines:
            if line.startswith(b"MemTotal:"):
                found["host_total"] = int(line.split()[1]) * 1024
            elif line.startswith(b"MemAvailable:"):
                found["host_free"] = int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return {}
    return found


def queue_after_backward(call: Callable[[], None]) -> bool:
    """Calls `call` at the end of the current backward pass; returns False if there is none. Only for use in a gradient hook."""
    torch = sys.modules.get("torch")
    if torch is None or not in_backward():
        return False
    torch.autograd.Variable._execution_engine.queue_callback(call)
    return True
