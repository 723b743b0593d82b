"""Hooks of a watched model's modules: what goes in and comes out, and the gradients of both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any

from .._compile import tracing
from .._native import host
from .._native.tensors import Place
from .._torch.autograd import GradientHook, current_node, gradients_follow, hook_result, in_backward
from .._torch.modules import INERT_COPY, Named
from ..flatten import flatten
from .passes import DECIDE, EVAL, SKIP, TRAIN, Passes


class _Recomputation:
    """The calls of a module that one reentrant checkpoint recomputes. Checkpoints are recomputed from the last to the first, but the calls
    in one of them in the order in which they ran. How many these are is known when its gradients arrive."""

    def __init__(self, unhooked: list[tuple[int, int]], node: int) -> None:
        self._unhooked, self.node = unhooked, node
        self._calls: list[tuple[int, int]] | None = None
        self._count = 0

    @property
    def open(self) -> bool:
        """Whether it may go on."""
        return self._calls is None

    def next_call(self) -> int:
        self._count += 1
        return self._count - 1

    def close(self) -> None:
        if self._calls is None:
            begin = max(0, len(self._unhooked) - self._count)
            self._calls = self._unhooked[begin:]
            del self._unhooked[begin:]

    def call(self, index: int) -> tuple[int, int] | None:
        """The micro-batch and call that the recomputed call stands for."""
        self.close()
        calls = self._calls or []
        return calls[index] if index < len(calls) else None


class _ModuleHook(host.HookCells):
    """Records the inputs or outputs of one module, and their gradients."""

    def __init__(self, passes: Passes, named: Named, kind: str, values: bool, gradients: bool, note_known: bool = False) -> None:
        self._passes, self._agent, self._clock, self._named = passes, passes.agent, passes.clock, named
        self._kind, self._values, self._gradients = kind, values, gradients
        self._tensor_type, self._grad_enabled = passes.tensor_type, sys.modules["torch"].is_grad_enabled
        self._known = passes.agent.watches.known if note_known else None
        self._epoch = self._eval_epoch = -1
        self._calls = self._eval_calls = 0
        # (path, micro-batch, call, state) -> handles of the value and of its gradient; -1: not recorded.
        self._handles: dict[tuple[str, int, int, int], tuple[int, int]] = {}
        # path -> places of the value and of its gradient; "0" is the path of a bare tensor.
        self._places: dict[str, tuple[Place, Place]] = {"0": (Place(), Place())}
        self._value_place, self._gradient_place = self._places["0"]
        # Calls without gradients in a training pass: reentrant checkpoints recompute them, the last checkpoint first.
        self._unhooked: list[tuple[int, int]] = []
        self._again: _Recomputation | None = None
        self._reported_empty = False
        self.key = tracing.compiled.Key(recorder=self)
        self._key = self.key.tensor

    def __reduce__(self) -> Any:
        return INERT_COPY

    def _see(self, state: int, module: Any, value: Any) -> None:
        begun = perf_counter_ns()
        try:
            if tracing.exporting():
                return
            recomputing = in_backward()
            if state == DECIDE and not recomputing:
                state = self._passes.decide(module, gradients_follow())
                if state == SKIP:
                    return
                if state == TRAIN and self._kind == "output":
                    self._passes.expect_backward(value)
            found = [("0", value)] if isinstance(value, self._tensor_type) else flatten(value)
            if not found and not self._reported_empty:
                self._report_empty(value)
            if recomputing:
                self._hook_recomputed(found)
            elif state == TRAIN:
                self._record(found, self._passes.micro_batch, self._next_call(), state)
            else:
                self._record(found, self._passes.eval_micro_batch, self._next_eval_call(), state)
            if self._passes.steps != self._clock.steps_ending:
                self._passes.straddled = True
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)
        finally:
            self._clock.note_spent(begun)

    def _report_empty(self, value: Any) -> None:
        self._reported_empty = True
        if self._kind == "output":
            self._agent.report_not_recorded(
                self._named.name, self._kind,
                f"found {_describe(value)}; expected a tensor, or sequences, mappings or dataclasses with some; "
                "pass the tensors that matter to statagent.inspect()",
            )  # fmt: skip

    def _next_call(self) -> int:
        if self._epoch != self._passes.epoch:
            self._epoch, self._calls = self._passes.epoch, 0
            self._unhooked, self._again = [], None
        self._calls += 1
        return self._calls - 1

    def _next_eval_call(self) -> int:
        if self._eval_epoch != self._passes.step_epoch:
            self._eval_epoch, self._eval_calls = self._passes.step_epoch, 0
        self._eval_calls += 1
        return self._eval_calls - 1

    def _record(self, found: list[tuple[str, Any]], micro_batch: int, call: int, state: int) -> None:
        hooking = self._gradients and state == TRAIN
        if hooking and not self._grad_enabled():
            hooking = False
            self._unhooked.append((micro_batch, call))
        for path, tensor in found:
            key = (path, micro_batch, call, state)
            handle, gradient_handle = self._handles.get(key) or self._intern(*key)
            place, gradient_place = self._places_of(path)
            if self._values:
                if type(tensor) is self._tensor_type:
                    self._agent.observe_at(place, handle, tensor)
                    if self._known is not None:
                        self._known.note(tensor)
                else:
                    self._agent.observe_handle(handle, tensor)
            if hooking and tensor.requires_grad:
                self._passes.hook_gradient(tensor, _gradient_of(self._passes, gradient_place, gradient_handle))

    def _hook_recomputed(self, found: list[tuple[str, Any]]) -> None:
        """A checkpoint recomputes the module. If gradients flow through the new tensors (reentrant checkpoints), they belong to a call
        without gradients."""
        if not (self._unhooked or self._again) or self._epoch != self._passes.epoch or not self._grad_enabled():
            return
        node = current_node()
        if self._again is None or not self._again.open or self._again.node != node:
            if self._again is not None:
                self._again.close()
            self._again = _Recomputation(self._unhooked, node)
        call = self._again.next_call()
        for path, tensor in found:
            if tensor.requires_grad:
                self._passes.hook_gradient(tensor, GradientHook(partial(self._see_recomputed, self._again, call, path)))

    def _see_recomputed(self, again: _Recomputation, call: int, path: str, gradient: Any) -> None:
        of = again.call(call)
        if of is not None:
            self._gradient_hook(path, (path, *of, TRAIN))(gradient)

    def _places_of(self, path: str) -> tuple[Place, Place]:
        return self._places.get(path) or self._places.setdefault(path, (Place(), Place()))

    def _gradient_hook(self, path: str, key: tuple[str, int, int, int]) -> Any:
        handle = (self._handles.get(key) or self._intern(*key))[1]
        return _gradient_of(self._passes, self._places_of(path)[1], handle)

    # --- a Recorder, for calls inside of compiled graphs; a call is (micro-batch, call index, state)

    def active(self) -> bool:
        self._passes.in_graph = True
        return self._passes.state != SKIP

    def begin(self, paths: list[str], grad_enabled: bool) -> tuple[int, int, int] | None:
        state = self._passes.state
        if state == DECIDE:
            state = self._passes.decide(self._named.value, grad_enabled)
        if state == SKIP:
            return None
        if state != TRAIN:
            return self._passes.eval_micro_batch, self._next_eval_call(), state
        micro_batch, call = self._passes.micro_batch, self._next_call()
        if self._gradients and not grad_enabled:
            self._unhooked.append((micro_batch, call))
        return micro_batch, call, state

    def value(self, call: tuple[int, int, int], path: str, tensor: Any) -> None:
        begun = perf_counter_ns()
        key = (path, *call)
        handle = (self._handles.get(key) or self._intern(*key))[0]
        self._agent.observe_at(self._places_of(path)[0], handle, tensor)
        if self._passes.steps != self._clock.steps_ending:
            self._passes.straddled = True
        self._clock.note_spent(begun)

    def gradient(self, call: tuple[int, int, int], path: str, gradient: Any) -> None:
        if call[2] == TRAIN:
            self._gradient_hook(path, (path, *call))(gradient)

    def unhooked(self) -> tuple[int, int, int] | None:
        if not self._unhooked or self._epoch != self._passes.epoch:
            return None
        return (*self._unhooked.pop(), TRAIN)

    def epoch(self) -> int:
        return self._passes.step_epoch

    def refuse(self, message: str) -> None:
        self._agent.refuse(message, self._named.name, self._kind)

    def _pair(self, micro_batch: int, call: int) -> tuple[int, int]:
        """Handles of a bare tensor in training."""
        key = ("0", micro_batch, call, TRAIN)
        return self._handles.get(key) or self._intern(*key)

    def _intern(self, path: str, micro_batch: int, call: int, state: int) -> tuple[int, int]:
        def handle(wanted: bool, kind: str) -> int:
            if not wanted:
                return -1
            named, mode = self._named, "eval" if state == EVAL else "train"
            return self._agent.intern(
                named.name, kind, path, micro_batch, call, mode, named.parent, named.class_name, named.depth
            )

        gradients = self._gradients and state == TRAIN
        made = handle(self._values, self._kind), handle(gradients, f"grad_{self._kind}")
        self._handles[(path, micro_batch, call, state)] = made
        return made


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Iterator):
        return f"a {type(value).__name__}, which iteration would use up"
    return f"a {type(value).__name__} without tensors"


class _GradientOf:
    """Tensor hook that records the first gradient. Further backward passes through the same graph are ignored, and so is an output that has no
    gradient where another output of the same node has one (a compiled graph that returns logits and loss): torch then says None."""

    __slots__ = ("_fired", "_handle", "_passes", "_place")

    def __init__(self, passes: Passes, place: Place, handle: int) -> None:
        self._passes, self._place, self._handle, self._fired = passes, place, handle, False

    def __call__(self, gradient: Any) -> None:
        if self._fired or gradient is None:
            return
        self._fired = True
        passes = self._passes
        passes.note_gradient()
        if passes.resting:
            meter = passes.clock.meter
            begun = 0 if meter is None else perf_counter_ns()
            if type(gradient) is passes.tensor_type:
                passes.agent.observe_at(self._place, self._handle, gradient)
            else:
                passes.agent.observe_handle(self._handle, gradient)
            if passes.steps != passes.clock.steps_ending:
                passes.straddled = True
            if meter is not None:
                meter.spent += perf_counter_ns() - begun


_gradient_of: Any = host.GradientOf or _GradientOf


class OutputHook(_ModuleHook):
    """After a module's forward pass."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        if tracing.active():
            tracing.compiled.trace(self._key, output, args, self._values, self._gradients)
            return
        try:
            if self._record_plain(output):
                return
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)
            return
        passes = self._passes
        state = passes.state
        if state != TRAIN or type(output) is not self._tensor_type or in_backward():
            if state:
                self._see(state, module, output)
            elif passes.uncounted:
                self._count(module, output)
            elif self._clock.between_steps:
                passes.note_pass(module, self._grad_enabled())
            return
        # The same as _see, for the most frequent case, with fewer calls.
        meter = self._clock.meter
        begun = 0 if meter is None else perf_counter_ns()
        try:
            call, micro_batch = self._next_call(), passes.micro_batch
            key = ("0", micro_batch, call, TRAIN)
            handle, gradient_handle = self._handles.get(key) or self._intern(*key)
            if self._values:
                self._agent.observe_at(self._value_place, handle, output)
                if self._known is not None:
                    self._known.note(output)
            if self._gradients:
                if not self._grad_enabled():
                    self._unhooked.append((micro_batch, call))
                elif output.requires_grad:
                    hook = _gradient_of(passes, self._gradient_place, gradient_handle)
                    if output.grad_fn is None:
                        passes.hook_gradient(output, hook)
                    else:
                        hook_result(output, hook)
            if passes.steps != passes.clock.steps_ending:
                passes.straddled = True
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)
        if meter is not None:
            meter.spent += perf_counter_ns() - begun

    def _count(self, module: Any, output: Any) -> None:
        begun = perf_counter_ns()
        try:
            self._passes.note_uncounted(module, output)
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)
        self._clock.note_spent(begun)


