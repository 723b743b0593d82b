"""Noise in the last places of torch tensors, for twins of a run: a function of a key, the step, each element's index and bits."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TensorTypeError
from . import library
from .library import DTYPES, HELD_BYTES_MAX

_CACHED_LAYOUTS_MAX = 4096


@dataclass(frozen=True)
class Part:
    """A box of a tensor, which lies in the logical tensor that several ranks hold together: `length` elements from `start` on along `dim` of
    the tensor (None: all of it), with these strides of the index in the logical tensor, whose first element there has the index `first`."""

    strides: tuple[int, ...]
    first: int
    dim: int | None = None
    start: int = 0
    length: int = 0


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of the index in a tensor of this shape."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


class NoiseWriter:
    """Adds noise of up to so many units in the last place. Threads: any."""

    def __init__(self, ulps: float) -> None:
        """Precondition: torch is imported."""
        self._ulps = float(ulps)
        self._torch = torch = sys.modules["torch"]
        # Number of the component's type, whether there are two of it.
        self._types: dict[Any, tuple[int, bool]] = {
            torch.float64: (DTYPES["f64"], False), torch.float32: (DTYPES["f32"], False), torch.float16: (DTYPES["f16"], False),
            torch.bfloat16: (DTYPES["bf16"], False), torch.complex64: (DTYPES["f32"], True), torch.complex128: (DTYPES["f64"], True),
        }  # fmt: skip
        loaded = library.load()
        self._held, self._released, self._check = loaded.statagent_add_noise_held, loaded.statagent_add_noise, library.check
        self._layouts: dict[tuple[Any, ...], Any] = {}
        self._plain: dict[tuple[Any, int], tuple[Any, Any]] = {}  # dtype, elements -> layout and function

    def takes(self, tensor: Any) -> bool:
        """Whether there is noise for the tensor's type: not for whole numbers, bool and 8 bits."""
        return tensor.dtype in self._types

    def noisy(self, tensor: Any, key: int, step: int, parts: Sequence[Part] = (), difference: bool = False) -> Any:
        """A new tensor: the values with noise, or what they differ by. `tensor`: plain, takes(tensor); its history is ignored. `parts`: where it
        lies in the logical tensor; default: it is the whole. Raises StatagentError for tensors without memory."""
        to = self._torch.empty_like(tensor)
        if parts or not self._write_plain(tensor, to, key, step, difference):
            self._write(tensor, to, key, step, parts, difference)
        return to

    def add(self, tensor: Any, key: int, step: int, parts: Sequence[Part] = ()) -> None:
        """The same in place, unseen by autograd. The tensor must not overlap itself."""
        if parts or not self._write_plain(tensor, tensor, key, step, False):
            self._write(tensor, tensor, key, step, parts, False)

    def _write_plain(self, source: Any, to: Any, key: int, step: int, difference: bool) -> bool:
        """As _write for the most frequent tensors, with fewer calls. False: these are others."""
        if not (source.is_cpu and source.is_contiguous() and to.is_contiguous()) or source.storage_offset() & 1:
            return False
        numel = source.numel()
        layout, function = self._plain.get((source.dtype, numel)) or self._learn_plain(source.dtype, numel)
        here, there = source.data_ptr(), to.data_ptr()
        if function is None or not (here and there):
            return False
        self._check(function(layout, here, there, key, step, difference))
        return True

    def _learn_plain(self, dtype: Any, numel: int) -> tuple[Any, Any]:
        number, pairs = self._types[dtype]
        held = numel * dtype.itemsize <= HELD_BYTES_MAX
        found = (None, None) if pairs else (self._flat(number, False, numel), self._held if held else self._released)
        if len(self._plain) >= _CACHED_LAYOUTS_MAX:
            self._plain.clear()
        self._plain[(dtype, numel)] = found
        return found

    def _write(self, source: Any, to: Any, key: int, step: int, parts: Sequence[Part], difference: bool) -> None:
        for part in parts:
            if part.dim is not None:
                with self._torch.no_grad():
                    here = source.detach().narrow(part.dim, part.start, part.length)
                    there = to.detach().narrow(part.dim, part.start, part.length)
                self._write_part(here, there, key, step, part, difference)
            else:
                self._write_part(source, to, key, step, part, difference)
        if not parts:
            self._write_part(source, to, key, step, None, difference)

    def _write_part(self, source: Any, to: Any, key: int, step: int, part: Part | None, difference: bool) -> None:
        dtype, pairs = self._types[source.dtype]
        if pairs or source.storage_offset() & 1:  # z.conj(), z.conj().imag
            source = source.detach().resolve_conj().resolve_neg()
        if not source.is_cpu:
            self._write_elsewhere(source, to, key, step, part, difference, pairs)
            return
        if part is None and source.is_contiguous() and to.is_contiguous():
            layout = self._layouts.get((dtype, pairs, source.numel())) or self._flat(dtype, pairs, source.numel())
        else:
            layout = self._strided(source, to, dtype, pairs, part)
        here, there = source.data_ptr(), to.data_ptr()
        if not (here and there) and source.numel():
            raise TensorTypeError(f"noise: found a {type(source).__name__} without memory of its own; expected one with data")
        function = self._held if source.numel() * source.element_size() <= HELD_BYTES_MAX else self._released
        self._check(function(layout, here, there, key, step, difference))

    def _write_elsewhere(
        self, source: Any, to: Any, key: int, step: int, part: Part | None, difference: bool, pairs: bool
    ) -> None:
        from .torch_noise import write_noise

        strides, first = (row_major(source.shape), 0) if part is None else (part.strides, part.first)
        with self._torch.no_grad():
            source, to = source.detach(), to.detach()
            if pairs:
                source, to = self._torch.view_as_real(source), self._torch.view_as_real(to)
                strides, first = (*(2 * stride for stride in strides), 1), 2 * first
            write_noise(source, to, key, step, self._ulps, difference, strides, first)

    def _flat(self, dtype: int, pairs: bool, numel: int) -> Any:
        return self._keep((dtype, pairs, numel), dtype, [[numel * (2 if pairs else 1)], [1], [1], [1]], 0)

    def _strided(self, source: Any, to: Any, dtype: int, pairs: bool, part: Part | None) -> Any:
        shape, here, there = source.shape, source.stride(), to.stride()
        strides, first = (row_major(shape), 0) if part is None else (part.strides, part.first)
        key = (dtype, pairs, shape, here, there, strides, first)
        found = self._layouts.get(key)
        if found is not None:
            return found
        sides: list[list[int]] = [list(side) for side in (shape, here, there, strides)]
        if pairs:
            sides = [[*sides[0], 2], *([*(2 * stride for stride in side), 1] for side in sides[1:])]
            first *= 2
        return self._keep(key, dtype, sides, first)

    def _keep(self, key: tuple[Any, ...], dtype: int, sides: list[list[int]], first: int) -> Any:
        """A reference to the library's structure, which it keeps alive. `sides`: shape, and strides of source, target and index."""
        dims = len(sides[0])
        entries = (ctypes.c_int64 * max(1, 4 * dims))(*itertools.chain(*sides))
        address = ctypes.addressof(entries)
        structure = library.Noise(
            dtype=dtype, ndim=dims, shape=address, from_strides=address + 8 * dims, to_strides=address + 16 * dims,
            index_strides=address + 24 * dims, first_index=first, ulps=self._ulps,
        )  # fmt: skip
        structure.entries = entries
        if len(self._layouts) >= _CACHED_LAYOUTS_MAX:
            self._layouts.clear()
        found = self._layouts[key] = ctypes.byref(structure)
        return found
