"""Finds libstatagent.so and declares its C interface (agent/include/statagent/statagent.h) to ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from ..errors import LibraryNotFoundError, from_code

LIBRARY_NAME = "libstatagent.so"

# DType, Kind and Mode in statagent/types.h: numbers of the wire format.
DTYPES = {
    "f64": 1, "f32": 2, "f16": 3, "bf16": 4, "f8e4m3": 5, "f8e5m2": 6, "i8": 7, "i16": 8, "i32": 9, "i64": 10,
    "u8": 11, "u16": 12, "u32": 13, "u64": 14, "bool": 15, "c64": 16, "c128": 17,
}  # fmt: skip
KINDS = {
    "output": 1, "input": 2, "grad_output": 3, "grad_input": 4, "weight": 5, "weight_grad": 6, "optimizer_state": 7,
    "inspect": 8, "inspect_grad": 9, "batch": 10, "buffer": 11, "operator": 12,
}  # fmt: skip
MODES = {"train": 1, "eval": 2, "init": 3}
# MemoryPhase, MemoryQuantity (bits, lowest first) and DensityType.
PHASES = {
    "pre_forward": 1, "post_forward": 2, "pre_backward": 3, "post_backward": 4, "pre_optimizer": 5, "post_optimizer": 6,
}  # fmt: skip
QUANTITIES = (
    "allocated", "max_allocated", "reserved", "max_reserved", "inactive", "max_inactive", "parameter", "gradient", "buffer",
    "optimizer_state", "device_free", "device_total", "host_rss", "host_max_rss", "host_free", "host_total", "step_max_allocated",
    "allocated_delta", "peak_delta",
)  # fmt: skip
DENSITIES = {"embed": 1, "label": 2}


class _Structure(ctypes.Structure):
    """A structure whose first field is its own size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Options(_Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("run", c_char_p),
        ("collector", c_char_p),
        ("if_exists", c_char_p),
        ("config_keys", POINTER(c_char_p)),
        ("config_values", POINTER(c_char_p)),
        ("config_count", c_uint64),
        ("required", c_int32),
        ("rank", c_int64),
        ("local_rank", c_int64),
        ("world_size", c_int64),
        ("launch", c_char_p),
        ("steps", c_char_p),
        ("sketch", c_int64),
        ("samples", c_int64),
        ("buffer_records_max", c_int64),
        ("connect_timeout_ms", c_int64),
        ("threads", c_int64),
        ("spill_dir", c_char_p),
        ("spill_limit", c_char_p),
        ("captures", c_char_p),
        ("exponents", c_char_p),
        ("tls_ca", c_char_p),
        ("tls_cert", c_char_p),
        ("tls_key", c_char_p),
        ("project", c_char_p),
        ("ranks", c_char_p),
        ("log", c_char_p),
        ("ring", c_char_p),
    ]


class Identity(_Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("name", c_char_p),
        ("output_path", c_char_p),
        ("parent", c_char_p),
        ("class_name", c_char_p),
        ("kind", c_uint32),
        ("mode", c_uint32),
        ("micro_batch", c_uint32),
        ("call", c_uint32),
        ("depth", c_int32),
    ]


class Placement(_Structure):
    __slots__ = ("numbers",)
    numbers: Any  # what the addresses point to
    _fields_ = [
        ("struct_size", c_uint32),
        ("ndim", c_uint32),
        ("global_shape", c_void_p),  # int64_t[ndim]
        ("boxes", c_void_p),  # for each box int64_t[ndim] offsets and as many sizes
        ("ranges", c_void_p),  # for each range int64_t start, stop
        ("box_count", c_uint64),
        ("range_count", c_uint64),
        ("partial", c_uint32),
        ("piece", c_uint32),
        ("pieces", c_uint32),
        ("unordered", c_uint32),
    ]


