"""Tokens of a trainer and of an engine: keys that are the same in both, and statistics of a row for each token (docs/tokens.md)."""

from __future__ import annotations

from typing import Any

from ._native import rows as _rows

__all__ = ["compute_rows", "token_keys"]


def token_keys(ids: Any, before: Any = None) -> Any:
    """The keys of tokens: of each, a 64-bit hash of its id and all ids before it in its sequence.

    ids: token ids of one sequence, or of several in two dimensions: a torch tensor, a NumPy array, or a sequence of numbers. Padding
    before a sequence has to be cut off; what follows a token does not change its key.
    before: the key before the first id, one for each sequence, where earlier tokens are in a cache. Default: nothing came before.

    Returns as many keys, of the same kind: int64 for torch (the same 64 bits), uint64 for NumPy, else array.array("Q").
    Raises InvalidArgumentError."""
    return _rows.token_keys(ids, before)


def compute_rows(rows: Any, first_column: int = 0) -> list[dict[str, Any]]:
    """Statistics of each row of a matrix, without a collector: l2, hash and a sketch of 8 sums, as `Agent.record_rows` records them.

    first_column: the rows are parts, from this column on, of longer ones: hashes (modulo 2**64), sketches and squares of l2 of all
    parts add up to those of the whole. l2 is NaN where a component is not finite.

    Raises InvalidArgumentError, TensorTypeError. Waits for a GPU."""
    return _rows.compute_rows(rows, first_column)
