"""Parts of parameters that FullyShardedDataParallel holds: ranges of the flattened parameter, with use_orig_params=True. Without, see
slices.flat_parameters."""

from __future__ import annotations

import math
from typing import Any

from .._torch import parts
from .placement import Placement, whole


class FlatShards:
    """Ranges of the original parameters of a model that are on this rank."""

    def __init__(self, model: Any) -> None:
        self._ranges: dict[int, tuple[tuple[int, ...], tuple[int, int]]] = {}  # id of a parameter -> shape, range
        for module in parts.all_modules(model):
            flat = getattr(getattr(module, "_handle", None), "flat_param", None)
            if flat is None or getattr(flat, "_params", None) is None:
                continue
            for shape, here, parameter in zip(flat._shapes, flat._shard_param_infos, flat._params):
                span = (here.intra_param_start_idx, here.intra_param_end_idx + 1) if here.in_shard else (0, 0)
                self._ranges[id(parameter)] = tuple(shape), span

    def place(self, parameter: Any, shape: tuple[int, ...]) -> Placement | None:
        """The place of the parameter, its gradient or its optimizer's state, whose shape is now this one. None: not known."""
        found = self._ranges.get(id(parameter))
        if found is None:
            return None
        full, (start, stop) = found
        if shape == full and math.prod(full) != stop - start:
            return whole(full)  # gathered for a pass
        if math.prod(shape) != stop - start:
            return None
        return Placement(full, ranges=((start, stop),))