class Tensor(_Structure):
    __slots__ = ("address", "entries", "held", "placed", "stream")
    address: c_void_p  # of this structure, as an argument of statagent_observe
    entries: Any  # what shape and strides point to
    placed: Any  # what `placement` points to
    held: bool  # small and on the CPU: functions that read it hold the GIL, see HELD_BYTES_MAX
    stream: int | None  # CUDA stream that computes the tensor
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_uint32),
        ("data", c_void_p),
        ("shape", c_void_p),  # int64_t[ndim]
        ("strides", c_void_p),  # int64_t[ndim] or null
        ("ndim", c_uint32),
        ("device", c_int32),
        ("device_index", c_int32),
        ("placement", c_void_p),  # of `Placement`, or null
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.address = c_void_p(ctypes.addressof(self))
        self.entries, self.placed, self.held, self.stream = None, None, False, None


class Noise(_Structure):
    __slots__ = ("entries",)
    entries: Any  # what shape and strides point to
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_uint32),
        ("ndim", c_uint32),
        ("reserved", c_uint32),
        ("shape", c_void_p),
        ("from_strides", c_void_p),
        ("to_strides", c_void_p),
        ("index_strides", c_void_p),
        ("first_index", c_uint64),
        ("ulps", c_double),
    ]


class Statistics(_Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("has_finite", c_uint32),
        *[(name, c_uint64) for name in ("numel", "nan", "pos_inf", "neg_inf", "zero", "neg", "pos")],
        *[(name, c_double) for name in ("min", "max", "mean", "std", "l1", "l2")],
        ("hash", c_uint64),
        ("sketch_count", c_uint32),
        ("sample_count", c_uint32),
    ]


class Memory(_Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("phase", c_uint32),
        ("micro_batch", c_uint32),
        ("present", c_uint32),
        ("device", c_char_p),
        ("module", c_char_p),
        ("bytes", POINTER(c_int64)),
    ]


class Density(_Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("type", c_uint32),
        ("micro_batch", c_uint32),
        ("samples", c_uint32),
        ("input", c_char_p),
        ("pad_index", c_int64),
        ("valid", c_uint64),
        ("total", c_uint64),
        ("valid_per_sample", POINTER(c_uint64)),
    ]


class TokenRows(_Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("call", c_uint32),
        ("first_column", c_uint32),
        ("reserved", c_uint32),
        ("tap", c_char_p),
        ("rows", c_void_p),  # of `Tensor`
        ("count", c_uint64),
        ("keys", c_void_p),  # uint64_t[count]
        ("positions", c_void_p),  # uint32_t[count]
        ("index", c_void_p),  # int64_t[count], or None
        ("stream", c_void_p),
    ]


class Counts(_Structure):
    _fields_ = [("struct_size", c_uint32), *[(name, c_uint64) for name in ("produced", "acked", "pending", "dropped", "spilled")]]


VisitDropped = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_uint64)

# Functions that read a CPU tensor of at most this many bytes keep Python's global interpreter lock (GIL): reading it takes at most about
# 0.25 ms, a twentieth of the time (sys.getswitchinterval) that a busy thread may keep the lock once it has been released.
HELD_BYTES_MAX = 256 << 10

