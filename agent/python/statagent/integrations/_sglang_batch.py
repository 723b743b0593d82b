"""The tokens of one batch of SGLang. The model runner has no ids of what a radix cache holds; the scheduler's requests, in the same process, have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._engine_batch import Batch, Ends, Scheduled, key_batch


class Tokens:
    """Of a ForwardBatch and the scheduler's requests in its order. overlap: the scheduler runs ahead of the results, so that the requests lack
    their last ids."""

    def __init__(self, batch: Any, requests: Sequence[Any], overlap: bool) -> None:
        self._batch, self._requests, self.always_read = batch, requests, overlap

    def scheduled(self) -> Scheduled:
        batch = self._batch
        if batch.extend_seq_lens_cpu is not None:  # a prefill, or with tails that decode
            lengths, computed = _numbers(batch.extend_seq_lens_cpu), _numbers(batch.extend_prefix_lens_cpu)
        else:  # a decode, whose lengths have its tokens already
            computed = _numbers(batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu) - 1
            lengths = np.ones_like(computed)
        given = np.array([len(each.origin_input_ids) + len(each.output_ids) for each in self._requests], np.int64)
        return Scheduled([f"{each.rid}" for each in self._requests], computed, lengths, computed + lengths >= given)

    def read(self, before: Ends) -> Batch:
        """One wait for a GPU."""
        scheduled = self.scheduled()
        ids = _numbers(self._batch.input_ids[: int(scheduled.lengths.sum())])

        def prefix(number: int) -> Any:
            request, length = self._requests[number], scheduled.computed[number]
            there = np.concatenate([_numbers(request.origin_input_ids), _numbers(request.output_ids)])
            return there[:length] if len(there) >= length else None

        return key_batch(scheduled, ids, before, prefix)


def _numbers(values: Any) -> Any:
    there = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    return np.array(there, dtype=np.int64)
