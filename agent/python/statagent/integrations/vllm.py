"""vLLM: a plugin that records rows of the model under the keys of their tokens, and fingerprints of the weights.

vLLM finds it by the entry point `vllm.general_plugins`. It does nothing unless STATAGENT_RUN names a run, or the process has an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._runtime.log import warn_once
from ._engine_guard import recording_wanted, wrap

if TYPE_CHECKING:
    from ._engine import Engine
    from ._vllm_batch import Tokens

_UPDATES = ("reload_weights", "update_weights", "finish_weight_update")  # of the worker; the model has load_weights
_registered = False


def register() -> None:
    """The entry point: vLLM calls it in each of its processes, before it makes a worker. Never raises."""
    global _registered
    if _registered or not recording_wanted():
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
            from ._engine import Engine, start_agent

            ray = f"{self._worker.parallel_config.distributed_executor_backend}" == "ray"
            agent = start_agent("vLLM", _settings(self._worker), own_process=ray)
            if agent is not None:
                self._engine = Engine("vLLM", agent, model)
                self._engine.record_weights()

    def _loaded(self, *_: Any) -> None:
        model = self._worker.get_model()
        self._load(model)
        engine = self._engine
        if engine is None:
            return
        wrap(model, "load_weights", after=engine.weights_changed)
        for name in _UPDATES:
            if callable(getattr(self._worker, name, None)):
                wrap(self._worker, name, after=engine.weights_changed)
        tokens = _hook(engine, self._worker)
        wrap(self._worker, "execute_model", before=lambda *_: engine.begin_batch(tokens))
        wrap(self._worker, "sample_tokens", after=engine.end_batch)


def _hook(engine: Engine, worker: Any) -> Tokens | None:
    """Returns the tokens of the runner's batches. None: not known."""
    from ._vllm_batch import Tokens

    config, runner = worker.vllm_config, worker.model_runner
    if not hasattr(runner, "query_start_loc") or not hasattr(runner, "input_batch"):
        warn_once("vllm runner", f"vLLM: found {type(runner).__name__} of {type(runner).__module__} as model runner; expected one with "
                  "input_batch and query_start_loc; its weights are recorded, its tokens are not")  # fmt: skip
        return None
    if config.speculative_config is None:
        engine.hook_sampler(runner.sampler, lambda logits, *_, **__: logits, lambda output: output.sampled_token_ids)
    else:
        warn_once("vllm speculative", "vLLM: speculative decoding: log-probabilities of its tokens are not recorded")
    if config.model_config.enforce_eager:
        engine.hook_layers()
        engine.hook_passes()
    else:
        warn_once("vllm eager", "vLLM runs the model in compiled or CUDA graphs, in which hooks do not run: weights and log-probabilities are "
                  "recorded, its layers are not; start it with enforce_eager=True (--enforce-eager)")  # fmt: skip
    return Tokens(runner)


def _settings(worker: Any) -> dict[str, str]:
    import vllm

    model, parallel = worker.vllm_config.model_config, worker.vllm_config.parallel_config
    return {
        "name": "vllm", "version": f"{vllm.__version__}", "dtype": f"{model.dtype}", "quantization": f"{model.quantization}",
        "enforce_eager": f"{model.enforce_eager}", "tensor_parallel_size": f"{parallel.tensor_parallel_size}",
    }  # fmt: skip
