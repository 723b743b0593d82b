"""The agent of this process: `init` starts it, the functions of this module feed it."""

from __future__ import annotations

import atexit
import ctypes
import math
import numbers
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from . import _configuration, _environment, _failures, _library, _tracing, _variables
from ._autograd import GradientHook, in_backward
from ._between import KnownTensors
from ._deferred import Deferred, on_gpu
from ._library import KINDS, MODES
from ._log import warn, warn_once
from ._refusals import Refusals
from ._tensors import Place, borrow, cuda_stream, give_back
from .errors import InvalidArgumentError, StatagentError
from .flatten import flatten

T = TypeVar("T")

EXIT_SECONDS = 2.0
_TIMEOUT_MAX_SECONDS = 86400.0
_INT64_MAX = 2**63 - 1
_TRUE = ("1", "true", "yes", "on", "True", "TRUE")


def disabled() -> bool:
    """Whether STATAGENT_DISABLE makes everything a no-op."""
    return os.environ.get("STATAGENT_DISABLE", "") in _TRUE


class Agent:
    """Statistics of this process's tensors on their way to the collector. Made by `init`.

    Nothing but `close`d state and wrong arguments of `set_step` raise here: what goes wrong in a training step is counted as
    `dropped_refused`, said on standard error at most once a minute, and once for each name and reason as an event `not_recorded` of
    the run. Methods may be called from any thread."""

    def __init__(self, library: Any, pointer: int) -> None:
        self._library = library
        self._pointer = pointer
        self._observe: Any = getattr(library, "statagent_observe", None)
        self.run = ""  # the run's name
        self._lock = threading.Lock()
        self._refusals = Refusals(_weakly(self.log_event))
        self._closed = library is None
        self._failed = False  # the process ends with an uncaught exception
        self.closing = False  # close() has been called, and has not ended it yet
        # Whether tensors of the current step are recorded: read on every hook, changed only when the step changes.
        self.wanted = False
        self._handles: dict[tuple[Any, ...], int] = {}
        self._identities: dict[int, tuple[str, str]] = {}  # handle -> name and kind, for messages
        self._calls: dict[tuple[Any, ...], int] = {}  # next call index in this step
        self._step_listeners: list[Callable[[], None]] = []
        self._ending_listeners: list[Callable[[], None]] = []
        self._flush_listeners: list[Callable[[], None]] = []
        self.batch_logged = (-1, -1)  # step and micro-batch of the last log_batch
        self._batch_listeners: list[Callable[[str, Any], None]] = []
        self._leaf_hooks: list[Any] = []
        # Scalars: those of this step by name and micro-batch, and whether those of a step that an optimizer ended go on. See _late_step.
        self._scalars: set[tuple[str, str]] = set()
        self._ended_scalars: set[tuple[str, str]] | None = None
        self._ended_micro_batch = 0
        # What the watches tell: the micro-batch, whether a backward pass ended it, whether an unrecorded pass is running.
        self.micro_batch = 0
        self.backward_seen = False
        self.muted = False
        self.optimizers: dict[int, int] = {}  # watched optimizers by id, with their updates in this step
        self.optimizer_hooks: dict[int, list[Any]] = {}  # OptimizerHooks of each watched optimizer, by its id
        self.optimizer_numbers: dict[int, int] = {}  # of the watches without a name, by id
        self.known = KnownTensors()  # inputs between modules; filled by the watches that record them
        self.random_states_of = -1  # the step whose random states were logged last
        self.updates_replayed = False  # a watched optimizer's update is part of a CUDA graph
        self.watched: dict[tuple[str, str], int] = {}  # (name, kind) -> id of the watch
        self.watches: list[Any] = []  # removed by close
        self.settings: dict[str, str] = {}  # the run's configuration as sent
        self._recordings: dict[str, dict[str, str]] = {}  # what each watch was asked to record
        self.user_settings: frozenset[str] = frozenset()  # keys of it that the user has set
        self.deferred = Deferred(_weakly(self.refuse))  # values on their way from a GPU
        if library is not None:
            self._release = weakref.finalize(self, library.statagent_free, pointer)
            self._release.atexit = False  # the library closes itself at exit
            self._step_changed()

    # --- tensors -----------------------------------------------------------------------------------------------------------

    def intern(
        self, name: str, kind: str, path: str = "", micro_batch: int = 0, call: int = 0, mode: str = "train",
        parent: str = "", class_name: str = "", depth: int = -1,
    ) -> int:  # fmt: skip
        """The library's number for an identity. Raises StatagentError."""
        key = (name, kind, path, micro_batch, call, mode)
        handle = self._handles.get(key)
        if handle is None:
            found = ctypes.c_uint32()
            identity = _library.Identity(
                name=_encode("name", name), output_path=_encode("output path", path), parent=_encode("parent", parent),
                class_name=_encode("class name", class_name), kind=KINDS[kind], mode=MODES[mode], micro_batch=micro_batch,
                call=call, depth=depth,
            )  # fmt: skip
            _library.check(self._library.statagent_intern(self._pointer, identity, found))
            handle = self._handles[key] = found.value
        return handle

    def observe_handle(self, handle: int, tensor: Any) -> None:
        """Statistics of the tensor under an interned identity. Never raises."""
        try:
            borrowed = borrow(tensor)
            code = self._observe(self._pointer, handle, borrowed[0], borrowed[0].stream)
            give_back(borrowed)
            if code:
                self._refuse_handle(handle, _library.last_error())
        except Exception as error:
            self._refuse_handle(handle, str(error))

    def observe_at(self, place: Place, handle: int, tensor: Any) -> None:
        """As observe_handle, for what comes with the same layout in every step: what depends on it is worked out once. Never raises.
        Precondition: type(tensor) is one of plain_tensor_types()."""
        try:
            structure = place.borrow(tensor)
            if structure is not None:
                code = self._observe(self._pointer, handle, structure, structure.stream)
                place.give_back(structure)
            else:
                borrowed = borrow(tensor)
                code = self._observe(self._pointer, handle, borrowed[0], borrowed[0].stream)
                place.learn(tensor, borrowed)
            if code:
                self._refuse_handle(handle, _library.last_error())
        except Exception as error:
            self._refuse_handle(handle, str(error))

    def observe_list(self, items: Sequence[tuple[int, Place, Any]]) -> None:
        """As observe_at for each (handle, place, tensor), with one call of the library for each stream: on a GPU small tensors then
        share kernel launches. Precondition: as observe_at, and no place twice. Never raises."""
        by_stream: dict[int | None, list[tuple[int, Place, Any]]] = {}  # with what was borrowed instead of the tensor
        for handle, place, tensor in items:
            try:
                structure, borrowed = place.borrow(tensor), None
                if structure is None:
                    borrowed = borrow(tensor)
                    structure = borrowed[0]
                by_stream.setdefault(structure.stream, []).append((handle, place, (structure, borrowed, tensor)))
            except Exception as error:
                self._refuse_handle(handle, str(error))
        for stream, borrowed_items in by_stream.items():
            try:
                self._observe_borrowed(stream, borrowed_items)
            except Exception as error:
                self.refuse(str(error))

    def _observe_borrowed(self, stream: int | None, items: list[tuple[int, Place, Any]]) -> None:
        count = len(items)
        handles = (ctypes.c_uint32 * count)(*(handle for handle, _, _ in items))
        structures = (ctypes.c_void_p * count)(*(ctypes.addressof(found[0]) for _, _, found in items))
        refused = ctypes.c_uint64()
        code = self._library.statagent_observe_list(self._pointer, count, handles, structures, stream, refused)
        for _, place, (structure, borrowed, tensor) in items:
            if borrowed is None:
                place.give_back(structure)
            else:
                place.learn(tensor, borrowed)
        if code:
            message = _library.last_error()
            self.refuse(message)
            for _ in range(refused.value - 1):
                self._count_refused(message)

    def observe(self, name: str, tensor: Any, kind: str = "inspect", path: str = "", micro_batch: int | None = None) -> None:
        """One tensor under a name, its call index counted from 0 in each micro-batch. Never raises."""
        if self._closed:
            return
        self.begin_step()
        if not self.wanted:
            return
        try:
            at = self.micro_batch if micro_batch is None else micro_batch
            handle = self.intern(name, kind, path, at, self.next_call(name, kind, path, at))
        except Exception as error:
            self.refuse(str(error), str(name), kind)
            return
        self.observe_handle(handle, tensor)

    def next_call(self, *key: Any) -> int:
        call = self._calls.get(key, 0)
        self._calls[key] = call + 1
        return call

    def inspect(self, name: str, tensor: T) -> T:
        """Records a named intermediate tensor and its gradient; returns the tensor itself."""
        if self._closed or self.muted:
            return tensor
        self.begin_step()
        if not self.wanted:
            return tensor
        try:
            if in_backward():  # an activation checkpoint computes the tensor a second time
                return tensor
            if getattr(tensor, "requires_grad", False):
                self._inspect_with_gradient(name, tensor)
            else:
                self.observe(name, tensor)
        except Exception as error:
            self.refuse(str(error), str(name), "inspect")
        return tensor

    def _inspect_with_gradient(self, name: str, tensor: Any) -> None:
        at = self.micro_batch
        call = self.next_call(name, "inspect", "", at)
        self.observe_handle(self.intern(name, "inspect", "", at, call), tensor)
        handle = self.intern(name, "inspect_grad", "", at, call)
        removable = tensor.register_hook(GradientHook(lambda gradient: self._gradient(handle, gradient)))
        if tensor.is_leaf:  # its hooks live as long as itself, not as long as a graph
            self._leaf_hooks.append(removable)

    def _gradient(self, handle: int, gradient: Any) -> None:
        if not self._closed:
            self.observe_handle(handle, gradient)

    def log_batch(self, **tensors: Any) -> None:
        """Fingerprints of a batch's inputs: tensors, arrays, or nested values with some."""
        if self._closed:
            return
        self.begin_step()
        if not self.wanted:
            return
        # Logged before the forward pass, so it belongs to the micro-batch that begins.
        at = self.micro_batch + 1 if self.backward_seen else self.micro_batch
        self.batch_logged = (self.current_step(), at)
        for name, value in tensors.items():
            try:
                if value is None:
                    continue
                found = flatten(value, _is_array)
                bare = len(found) == 1 and found[0][1] is value
                if not found:
                    raise InvalidArgumentError(
                        f"log batch '{name}': found a {type(value).__name__} without tensors; expected tensors or arrays"
                    )
                for path, tensor in found:
                    for listener in self._batch_listeners:
                        listener(name if bare else f"{name}.{path}", tensor)
                    self.observe(name, tensor, "batch", "" if bare else path, at)
            except Exception as error:
                self.refuse(str(error), name, "batch")

    # --- everything else ---------------------------------------------------------------------------------------------------

    def log_scalar(self, name: str, value: Any, micro_batch: int | None = None) -> None:
        """A number, or a tensor with one element. One on a GPU is logged when its value is there: nothing waits for it.

        After the update of a watched optimizer it belongs to the step that the update ended, until the next one begins."""
        if self._closed:
            return
        at = self._ended_micro_batch if self._ended_scalars is not None else self.micro_batch
        late = self._late_step(f"{name}", at if micro_batch is None else micro_batch)
        if late is None:
            at = self.micro_batch
        self.log_number(name, value, at if micro_batch is None else micro_batch, late)

    def _late_step(self, name: str, micro_batch: Any) -> int | None:
        """The step that a watched optimizer has just ended, if a scalar belongs to it. None: the current step has begun. It begins with
        a training pass, log_batch, inspect or an update, and, where no pass is seen, with a scalar that the ended step has."""
        key = (name, f"{micro_batch}")
        ended = self._ended_scalars
        if ended is not None and key not in ended:
            ended.add(key)
            return self.current_step() - 1
        self.begin_step()
        self._scalars.add(key)
        return None

    @property
    def between_steps(self) -> bool:
        """Whether a watched optimizer has ended a step, and nothing of the next one has happened."""
        return self._ended_scalars is not None

    def begin_step(self) -> None:
        """Something of the current step has happened: scalars belong to it from now on. Cheap."""
        self._ended_scalars = None

    def log_number(self, name: str, value: Any, micro_batch: int, step: int | None = None) -> None:
        """As log_scalar, for a step that may be over; None: the current one. Never raises."""
        if self._closed:
            return
        try:
            if not 0 <= micro_batch < 2**32:
                raise InvalidArgumentError(f"log scalar '{name}': micro_batch is {micro_batch}; expected 0..{2**32 - 1}")
            if on_gpu(value) and value.numel() == 1:
                at = self.current_step() if step is None else step
                self.deferred.add(
                    f"log scalar '{name}'", value, lambda there: self.log_scalar_at(name, _number(name, there), micro_batch, at)
                )
                return
            number = _number(name, value)
            if step is not None:
                self.log_scalar_at(name, number, micro_batch, step)
                return
            _library.check(self._library.statagent_log_scalar(self._pointer, _encode("scalar", name), number, micro_batch))
        except Exception as error:
            self.refuse(str(error), str(name), "scalar")

    def log_scalar_at(self, name: str, value: float, micro_batch: int, step: int) -> None:
        """A number of a step that may be over, for what becomes known late. Never raises."""
        self._report(
            lambda: self._library.statagent_log_scalar_at(self._pointer, _encode("scalar", name), value, micro_batch, step)
        )

    def log_event(self, kind: str, text: str, fields: Mapping[str, str] | None = None, step: int | None = None) -> None:
        """Something that happened in this step, or in one that is over: one sentence, and fields for programs. Never raises."""

        def log() -> int:
            at = self.current_step() if step is None else step
            pairs = {str(name): str(value) for name, value in (fields or {}).items()}
            texts = _encode("event", kind), _encode("event", text), _strings(pairs), _strings(pairs.values())
            return int(self._library.statagent_log_event_at(self._pointer, at, *texts, len(pairs)))

        self._report(log)

    def note_exception(self, text: str, fields: Mapping[str, str], ends_process: bool) -> None:
        """An exception that nobody caught. One that ends the process leaves the run interrupted. Never raises."""
        self._failed = self._failed or ends_process
        self.log_event(_failures.KIND, text, fields)

    def add_config(self, settings: Mapping[str, str]) -> None:
        """Flattened configuration that was not known at `init`; the newest value of a name stands. Never raises."""

        def add() -> int:
            texts = _strings(settings), _strings(settings.values())
            return int(self._library.statagent_add_config(self._pointer, *texts, len(settings)))

        self._report(add)

    def tell_what_is_recorded(self, name: str, asked: Mapping[str, str]) -> None:
        """What a watch was asked to record, as settings `recording.*`: what another run records besides is not missing here.
        Watches without a name: the first has no name in its keys, the next ones +2, +3, ..."""
        known = [key for key, options in self._recordings.items() if options == asked and key.startswith("+")]
        beside = sum(key.startswith("+") for key in self._recordings)
        key = name or (known[0] if known else f"+{beside + 1}")
        withdrawn = dict.fromkeys(self._recordings.get(key, ()), "")
        self._recordings[key] = dict(asked)
        prefix = "" if key == "+1" else f"{key}."
        found = {f"recording.{prefix}{option}": value for option, value in {**withdrawn, **asked}.items()}
        settings = {key: value for key, value in found.items() if key not in self.user_settings}
        self.settings.update(settings)
        self.add_config(settings)

    def log_memory(self, phase: str, quantities: Mapping[str, int], device: str, module: str = "") -> None:
        """Memory at this moment, in bytes; names of phases and quantities: _library.PHASES, QUANTITIES. Never raises."""

        def log() -> int:
            known = [(bit, quantities[name]) for bit, name in enumerate(_library.QUANTITIES) if name in quantities]
            memory = _library.Memory(
                phase=_library.PHASES[phase], micro_batch=self.micro_batch, present=sum(1 << bit for bit, _ in known),
                device=_encode("device", device), module=_encode("module", module),
                bytes=(ctypes.c_int64 * max(1, len(known)))(*(number for _, number in known)),
            )  # fmt: skip
            return int(self._library.statagent_log_memory(self._pointer, memory))

        self._report(log)

    def log_density(
        self, name: str, kind: str, pad_index: int, valid: int, total: int, per_sample: Sequence[int], micro_batch: int, step: int
    ) -> None:
        """How much of an input is no padding, in a step that may be over; kind: "embed" or "label". Never raises."""

        def log() -> int:
            density = _library.Density(
                type=_library.DENSITIES[kind], micro_batch=micro_batch, samples=len(per_sample), input=_encode("input", name),
                pad_index=pad_index, valid=valid, total=total,
                valid_per_sample=(ctypes.c_uint64 * max(1, len(per_sample)))(*per_sample),
            )  # fmt: skip
            return int(self._library.statagent_log_density(self._pointer, density, step))

        self._report(log)

    def _report(self, call: Callable[[], int]) -> None:
        """Runs a call of the library; what it refuses is counted."""
        if self._closed:
            return
        try:
            _library.check(call())
        except Exception as error:
            self._count_refused(str(error))

    def step(self) -> None:
        """Ends the current step. With a watched optimizer the step ends by itself, and this does nothing, unless its update is part of a
        CUDA graph: nobody sees a replay, so that this is called after each."""
        if self._closed:
            return
        if self.optimizers and not self.updates_replayed:
            warn_once("step", "step(): a watched optimizer ends the step already; this call is ignored")
            return
        self.end_step()

    def end_step(self, by_optimizer: bool = False) -> None:
        """`by_optimizer`: the program did not say that the step is over."""
        if self._closed:
            return
        try:
            self.deferred.collect()
            for listener in list(self._ending_listeners):
                listener()
            self._name_replay_streams()
            self._library.statagent_end_step(self._pointer)
            ended = self._scalars, self.micro_batch
            self._step_changed()
            if by_optimizer:
                self._ended_scalars, self._ended_micro_batch = ended
        except Exception as error:
            self.refuse(str(error))

    def set_step(self, step: int) -> None:
        """Jumps to a step, never backwards: call it after `init` when resuming from a checkpoint."""
        number = _whole("set_step: step", step)
        if self._closed:
            return
        self._name_replay_streams()
        _library.check(self._library.statagent_set_step(self._pointer, number))
        self._step_changed()

    def _name_replay_streams(self) -> None:
        """Tells the library where CUDA graphs are replayed: in the current streams of the devices that have any."""
        devices, device = int(self._library.statagent_replay_devices(self._pointer)), 0
        while devices:
            if devices & 1:
                self._library.statagent_replays_in(self._pointer, device, cuda_stream(sys.modules["torch"], device))
            devices, device = devices >> 1, device + 1

    def _step_changed(self) -> None:
        self.wanted = bool(self._library.statagent_step_wanted(self._pointer))
        self._calls.clear()
        self.known.clear()
        self._scalars, self._ended_scalars = set(), None
        for removable in self._leaf_hooks:
            removable.remove()
        self._leaf_hooks.clear()
        self.micro_batch = 0
        self.backward_seen = self.muted = False
        for key in self.optimizers:
            self.optimizers[key] = 0
        for listener in list(self._step_listeners):
            listener()

    def add_step_listener(self, listener: Callable[[], None]) -> None:
        self._step_listeners.append(listener)

    def add_ending_listener(self, listener: Callable[[], None]) -> None:
        """Called before each end of a step. Must not raise."""
        self._ending_listeners.append(listener)

    def remove_ending_listener(self, listener: Callable[[], None]) -> None:
        if listener in self._ending_listeners:
            self._ending_listeners.remove(listener)

    def add_batch_listener(self, listener: Callable[[str, Any], None]) -> None:
        """Called with name and tensor of what log_batch is given. Must not raise."""
        self._batch_listeners.append(listener)

    def remove_batch_listener(self, listener: Callable[[str, Any], None]) -> None:
        if listener in self._batch_listeners:
            self._batch_listeners.remove(listener)

    def add_flush_listener(self, listener: Callable[[], None]) -> None:
        """Called at the beginning of each flush and of close, so that what was put off is recorded. Must not raise."""
        self._flush_listeners.append(listener)

    def remove_flush_listener(self, listener: Callable[[], None]) -> None:
        if listener in self._flush_listeners:
            self._flush_listeners.remove(listener)

    def remove_step_listener(self, listener: Callable[[], None]) -> None:
        if listener in self._step_listeners:
            self._step_listeners.remove(listener)

    def _about_to_flush(self, milliseconds: int) -> int:
        """Records what was put off; returns how many of the milliseconds that took."""
        started = time.monotonic()
        for listener in list(self._flush_listeners):
            try:
                listener()
            except Exception as error:
                self.refuse(str(error))
        self.deferred.drain(milliseconds / 1000)
        return min(milliseconds, round((time.monotonic() - started) * 1000))

    def current_step(self) -> int:
        return int(self._library.statagent_step(self._pointer)) if self._library is not None else 0

    def flush(self, timeout: float = 5.0) -> bool:
        """Waits until everything so far is durable in the collector; False if something is pending after `timeout` seconds."""
        milliseconds = _milliseconds("flush: timeout", timeout)
        if self._closed:
            return True
        milliseconds -= self._about_to_flush(milliseconds)
        self._name_replay_streams()
        return self._library.statagent_flush(self._pointer, milliseconds) == 0

    def close(self, timeout: float = EXIT_SECONDS) -> bool:
        """Flushes for at most `timeout` seconds, removes all watches (with hooks in compiled graphs only the next init does) and ends. What is pending then stays in the spill file, or, without
        one, counts as dropped. Later calls do nothing."""
        milliseconds = _milliseconds("close: timeout", timeout)
        if not self._closed:
            self.closing = True
            milliseconds -= self._about_to_flush(milliseconds)
            self.deferred.drop()
            self._name_replay_streams()
        with self._lock:
            if self._closed:
                return True
            self._closed = True
            self.wanted = False
        for listener in list(self._step_listeners):
            listener()
        close = self._library.statagent_close_failed if self._failed else self._library.statagent_close
        delivered = close(self._pointer, milliseconds) == 0
        in_graphs = [watch for watch in self.watches if watch.in_graph]
        _closed_watches.extend(in_graphs)
        _remove_all([watch for watch in self.watches if watch not in in_graphs])
        for removable in self._leaf_hooks:
            removable.remove()
        self._leaf_hooks.clear()
        return delivered

    @property
    def closed(self) -> bool:
        return self._closed

    def counters(self) -> dict[str, int]:
        """produced == acked + pending + the sum of dropped_<cause>, at every moment; also after `close`. `spilled`, if there: how
        many of those pending are in the spill file."""
        counts = {"produced": 0, "acked": 0, "pending": 0}
        if self._library is None:
            return counts
        # The causes come first, so that what is dropped between the two calls is missing from no sum: it is taken as pending.
        dropped: dict[str, int] = {}

        def visit(_: Any, cause: bytes, n: int) -> None:
            dropped["dropped_" + cause.decode("utf-8", "replace")] = n

        self._library.statagent_dropped(self._pointer, _library.VisitDropped(visit), None)
        found = _library.Counts()
        self._library.statagent_counters(self._pointer, found)
        refused = self._refusals.count
        counts.update(produced=found.produced + refused, acked=found.acked)
        counts["pending"] = found.produced - found.acked - sum(dropped.values())
        counts.update(dropped)
        if found.spilled:
            counts["spilled"] = min(found.spilled, counts["pending"])
        if refused:
            counts["dropped_refused"] = counts.get("dropped_refused", 0) + refused
        return counts

    def rank(self) -> int:
        return int(self._library.statagent_rank(self._pointer)) if self._library is not None else _environment_rank()

    def world_size(self) -> int:
        return int(self._library.statagent_world_size(self._pointer)) if self._library is not None else 1

    def refuse(self, message: str, name: str = "", kind: str = "") -> None:
        """Counts a record that could not be made; says why, as an event too. Never raises."""
        self._count_refused(message)
        self.tell_not_recorded(name, kind, message or "unknown reason")

    def _count_refused(self, message: str) -> None:
        total = self._refusals.add()
        warn("refused", f"not recorded: {message or 'unknown reason'} ({total} refused so far; training goes on)")

    def tell_not_recorded(self, name: str, kind: str, reason: str) -> None:
        """An event `not_recorded`, once for each name and reason and a few times at most; counts nothing."""
        self._refusals.tell(name, kind, reason)

    def _refuse_handle(self, handle: int, message: str) -> None:
        if len(self._identities) != len(self._handles):
            self._identities = {number: (key[0], key[1]) for key, number in list(self._handles.items())}
        self.refuse(message, *self._identities.get(handle, ("", "")))


