"""SGLang: a plugin that records rows of the model under the keys of their tokens, and fingerprints of the weights. Written after its source
(0.5.23), not yet run with it.

SGLang finds it by the entry point `sglang.srt.plugins`. It does nothing unless STATAGENT_RUN names a run, or the process has an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._runtime.log import warn_once
from ._engine_guard import recording_wanted, wrap

if TYPE_CHECKING:
    from ._engine import Engine

_UPDATES = (
    "update_weights_from_disk", "update_weights_from_tensor", "update_weights_from_distributed", "load_weights_from_distributed",
    "update_weights_from_ipc",
)  # fmt: skip
_registered = False


def register() -> None:
    """The entry point: SGLang calls it in each of its processes, before it makes a worker. Never raises."""
    global _registered
    if _registered or not recording_wanted():
        return
    try:
        from sglang.srt.managers.tp_worker import TpModelWorker
        from sglang.srt.model_executor.model_runner import ModelRunner
        from sglang.srt.model_loader.loader import DefaultModelLoader
    except ImportError as error:
        warn_once(
            "sglang", f"SGLang: {error}; expected one with sglang.srt.managers.tp_worker; nothing of the engine is recorded"
        )
        return
    _registered = True
    follow(TpModelWorker, ModelRunner, DefaultModelLoader)


def follow(workers: Any, runners: Any, loader: Any) -> None:
    """Follows the worker that these classes of SGLang make in this process, and not that of a draft model."""
    followed = _Worker()
    wrap(runners, "load_model", before=followed.loading)
    if hasattr(loader, "postprocess_weights"):
        wrap(loader, "postprocess_weights", before=followed.see_weights)
    wrap(workers, "__init__", after=followed.made)
    wrap(workers, "forward_batch_generation", before=followed.see_schedule, after=followed.end_batch)
    wrap(runners, "forward", before=followed.see_batch)
    wrap(runners, "sample", before=followed.see_logits)


class _Worker:
    """Threads: the worker's."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._engine: Engine | None = None
        self._asked = False
        self._schedule: Any = None  # the scheduler's batch that runs

    def loading(self, runner: Any, *_: Any) -> None:
        if self._runner is None and not runner.is_draft_worker:
            self._runner = runner

    def see_weights(self, model: Any, *_: Any) -> None:
        """They are there, and not yet repacked for the kernels."""
        if self._asked or self._runner is None:
            return
        self._asked = True
        from ._engine import Engine, start_agent

        agent = start_agent("SGLang", _settings(self._runner.server_args))
        if agent is not None:
            self._engine = Engine("SGLang", agent, model)
            self._engine.record_weights()

    def made(self, worker: Any, *_: Any) -> None:
        runner = worker.model_runner
        if runner is not self._runner:
            return
        self.see_weights(runner.model)
        engine = self._engine
        if engine is None:
            return
        wrap(runner.model, "load_weights", after=engine.weights_changed)
        for owner in (runner, getattr(runner, "weight_updater", None)):
            for name in _UPDATES:
                if callable(getattr(owner, name, None)):
                    wrap(owner, name, after=engine.weights_changed)
        _hook(engine, runner)

    def see_schedule(self, worker: Any, batch: Any = None, *_: Any) -> None:
        self._schedule = batch if worker.model_runner is self._runner else None

    def see_batch(self, runner: Any, batch: Any, *_: Any) -> None:
        """A batch that is no schedule's is a warm-up, or one of speculative decoding: of these nothing is recorded."""
        engine, schedule = self._engine, self._schedule
        if engine is None or runner is not self._runner:
            return
        if schedule is None or batch.rids != [each.rid for each in schedule.reqs] or batch.spec_info is not None:
            engine.begin_batch(None)
            return
        from ._sglang_batch import Tokens

        engine.begin_batch(Tokens(batch, schedule.reqs, schedule.enable_overlap))

    def see_logits(self, runner: Any, logits: Any, *_: Any) -> None:
        if self._engine is not None and runner is self._runner:
            self._engine.see_logits(logits.next_token_logits)

    def end_batch(self, worker: Any, *_: Any) -> None:
        if self._engine is not None and worker.model_runner is self._runner:
            self._schedule = None
            self._engine.end_batch()


def _hook(engine: Engine, runner: Any) -> None:
    engine.hook_sampler(runner.sampler, None, lambda ids: ids)
    if int(getattr(runner.server_args, "tp_size", 1)) > 1:
        warn_once("sglang tensor parallel", "SGLang: tensor parallelism: its layers return parts of sums, which are not recorded")
        return
    engine.hook_layers(residual_stream)
    # Called by this name: hooks of the module do not run.
    wrap(runner.model, "forward", before=lambda ids, *_: engine.begin_pass(ids), after=engine.end_pass)


def residual_stream(args: Any, kwargs: Any, output: Any) -> Any:
    """After a layer. SGLang's batch keeps what the next layer adds the output to; older ones return both."""
    from .._tokens.token_hooks import stream_of

    streams = (getattr(each, "residual_stream", None) for each in (*args, *kwargs.values()))
    stream = next((each for each in streams if each is not None), None)
    if stream is None:
        return stream_of(args, kwargs, output)
    pending = stream.pending
    if pending is None:  # the output has been added
        return output
    if pending.owed is not None or not pending.update.is_plain_add:
        return None
    return pending.value if stream.residual is None else pending.value.detach() + stream.residual.detach()


def _settings(arguments: Any) -> dict[str, str]:
    import sglang

    named = {name: f"{getattr(arguments, name, None)}" for name in ("dtype", "quantization", "tp_size")}
    return {"name": "sglang", "version": f"{sglang.__version__}", **named}
