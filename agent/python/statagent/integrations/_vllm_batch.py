"""The tokens of one batch of vLLM's model runner: each request's whole prefix is known there, also behind a prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native.rows import token_keys


@dataclass(frozen=True)
class Batch:
    """Arrays over the scheduled tokens of all requests, one request after the other: keys, positions. requests: names, in that order.
    last: of each request, the number of its last token here. samples: whether the token that is sampled after it belongs to the request,
    which it does not in the middle of a prefill."""

    keys: Any
    positions: Any
    requests: list[str]
    last: Any
    samples: Any

    def ends(self) -> dict[str, tuple[int, Any]]:
        """Length and key of what of each request has been computed."""
        return {
            name: (int(self.positions[at]) + 1, self.keys[at]) for name, at in zip(self.requests, self.last.tolist()) if at >= 0
        }


def read_batch(runner: Any, before: dict[str, tuple[int, Any]]) -> Batch:
    """The batch that the runner has prepared. before: `ends` of the batch before, from which keys go on.

    The ids are those that the model gets: with asynchronous scheduling the runner's own list lacks the last ones. One wait for a GPU."""
    batch = runner.input_batch
    count = int(batch.num_reqs)
    starts = np.array(runner.query_start_loc.np[: count + 1], dtype=np.int64)
    total = int(starts[-1])
    ids = runner.input_ids.gpu[:total].detach().cpu().numpy().astype(np.int64)
    keys, positions = np.zeros(total, np.uint64), np.zeros(total, np.uint32)
    requests, samples = [str(name) for name in batch.req_ids[:count]], np.zeros(count, dtype=bool)
    for number, name in enumerate(requests):
        begin, end = int(starts[number]), int(starts[number + 1])
        computed = int(batch.num_computed_tokens_cpu[number])
        known = int(batch.num_tokens_no_spec[number])
        samples[number] = end > begin and computed + end - begin >= known
        length, key = before.get(name, (0, None))
        if length != computed:
            key = token_keys(batch.token_ids_cpu[number, :computed].astype(np.int64))[-1] if computed else None
        keys[begin:end] = token_keys(ids[begin:end], key)
        positions[begin:end] = np.arange(computed, computed + end - begin)
    last = np.where(starts[1:] > starts[:-1], starts[1:] - 1, -1)
    return Batch(keys, positions, requests, last, samples)
