"""The rows of a pass: which of them are recorded, and under which keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Rows:
    """Rows of the tensors of one pass. Row i of a tensor, its leading dimensions flattened, belongs to the i-th token of the input.

    index: of the rows that are recorded. keys, positions: of their tokens. shape: leading dimensions of the input.

    chosen: the index, or None if it has all rows."""

    def __init__(self, shape: tuple[int, ...], index: Any, keys: Any, positions: Any) -> None:
        self.keys, self.positions = np.ascontiguousarray(keys, np.uint64), np.ascontiguousarray(positions, np.uint32)
        self._leading = {shape, (math.prod(shape),), (1, math.prod(shape))}
        self._total = math.prod(shape)
        self.chosen = None if len(index) == self._total else np.ascontiguousarray(index, np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, tensor: Any) -> Any:
        """A tensor [..., columns] that has a row for each token, as [tokens, columns]; None for any other value."""
        return self._flat(tensor) if hasattr(tensor, "dim") and tensor.is_floating_point() else None

    def of_whole(self, tensor: Any) -> Any:
        """The same of a tensor of whole numbers."""
        if not hasattr(tensor, "dim") or tensor.is_floating_point() or tensor.is_complex() or f"{tensor.dtype}" == "torch.bool":
            return None
        return self._flat(tensor)

    def _flat(self, tensor: Any) -> Any:
        if tensor.dim() < 2 or tuple(tensor.shape[:-1]) not in self._leading:
            return None
        return tensor.detach().reshape(self._total, tensor.shape[-1])
