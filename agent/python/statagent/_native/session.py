"""One agent of the C library: its functions with Python arguments, and errors instead of codes."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .arguments import encode, encode_all
from .library import DENSITIES, KINDS, MODES, PHASES, QUANTITIES, Counts, Density, Identity, Memory, Options, VisitDropped, check
from .rows import record_rows
from .tensors import cuda_in_use, cuda_stream

_memory_layouts: dict[tuple[str, ...], tuple[int, list[str], Any]] = {}


def _memory_layout(names: tuple[str, ...]) -> tuple[int, list[str], Any]:
    """Of a memory record with these quantities: the bits of the known ones, their names in the order of the bits, and the array of them.
    No generator and no decorator: torch.compile with fullgraph=True sees this frame, and refuses to trace those."""
    found = _memory_layouts.get(names)
    if found is None:
        bits, known = 0, []
        for bit, name in enumerate(QUANTITIES):
            if name in names:
                bits |= 1 << bit
                known.append(name)
        found = _memory_layouts[names] = bits, known, ctypes.c_int64 * max(1, len(known))
    return found


@dataclass(frozen=True)
class Counters:
    """Records of a session at one moment: produced == acked + pending + the sum of `dropped`."""

    produced: int
    acked: int
    pending: int
    spilled: int  # how many of the pending ones are in the spill file
    dropped: dict[str, int]  # cause -> records


class Session:
    """A started agent. Methods raise StatagentError for what the library refuses, unless they say otherwise. Threads: any.

    `library` and `pointer` are public for the one call that is too frequent for a method: statagent_observe."""

    def __init__(self, library: Any, pointer: int) -> None:
        self.library, self.pointer = library, pointer
        self._release = weakref.finalize(self, library.statagent_free, pointer)
        self._release.atexit = False  # the library closes itself at exit

    # --- tensors -----------------------------------------------------------------------------------------------------------

    def intern(
        self, name: str, kind: str, path: str, micro_batch: int, call: int, mode: str, parent: str, class_name: str, depth: int
    ) -> int:
        """The library's number for an identity."""
        identity = Identity(
            name=encode("name", name), output_path=encode("output path", path), parent=encode("parent", parent),
            class_name=encode("class name", class_name), kind=KINDS[kind], mode=MODES[mode], micro_batch=micro_batch, call=call,
            depth=depth,
        )  # fmt: skip
        found = ctypes.c_uint32()
        check(self.library.statagent_intern(self.pointer, identity, found))
        return found.value

    def observe_list(self, handles: Sequence[int], structures: Sequence[Any], stream: int | None) -> tuple[int, int]:
        """Statistics of tensors that one CUDA stream computes, under interned identities. Returns the library's code, 0 for success,
        and how many tensors it refused. Never raises StatagentError."""
        count = len(handles)
        addresses = (ctypes.c_void_p * count)(*map(ctypes.addressof, structures))
        refused = ctypes.c_uint64()
        code = self.library.statagent_observe_list(
            self.pointer, count, (ctypes.c_uint32 * count)(*handles), addresses, stream, refused
        )
        return int(code), refused.value

    # --- other records -----------------------------------------------------------------------------------------------------

    def log_scalar(self, name: str, value: float, micro_batch: int) -> None:
        check(self.library.statagent_log_scalar(self.pointer, encode("scalar", name), value, micro_batch))

    def log_scalar_at(self, name: str, value: float, micro_batch: int, step: int) -> None:
        """A scalar of a step that may be over."""
        check(self.library.statagent_log_scalar_at(self.pointer, encode("scalar", name), value, micro_batch, step))

    def log_event(self, kind: str, text: str, fields: Mapping[str, str], step: int) -> None:
        """An event of a step that may be over."""
        keys, values = encode_all(fields), encode_all(fields.values())
        check(
            self.library.statagent_log_event_at(
                self.pointer, step, encode("event", kind), encode("event", text), keys, values, len(fields)
            )
        )

    def add_config(self, settings: Mapping[str, str]) -> None:
        keys, values = encode_all(settings), encode_all(settings.values())
        check(self.library.statagent_add_config(self.pointer, keys, values, len(settings)))

    def log_memory(self, phase: str, quantities: Mapping[str, int], device: str, module: str, micro_batch: int) -> None:
        """Quantities in bytes, by their names in QUANTITIES; others are ignored."""
        present, values_of, array = _memory_layout(tuple(quantities))
        memory = Memory(
            phase=PHASES[phase], micro_batch=micro_batch, present=present,
            device=encode("device", device), module=encode("module", module), bytes=array(*map(quantities.__getitem__, values_of)),
        )  # fmt: skip
        check(self.library.statagent_log_memory(self.pointer, memory))

    def log_density(
        self, name: str, kind: str, pad_index: int, valid: int, total: int, per_sample: Sequence[int], micro_batch: int, step: int
    ) -> None:
        density = Density(
            type=DENSITIES[kind], micro_batch=micro_batch, samples=len(per_sample), input=encode("input", name),
            pad_index=pad_index, valid=valid, total=total,
            valid_per_sample=(ctypes.c_uint64 * max(1, len(per_sample)))(*per_sample),
        )  # fmt: skip
        check(self.library.statagent_log_density(self.pointer, density, step))

    def record_rows(
        self, tap: str, rows: Any, keys: Any, positions: Any, step: int | None, call: int, first_column: int, index: Any
    ) -> None:
        """What a tap had for some tokens. `step`: one that may be over; None: the current one."""
        record_rows(self.library, self.pointer, encode("tap", tap), rows, keys, positions, step, call, first_column, index)

    # --- steps -------------------------------------------------------------------------------------------------------------

    def step(self) -> int:
        return int(self.library.statagent_step(self.pointer))

    def step_wanted(self) -> bool:
        """Whether the tensors of the current step are recorded."""
        return bool(self.library.statagent_step_wanted(self.pointer))

    def step_asked(self) -> bool:
        """Whether the collector asked for the current step: for its statistics, or for raw values."""
        return bool(self.library.statagent_step_asked(self.pointer))

    def next_full_steps(self) -> tuple[int, int | None, int] | None:
        """First step, last step (None: no end) and divisor of the collector's oldest announcement that was not yet returned."""
        first, last, every = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
        if not self.library.statagent_next_full_steps(self.pointer, first, last, every):
            return None
        return first.value, None if last.value == 2**64 - 1 else last.value, every.value

    def end_step(self) -> None:
        self.library.statagent_end_step(self.pointer)

    def set_step(self, step: int) -> None:
        check(self.library.statagent_set_step(self.pointer, step))

    def name_replay_streams(self) -> None:
        """Tells the library where CUDA graphs are replayed: in the current stream of each device that has any."""
        if not cuda_in_use():
            return
        devices, device = int(self.library.statagent_replay_devices(self.pointer)), 0
        while devices:
            if devices & 1:
                self.library.statagent_replays_in(self.pointer, device, cuda_stream(sys.modules["torch"], device))
            devices, device = devices >> 1, device + 1

    # --- the session itself ------------------------------------------------------------------------------------------------

    def flush(self, timeout_ms: int) -> bool:
        """Whether everything so far became durable within the timeout."""
        return bool(self.library.statagent_flush(self.pointer, timeout_ms) == 0)

    def close(self, timeout_ms: int, failed: bool, unused: bool = False) -> bool:
        """Ends the session; whether everything was delivered. `failed`: the run is interrupted instead of finished. `unused`: the program
        failed before it recorded anything, so that a run without records is removed."""
        library = self.library
        close = (
            library.statagent_close_failed if failed else library.statagent_close_unused if unused else library.statagent_close
        )
        return bool(close(self.pointer, timeout_ms) == 0)

    def counters(self) -> Counters:
        """Also after `close`."""
        # The causes are read first: a record that is dropped between the two calls then counts as pending instead of getting lost.
        dropped: dict[str, int] = {}

        def visit(_: Any, cause: bytes, count: int) -> None:
            dropped[cause.decode("utf-8", "replace")] = count

        self.library.statagent_dropped(self.pointer, VisitDropped(visit), None)
        found = Counts()
        self.library.statagent_counters(self.pointer, found)
        pending = found.produced - found.acked - sum(dropped.values())
        return Counters(found.produced, found.acked, pending, min(found.spilled, pending), dropped)

    def rank(self) -> int:
        return int(self.library.statagent_rank(self.pointer))

    def world_size(self) -> int:
        return int(self.library.statagent_world_size(self.pointer))

    def recording_rank(self) -> tuple[int, int] | None:
        """This process's number among those of its launch that record, and how many they are; None if it does not record."""
        number, count = ctypes.c_uint32(), ctypes.c_uint32()
        if not self.library.statagent_records(self.pointer, number, count):
            return None
        return number.value, count.value


def start(library: Any, options: Options) -> Session:
    """Starts an agent of the library."""
    pointer = ctypes.c_void_p()
    check(library.statagent_start(options, pointer))
    assert pointer.value is not None
    return Session(library, pointer.value)
