"""The agent: what hooks and users hand over, on its way to the library. Nothing here raises into a training step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from typing import Any, TypeVar

from .. import errors
from .._layouts.placement import Placement
from .._native.arguments import milliseconds, number_of, whole_number
from .._native.host import AgentCells, observe_each
from .._native.library import last_error
from .._native.placement import placement_of, put
from .._native.session import Session
from .._native.tensors import BUFFERS, Place, borrow, give_back
from .._torch.autograd import GradientHook, in_backward
from ..errors import InvalidArgumentError
from ..flatten import flatten
from . import failures, process
from .callbacks import weakly
from .deferred import Deferred, on_gpu
from .forking import make_locks_of
from .log import warn, warn_once
from .messages import Messages
from .refusals import Refusals
from .step_clock import StepClock
from .stopping import Stopping
from .thinning import Thinning, outside_of
from .watches import Watches

T = TypeVar("T")
_OWN_ERRORS = frozenset(name for name in errors.__dict__ if name.endswith("Error"))


class Agent(AgentCells):
    """Statistics of this process's tensors on their way to the collector. Made by `init`.

    Only `set_step`, `flush` and `close` raise, and only for wrong arguments. Whatever goes wrong in a training step is counted as
    `dropped_refused`, reported on standard error at most once a minute, and sent as an event `not_recorded`, once for each name and
    reason. Methods may be called from any thread."""

    def __init__(self, session: Session | None, place: tuple[int, int] | None = None) -> None:
        """`session`: None for an agent that records nothing: STATAGENT_DISABLE, or a rank that `ranks` of `init` leaves out, whose rank
        and world size are then its `place`."""
        make_locks_of(self)
        self.session = session
        self._place = place
        self.clock = StepClock(session)
        self.watches = Watches()
        # The library's most frequent function, called without a layer between; for small tensors, and for all others. Public: benchmarks
        # wrap them to measure them.
        self.native_observe: Any = None if session is None else session.library.statagent_observe_held
        self.native_observe_large: Any = None if session is None else session.library.statagent_observe
        self._address = 0 if session is None else session.pointer
        self._pointer = c_void_p(self._address)
        self._handles: dict[tuple[Any, ...], int] = {}
        self._identities: dict[int, tuple[str, str, str, int]] = {}  # handle -> name, kind, path and micro-batch
        self._leaf_hooks: list[Any] = []  # of this step
        self._refusals = Refusals(weakly(self.log_event))
        self.deferred = Deferred(weakly(self.refuse))  # values that are being copied from a GPU
        # The program.
        self.run = ""  # the run's name
        self.settings: dict[str, str] = {}  # the run's configuration as sent
        self.user_settings: frozenset[str] = frozenset()  # keys of it that the user has set
        self.automatic = False  # begun without a call of the program (statctl run)
        self.known_elsewhere: set[int] = set()  # ids of parameters that other watches have, or will have
        self.setup_failed = False  # the last `watch` has raised
        self.messages = Messages(session is not None and (session.recording_rank() or (1, 0))[0] == 0)
        # The end.
        self.stopping = Stopping()
        self.closing = False  # close() has been called
        self._closed = session is None
        self._failed = False  # the process ends with an uncaught exception
        if session is not None:
            self._step_changed()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()

    def keep_to_budget(self, budget: float) -> None:
        """Thins out full statistics so that recording takes at most this share of the training's time. Call it before any step has ended."""
        if self.session is None:
            return
        self.clock.keep_to_budget(Thinning(budget, outside_of(self.session, self.log_event, self.add_config)))

    # --- tensors -----------------------------------------------------------------------------------------------------------

    def intern(
        self, name: str, kind: str, path: str = "", micro_batch: int = 0, call: int = 0, mode: str = "train",
        parent: str = "", class_name: str = "", depth: int = -1,
    ) -> int:  # fmt: skip
        """The library's number for an identity. Raises StatagentError."""
        key = (name, kind, path, micro_batch, call, mode)
        handle = self._handles.get(key)
        if handle is None:
            assert self.session is not None
            handle = self.session.intern(name, kind, path, micro_batch, call, mode, parent, class_name, depth)
            self._handles[key], self._identities[handle] = handle, (name, kind, path, micro_batch)
        return handle

    def observe_handle(self, handle: int, tensor: Any, placement: Placement | None = None) -> None:
        """Records the tensor's statistics under an interned identity. `placement` overrides what is known. Never raises."""
        try:
            borrowed = borrow(tensor)
            if placement is not None:
                put(borrowed[0], placement, again=False)
            elif self.watches.placing is not None:
                self.watches.placing.put(borrowed[0], handle, self._identities[handle], tensor)
            code = self._observe_structure(handle, borrowed[0])
            give_back(borrowed)
            if code:
                self._refuse_handle(handle, last_error())
        except Exception as error:
            self._refuse_handle(handle, str(error))

    def _observe_structure(self, handle: int, structure: Any) -> int:
        if structure.held:
            return self.native_observe(self._pointer, handle, structure.address, None)
        return self.native_observe_large(self._pointer, handle, structure.address, structure.stream)

    def observe_at(self, place: Place, handle: int, tensor: Any) -> None:
        """As observe_handle, for tensors that have the same layout in every step: the place keeps what depends on the layout. Never
        raises. Precondition: type(tensor) is one of plain_tensor_types()."""
        try:
            if place.observe(self, handle, tensor):
                return
            structure = place.borrow(tensor)
            if structure is None:
                borrowed = borrow(tensor)
                if self.watches.placing is not None:
                    self.watches.placing.put(borrowed[0], handle, self._identities[handle], tensor)
                code = self._observe_structure(handle, borrowed[0])
                place.learn(tensor, borrowed)
            else:
                placing = self.watches.placing
                if placing is not None and placing.layouts.by_micro_batch:  # it may have changed since the last tensor
                    placing.put(structure, handle, self._identities[handle], tensor)
                if structure.held:  # as _observe_structure, without its cost
                    code = self.native_observe(self._pointer, handle, structure.address, None)
                else:
                    code = self.native_observe_large(self._pointer, handle, structure.address, structure.stream)
                place.structure = structure
            if code:
                self._refuse_handle(handle, last_error())
        except Exception as error:
            self._refuse_handle(handle, str(error))

    def observe_each(self, items: list[tuple[int, Place, Any]]) -> None:
        """As observe_at for each (handle, place, tensor), which may be faster. Never raises."""
        try:
            observe_each(self, items)
        except Exception as error:
            self.refuse(str(error))

    def observe_list(self, items: Sequence[tuple[int, Place, Any]]) -> None:
        """As observe_at for each (handle, place, tensor), with one call of the library for each CUDA stream: small tensors on a GPU
        then share kernel launches. Precondition: that of observe_at, and each place occurs once. Never raises."""
        by_stream: dict[int | None, list[tuple[int, Place, Any]]] = {}  # the tensor is replaced by what was borrowed
        for handle, place, tensor in items:
            try:
                structure, borrowed = place.borrow(tensor), None
                if structure is None:
                    borrowed = borrow(tensor)
                    structure = borrowed[0]
                    if self.watches.placing is not None:
                        self.watches.placing.put(structure, handle, self._identities[handle], tensor)
                by_stream.setdefault(structure.stream, []).append((handle, place, (structure, borrowed, tensor)))
            except Exception as error:
                self._refuse_handle(handle, str(error))
        for stream, borrowed_items in by_stream.items():
            try:
                self._observe_borrowed(stream, borrowed_items)
            except Exception as error:
                self.refuse(str(error))

    def _observe_borrowed(self, stream: int | None, items: list[tuple[int, Place, Any]]) -> None:
        assert self.session is not None
        handles, structures = [handle for handle, _, _ in items], [found[0] for _, _, found in items]
        code, refused = self.session.observe_list(handles, structures, stream)
        message = last_error() if code else ""
        for _, place, (structure, borrowed, tensor) in items:
            if borrowed is None:
                place.structure = structure
            else:
                place.learn(tensor, borrowed)
        if code:
            self.refuse(message)
            for _ in range(refused - 1):
                self._count_refused(message)

    def observe(
        self, name: str, tensor: Any, kind: str = "inspect", path: str = "", micro_batch: int | None = None, *, global_shape: Any = None,
        offset: Any = None, boxes: Any = None, flat: Any = None, partial: bool = False,
    ) -> None:  # fmt: skip
        """Records one tensor under a name. Its call index counts from 0 in each micro-batch. Never raises.

        global_shape, with offset, boxes or flat as for `compute`: where the tensor lies in the logical tensor that several ranks hold
        together; global_shape alone: it is the whole, and other ranks hold replicas. partial: a sum that is still to be reduced."""
        if self._closed:
            return
        self.clock.begin_step()
        if not (self.clock.wanted or (self.clock.inputs_wanted and kind == "batch")):
            return
        try:
            placement = placement_of(f"observe '{name}'", tensor, global_shape, offset, boxes, flat, partial)
        except Exception as error:
            self.refuse(str(error), str(name), kind)
            return
        self._observe_named(name, tensor, kind, path, micro_batch, placement)

    def _observe_named(
        self, name: str, tensor: Any, kind: str, path: str, micro_batch: int | None, placement: Placement | None
    ) -> None:
        with self.clock.gate.recording():  # no other thread ends the step between the numbering and the record
            try:
                at = self.clock.micro_batch if micro_batch is None else micro_batch
                handle = self.intern(name, kind, path, at, self.clock.next_call(name, kind, path, at))
            except Exception as error:
                self.refuse(str(error), str(name), kind)
                return
            self.observe_handle(handle, tensor, placement)

    def inspect(self, name: str, tensor: T) -> T:
        """Records a named intermediate tensor and its gradient; returns the tensor itself. Never raises."""
        if self._closed or self.clock.muted:
            return tensor
        self.clock.begin_step()
        if not self.clock.wanted:
            return tensor
        begun = time.perf_counter_ns()
        try:
            if in_backward():  # an activation checkpoint computes the tensor a second time
                return tensor
            if getattr(tensor, "requires_grad", False):
                self._inspect_with_gradient(name, tensor)
            else:
                self._observe_named(name, tensor, "inspect", "", None, None)
        except Exception as error:
            self.refuse(str(error), str(name), "inspect")
        self.clock.note_spent(begun)
        return tensor

    def _inspect_with_gradient(self, name: str, tensor: Any) -> None:
        with self.clock.gate.recording():
            at = self.clock.micro_batch
            call = self.clock.next_call(name, "inspect", "", at)
            self.observe_handle(self.intern(name, "inspect", "", at, call), tensor)
            step = self.current_step()
        removable = tensor.register_hook(GradientHook(lambda gradient: self._gradient(name, at, call, step, gradient)))
        if tensor.is_leaf:  # its hooks live as long as the leaf, not as long as a graph
            self._leaf_hooks.append(removable)

    def _gradient(self, name: str, micro_batch: int, call: int, step: int, gradient: Any) -> None:
        """`step`: in which the tensor was recorded. A gradient of an earlier one takes a call index of the step that it comes in."""
        if self._closed:
            return
        begun = time.perf_counter_ns()
        with self.clock.gate.recording():
            try:
                if self.current_step() != step:
                    call = self.clock.next_call(name, "inspect", "", micro_batch)
                self.observe_handle(self.intern(name, "inspect_grad", "", micro_batch, call), gradient)
            except Exception as error:
                self.refuse(str(error), name, "inspect_grad")
        self.clock.note_spent(begun)

    def log_batch(self, **tensors: Any) -> None:
        """Records fingerprints of a batch's inputs: tensors, arrays, or nested values that contain some. Never raises."""
        if self._closed or self.stopping.due:
            return
        self.clock.begin_step()
        if not self.clock.inputs_wanted:
            return
        begun = time.perf_counter_ns()
        at = self.clock.begin_batch()
        for name, value in tensors.items():
            try:
                if value is not None:
                    self._log_input(name, value, at)
            except Exception as error:
                self.refuse(str(error), name, "batch")
        self.clock.note_spent(begun)

    def _log_input(self, name: str, value: Any, micro_batch: int) -> None:
        found = flatten(value, _is_array)
        bare = len(found) == 1 and found[0][1] is value
        if not found:
            raise InvalidArgumentError(
                f"log batch '{name}': found a {type(value).__name__} without tensors; expected tensors or arrays"
            )
        for path, tensor in found:
            for listener in self.clock.batch_listeners:
                listener(name if bare else f"{name}.{path}", tensor)
            self.observe(name, tensor, "batch", "" if bare else path, micro_batch)

    # --- other records -----------------------------------------------------------------------------------------------------

    def log_scalar(self, name: str, value: Any, micro_batch: int | None = None) -> None:
        """Records a number, or a tensor with one element. A tensor on a GPU is logged once its value has been copied; nothing waits for it.

        After the update of a watched optimizer a scalar belongs to the step that the update ended, until the next step begins. Never
        raises."""
        if self._closed:
            return
        at = self.clock.scalars_micro_batch
        late = self.clock.late_step(f"{name}", at if micro_batch is None else micro_batch)
        if late is None:
            if self.stopping.due:
                return
            at = self.clock.micro_batch
        self.log_number(name, value, at if micro_batch is None else micro_batch, late)

    def log_number(self, name: str, value: Any, micro_batch: int, step: int | None = None) -> None:
        """As log_scalar, for a step that may be over; None: the current one. Never raises."""
        if self._closed:
            return
        what = f"log scalar '{name}'"
        try:
            if not 0 <= micro_batch < 2**32:
                raise InvalidArgumentError(f"{what}: micro_batch is {micro_batch}; expected 0..{2**32 - 1}")
            if on_gpu(value) and value.numel() == 1:
                at = self.current_step() if step is None else step
                self.deferred.add(what, value, lambda there: self.log_scalar_at(name, number_of(what, there), micro_batch, at))
                return
            number = number_of(what, value)
            if step is not None:
                self.log_scalar_at(name, number, micro_batch, step)
                return
            assert self.session is not None
            self.session.log_scalar(name, number, micro_batch)
        except Exception as error:
            self.refuse(str(error), str(name), "scalar")

    def log_scalar_at(self, name: str, value: float, micro_batch: int, step: int) -> None:
        """A scalar that becomes known late, of a step that may be over. Never raises."""
        self._report(lambda session: session.log_scalar_at(name, value, micro_batch, step))

    def log_event(self, kind: str, text: str, fields: Mapping[str, str] | None = None, step: int | None = None) -> None:
        """Something that happened in a step (None: the current one): one sentence, and fields for programs. Never raises."""

        def log(session: Session) -> None:
            at = self.current_step() if step is None else step
            session.log_event(kind, text, {str(name): str(value) for name, value in (fields or {}).items()}, at)

        self._report(log)

    def note_exception(self, text: str, fields: Mapping[str, str], ends_process: bool) -> None:
        """Records an uncaught exception. One that ends the process leaves the run interrupted. Never raises."""
        if ends_process and self._is_unused() and fields.get("type") in _OWN_ERRORS:
            return  # a misspelled argument is no run
        self._failed = self._failed or ends_process
        self.log_event(failures.KIND, text, fields)

    def _is_unused(self) -> bool:
        """Whether the program's set-up has failed and nothing was recorded."""
        return self.setup_failed and self.session is not None and self.session.counters().produced == 0

    def add_config(self, settings: Mapping[str, str]) -> None:
        """Flattened configuration that was not known at `init`. A later value of a key replaces an earlier one. Never raises."""
        self._report(lambda session: session.add_config(settings))

    def log_memory(self, phase: str, quantities: Mapping[str, int], device: str, module: str = "") -> None:
        """Memory at this moment, in bytes; names of phases and quantities: PHASES and QUANTITIES of the library. Never raises."""
        self._report(lambda session: session.log_memory(phase, quantities, device, module, self.clock.micro_batch))

    def log_density(
        self, name: str, kind: str, pad_index: int, valid: int, total: int, per_sample: Sequence[int], micro_batch: int, step: int
    ) -> None:
        """How many of an input's elements are not padding, in a step that may be over; kind: "embed" or "label". Never raises."""
        self._report(lambda session: session.log_density(name, kind, pad_index, valid, total, per_sample, micro_batch, step))

    def record_rows(
        self, tap: str, rows: Any, keys: Any, positions: Any, *, step: int | None = None, call: int = 0, first_column: int = 0,
        index: Any = None,
    ) -> None:  # fmt: skip
        """Records what a tap had for some tokens: of each row its l2, hash and sketch. Never raises, and does not wait for a GPU.

        tap: the module's path, or "logprob" for log-probabilities of the next token, of one column. rows: a matrix with a row for each
        token. keys: of `token_keys`. positions: of the tokens in their sequences. step: the current or an earlier one; default: the
        current one, if it is recorded. call: the n-th call of the tap in the step. first_column: the rows are parts of longer ones,
        from this column on, as in tensor-parallel ranks. index: the rows that are meant, one for each token; default: all, in order."""
        if self._closed or (step is None and not self.clock.wanted):
            return
        assert self.session is not None
        try:
            self.session.record_rows(tap, rows, keys, positions, step, call, first_column, index)
        except Exception as error:
            self.refuse(str(error), str(tap), "tokens")

    def _report(self, call: Callable[[Session], None]) -> None:
        """Calls the library unless the agent is closed. What the library refuses is counted."""
        if self._closed or self.session is None:
            return
        try:
            call(self.session)
        except Exception as error:
            self._count_refused(str(error))

    # --- steps -------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Ends the current step. With a watched optimizer this does nothing, because the update ends the step, unless the update is part
        of a CUDA graph: replays call no hooks, so call this after each replay. Never raises."""
        if self._closed:
            return
        if self.clock.optimizers.counts and not self.clock.optimizers.replayed:
            warn_once("step", "step(): a watched optimizer ends the step already; this call is ignored")
            return
        self.end_step()

    def end_step(self, by_optimizer: bool = False) -> None:
        """Ends the current step. `by_optimizer`: an update ended it, so that scalars logged next still belong to it. Never raises."""
        if self._closed:
            return
        assert self.session is not None
        try:
            begun = time.perf_counter_ns()
            if self.messages.waiting:
                self.messages.begin(self.run)
            self.deferred.collect()
            for listener in self.clock.ending_listeners:
                listener()
            self.session.name_replay_streams()
            self.clock.before_end(begun)
            with self.clock.changing():
                self.session.end_step()
            self.stopping.step_ended()
            self._step_changed(by_optimizer)
        except Exception as error:
            self.refuse(str(error))
        finally:
            self.clock.optimizers.step_is_over()

    def set_step(self, step: int) -> None:
        """Jumps forward to a step: call it after `init` when resuming from a checkpoint. Raises InvalidArgumentError for a step before
        the current one."""
        number = whole_number("set_step: step", step)
        if self._closed:
            return
        assert self.session is not None
        self.session.name_replay_streams()
        with self.clock.changing():
            self.session.set_step(number)
        self._step_changed()

    def _step_changed(self, by_optimizer: bool = False) -> None:
        self.watches.known.clear()
        self._remove_leaf_hooks()
        self.clock.step_changed(by_optimizer)

    def _remove_leaf_hooks(self) -> None:
        for removable in self._leaf_hooks:
            removable.remove()
        self._leaf_hooks.clear()

    def current_step(self) -> int:
        return self.clock.current_step()

    @property
    def steps_ended(self) -> int:
        """How many steps have ended."""
        return self.clock.steps_ended

    @property
    def micro_batch(self) -> int:
        """Of this thread's pass; in a thread that runs no watched model, that of the pass that began last."""
        return self.clock.micro_batch

    # --- flush, close, counters --------------------------------------------------------------------------------------------

    def _about_to_flush(self, timeout_ms: int) -> int:
        """Records what was postponed; returns how many of the milliseconds that took."""
        started = time.monotonic()
        for listener in self.clock.flush_listeners:
            try:
                listener()
            except Exception as error:
                self.refuse(str(error))
        self.deferred.drain(timeout_ms / 1000)
        return min(timeout_ms, round((time.monotonic() - started) * 1000))

    def flush(self, timeout: float = 5.0) -> bool:
        """Waits at most `timeout` seconds until everything so far is durable in the collector; False if something is still pending.
        Raises InvalidArgumentError for a timeout that is not a number from 0."""
        remaining_ms = milliseconds("flush: timeout", timeout)
        if self._closed:
            return True
        assert self.session is not None
        remaining_ms -= self._about_to_flush(remaining_ms)
        self.session.name_replay_streams()
        return self.session.flush(remaining_ms)

    def close(self, timeout: float = process.EXIT_SECONDS) -> bool:
        """Flushes for at most `timeout` seconds, removes all watches, and ends; whether everything was delivered. What is still pending then
        stays in the spill file, or counts as dropped if there is none. Hooks in compiled graphs are removed by the next `init`. Later
        calls do nothing. Raises InvalidArgumentError for a timeout that is not a number from 0."""
        remaining_ms = milliseconds("close: timeout", timeout)
        if not self._closed:
            assert self.session is not None
            self.closing = True
            remaining_ms -= self._about_to_flush(remaining_ms)
            self.deferred.drop()
            self.session.name_replay_streams()
        with self._lock:
            self.closing = True
            if self._closed:
                return True
            self._closed = True
            self.clock.stop()
        assert self.session is not None
        self.watches.stop()
        for listener in self.clock.step_listeners:
            listener()
        delivered = self.session.close(remaining_ms, self._failed, self.setup_failed)
        self.watches.remove()
        self._remove_leaf_hooks()
        self.messages.end(self.run, self.stopping.steps, self.counters())
        return delivered

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether it records nothing, from the start: every call does nothing."""
        return self.session is None

    @property
    def running(self) -> bool:
        """Whether `close` has not been called."""
        return not (self.closing if self.idle else self._closed)

    def counters(self) -> dict[str, int]:
        """Records so far: {"produced", "acked", "pending", "dropped_<cause>"...}. At every moment, also after `close`, produced ==
        acked + pending + all dropped. "spilled", if present, is how many of the pending ones are in the spill file."""
        counts = {"produced": 0, "acked": 0, "pending": 0}
        if self.session is None:
            return counts
        found, refused = self.session.counters(), self._refusals.count
        counts.update(produced=found.produced + refused, acked=found.acked, pending=found.pending)
        counts.update((f"dropped_{cause}", count) for cause, count in found.dropped.items())
        if found.spilled:
            counts["spilled"] = found.spilled
        if refused:
            counts["dropped_refused"] = counts.get("dropped_refused", 0) + refused
        return counts

    def rank(self) -> int:
        """This process's global rank."""
        if self.session is not None:
            return self.session.rank()
        return process.environment_rank() if self._place is None else self._place[0]

    def world_size(self) -> int:
        if self.session is not None:
            return self.session.world_size()
        return 1 if self._place is None else self._place[1]

    # --- refusals ----------------------------------------------------------------------------------------------------------

    def refuse(self, message: str, name: str = "", kind: str = "") -> None:
        """Counts a record that could not be made, and reports the reason, also as an event. Never raises."""
        self._count_refused(message)
        self.report_not_recorded(name, kind, message or "unknown reason")

    def _count_refused(self, message: str) -> None:
        total = self._refusals.add()
        warn("refused", f"not recorded: {message or 'unknown reason'} ({total} refused so far; training continues)")

    def report_not_recorded(self, name: str, kind: str, reason: str) -> None:
        """Sends an event `not_recorded`, once for each name and reason and a limited number of times; counts nothing. Never raises."""
        self._refusals.report(name, kind, reason)

    def _refuse_handle(self, handle: int, message: str) -> None:
        self.refuse(message, *self._identities.get(handle, ("", "", "", 0))[:2])

    def _refuse_last(self, handle: int) -> None:
        self._refuse_handle(handle, last_error())


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__") or isinstance(value, BUFFERS)