def _remove_all(watches: list[Any]) -> None:
    for watch in watches:
        watch.remove()


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """The bound method, without keeping its object alive: an agent that is not used any more is freed at once, with its buffers."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return call


# --- arguments -------------------------------------------------------------------------------------------------------------


def _encode(what: str, text: Any) -> bytes:
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} is {text!r}, a {type(text).__name__}; expected a string")
    if "\0" in text:
        raise InvalidArgumentError(f"{what} is {text!r}; expected no NUL character")
    return text.encode("utf-8", "replace")


def _whole(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= int(value) <= _INT64_MAX:
        raise InvalidArgumentError(f"{what} is {value!r}; expected a whole number from 0")
    return int(value)


def _milliseconds(what: str, seconds: Any) -> int:
    good = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not good or math.isnan(seconds) or seconds < 0:
        raise InvalidArgumentError(f"{what} is {seconds!r}; expected seconds from 0")
    return round(min(float(seconds), _TIMEOUT_MAX_SECONDS) * 1000)


def _number(name: str, value: Any) -> float:
    size = getattr(value, "numel", None)
    if size is None and hasattr(value, "shape"):
        size = math.prod(value.shape)
    if callable(size):
        size = size()
    if size is not None and size != 1:
        raise InvalidArgumentError(f"log scalar '{name}': found a tensor of {size} elements; expected one")
    try:
        if hasattr(value, "detach"):
            value = value.detach()
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"log scalar '{name}': found {type(value).__name__} ({error}); expected a number") from error


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__")


def _environment_rank() -> int:
    for variable in ("STATAGENT_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        text = os.environ.get(variable, "")
        if text.isdecimal():
            return int(text)
    return 0


# --- the process's agent ---------------------------------------------------------------------------------------------------

_current: Agent | None = None
_closed_watches: list[Any] = []  # whose hooks are part of graphs, which would be compiled again without them
_starting = threading.Lock()


def init(
    run: str | None = None,
    collector: str | None = None,
    if_exists: str | None = None,
    config: Mapping[str, Any] | None = None,
    required: bool | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    launch: str | None = None,
    steps: str | None = None,
    sketch: int | None = None,
    samples: int | None = None,
    buffer_records_max: int | None = None,
    threads: int | None = None,
    connect_timeout: float | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    spill_limit: str | None = None,
    captures: str | Sequence[str] | None = None,
    exponents: str | Sequence[str] | None = None,
) -> Agent:
    """Starts this process's agent. What is None, or empty, comes from STATAGENT_<NAME>, else the default; `config` is merged over
    STATAGENT_CONFIG (a JSON object, or @FILE with one). `connect_timeout` is in seconds,
    `spill_limit` a text such as "20GiB". `captures` names tensors whose raw values are kept beside their statistics, each as
    "NAME@STEPS" ("blocks.1.ln2@3", "blocks.1.ln2@3-5:kind=grad_output"): at most 16 MiB of each (bytes_max=, up to 64 MiB), copied
    in the hook that sees it. docs/capture.md has the grammar. `exponents` names tensors whose binary exponents are counted, each
    as "PATTERN@STEPS" ("*@0-,every=100", "blocks.*@0-99:kind=weight_grad"): a pass of its own over each. docs/exponents.md.

    Raises InvalidArgumentError; RunExistsError if the run has data and if_exists is "error"; CollectorUnavailableError if
    `required` and no collector answers; StatagentError if an agent is running already."""
    global _current
    with _starting:
        if disabled():
            _current = Agent(None, 0)
            return _current
        if _current is not None and not _current.closed:
            raise StatagentError(
                f"init(run={run!r}): this process has an agent already, for run '{_current.run}'; expected none, because an agent "
                "serves one run; close it first with statagent.close()"
            )
        _variables.warn_about_unknown()
        _remove_all(_closed_watches)
        _closed_watches.clear()
        options = _options(
            {"run": run, "collector": collector, "if_exists": if_exists, "launch": launch, "steps": steps,
             "spill_dir": None if spill_dir is None else os.fspath(spill_dir), "spill_limit": spill_limit,
             "captures": _places("captures", captures, "blocks.1.ln2@3"),
             "exponents": _places("exponents", exponents, "*@0-,every=100")},
            {"rank": rank, "local_rank": local_rank, "world_size": world_size, "sketch": sketch, "samples": samples,
             "buffer_records_max": buffer_records_max, "threads": threads},
        )  # fmt: skip
        options.connect_timeout_ms = _connect_timeout(connect_timeout)
        if required is not None and not isinstance(required, (bool, int)):
            raise InvalidArgumentError(f"init: required is {required!r}; expected True or False")
        options.required = -1 if required is None else int(bool(required))
        users = {**_configuration.environment_configuration(), **_configuration.flatten_configuration(config)}
        recorded = steps or os.environ.get("STATAGENT_STEPS", "")
        asked = {"recording.agent_steps": recorded} if recorded else {}
        room = max(0, _configuration.SETTINGS_MAX - len(users) - len(asked))
        merged = {**_environment.process_checklist(room), **asked, **users}
        options.config_keys, options.config_values = _strings(merged), _strings(merged.values())
        options.config_count = len(merged)
        library = _library.load()
        pointer = ctypes.c_void_p()
        _library.check(library.statagent_start(options, pointer))
        assert pointer.value is not None
        _current = Agent(library, pointer.value)
        _current.settings, _current.user_settings = merged, frozenset(users)
        _current.run = run or os.environ.get("STATAGENT_RUN", "")
        _failures.report_to(_note_exception)
        _tracing.prepare_if_torch()
        return _current


def _options(texts: dict[str, Any], counts: dict[str, Any]) -> _library.Options:
    options = _library.Options()
    for name, text in texts.items():
        if text is not None:
            if text == "" and name == "run":
                raise InvalidArgumentError("init: run is ''; expected a name, as run='base', or None and STATAGENT_RUN")
            setattr(options, name, _encode(f"init: {name}", text))
    for name, number in counts.items():
        setattr(options, name, -1 if number is None else _whole(f"init: {name}", number))
    return options


def _places(option: str, places: Any, example: str) -> str | None:
    """Several places as one text, as the library takes them."""
    if places is None or isinstance(places, str):
        return places
    texts = list(places) if isinstance(places, (list, tuple, set, frozenset)) else [places]
    for text in texts:
        if not isinstance(text, str) or ";" in text:
            raise InvalidArgumentError(f"init: {option} has {text!r}; expected texts such as {example!r}, without ';'")
    return "; ".join(texts)


def _connect_timeout(seconds: Any) -> int:
    if seconds is None:
        text = os.environ.get("STATAGENT_CONNECT_TIMEOUT", "")
        if not text:
            return -1
        try:
            seconds = float(text)
        except ValueError:
            raise InvalidArgumentError(f"init: STATAGENT_CONNECT_TIMEOUT is {text!r}; expected seconds from 0") from None
    return _milliseconds("init: connect_timeout", seconds)


def _strings(texts: Any) -> Any:
    encoded = [text.replace("\0", " ").encode("utf-8", "replace") for text in texts]
    return (ctypes.c_char_p * max(1, len(encoded)))(*encoded)


def current() -> Agent | None:
    """This process's agent, open or closed."""
    return _current


