"""Buffers of a watched model, such as BatchNorm's running statistics. A buffer is recorded when it has changed:

    initially, in watch                                   mode init
    changed by a pass of its module                       mode train, path "", after the pass
    changed by a pass in a compiled graph                 path "", before the next pass or at the end of the step
    changed elsewhere                                     path "outside", before the next pass or at the end of the step

A buffer has changed if its version has, which torch increments with each operation that writes into it. torch's batch_norm writes without
incrementing it, so buffers of normalisation layers in training, and buffers beside an incremented counter, count as changed.

In a process group changes that are found before a pass are not recorded, because DistributedDataParallel's broadcast of buffers causes
the same changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from .._compile import tracing
from .._native.tensors import Place, plain_tensor_types
from .._runtime.agent import Agent
from .._runtime.callbacks import weak
from .._torch import parts
from .._torch.autograd import in_backward
from .._torch.modules import INERT_COPY, Named, is_counter
from .optimizers import goes_in_list

OUTSIDE = "outside"


class _Buffer:
    """One buffer, and its identity and version when it was last checked."""

    __slots__ = ("_call", "_epoch", "_reference", "_version", "handles", "named", "place")

    def __init__(self, named: Named) -> None:
        self.named, self.place = named, Place()
        self.handles: dict[tuple[str, int, int], int] = {}  # (path, micro-batch, call) -> handle
        self._epoch, self._call = -1, 0
        self._reference: Any = None
        self._version = -1
        self.changed()

    def current(self) -> Any:
        """The buffer that the module has now; None if it has none."""
        return self.named.owner._buffers.get(self.named.key)

    def changed(self) -> bool:
        """Whether the buffer has changed since the last call."""
        tensor = self.current()
        if tensor is None:
            return False
        try:
            version = tensor._version
        except Exception:  # tensors made in inference mode have none, nor may those of classes of their own
            version = -1
        if self._reference is not None and self._reference() is tensor and version == self._version:
            return False
        self._reference, self._version = weak(tensor), version
        return True

    def expect_change(self) -> None:
        """Makes the next call of `changed` return True."""
        self._reference = None

    def next_call(self, epoch: int) -> int:
        if epoch != self._epoch:
            self._epoch, self._call = epoch, -1
        self._call += 1
        return self._call


class _Owner:
    """The buffers of one module, and its counters, which are checked but not recorded."""

    def __init__(self, module: Any, buffers: list[_Buffer], counters: list[_Buffer], normalises: bool) -> None:
        self.module, self.buffers, self._counters, self._normalises = module, buffers, counters, normalises
        self.ran_in = -1  # epoch of the last pass outside of graphs

    def changed(self, in_pass: bool) -> list[_Buffer]:
        """Buffers that have changed since the last call. `in_pass`: the module has just run."""
        counted = [counter for counter in self._counters if counter.changed()]
        found = [buffer for buffer in self.buffers if buffer.changed()]
        if counted or (in_pass and self._normalises and self.module.training):
            return self.buffers
        return found


class Position:
    """What the observer needs to know from its watch."""

    def __init__(
        self,
        wanted: Callable[[], bool],
        training_pass: Callable[[Any], bool],
        epochs: Callable[[], tuple[int, int]],
        elsewhere: Callable[[], bool],
        recorded: Callable[[], None],
    ) -> None:
        self.wanted = wanted  # whether this step is recorded
        self.training_pass = training_pass  # whether the pass of this module is recorded as training
        self.epochs = epochs  # the micro-batch, and a number that grows with each micro-batch and step
        self.elsewhere = elsewhere  # whether another thread runs the model
        self.recorded = recorded  # to be called after records


class BufferObserver:
    """Records the buffers of one watched model. Never raises while training."""

    def __init__(self, agent: Agent, found: list[Named], position: Position) -> None:
        import torch

        self._agent, self._position, self._plain = agent, position, plain_tensor_types()
        norm: Any = torch.nn.modules.batchnorm._NormBase
        modules = {id(named.owner): named.owner for named in found}
        self._owners = []
        for module in modules.values():
            buffers = [_Buffer(named) for named in found if named.owner is module]
            counters = [
                _Buffer(Named(f"{key}", value, "", "", 0, module, key))
                for key, value in parts.buffers(module)
                if is_counter(value)
            ]
            self._owners.append(_Owner(module, buffers, counters, isinstance(module, norm)))
        self._checked_at = -1  # the last step at whose end all were checked
        self._pass_in = -1  # step of the last pass of the model
        self._removables: list[Any] = []
        for each in self._owners:
            try:
                self._removables.append(each.module.register_forward_hook(_BufferHook(self, each)))
            except Exception as error:
                name = each.buffers[0].named.name
                agent.report_not_recorded(name, "buffer", f"its module does not accept hooks: {error}")
        if self._owners:
            agent.clock.ending_listeners.append(self.end_of_step)

    def remove(self) -> None:
        for removable in self._removables:
            removable.remove()
        self._removables, self._owners = [], []
        self._agent.clock.ending_listeners.remove(self.end_of_step)

    def after_pass(self, owner: _Owner) -> None:
        begun = perf_counter_ns()
        try:
            if self._position.training_pass(owner.module) and not in_backward():
                owner.ran_in = self._position.epochs()[1]
                self._record(owner.changed(in_pass=True), "")
        except Exception as error:
            self._agent.refuse(f"buffers: {error}")
        self._agent.clock.note_spent(begun)

    def before_pass(self, in_graph: bool) -> None:
        """A pass of the model that is recorded as training is about to begin. The micro-batch is still that of the previous pass. `in_graph`: a
        compiled graph is already running. A graph increments the versions of the buffers that it will change when it begins, not afterwards."""
        if not self._owners:
            return
        try:
            step = self._agent.current_step()
            first, self._pass_in = self._pass_in != step, step
            if in_graph and (first or _in_process_group()):
                return
            changed = self._changed()
            if _in_process_group():
                return
            if not first:
                self._record_elsewhere(changed)
                for buffer in [buffer for _, buffers in changed for buffer in buffers if in_graph]:
                    buffer.expect_change()
            elif 0 <= step - 1 <= self._checked_at:  # otherwise it may have changed in a step that is not recorded
                self._record([buffer for _, buffers in changed for buffer in buffers], OUTSIDE)
        except Exception as error:
            self._agent.refuse(f"buffers: {error}")

    def end_of_step(self) -> None:
        try:
            if self._position.wanted() and not self._position.elsewhere():
                self._checked_at = self._agent.current_step()
                self._record_elsewhere(self._changed())
        except Exception as error:
            self._agent.refuse(f"buffers: {error}")

    def _changed(self) -> list[tuple[_Owner, list[_Buffer]]]:
        return [(owner, owner.changed(in_pass=False)) for owner in self._owners]

    def _record_elsewhere(self, changed: list[tuple[_Owner, list[_Buffer]]]) -> None:
        """Records changes that were not found directly after a pass of their module."""
        epoch = self._position.epochs()[1]
        for owner, buffers in changed:
            if buffers:
                self._record(buffers, OUTSIDE if owner.ran_in == epoch else "")

    def _record(self, buffers: list[_Buffer], path: str) -> None:
        agent = self._agent
        micro_batch, epoch = self._position.epochs()
        together = []
        for buffer in buffers:
            tensor, named = buffer.current(), buffer.named
            if tensor is None:
                continue
            key = (path, micro_batch, buffer.next_call(epoch))
            handle = buffer.handles.get(key)
            if handle is None:
                handle = buffer.handles[key] = agent.intern(
                    named.name, "buffer", *key, "train", named.parent, named.class_name, named.depth
                )
            if type(tensor) not in self._plain:
                agent.observe_handle(handle, tensor)
            elif goes_in_list(tensor):
                together.append((handle, buffer.place, tensor))
            else:
                agent.observe_at(buffer.place, handle, tensor)
        if together:
            agent.observe_list(together)
        self._position.recorded()


def _in_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


class _BufferHook:
    """After the pass of a module that has buffers. Does nothing in copies and pickles of the module, and leaves nothing in graphs."""

    def __init__(self, observer: BufferObserver, owner: _Owner) -> None:
        self._observer, self._owner = observer, owner

    def __call__(self, *_: Any) -> None:
        if not tracing.active() and not tracing.exporting():
            self._observer.after_pass(self._owner)

    def __reduce__(self) -> Any:
        return INERT_COPY
