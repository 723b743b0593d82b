"""Steps and tensors of a StatisticsSubscriber, under ONNX Runtime's names."""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import Any

from ..._compile import tracing
from ..._native.tensors import Place, plain_tensor_types
from ..._runtime.agent import Agent
from ..._torch.autograd import GradientHook, hook_result, in_backward
from ...errors import TensorTypeError

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def aside() -> bool:
    """Whether the current pass is not training: a checkpoint's recomputation, torch.jit.trace or an export."""
    return in_backward() or _examined()


def _examined() -> bool:
    return _torch()._C._get_tracing_state() is not None or tracing.exporting()


class Recorder:
    """Steps and tensors of one StatisticsSubscriber. Its methods never raise.

    With a watched optimizer, its updates end the steps, and the forward passes in a step are micro-batches. Without one, this class ends the
    steps: a forward pass of the root begins the next step if there has already been one in this step (docs/decisions/0017)."""

    def __init__(self, agent: Agent, first: int, end: int) -> None:
        self.agent = agent
        self.plain_types: Any = plain_tensor_types()
        self.recording = False  # read for every tensor
        self.micro_batch = 0
        self.epoch = 0  # grows when call indexes start from 0 again: with each micro-batch and step
        self.step_epoch = 0
        self._first, self._end = first, end
        self._passes = 0  # completed passes of the root in this step
        self._in_pass = False
        self._left_out = False  # an evaluation between the steps of a watched optimizer
        self._backward_seen = False
        self._probes: dict[tuple[Any, ...], Probe] = {}
        self._leaf_hooks: list[Any] = []

    def start(self) -> None:
        """Records from now on, until `stop`."""
        self.stop()
        self.agent.clock.step_listeners.append(self._step_changed)
        self._step_changed()
        _recorders.add(self)

    def stop(self) -> None:
        self.recording = self._backward_seen = False
        self.agent.clock.step_listeners.remove(self._step_changed)
        _recorders.discard(self)
        self._drop_leaf_hooks()

    def end_last_step(self) -> None:
        """Called at the end of the program."""
        if self._passes and not self.agent.clock.optimizers.counts:
            self.agent.end_step()

    # --- steps -------------------------------------------------------------------------------------------------------------

    def _step_changed(self) -> None:
        agent = self.agent
        self.recording = agent.clock.wanted and self._first <= agent.current_step() < self._end
        self.epoch += 1
        self.step_epoch += 1
        self.micro_batch = self._passes = 0
        self._backward_seen = False
        self._drop_leaf_hooks()

    def begin_pass(self, root: Any) -> int | None:
        """The root's forward pass begins. Returns its step; None if the agent is closed."""
        agent = self.agent
        if agent.closed:
            return None
        if aside():
            return agent.current_step()
        if agent.clock.optimizers.counts:
            self._left_out = not (root.training and _torch().is_grad_enabled())
            if self._backward_seen and not self._left_out:
                self._backward_seen = False
                self.micro_batch += 1
                self.epoch += 1
        elif self._passes or self._backward_seen:
            agent.end_step()
        self._in_pass = True
        return agent.current_step()

    def end_pass(self, output: list[Any]) -> None:
        """The root's forward pass has ended, with these tensors as output."""
        if aside() or self._left_out:
            return
        self._passes += 1
        try:
            for tensor in output:
                if tensor.requires_grad:
                    self.hook_gradient(tensor, GradientHook(self.note_backward))
        except Exception as error:
            self.agent.refuse(str(error))

    def leave(self) -> None:
        """The root's forward pass has ended or failed."""
        self._in_pass = self._left_out = False

    def counts_passes(self) -> bool:
        """Whether each root forward pass is a step."""
        return not self.agent.clock.optimizers.counts

    def note_backward(self, _: Any) -> None:
        self._backward_seen = True

    # --- tensors -----------------------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether `see` has nothing to do."""
        return not (self.recording or self._backward_seen)

    def see(self, name: str, tensor: Any, **module: Any) -> None:
        """Records a tensor. `module`: class_name, parent and depth if it is a module's output; nothing if it is an inspected tensor."""
        try:
            if not isinstance(tensor, self.plain_types[0]):
                raise TensorTypeError(f"found a {type(tensor).__name__}; expected a torch tensor")
            if self._backward_seen and not self._in_pass and not self.agent.clock.optimizers.counts and not aside():
                self.agent.end_step()  # a tensor after a backward pass belongs to the next forward pass
            if not self.recording or self._left_out or _examined():
                return
            key = (name, bool(module))
            probe = self._probes.get(key) or self._probes.setdefault(key, Probe(self, name, module))
            probe.see(tensor)
        except Exception as error:
            self.agent.refuse(str(error), str(name), "output" if module else "inspect")

    def hook_gradient(self, tensor: Any, hook: Any) -> None:
        """Calls the hook before the tensor's earlier hooks. Those belong to inner modules, whose gradients come later."""
        if type(tensor) is not self.plain_types[0] or tensor.grad_fn is None:
            removable = tensor.register_hook(hook)
            if tensor.is_leaf:  # its hooks live as long as the leaf, not as long as a graph
                self._leaf_hooks.append(removable)
            return
        hook_result(tensor, hook)
        hooks = tensor._backward_hooks
        if len(hooks) > 1:
            entries = list(hooks.items())
            hooks.clear()
            hooks.update([entries[-1], *entries[:-1]])

    def _drop_leaf_hooks(self) -> None:
        for removable in self._leaf_hooks:
            removable.remove()
        self._leaf_hooks.clear()


