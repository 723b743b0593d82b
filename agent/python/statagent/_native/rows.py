"""Rows of tokens: their keys and statistics, as arrays of the C interface."""

from __future__ import annotations

import array
import ctypes
import sys
from typing import Any

from ..errors import InvalidArgumentError
from . import library as _library
from .library import Tensor, TokenRows, check
from .tensors import borrow, give_back

SKETCH = 8  # sums of a row
ROWS_MAX = 2**20  # of one call
_UINT32_MAX = 2**32 - 1
_UNIMPLEMENTED = 12  # the library was built without CUDA, or the machine has no device or driver for it


class Numbers:
    """Whole numbers of 64 or 32 bits, one after the other in the CPU's memory: where they begin, and how many they are."""

    def __init__(self, what: str, values: Any, wide: bool) -> None:
        """values: a torch tensor, a NumPy array, or a sequence. wide: 64 bits; signed ones keep their bits."""
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        try:
            if torch is not None and isinstance(values, torch.Tensor):
                self.address, self.count, self._held = _of_torch(torch, values, wide)
            elif numpy is not None and isinstance(values, numpy.ndarray):
                self.address, self.count, self._held = _of_numpy(numpy, values, wide)
            else:
                numbers = array.array(
                    "Q" if wide else "I", [int(value) & (2**64 - 1) if wide else int(value) for value in values]
                )
                self.address, self.count, self._held = numbers.buffer_info()[0], len(numbers), numbers
        except (TypeError, ValueError, OverflowError) as error:
            expected = "whole numbers of 64 bits" if wide else f"whole numbers from 0 to {_UINT32_MAX}"
            raise InvalidArgumentError(f"{what}: found {type(values).__name__} ({error}); expected {expected}") from error


def _of_torch(torch: Any, values: Any, wide: bool) -> tuple[int, int, Any]:
    if values.dtype.is_floating_point or values.dtype.is_complex:
        raise TypeError(str(values.dtype))
    held = values.detach().to("cpu")
    if wide:
        held = held if held.dtype == getattr(torch, "uint64", torch.int64) else held.to(torch.int64)
    else:
        held = held.to(torch.int64)
        if held.numel() > 0 and not (0 <= int(held.min()) and int(held.max()) <= _UINT32_MAX):
            raise ValueError(f"{int(held.min())} to {int(held.max())}")
        held = held.to(torch.int32)  # keeps the lower 32 bits
    held = held.contiguous()
    return held.data_ptr(), held.numel(), held


def _of_numpy(numpy: Any, values: Any, wide: bool) -> tuple[int, int, Any]:
    if values.dtype.kind not in "iub":
        raise TypeError(str(values.dtype))
    fits = wide or values.size == 0 or (values.dtype.kind == "u" and values.dtype.itemsize <= 4)
    if not fits and not (values.min() >= 0 and values.max() <= _UINT32_MAX):
        raise ValueError(f"{values.min()} to {values.max()}")
    held = numpy.ascontiguousarray(values.astype(numpy.uint64 if wide else numpy.uint32, copy=False))
    return int(held.ctypes.data), int(held.size), held


