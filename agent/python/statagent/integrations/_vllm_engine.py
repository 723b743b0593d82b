"""What is recorded of a worker of vLLM: rows of its model's layers, log-probabilities of sampled tokens, fingerprints of its weights."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import agent as _agent
from .._auto.launch import launch_arguments
from .._compile import tracing
from .._native.rows import token_keys
from .._runtime.agent import Agent
from .._runtime.current import running_agent
from .._runtime.log import warn_once
from .._tokens.logprobs import LOGPROB, log_probabilities
from .._tokens.rows import Rows
from .._tokens.taps import find_taps
from .._tokens.token_hooks import Recorder, hook_taps
from .._torch.modules import INERT_COPY, name_modules, unwrap
from .._watch.arguments import check_tokens
from ..fingerprint import fingerprint
from ._vllm_batch import Batch, read_batch, scheduled_positions
from ._vllm_guard import attempt


def start_engine(worker: Any) -> Engine | None:
    """Before a worker's first batch. None: nothing of it is recorded.

    Only a process of vLLM's own gets an agent here: in the program's, statagent.init() is the program's."""
    agent = running_agent()
    if agent is None and _own_process(worker):
        agent = _agent.init(config={"engine": _settings(worker)}, **launch_arguments())
    elif agent is None:
        warn_once("vllm process", "vLLM runs in the program's own process; call statagent.init() before the engine is made; nothing of it "
                  "is recorded")  # fmt: skip
    elif len(list(agent.watches.attached)):
        _say_trainer()
        return None
    else:
        agent.add_config({f"engine.{key}": value for key, value in _settings(worker).items()})
    return None if agent is None or agent.idle else Engine(agent)


def _own_process(worker: Any) -> bool:
    return multiprocessing.parent_process() is not None or f"{worker.parallel_config.distributed_executor_backend}" == "ray"


def _say_trainer() -> None:
    warn_once("vllm trainer", "vLLM runs in the process of a trainer; expected a process of its own, because a process records one run, "
              "which is the trainer's; nothing of the engine is recorded")  # fmt: skip


def _settings(worker: Any) -> dict[str, str]:
    import vllm

    model, parallel = worker.vllm_config.model_config, worker.vllm_config.parallel_config
    return {
        "name": "vllm", "version": f"{vllm.__version__}", "dtype": f"{model.dtype}", "quantization": f"{model.quantization}",
        "enforce_eager": f"{model.enforce_eager}", "tensor_parallel_size": f"{parallel.tensor_parallel_size}",
    }  # fmt: skip