# Function: result, arguments. An agent and a set of steps are opaque pointers.
# Which functions hold the GIL, and why none of them can wait for a thread that needs it: docs/decisions/0029-holding-the-gil.md.
_STRINGS = POINTER(c_char_p)
_Signature = tuple[Any, list[Any]]
_HELD: dict[str, _Signature] = {
    "statagent_last_error": (c_char_p, []),
    "statagent_version": (c_char_p, []),
    "statagent_intern": (c_int, [c_void_p, POINTER(Identity), POINTER(c_uint32)]),
    "statagent_log_scalar": (c_int, [c_void_p, c_char_p, c_double, c_uint32]),
    "statagent_log_event": (c_int, [c_void_p, c_char_p, c_char_p, _STRINGS, _STRINGS, c_uint64]),
    "statagent_log_scalar_at": (c_int, [c_void_p, c_char_p, c_double, c_uint32, c_uint64]),
    "statagent_log_event_at": (c_int, [c_void_p, c_uint64, c_char_p, c_char_p, _STRINGS, _STRINGS, c_uint64]),
    "statagent_log_memory": (c_int, [c_void_p, POINTER(Memory)]),
    "statagent_log_density": (c_int, [c_void_p, POINTER(Density), c_uint64]),
    "statagent_step": (c_uint64, [c_void_p]),
    "statagent_step_wanted": (c_int, [c_void_p]),
    "statagent_step_asked": (c_int, [c_void_p]),
    "statagent_next_full_steps": (c_int, [c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint64)]),
    "statagent_rank": (c_uint32, [c_void_p]),
    "statagent_world_size": (c_uint32, [c_void_p]),
    "statagent_records": (c_int, [c_void_p, POINTER(c_uint32), POINTER(c_uint32)]),
    "statagent_redact": (c_int, [c_char_p, c_char_p, c_char_p, POINTER(c_uint64)]),
    "statagent_steps_parse": (c_int, [c_char_p, POINTER(c_void_p)]),
    "statagent_steps_contains": (c_int, [c_void_p, c_uint64]),
    "statagent_steps_free": (None, [c_void_p]),
}
_RELEASED: dict[str, _Signature] = {
    "statagent_start": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "statagent_close": (c_int, [c_void_p, c_int64]),
    "statagent_close_failed": (c_int, [c_void_p, c_int64]),
    "statagent_close_unused": (c_int, [c_void_p, c_int64]),
    "statagent_free": (None, [c_void_p]),
    "statagent_observe_list": (
        c_int,
        [c_void_p, c_uint64, POINTER(c_uint32), POINTER(c_void_p), c_void_p, POINTER(c_uint64)],
    ),
    "statagent_add_config": (c_int, [c_void_p, _STRINGS, _STRINGS, c_uint64]),
    "statagent_end_step": (None, [c_void_p]),
    "statagent_set_step": (c_int, [c_void_p, c_uint64]),
    "statagent_replays_in": (None, [c_void_p, c_int32, c_void_p]),
    "statagent_replay_devices": (c_uint64, [c_void_p]),
    "statagent_flush": (c_int, [c_void_p, c_int64]),
    "statagent_counters": (c_int, [c_void_p, POINTER(Counts)]),
    "statagent_dropped": (c_int, [c_void_p, VisitDropped, c_void_p]),
    "statagent_record_rows": (c_int, [c_void_p, POINTER(TokenRows), POINTER(c_uint64)]),
    "statagent_compute_rows_on": (
        c_int,
        [POINTER(Tensor), c_uint32, c_uint64, c_void_p, POINTER(c_float), POINTER(c_uint64), POINTER(c_float)],
    ),
    "statagent_token_keys": (c_int, [c_void_p, c_uint64, c_uint64, c_void_p, c_void_p]),
    "statagent_compute": (
        c_int,
        [POINTER(Tensor), c_uint32, c_uint32, POINTER(Statistics), POINTER(c_double), POINTER(c_double)],
    ),
}
# These take as long as their tensors are large. NAME releases the GIL; NAME_held holds it, for tensors whose `held` is set.
_BY_SIZE: dict[str, _Signature] = {
    "statagent_observe": (c_int, [c_void_p, c_uint32, c_void_p, c_void_p]),
    "statagent_compute_on": (
        c_int,
        [POINTER(Tensor), c_uint32, c_uint32, c_void_p, POINTER(Statistics), POINTER(c_double), POINTER(c_double)],
    ),
    "statagent_add_noise": (c_int, [POINTER(Noise), c_void_p, c_void_p, c_uint64, c_uint64, c_int32]),
    "statagent_exponents_on": (c_int, [POINTER(Tensor), c_int32, c_uint32, c_void_p, POINTER(c_uint64)]),
}


