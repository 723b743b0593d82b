"""The rows of a pass: which of them are recorded, and under which keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Rows:
    """Rows of the tensors of one pass. Row i of a tensor, its leading dimensions flattened, belongs to the i-th token of the input.

    index: of the rows that are recorded. keys, positions: of their tokens. shape: leading dimensions of the input."""

    def __init__(self, shape: tuple[int, ...], index: Any, keys: Any, positions: Any) -> None:
        self.keys, self.positions = np.ascontiguousarray(keys, np.uint64), np.ascontiguousarray(positions, np.uint32)
        self._leading = {shape, (math.prod(shape),), (1, math.prod(shape))}
        self._total, self._index = math.prod(shape), index
        self._whole = len(index) == self._total
        self._on_device: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, tensor: Any) -> Any:
        """The chosen rows of a tensor [..., columns] that has one for each token, as [n, columns]; None for any other value."""
        if (
            not hasattr(tensor, "dim")
            or tensor.dim() < 2
            or not tensor.is_floating_point()
            or tuple(tensor.shape[:-1]) not in self._leading
        ):
            return None
        flat = tensor.detach().reshape(self._total, tensor.shape[-1])
        return flat if self._whole else flat.index_select(0, self._there(tensor.device))

    def _there(self, device: Any) -> Any:
        found = self._on_device.get(device)
        if found is None:
            import torch

            found = self._on_device[device] = torch.from_numpy(np.ascontiguousarray(self._index, np.int64)).to(device)
        return found
