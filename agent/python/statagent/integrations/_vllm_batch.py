"""The tokens of one batch of vLLM's model runner: each request's whole prefix is known there, also behind a prefix cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine_batch import Batch, Ends, Scheduled, key_batch


class Tokens:
    """Of the batch that the runner has prepared."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    @property
    def always_read(self) -> bool:
        """With asynchronous scheduling the runner's own list lacks the last ids: they are seen in each batch or never."""
        return bool(getattr(self._runner, "use_async_scheduling", False))

    def scheduled(self) -> Scheduled:
        batch = self._runner.input_batch
        count = int(batch.num_reqs)
        lengths: Any = np.diff(np.array(self._runner.query_start_loc.np[: count + 1], dtype=np.int64))
        computed = np.array(batch.num_computed_tokens_cpu[:count], dtype=np.int64)
        lasting = computed + lengths >= np.array(batch.num_tokens_no_spec[:count], dtype=np.int64)
        return Scheduled([str(name) for name in batch.req_ids[:count]], computed, lengths, lasting)

    def read(self, before: Ends) -> Batch:
        """The ids are those that the model gets. One wait for a GPU with asynchronous scheduling, else none."""
        batch, scheduled = self._runner.input_batch, self.scheduled()
        buffer = self._runner.input_ids
        held = buffer.gpu if self.always_read else buffer.cpu
        ids = held[: int(scheduled.lengths.sum())].detach().cpu().numpy().astype(np.int64)

        def prefix(number: int) -> Any:
            found = batch.token_ids_cpu[number, : scheduled.computed[number]].astype(np.int64)
            return found if (found >= 0).all() else None

        return key_batch(scheduled, ids, before, prefix)