class Library:
    """The functions of a loaded library, with their types, as attributes."""

    statagent_observe: Any
    statagent_observe_held: Any

    def __init__(self, path: Path) -> None:
        """Raises OSError, or AttributeError for a function that the library does not have."""
        releasing, holding = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for names, loader, suffix in (
            (_HELD, holding, ""), (_RELEASED, releasing, ""), (_BY_SIZE, releasing, ""), (_BY_SIZE, holding, "_held"),
        ):  # fmt: skip
            for name, (result, arguments) in names.items():
                function = getattr(loader, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name + suffix, function)
        # Converting arguments to declared types takes a third of a short call. Without them every pointer must be a c_void_p or None: an
        # integer would be cut to 32 bits.
        self.statagent_observe_held.argtypes = None


def candidates() -> list[Path]:
    """Where the library may be, best first: STATAGENT_LIBRARY alone if it is set; beside the package; in the release; in the
    source tree's build folders, `release` first, then the most recent build."""
    named = os.environ.get("STATAGENT_LIBRARY")
    if named:
        return [Path(named)]
    package = Path(__file__).resolve().parents[1]
    # The last place is that of a release: python/statagent beside lib/.
    places = [package / "lib" / LIBRARY_NAME, package / LIBRARY_NAME, package.parents[1] / "lib" / LIBRARY_NAME]
    root = package.parents[2] if len(package.parents) > 2 else package
    if (root / "agent" / "include" / "statagent" / "statagent.h").is_file():
        release = root / "build" / "release" / "lib" / LIBRARY_NAME
        built = [path for path in root.glob(f"build/*/lib/{LIBRARY_NAME}") if path != release]
        places += [release, *sorted(built, key=lambda path: path.stat().st_mtime, reverse=True)]
    return places


def find() -> Path:
    """The first candidate that exists. Raises LibraryNotFoundError, which lists the places."""
    places = candidates()
    for path in places:
        if path.is_file():
            return path
    raise LibraryNotFoundError(
        f"load {LIBRARY_NAME}: not found in: {', '.join(map(str, places))}; expected the agent's shared library; "
        + (_advice("") or "build it (scripts/build.sh), or set STATAGENT_LIBRARY to its path")
    )


def _advice(error: str) -> str:
    """What to do where this system is the reason that the library is not there or not loaded; "" elsewhere."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux":
        return f"this is {system}, and the agent runs on Linux; with STATAGENT_DISABLE=1 the same script runs here without it"
    if "GLIBC" in error:
        found = platform.libc_ver()[1] or "an older one"
        return (
            f"the wheel needs glibc 2.35 or later, and this system has {found}; use a newer system, or build the source tree here"
        )
    if "ELF" in error and machine not in ("x86_64", "AMD64"):
        return f"the wheel is for x86-64, and this is {machine}; build the source tree here (scripts/build.sh)"
    return ""


@functools.cache
def load() -> Any:
    """The library with the types of its functions. Loaded once. Raises LibraryNotFoundError."""
    path = find()
    try:
        return Library(path)
    except (OSError, AttributeError) as error:
        raise LibraryNotFoundError(
            f"load {path}: {error}; expected the agent's shared library of this version of the package; "
            + (_advice(str(error)) or "rebuild it (scripts/build.sh), or set STATAGENT_LIBRARY to a matching one")
        ) from error


def redact(name: str, value: str) -> str:
    """The value of a setting as the library stores it, without secrets; `name` is "" for a text that is no setting."""
    encoded = [text.replace("\0", " ").encode("utf-8", "replace") for text in (name, value)]
    size = ctypes.c_uint64(len(encoded[1]) + 64)
    shown = ctypes.create_string_buffer(size.value)
    code = load().statagent_redact(*encoded, shown, size)
    if code and size.value >= len(shown):  # longer than the value
        size.value += 1
        shown = ctypes.create_string_buffer(size.value)
        code = load().statagent_redact(*encoded, shown, size)
    check(code)
    return shown.value.decode("utf-8", "replace")


def last_error() -> str:
    """The message of this thread's last failed call."""
    message = load().statagent_last_error()
    return message.decode("utf-8", "replace") if message else ""


def check(code: int) -> None:
    """Raises the error of a failed call. Code 0 is success."""
    if code:
        raise from_code(code, last_error())