def _running(function: str) -> Agent | None:
    if _current is None and not disabled():
        warn_once("init", f"{function}() before init(): nothing is recorded until statagent.init() is called")
    return _current


def inspect(name: str, tensor: T) -> T:
    """Records a named intermediate tensor (and, if it requires one, its gradient); returns the same object."""
    if _tracing.tracing():
        _tracing.compiled.trace_inspect(name, tensor)
        return tensor
    agent = _running("inspect")
    return tensor if agent is None else agent.inspect(name, tensor)


def log_scalar(name: str, value: Any, micro_batch: int | None = None) -> None:
    """Records a number or a tensor with one element, such as the loss."""
    agent = _running("log_scalar")
    if agent is not None:
        agent.log_scalar(name, value, micro_batch)


def log_batch(**tensors: Any) -> None:
    """Records fingerprints of a batch's inputs: were both runs fed the same data?"""
    agent = _running("log_batch")
    if agent is not None:
        agent.log_batch(**tensors)


def step() -> None:
    """Ends the step. Not needed with a watched optimizer."""
    agent = _running("step")
    if agent is not None:
        agent.step()


def flush(timeout: float = 5.0) -> bool:
    """Waits until everything so far is durable in the collector; False if something is pending after `timeout` seconds."""
    agent = _running("flush")
    return True if agent is None else agent.flush(timeout)


def close(timeout: float = EXIT_SECONDS) -> bool:
    """Flushes for at most `timeout` seconds and ends the agent; done at exit too. `counters` still works afterwards."""
    return True if _current is None else _current.close(timeout)


def counters() -> dict[str, int]:
    """{"produced", "acked", "pending", "dropped_<cause>"}: produced is the sum of the others. `spilled`, if there, is a part of
    pending."""
    return {"produced": 0, "acked": 0, "pending": 0} if _current is None else _current.counters()


def rank() -> int:
    """This process's global rank."""
    return _environment_rank() if _current is None else _current.rank()


def _note_exception(text: str, fields: Mapping[str, str], ends_process: bool) -> None:
    if _current is not None and not _current.closed:
        _current.note_exception(text, fields, ends_process)


@atexit.register
def _close_at_exit() -> None:
    if _current is not None:
        _current.close(EXIT_SECONDS)
