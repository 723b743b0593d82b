"""Hugging Face Transformers: a callback for `Trainer`.

>>> trainer = Trainer(model, args, train_dataset=data, callbacks=[StatagentCallback(run="base")])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._runtime.agent import Agent
from .._runtime.process import disabled
from .._settings.trainer import send_trainer
from ..watch import Watch, watch
from ._training import log_numbers, missing, start

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("transformers", "transformers", error) from error

FLUSH_SECONDS = 10.0
_NAMES = {"grad_norm": "grad_norm_before_clipping"}


class StatagentCallback(TrainerCallback):
    """Watches the model and the optimizer of a `Trainer`, from the beginning of `train()`.

    watch: further arguments of `statagent.watch`. init: arguments of `statagent.init`, used if no agent is running. A training that resumes
    from a checkpoint is appended to its run and continues at the checkpoint's step.

    A step is an update of the optimizer. With gradient accumulation it has several micro-batches. Evaluation is not recorded unless `watch` has
    eval=True. Values that the Trainer logs (loss, learning_rate, eval_loss, ...; grad_norm as grad_norm_before_clipping) become scalars of the
    last step, except timings. The Trainer's arguments become configuration (`trainer.*`): numbers, switches and choices. `train()` raises the
    errors of `init` and `watch` when it begins; nothing is raised later."""

    def __init__(self, watch: Mapping[str, Any] | None = None, **init: Any) -> None:
        self._watch_options, self._init = dict(watch or {}), init
        self._agent: Agent | None = None
        self._watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any) -> None:
        self._stop()
        if disabled():
            return
        self._agent = start(self._init, int(state.global_step))
        send_trainer(self._agent, args)
        self._watch = watch(model, optimizer=optimizer, **self._watch_options)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if self._agent is not None and logs:
            # Every call contains the epoch; once a step is enough. The watch logs its own grad_norm, after clipping.
            kept = {_NAMES.get(name, name): value for name, value in logs.items() if name != "epoch" or "loss" in logs}
            log_numbers(self._agent, kept)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stop()
        if self._agent is not None:
            self._agent.flush(FLUSH_SECONDS)

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.remove()
        self._watch = None