class InputHook(_ModuleHook):
    """Before a module's forward pass. Paths of positional arguments are "0", "1", ...; others go by name."""

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        if tracing.active():
            inputs = {**{str(i): value for i, value in enumerate(args)}, **kwargs}
            tracing.compiled.trace(self._key, inputs, inputs, self._values, self._gradients)
            return
        state = self._passes.state
        if state:
            self._see(state, module, {**{str(i): value for i, value in enumerate(args)}, **kwargs})


class BetweenHook(_ModuleHook):
    """Before a module's forward pass: records positional arguments that no watched module has returned."""

    def __init__(self, passes: Passes, named: Named, is_root: bool) -> None:
        super().__init__(passes, named, "input", True, False)
        self._is_root, self._all = is_root, self._agent.watches.known

    def __call__(self, module: Any, args: Any) -> None:
        if tracing.active():
            return
        state = self._passes.state
        if not state or in_backward():
            return
        begun = perf_counter_ns()
        try:
            if tracing.exporting():
                return
            if state == DECIDE:
                state = self._passes.decide(module, gradients_follow())
                if state == SKIP:
                    return
            training = state == TRAIN
            call = self._next_call() if training else self._next_eval_call()
            at = self._passes.micro_batch if training else self._passes.eval_micro_batch
            for index, tensor in enumerate(args):
                if type(tensor) is self._tensor_type and not self._all.holds(tensor):
                    self._see_unknown(tensor, str(index), at, call, state)
            if self._passes.steps != self._clock.steps_ending:
                self._passes.straddled = True
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)
        finally:
            self._clock.note_spent(begun)

    def _see_unknown(self, tensor: Any, path: str, micro_batch: int, call: int, state: int) -> None:
        if not tensor.data_ptr():
            return
        self._all.note(tensor)
        if self._is_root and not tensor.requires_grad:
            return  # recorded as batch
        if (self._named.name, "input") in self._agent.watches.claims:
            return  # another watch records all inputs
        key = (path, micro_batch, call, state)
        handle = (self._handles.get(key) or self._intern(*key))[0]
        self._agent.observe_at(self._places_of(path)[0], handle, tensor)
