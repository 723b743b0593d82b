"""Statistics of one tensor, without a collector."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ._layouts.placement import Placement
from ._native import library as _library
from ._native.placement import Box, placement_of, put
from ._native.tensors import borrow, dtype_name, give_back
from .errors import InvalidArgumentError

_COUNTS = ("nan", "pos_inf", "neg_inf", "zero", "neg", "pos")
_MOMENTS = ("min", "max", "mean", "std", "l1", "l2")
SKETCHES = (0, 16, 32, 64)
SAMPLES_MAX = 1024
_LOWEST_EXPONENT, _HIGHEST_EXPONENT = -1074, 1023  # of float64, which holds every value


def compute(
    tensor: Any,
    sketch: int = 16,
    samples: int = 0,
    exponents: bool = False,
    *,
    global_shape: Sequence[int] | None = None,
    offset: Sequence[int] | None = None,
    boxes: Sequence[Box] | None = None,
    flat: Sequence[tuple[int, int]] | None = None,
    partial: bool = False,
) -> dict[str, Any]:
    """Statistics of one tensor, without a collector.

    tensor: a torch tensor, a NumPy array, or anything with DLPack or __array_interface__; on the CPU or a CUDA device; of any shape and
    strides, and of any real, complex or boolean dtype that the statistics support. On a CUDA device the call waits for the result.
    sketch: number of signed sums: 0, 16, 32 or 64. samples: how many of the first elements to return, at most 1024.

    exponents: True adds a histogram of binary exponents.

    global_shape: the tensor is a shard of a logical tensor of this shape, so that `merge` adds the shards' results up to those of the
    whole. Its place is given by one of: offset, of the box that it is; boxes, [(offset, size), ...] that differ in one dimension, along
    which they follow each other in the shard; flat, [(start, stop), ...], ranges of the flattened logical tensor that follow each other in
    the shard. partial: the tensor is a sum still to be reduced over processes. The result has these as further keys (offset as boxes).

    Returns a dictionary with the keys numel, shape, dtype ("f32"); nan, pos_inf, neg_inf, zero, neg, pos (numbers of elements); min, max,
    mean, std, l1, l2 of the finite elements, None if there are none; hash; sketch and samples (lists). With `exponents`, also exponents:
    {exponent: count} of floor(log2(|x|)) over the finite elements that are not 0, ascending.

    Raises InvalidArgumentError for a wrong argument, TensorTypeError for a tensor that is not supported, LibraryNotFoundError.
    Cost: one pass over the data, a second one for exponents.

    >>> import numpy
    >>> compute(numpy.arange(4.0))["mean"]
    1.5
    """
    if isinstance(sketch, bool) or sketch not in SKETCHES:
        raise InvalidArgumentError(f"compute statistics: sketch is {sketch!r}; expected 0, 16, 32 or 64")
    if isinstance(samples, bool) or not isinstance(samples, int) or not 0 <= samples <= SAMPLES_MAX:
        raise InvalidArgumentError(f"compute statistics: samples is {samples!r}; expected a whole number in 0..{SAMPLES_MAX}")
    place = placement_of("compute statistics of a shard", tensor, global_shape, offset, boxes, flat)
    library = _library.load()
    found = _library.Statistics()
    sums, first = (ctypes.c_double * max(1, sketch))(), (ctypes.c_double * max(1, samples))()
    borrowed = borrow(tensor)
    structure = borrowed[0]
    compute_on = library.statagent_compute_on_held if structure.held else library.statagent_compute_on
    try:
        put(structure, place, again=False)
        _library.check(compute_on(structure, sketch, samples, structure.stream, found, sums, first))
    finally:
        put(structure, None)
    shape = list((ctypes.c_int64 * structure.ndim).from_address(structure.shape)) if structure.ndim else []
    dtype = dtype_name(structure.dtype)
    histogram = _exponents(library, structure) if exponents else None
    give_back(borrowed)
    result: dict[str, Any] = {"numel": found.numel, "shape": shape, "dtype": dtype}
    result.update((name, getattr(found, name)) for name in _COUNTS)
    result.update((name, getattr(found, name) if found.has_finite else None) for name in _MOMENTS)
    result["hash"] = found.hash
    result["sketch"] = list(sums[: found.sketch_count])
    result["samples"] = list(first[: found.sample_count])
    if histogram is not None:
        result["exponents"] = histogram
    result.update(_keys(place))
    if partial:
        result["partial"] = True
    return result


def _keys(place: Placement | None) -> dict[str, Any]:
    if place is None:
        return {}
    keys: dict[str, Any] = {"global_shape": list(place.global_shape)}
    keys.update({"flat": list(place.ranges)} if place.ranges else {"boxes": list(place.boxes)})
    return keys


def _exponents(library: Any, structure: Any) -> dict[int, int]:
    counts = (ctypes.c_uint64 * (_HIGHEST_EXPONENT - _LOWEST_EXPONENT + 1))()
    exponents_on = library.statagent_exponents_on_held if structure.held else library.statagent_exponents_on
    _library.check(exponents_on(structure, _LOWEST_EXPONENT, len(counts), structure.stream, counts))
    return {exponent: count for exponent, count in enumerate(counts, _LOWEST_EXPONENT) if count}
