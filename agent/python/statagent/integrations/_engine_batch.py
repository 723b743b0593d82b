"""The tokens of one batch of a sampling engine, and their keys, which go on from those of the batch before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native.rows import token_keys

Ends = Mapping[str, tuple[int, Any]]  # of each request: length and key of what of it has been computed


@dataclass(frozen=True)
class Scheduled:
    """What an engine is about to compute. requests: names, in the batch's order. computed, lengths: of each, tokens before and in this
    batch. lasting: of each, whether the token that is sampled after its last one belongs to it, which it does not in the middle of a prefill."""

    requests: Sequence[str]
    computed: Any
    lengths: Any
    lasting: Any

    def positions(self, more: int = 0) -> Any:
        """Of the tokens, request after request. more: also of so many that follow each."""
        lengths = self.lengths + more
        starts = np.cumsum(lengths) - lengths
        return np.repeat(self.computed - starts, lengths) + np.arange(lengths.sum())


@dataclass(frozen=True)
class Batch:
    """Arrays over the scheduled tokens of all requests, one request after the other: keys, positions, and whether the ids before each are
    known. requests: names, in that order. last: of each request, the number of its last token here; -1: it has none. samples: whether the
    token that is sampled after it belongs to the request."""

    keys: Any
    positions: Any
    known: Any
    requests: Sequence[str]
    last: Any
    samples: Any

    def ends(self) -> Ends:
        there = np.flatnonzero(self.last >= 0)
        there = there[self.known[self.last[there]]]
        at = self.last[there]
        lengths, keys = (self.positions[at].astype(np.int64) + 1).tolist(), self.keys[at]
        return {self.requests[number]: (length, key) for number, length, key in zip(there.tolist(), lengths, keys)}


def key_batch(scheduled: Scheduled, ids: Any, before: Ends, prefix: Callable[[int], Any]) -> Batch:
    """ids: of the scheduled tokens. before: `ends` of the batch before. prefix: gives all ids of the n-th request that were computed before;
    None: some are not known. It is asked only about requests with which the batch before has not ended there.

    Requests that decode one token each are keyed together, in one call."""
    lengths, computed = scheduled.lengths, scheduled.computed
    ends = np.cumsum(lengths)
    starts = ends - lengths
    heads, known = np.zeros(len(lengths), np.uint64), np.ones(len(lengths), dtype=bool)
    for number, (name, length) in enumerate(zip(scheduled.requests, computed.tolist())):
        if length == 0:
            continue
        at, key = before.get(name, (0, None))
        if at != length:
            found = prefix(number)
            known[number] = found is not None
            key = 0 if found is None else token_keys(found)[-1]
        heads[number] = key
    keys = np.zeros(len(ids), np.uint64)
    single = (lengths == 1) & (computed > 0)
    if single.any():
        at = starts[single]
        keys[at] = token_keys(ids[at][:, None], heads[single])[:, 0]
    for number in np.flatnonzero(~single & (lengths > 0)).tolist():
        part = slice(starts[number], ends[number])
        keys[part] = token_keys(ids[part], heads[number] if computed[number] else None)
    last = np.where(lengths > 0, ends - 1, -1)
    positions = scheduled.positions().astype(np.uint32)
    return Batch(keys, positions, np.repeat(known, lengths), scheduled.requests, last, scheduled.lasting & (lengths > 0))
