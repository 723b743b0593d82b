"""Layouts of torch's distributed tensors: FSDP2, tensor and sequence parallelism.

Reads attributes only: no collective, no synchronisation."""

from __future__ import annotations

import functools
import math
from typing import Any

from .cuts import Span, cut_along, within
from .placement import Placement


def placement_of(tensor: Any) -> Placement | None:
    """Where a DTensor's local part lies. None: not known."""
    placed = _place(tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape))
    local = getattr(tensor, "_local_tensor", None)
    return placed if placed is not None and (local is None or holds(placed, tuple(local.shape))) else None


def placement_under(mesh: Any, placements: Any, shape: tuple[int, ...], features: int | None) -> Placement | None:
    """The same for a plain tensor of this shape that is the local part of a DTensor with these placements, if it is cut evenly. `features`:
    of the whole tensor's last dimension, if known."""
    whole = list(shape)
    for dim, placement in enumerate(placements):
        kind, at = _kind(placement)
        if kind == "strided" or (kind == "shard" and not -len(shape) <= at < len(shape)):
            return None
        if kind == "shard":
            last = at % len(shape) == len(shape) - 1
            whole[at] = features if features is not None and last else whole[at] * mesh.size(dim)
    placed = _place(mesh, tuple(placements), tuple(whole))
    return placed if placed is not None and holds(placed, shape) else None


def holds(placement: Placement, shape: tuple[int, ...]) -> bool:
    """Whether a shard of this shape has as many elements as its boxes."""
    return sum(math.prod(size) for _, size in placement.boxes) == math.prod(shape)


def _kind(placement: Any) -> tuple[str, int]:
    name = type(placement).__name__
    if name in ("Shard", "_StridedShard"):
        return ("shard" if name == "Shard" else "strided"), placement.dim
    if name == "Replicate":
        return "replicate", 0
    # Only sums add up: not the mean, the maximum or a norm.
    return ("partial" if "Partial" in name and getattr(placement, "reduce_op", "sum") == "sum" else "other"), 0


@functools.lru_cache(maxsize=4096)
def _place(mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> Placement | None:
    kinds = [_kind(placement) for placement in placements]
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(kind == "other" for kind, _ in kinds):
        return None
    # What is here of each dimension, as spans. Mesh dimensions cut one after the other, from the left.
    here: dict[int, tuple[Span, ...]] = {}
    for at, (kind, dim) in enumerate(kinds):
        if kind not in ("shard", "strided"):
            continue
        if not -len(shape) <= dim < len(shape):
            return None
        dim %= len(shape)
        blocks = placements[at].split_factor if kind == "strided" else 1
        here[dim] = _part(here.get(dim, ((0, shape[dim]),)), int(blocks), mesh.size(at), coordinate[at])
    local = tuple(sum(stop - start for start, stop in here[d]) if d in here else n for d, n in enumerate(shape))
    placed = cut_along(local, {d: (shape[d], spans) for d, spans in here.items()})
    if placed is None:
        return None
    partial = any(kind == "partial" for kind, _ in kinds)
    return Placement(placed.global_shape, boxes=placed.boxes, partial=partial)


def _part(spans: tuple[Span, ...], blocks: int, parts: int, part: int) -> tuple[Span, ...]:
    """The part-th of `parts` parts of each of the blocks of what the spans hold. Several blocks: FSDP over tensor parallelism cuts each part
    that tensor parallelism makes afterwards. Blocks and parts are those of torch.chunk: equal, the last ones smaller or empty."""
    length = sum(stop - start for start, stop in spans)
    found: list[Span] = []
    for block in range(blocks):
        first, last = _chunk(0, length, blocks, block)
        found += within(spans, *_chunk(first, last, parts, part))
    return tuple(found)


def _chunk(start: int, stop: int, parts: int, part: int) -> Span:
    each = -(-(stop - start) // parts)
    return min(start + each * part, stop), min(start + each * (part + 1), stop)


# --- plain tensors that torch's tensor parallel styles have made of distributed ones


def output_layout(module: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Mesh and placements of the module's output, if a ParallelStyle made it a plain tensor (use_local_output). None: not known, or the
    output is a DTensor, which says so itself."""
    for hook in reversed(list(module._forward_hooks.values())):
        if _is_of_style(hook):
            return _output_of(hook, module)
    return None


def input_layout(module: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The same for the module's first argument as its forward() gets it (PrepareModuleInput)."""
    for hook in reversed(list(module._forward_pre_hooks.values())):
        if _is_of_style(hook):
            mesh, style = _mesh_of(hook), _style_of(hook)
            if mesh is None or style is None or not getattr(style, "use_local_output", False):
                return None
            return _single(mesh, getattr(style, "desired_input_layouts", None))
    return None


def _is_of_style(hook: Any) -> bool:
    """Whether torch's distribute_module or a ParallelStyle registered the hook: a closure that has the mesh."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.") and _mesh_of(hook) is not None


def _output_of(hook: Any, module: Any) -> tuple[Any, tuple[Any, ...]] | None:
    mesh, style = _mesh_of(hook), _style_of(hook)
    if style is not None:  # PrepareModuleOutput, or the output function is a method
        local = getattr(style, "use_local_output", False)
        layouts = getattr(style, "desired_output_layouts", None) or getattr(style, "output_layouts", None)
        return _single(mesh, layouts) if local else None
    function = _function_of(hook)
    if function is None or "output" not in getattr(function.func, "__name__", ""):
        return None
    if not next((each for each in function.args if isinstance(each, bool)), False):
        return None
    layouts = next((each for each in function.args if _are_placements(each)), None)
    return _single(mesh, layouts or _sequence_sharding(module))


def _sequence_sharding(module: Any) -> Any:
    """What SequenceParallel makes of its module's input, and so of its output, whose function does not have it."""
    for hook in module._forward_pre_hooks.values():
        function = _function_of(hook)
        if function is not None and "SequenceParallel" in getattr(function.func, "__qualname__", ""):
            return next((each for each in function.args if _are_placements(each)), None)
    return None


def _single(mesh: Any, layouts: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The layouts, if they are of one tensor: one placement for each dimension of the mesh."""
    if isinstance(layouts, tuple) and len(layouts) == 1 and isinstance(layouts[0], tuple):
        layouts = layouts[0]
    return (mesh, layouts) if _are_placements(layouts) and len(layouts) == mesh.ndim else None


def _are_placements(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(_kind(each)[0] != "other" for each in value)


def _cells(hook: Any) -> list[Any]:
    found = []
    for cell in getattr(hook, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # empty
            continue
    return found


def _mesh_of(hook: Any) -> Any | None:
    return next((each for each in _cells(hook) if hasattr(each, "get_coordinate") and hasattr(each, "mesh")), None)


def _function_of(hook: Any) -> Any | None:
    return next((each for each in _cells(hook) if isinstance(each, functools.partial)), None)


def _style_of(hook: Any) -> Any | None:
    """A style whose method the hook calls."""
    owners = [getattr(each, "__self__", each) for each in _cells(hook)]
    return next((each for each in owners if hasattr(each, "use_local_output")), None)
