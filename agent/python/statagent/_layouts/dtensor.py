"""Layouts of torch's distributed tensors: FSDP2, tensor and sequence parallelism.

Reads attributes only: no collective, no synchronisation."""

from __future__ import annotations

import functools
import math
from typing import Any

from .placement import Placement

_SPANS_MAX = 4096  # of one dimension, before a layout counts as not known


def placement_of(tensor: Any) -> Placement | None:
    """Where a DTensor's local part lies. None: not known."""
    return _place(tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape))


def placement_under(mesh: Any, placements: Any, shape: tuple[int, ...], features: int | None) -> Placement | None:
    """The same for a plain tensor of this shape that is the local part of a DTensor with these placements, if it is cut evenly. `features`:
    of the whole tensor's last dimension, if known."""
    kinds = [_kind(placement) for placement in placements]
    whole = list(shape)
    for dim, (kind, at) in enumerate(kinds):
        if kind == "shard":
            if not -len(shape) <= at < len(shape):
                return None
            last = at % len(shape) == len(shape) - 1
            whole[at] = features if features is not None and last else whole[at] * mesh.size(dim)
    return _place(mesh, tuple(placements), tuple(whole))


def _kind(placement: Any) -> tuple[str, int]:
    name = type(placement).__name__
    if name in ("Shard", "_StridedShard"):
        return ("shard" if name == "Shard" else "strided"), placement.dim
    if name == "Replicate":
        return "replicate", 0
    return ("partial", 0) if "Partial" in name else ("other", 0)


@functools.lru_cache(maxsize=4096)
def _place(mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> Placement | None:
    kinds = [_kind(placement) for placement in placements]
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(kind == "other" for kind, _ in kinds):
        return None
    # For each dimension the indexes that are here, as spans. Mesh dimensions cut one after the other, from the left; a strided shard is cut
    # before the mesh dimensions to its left that cut the same dimension (FSDP over tensor parallelism).
    spans = [[(0, size)] for size in shape]
    for at in _order(kinds):
        kind, dim = kinds[at]
        if kind in ("shard", "strided"):
            if not -len(shape) <= dim < len(shape):
                return None
            spans[dim] = _chunk(spans[dim], mesh.size(at), coordinate[at])
    if max((len(each) for each in spans), default=0) > 1:
        return None  # shards of shards never interleave
    offset = tuple(each[0][0] if each else 0 for each in spans)
    size = tuple(each[0][1] - each[0][0] if each else 0 for each in spans)
    partial = any(kind == "partial" for kind, _ in kinds)
    return Placement(shape, boxes=((offset, size),), partial=partial)


def _order(kinds: list[tuple[str, int]]) -> list[int]:
    """Mesh dimensions in the order in which they cut. fully_shard over tensor parallelism marks its own dimension, to the left, as strided:
    it cuts what tensor parallelism left."""
    return sorted(range(len(kinds)), key=lambda at: (kinds[at][0] == "strided", at))


def _chunk(spans: list[tuple[int, int]], parts: int, part: int) -> list[tuple[int, int]]:
    """As torch.chunk: equal parts, the last ones smaller or empty."""
    if not spans:
        return []
    start, stop = spans[0]
    each = math.ceil((stop - start) / parts)
    first = min(start + each * part, stop)
    return [(first, min(first + each, stop))]


# --- outputs of modules that torch's tensor parallel styles return as plain tensors


def output_layout(module: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Mesh and placements of the module's output, if a ParallelStyle made it a plain tensor (use_local_output). None: not known, or the
    output is a DTensor, which says so itself."""
    for hook in module._forward_hooks.values():
        found = _style_of(hook)
        if found is not None:
            return found
    return None


def _style_of(hook: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """distribute_module registers a closure over the mesh and the style's output function, a partial with layouts and use_local_output."""
    cells = getattr(hook, "__closure__", None) or ()
    found = [cell.cell_contents for cell in cells if _has_contents(cell)]
    mesh = next((each for each in found if hasattr(each, "get_coordinate") and hasattr(each, "size")), None)
    function = next((each for each in found if isinstance(each, functools.partial)), None)
    if mesh is None or function is None or "output" not in getattr(function.func, "__name__", ""):
        return None
    layouts = next((a for a in function.args if isinstance(a, tuple) and a and all(_kind(p)[0] != "other" for p in a)), None)
    local = next((a for a in function.args if isinstance(a, bool)), False)
    return (mesh, layouts) if layouts is not None and local else None


def _has_contents(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (raises for an empty cell)
    except ValueError:
        return False
    return True
