"""The tokens of one batch of vLLM's model runner: each request's whole prefix is known there, also behind a prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native.rows import token_keys


@dataclass(frozen=True)
class Batch:
    """Arrays over the scheduled tokens of all requests, one request after the other: keys, positions, and whether the ids before each are
    known. requests: names, in that order. last: of each request, the number of its last token here. samples: whether the token that is
    sampled after it belongs to the request, which it does not in the middle of a prefill."""

    keys: Any
    positions: Any
    known: Any
    requests: list[str]
    last: Any
    samples: Any

    def ends(self) -> dict[str, tuple[int, Any]]:
        """Length and key of what of each request has been computed."""
        return {
            name: (int(self.positions[at]) + 1, self.keys[at])
            for name, at in zip(self.requests, self.last.tolist())
            if at >= 0 and self.known[at]
        }


def scheduled_positions(runner: Any) -> Any:
    """Of the batch that the runner has prepared, and for each request the one after: without a wait for a GPU."""
    batch = runner.input_batch
    count = int(batch.num_reqs)
    lengths: Any = np.diff(np.array(runner.query_start_loc.np[: count + 1], dtype=np.int64)) + 1
    first = np.array(batch.num_computed_tokens_cpu[:count], dtype=np.int64)
    return np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


def read_batch(runner: Any, before: dict[str, tuple[int, Any]]) -> Batch:
    """The batch that the runner has prepared. before: `ends` of the batch before, from which keys go on.

    The ids are those that the model gets: with asynchronous scheduling the runner's own list lacks the last ones. One wait for a GPU."""
    batch = runner.input_batch
    count = int(batch.num_reqs)
    starts = np.array(runner.query_start_loc.np[: count + 1], dtype=np.int64)
    total = int(starts[-1])
    ids = runner.input_ids.gpu[:total].detach().cpu().numpy().astype(np.int64)
    keys, positions, known = np.zeros(total, np.uint64), np.zeros(total, np.uint32), np.ones(total, dtype=bool)
    requests, samples = [str(name) for name in batch.req_ids[:count]], np.zeros(count, dtype=bool)
    for number, name in enumerate(requests):
        begin, end = int(starts[number]), int(starts[number + 1])
        computed = int(batch.num_computed_tokens_cpu[number])
        samples[number] = end > begin and computed + end - begin >= int(batch.num_tokens_no_spec[number])
        length, key = before.get(name, (0, None))
        if length != computed:
            prefix = batch.token_ids_cpu[number, :computed].astype(np.int64)
            known[begin:end] = (prefix >= 0).all()  # asynchronous scheduling has no ids of what it has sampled
            key = token_keys(prefix)[-1] if computed else None
        keys[begin:end] = token_keys(ids[begin:end], key)
        positions[begin:end] = np.arange(computed, computed + end - begin)
    last = np.where(starts[1:] > starts[:-1], starts[1:] - 1, -1)
    return Batch(keys, positions, known, requests, last, samples)