class Engine:
    """Threads: the worker's. Nothing raises into the engine."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._recorder = agent, Recorder(agent)
        self._runner: Any = None
        self._model: Any = None
        self._choice = check_tokens(os.environ.get("STATAGENT_TOKENS") or True, "STATAGENT_TOKENS")
        self._live = False  # a batch of requests runs, no warm-up
        self._batch: Batch | None = None  # the one that runs, once it has been read
        self._ends: dict[str, tuple[int, Any]] = {}  # of the batch before
        self._logits: Any = None  # as the model made them: the sampler changes them
        self._changed_at: int | None = None  # the step in which the weights changed; None: they are recorded

    def hook(self, worker: Any) -> None:
        """The model is loaded."""
        config, self._runner, self._model = worker.vllm_config, worker.model_runner, unwrap(worker.get_model())
        if not hasattr(self._runner, "query_start_loc") or not hasattr(self._runner, "input_batch"):
            warn_once("vllm runner", f"vLLM: found {type(self._runner).__name__} of {type(self._runner).__module__} as model runner; expected "
                      "one with input_batch and query_start_loc; its weights are recorded, its tokens are not")  # fmt: skip
            return
        tracing.prepare()
        if config.speculative_config is None:
            self._runner.sampler.register_forward_pre_hook(_Hook("sampler", self._before_sampler), with_kwargs=True)
            self._runner.sampler.register_forward_hook(_Hook("sampler", self._after_sampler))
        else:
            warn_once("vllm speculative", "vLLM: speculative decoding: log-probabilities of its tokens are not recorded")
        if not config.model_config.enforce_eager:
            warn_once("vllm eager", "vLLM runs the model in compiled or CUDA graphs, in which hooks do not run: weights and log-probabilities "
                      "are recorded, its layers are not; start it with enforce_eager=True (--enforce-eager)")  # fmt: skip
            return
        self._model.register_forward_pre_hook(_Hook("pass", self._enter), with_kwargs=True)
        hook_taps(self._recorder, find_taps(name_modules(self._model)))
        self._model.register_forward_hook(_Hook("pass", self._leave), always_call=True)

    # --- weights

    def weights_changed(self, *_: Any) -> None:
        self._changed_at = self._agent.current_step()

    def record_weights(self, model: Any) -> None:
        """Precondition: they are as the model was written, not repacked for kernels."""
        if all(parameter.numel() for parameter in model.parameters()):
            fingerprint(unwrap(model))
        else:
            self._agent.report_not_recorded("", "weight", "vLLM keeps the weights only in a form that its kernels need")

    def _record_changed(self) -> None:
        """Before a batch that uses them: the step counts updates, unless the program has called `fingerprint` after this one."""
        at, self._changed_at = self._changed_at, None
        if at is not None and at == self._agent.current_step():
            self._agent.end_step()
            self.record_weights(self._model)

    # --- batches

    def begin_batch(self, *_: Any) -> None:
        self._batch = self._logits = None
        if len(list(self._agent.watches.attached)):
            _say_trainer()
            self._live = False
            return
        attempt("weights", self._record_changed)
        self._live = self._agent.clock.wanted

    def end_batch(self, *_: Any) -> None:
        self._live, self._logits = False, None

    def _wanted(self) -> bool:
        """Whether the batch has tokens whose positions are chosen; most of a long generation has not. With asynchronous scheduling the
        ids are seen in each batch or never."""
        if self._batch is not None or getattr(self._runner, "use_async_scheduling", False):
            return True
        return bool(self._choice.of(scheduled_positions(self._runner)).any())

    def _now(self) -> Batch:
        if self._batch is None:
            self._batch = read_batch(self._runner, self._ends)
            self._ends = self._batch.ends()
        return self._batch

    def _enter(self, _: Any, args: Any, kwargs: Any) -> None:
        self._recorder.rows = None
        inputs = kwargs.get("input_ids")
        if inputs is None:
            inputs = kwargs.get("inputs_embeds")
        if not self._live or inputs is None or not self._wanted():
            return
        batch = self._now()
        index = np.flatnonzero(batch.known & self._choice.of(batch.positions))
        if len(index):
            self._recorder.rows = Rows((len(inputs),), index, batch.keys[index], batch.positions[index])

    def _leave(self, *_: Any) -> None:
        self._recorder.rows = None

    # --- log-probabilities of sampled tokens

    def _before_sampler(self, _: Any, args: Any, kwargs: Any) -> None:
        self._logits = None
        logits = args[0] if args else kwargs.get("logits")
        if not self._live or logits is None or not self._wanted() or len(logits) != len(self._now().requests):
            return
        if self._sampled_rows().size:
            self._logits = logits.detach().clone()

    def _sampled_rows(self) -> Any:
        """Requests that get a token whose position is chosen."""
        batch = self._now()
        return np.flatnonzero(batch.samples & batch.known[batch.last] & self._choice.of(batch.positions[batch.last] + 1))

    def _after_sampler(self, _: Any, __: Any, output: Any) -> None:
        logits, self._logits = self._logits, None
        if logits is None:
            return
        batch, rows = self._now(), self._sampled_rows()
        ids = output.sampled_token_ids.detach().reshape(len(batch.requests), -1)[:, 0].cpu().numpy().astype(np.int64)[rows]
        keys = token_keys(ids[:, None], batch.keys[batch.last[rows]])[:, 0]
        self._recorder.record(LOGPROB, log_probabilities(logits, rows, ids), keys, batch.positions[batch.last[rows]] + 1)


class _Hook:
    """A hook whose errors are reported; nothing in a copy of its module or in a traced graph."""

    def __init__(self, what: str, function: Callable[..., None]) -> None:
        self._what, self._function = what, function

    def __call__(self, *args: Any) -> None:
        if not tracing.active():
            attempt(self._what, self._function, *args)

    def __reduce__(self) -> Any:
        return INERT_COPY
