"""vLLM: a plugin that records rows of the model under the keys of their tokens, and fingerprints of the weights.

vLLM finds it by the entry point `vllm.general_plugins`. It does nothing unless STATAGENT_RUN names a run, or the process has an agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .._runtime import process
from .._runtime.current import running_agent
from .._runtime.log import warn_once
from ._vllm_guard import wrap

if TYPE_CHECKING:
    from ._vllm_engine import Engine

_UPDATES = ("reload_weights", "update_weights", "finish_weight_update")  # of the worker; the model has load_weights
_registered = False


def register() -> None:
    """The entry point: vLLM calls it in each of its processes, before it makes a worker. Never raises."""
    global _registered
    if _registered or process.disabled() or not (os.environ.get("STATAGENT_RUN") or running_agent()):
        return
    try:
        from vllm.v1.worker.worker_base import WorkerBase
    except ImportError as error:
        warn_once("vllm", f"vLLM: {error}; expected one with vllm.v1.worker; nothing of the engine is recorded")
        return
    _registered = True
    # A worker's process loads plugins while it makes the worker: later than anything around that.
    wrap(WorkerBase, "__init__", after=lambda worker, *_: _Worker(worker))


class _Worker:
    """Follows a worker from its making on. Threads: the worker's."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._engine: Engine | None = None
        self._asked = False
        wrap(worker, "load_model", after=self._loaded)
        from vllm.model_executor.model_loader import base_loader

        wrap(base_loader, "process_weights_after_loading", before=self._load)

    def _load(self, model: Any, *_: Any) -> None:
        """The weights are there, and not yet repacked for the kernels."""
        if not self._asked:
            self._asked = True
            from ._vllm_engine import start_engine

            self._engine = start_engine(self._worker)
            if self._engine is not None:
                self._engine.record_weights(model)

    def _loaded(self, *_: Any) -> None:
        model = self._worker.get_model()
        self._load(model)
        if self._engine is None:
            return
        self._engine.hook(self._worker)
        wrap(model, "load_weights", after=self._engine.weights_changed)
        for name in _UPDATES:
            if callable(getattr(self._worker, name, None)):
                wrap(self._worker, name, after=self._engine.weights_changed)
        wrap(self._worker, "execute_model", before=self._engine.begin_batch)
        wrap(self._worker, "sample_tokens", after=self._engine.end_batch)