def token_keys(ids: Any, before: Any = None) -> Any:
    """See statagent.token_keys."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    of_torch = torch is not None and isinstance(ids, torch.Tensor)
    of_numpy = numpy is not None and isinstance(ids, numpy.ndarray)
    shape = tuple(ids.shape) if of_torch or of_numpy else (len(ids),)
    if len(shape) not in (1, 2):
        raise InvalidArgumentError(f"token_keys: found ids of {len(shape)} dimensions; expected one or two, sequences and tokens")
    given = Numbers("token_keys: ids", ids, wide=True)
    sequences = shape[0] if len(shape) == 2 else 1
    start = None
    if before is not None:
        start = Numbers("token_keys: before", before if hasattr(before, "__len__") else [before], wide=True)
        if start.count != sequences:
            raise InvalidArgumentError(
                f"token_keys: found {start.count} keys before {sequences} sequences; expected one for each"
            )
    keys = array.array("Q", bytes(8 * max(1, given.count)))
    arguments = (given.address, sequences, shape[-1], None if start is None else start.address, keys.buffer_info()[0])
    check(_library.load().statagent_token_keys(*arguments))
    del keys[given.count :]
    if of_torch:
        assert torch is not None
        signed = array.array("q", keys.tobytes())
        found = torch.tensor([], dtype=torch.int64) if not signed else torch.frombuffer(signed, dtype=torch.int64)
        return found.reshape(shape).to(ids.device)
    if of_numpy:
        assert numpy is not None
        return numpy.frombuffer(keys, dtype=numpy.uint64).reshape(shape)
    return keys


def compute_rows(rows: Any, first_column: int = 0) -> list[dict[str, Any]]:
    """See statagent.compute_rows."""
    _check_column("compute_rows", first_column)
    count = 0
    l2, hashes, sketches = (ctypes.c_float * 1)(), (ctypes.c_uint64 * 1)(), (ctypes.c_float * 1)()

    def compute(matrix: Tensor) -> int:
        nonlocal count, l2, hashes, sketches
        count = ctypes.c_int64.from_address(matrix.shape).value if matrix.ndim else 0
        l2 = (ctypes.c_float * max(1, count))()
        hashes = (ctypes.c_uint64 * max(1, count))()
        sketches = (ctypes.c_float * max(1, SKETCH * count))()
        return int(_library.load().statagent_compute_rows_on(matrix, first_column, count, matrix.stream, l2, hashes, sketches))

    borrowed = borrow(rows)
    code = compute(borrowed[0])
    if code == _UNIMPLEMENTED and getattr(rows, "is_cuda", False):  # copied to the CPU, which waits for the GPU
        give_back(borrowed)
        borrowed = borrow(rows.detach().cpu())
        code = compute(borrowed[0])
    check(code)
    give_back(borrowed)
    return [
        {"l2": l2[row], "hash": hashes[row], "sketch": list(sketches[SKETCH * row : SKETCH * (row + 1)])} for row in range(count)
    ]


def record_rows(
    library: Any, pointer: int, tap: bytes, rows: Any, keys: Any, positions: Any, step: int | None, call: int, first_column: int,
    index: Any,
) -> None:  # fmt: skip
    """Rows of tokens of one tap, for the library's agent. Never waits for a GPU: rows on one that the library cannot use are refused. Raises
    StatagentError."""
    _check_column("record_rows", first_column)
    of_key, of_position = Numbers("record_rows: keys", keys, wide=True), Numbers("record_rows: positions", positions, wide=False)
    of_row = None if index is None else Numbers("record_rows: index", index, wide=True)
    if of_key.count != of_position.count or (of_row is not None and of_row.count != of_key.count):
        rows_of = "" if of_row is None else f", and an index of {of_row.count}"
        raise InvalidArgumentError(
            f"record_rows: found {of_key.count} keys and {of_position.count} positions{rows_of}; expected one of each for a row"
        )

    if of_row is not None and of_row.count == 0:
        return

    borrowed = borrow(rows)
    matrix = borrowed[0]
    structure = TokenRows(
        call=call, first_column=first_column, tap=tap, rows=ctypes.addressof(matrix), count=of_key.count,
        keys=of_key.address, positions=of_position.address, index=None if of_row is None else of_row.address,
        stream=matrix.stream,
    )  # fmt: skip
    check(library.statagent_record_rows(pointer, structure, None if step is None else ctypes.c_uint64(step)))
    give_back(borrowed)


def _check_column(what: str, column: Any) -> None:
    if isinstance(column, bool) or not isinstance(column, int) or not 0 <= column <= _UINT32_MAX:
        raise InvalidArgumentError(f"{what}: first_column is {column!r}; expected a whole number from 0 to {_UINT32_MAX}")
