"""Shared by the tests: a recording of the C interface, and subprocesses with the package importable."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm_python import shared

from statagent._layouts.placement import Placement
from statagent._native import library as _library

ROOT = Path(__file__).resolve().parents[3]
_KIND_NAMES = {number: name for name, number in _library.KINDS.items()}
_PHASE_NAMES = {number: name for name, number in _library.PHASES.items()}
_MODE_NAMES = {number: name for name, number in _library.MODES.items()}
_DTYPE_NAMES = {number: name for name, number in _library.DTYPES.items()}


@dataclass(frozen=True)
class Record:
    """One tensor that the library accepted."""

    step: int
    name: str
    kind: str
    path: str
    micro_batch: int
    call: int
    mode: str
    parent: str
    class_name: str
    depth: int
    dtype: str
    shape: tuple[int, ...]
    l2: float
    hash: int
    placement: Placement | None = None


def _stored(keys: Any, values: Any, count: int) -> dict[str, str]:
    """Settings or fields as the library stores them."""
    return {keys[i].decode(): _library.redact(keys[i].decode(), values[i].decode()) for i in range(count)}


class Recording:
    """The library, with what was observed kept beside it. Calls go through, so that what the library refuses fails here as well."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.records: list[Record] = []
        self.refusals: list[str] = []
        self.scalars: list[tuple[int, str, float, int]] = []
        self.events: list[tuple[int, str, str, dict[str, str]]] = []
        self.sent_texts: list[str] = []  # of the events as they reach the library, which leaves out secrets that it can recognise
        self.memory: list[tuple[int, str, int, str, str, dict[str, int]]] = []
        self.densities: list[tuple[int, str, int, int, int, int, tuple[int, ...]]] = []
        self.ended_steps: list[int] = []
        self.lists: list[int] = []  # lengths of what was observed together
        self.config: dict[str, str] = {}
        # Name to depth of a Record, by handle.
        self._identities: dict[int, tuple[str, str, str, int, int, str, str, str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def statagent_start(self, options: Any, pointer: Any) -> int:
        self.config = _stored(options.config_keys, options.config_values, options.config_count)
        return int(self.real.statagent_start(options, pointer))

    def statagent_intern(self, agent: Any, identity: Any, handle: Any) -> int:
        code = int(self.real.statagent_intern(agent, identity, handle))
        if code == 0:
            self._identities.setdefault(
                handle.value,
                (
                    identity.name.decode(), _KIND_NAMES[identity.kind], (identity.output_path or b"").decode(), identity.micro_batch,
                    identity.call, _MODE_NAMES[identity.mode], (identity.parent or b"").decode(),
                    (identity.class_name or b"").decode(), identity.depth,
                ),
            )  # fmt: skip
        return code

    def statagent_observe_list(self, agent: Any, count: int, handles: Any, tensors: Any, stream: Any, refused: Any) -> int:
        """Records are kept of lists that the library took whole."""
        step = int(self.real.statagent_step(agent))
        code = int(self.real.statagent_observe_list(agent, count, handles, tensors, stream, refused))
        self.lists.append(count)
        if code:
            self.refusals.append(f"{refused.value} of {count}: {self.real.statagent_last_error().decode()}")
            return code
        self.records += [self._record(step, handles[i], _library.Tensor.from_address(tensors[i])) for i in range(count)]
        return 0

    def statagent_observe(self, *arguments: Any) -> int:
        return self._observe(self.real.statagent_observe, *arguments)

    def statagent_observe_held(self, *arguments: Any) -> int:
        return self._observe(self.real.statagent_observe_held, *arguments)

    def _observe(self, observe: Any, agent: Any, handle: int, tensor: ctypes.c_void_p, stream: Any) -> int:
        step = int(self.real.statagent_step(agent))
        code = int(observe(agent, handle, tensor, stream))
        if code:
            self.refusals.append(f"{self._identities.get(handle)}: {self.real.statagent_last_error().decode()}")
            return code
        assert tensor.value is not None
        self.records.append(self._record(step, handle, _library.Tensor.from_address(tensor.value)))
        return 0

    def _record(self, step: int, handle: int, tensor: Any) -> Record:
        statistics = _library.Statistics()
        assert self.real.statagent_compute(tensor, 0, 0, statistics, None, None) == 0
        shape = tuple((ctypes.c_int64 * tensor.ndim).from_address(tensor.shape)) if tensor.ndim else ()
        place = _placement(tensor)
        return Record(step, *self._identities[handle], _DTYPE_NAMES[tensor.dtype], shape, statistics.l2, statistics.hash, place)

    def statagent_log_scalar(self, agent: Any, name: bytes, value: float, micro_batch: int) -> int:
        code = int(self.real.statagent_log_scalar(agent, name, value, micro_batch))
        if code == 0:
            self.scalars.append((int(self.real.statagent_step(agent)), name.decode(), value, micro_batch))
        return code

    def statagent_log_event_at(self, agent: Any, step: int, kind: bytes, text: bytes, keys: Any, values: Any, count: int) -> int:
        code = int(self.real.statagent_log_event_at(agent, step, kind, text, keys, values, count))
        if code == 0:
            self.sent_texts.append(text.decode())
            self.events.append((step, kind.decode(), _library.redact("", text.decode()), _stored(keys, values, count)))
        return code

    def statagent_log_scalar_at(self, agent: Any, name: bytes, value: float, micro_batch: int, step: int) -> int:
        code = int(self.real.statagent_log_scalar_at(agent, name, value, micro_batch, step))
        if code == 0:
            self.scalars.append((step, name.decode(), value, micro_batch))
        return code

    def statagent_add_config(self, agent: Any, keys: Any, values: Any, count: int) -> int:
        code = int(self.real.statagent_add_config(agent, keys, values, count))
        if code == 0:
            self.config.update(_stored(keys, values, count))
        return code

    def statagent_log_memory(self, agent: Any, memory: Any) -> int:
        code = int(self.real.statagent_log_memory(agent, memory))
        if code == 0:
            names = [name for bit, name in enumerate(_library.QUANTITIES) if memory.present >> bit & 1]
            found = {name: memory.bytes[i] for i, name in enumerate(names)}
            step, phase = int(self.real.statagent_step(agent)), _PHASE_NAMES[memory.phase]
            self.memory.append((step, phase, memory.micro_batch, memory.device.decode(), memory.module.decode(), found))
        return code

    def statagent_log_density(self, agent: Any, density: Any, step: int) -> int:
        code = int(self.real.statagent_log_density(agent, density, step))
        if code == 0:
            per_sample = tuple(density.valid_per_sample[: density.samples])
            found = (step, density.input.decode(), density.type, density.pad_index, density.valid, density.total, per_sample)
            self.densities.append(found)
        return code

    def statagent_end_step(self, agent: Any) -> None:
        self.ended_steps.append(int(self.real.statagent_step(agent)))
        self.real.statagent_end_step(agent)

    # --- questions

    def of(self, kind: str, step: int | None = None) -> list[Record]:
        return [r for r in self.records if r.kind == kind and (step is None or r.step == step)]

    def names(self, kind: str, step: int | None = None) -> list[str]:
        """Names in the order of observation."""
        return [r.name for r in self.of(kind, step)]

    def one(self, name: str, kind: str, **fields: Any) -> Record:
        """The only record with these fields."""
        found = [r for r in self.records if (r.name, r.kind) == (name, kind)]
        found = [r for r in found if all(getattr(r, field) == value for field, value in fields.items())]
        assert len(found) == 1, f"{name} {kind} {fields}: {found or sorted({(r.name, r.kind) for r in self.records})}"
        return found[0]


def _placement(tensor: Any) -> Placement | None:
    """What the tensor's structure points to."""
    if not tensor.placement:
        return None
    found = _library.Placement.from_address(tensor.placement)
    dims = found.ndim

    def numbers(address: int, count: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * count).from_address(address)) if count else ()

    flat = numbers(found.boxes, 2 * dims * found.box_count)
    sides = [flat[at : at + dims] for at in range(0, len(flat), dims)] if dims else []
    ranges = numbers(found.ranges, 2 * found.range_count)
    return Placement(
        numbers(found.global_shape, dims), boxes=tuple(zip(sides[::2], sides[1::2])), ranges=tuple(zip(ranges[::2], ranges[1::2])),
        partial=bool(found.partial), piece=found.piece, pieces=found.pieces,
        unordered=found.unordered - 1 if found.unordered else None,
    )  # fmt: skip


def environment(**extra: str) -> dict[str, str]:
    """The environment of a training process, without a launcher's variables; the same as in tests/e2e, so that both share a warm process."""
    env = {
        k: v for k, v in os.environ.items() if not k.startswith("STATAGENT_") or k in ("STATAGENT_LIBRARY", "STATAGENT_EXTENSION")
    }
    env.update(
        PYTHONPATH=str(ROOT / "agent" / "python"), OMP_NUM_THREADS="1", GOMP_SPINCOUNT="0", OMP_WAIT_POLICY="PASSIVE",
        TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_FX_GRAPH_CACHE="0",
    )  # fmt: skip
    return {**env, **extra}


def python(
    script: str, code: int | None = 0, timeout: float = 60, cold: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, the package importable; `code` None: any exit code. The process is a fork of one that has
    imported torch (tests/e2e/warm_python.py), unless `cold`: for tests of imports and of the interpreter's end."""
    env = environment(**variables)
    warm = shared(environment())
    if not cold and warm.takes(env):
        done = subprocess.CompletedProcess([script], *warm.run(["-c", script], env, timeout, None))
    else:
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, timeout=timeout, capture_output=True, text=True, check=False
        )
    assert code is None or done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