class Probe:
    """Records the tensors of one place: the k-th output of a module, or a name that inspect_activation is given."""

    def __init__(self, recorder: Recorder, name: str, module: dict[str, Any]) -> None:
        self._recorder, self._agent, self._name, self._module = recorder, recorder.agent, name, module
        self._kinds = ("output", "grad_output") if module else ("inspect", "inspect_grad")
        self._places = (Place(), Place())
        self._handles: dict[tuple[int, int, int], int] = {}
        self._epoch = -1
        self._calls = self._late_gradients = 0
        # Calls without gradients: reentrant checkpoints recompute them, the last one first.
        self._unhooked: list[tuple[int, int]] = []

    def see(self, tensor: Any) -> None:
        self._begin_epoch()
        if in_backward():
            self._see_again(tensor)
            return
        micro_batch, call = self._recorder.micro_batch, self._calls
        self._calls += 1
        self._record(0, tensor, micro_batch, call)
        if not _torch().is_grad_enabled():
            self._unhooked.append((micro_batch, call))
        elif tensor.requires_grad:
            self._recorder.hook_gradient(tensor, _Gradient(self, micro_batch, call))

    def see_gradient(self, gradient: Any, step_epoch: int, micro_batch: int, call: int) -> None:
        recorder = self._recorder
        recorder.note_backward(gradient)
        if not recorder.recording or gradient is None:
            return
        try:
            self._begin_epoch()
            if step_epoch != recorder.step_epoch:  # of a forward pass before this step: after those of this step
                micro_batch, call = recorder.micro_batch, self._calls + self._late_gradients
                self._late_gradients += 1
            self._record(1, gradient, micro_batch, call)
        except Exception as error:
            self._agent.refuse(str(error), self._name, self._kinds[1])

    def _begin_epoch(self) -> None:
        if self._epoch != self._recorder.epoch:
            self._epoch, self._calls, self._late_gradients = self._recorder.epoch, 0, 0
            self._unhooked.clear()

    def _see_again(self, tensor: Any) -> None:
        """A checkpoint recomputes the tensor. If gradients flow through the new tensor (reentrant checkpoints), they belong to the last call
        without gradients."""
        if self._unhooked and _torch().is_grad_enabled() and tensor.requires_grad:
            self._recorder.hook_gradient(tensor, _Gradient(self, *self._unhooked.pop()))

    def _record(self, which: int, tensor: Any, micro_batch: int, call: int) -> None:
        handle = self._handles.get((which, micro_batch, call))
        if handle is None:
            handle = self._handles[which, micro_batch, call] = self._agent.intern(
                self._name, self._kinds[which], "", micro_batch, call, "train", **self._module
            )
        if type(tensor) in self._recorder.plain_types:
            self._agent.observe_at(self._places[which], handle, tensor)
        else:
            self._agent.observe_handle(handle, tensor)


class _Gradient:
    """Tensor hook that records the first gradient. Further backward passes through the same graph are ignored."""

    __slots__ = ("_call", "_fired", "_micro_batch", "_probe", "_step_epoch")

    def __init__(self, probe: Probe, micro_batch: int, call: int) -> None:
        self._probe, self._micro_batch, self._call, self._fired = probe, micro_batch, call, False
        self._step_epoch = probe._recorder.step_epoch

    def __call__(self, gradient: Any) -> None:
        if not self._fired:
            self._fired = True
            self._probe.see_gradient(gradient, self._step_epoch, self._micro_batch, self._call)


def _torch() -> Any:
    return sys.modules["torch"]


@atexit.register
def _end_last_steps() -> None:
    for recorder in list(_recorders):
        recorder.end_last_step()
