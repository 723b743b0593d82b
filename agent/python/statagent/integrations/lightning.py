"""Lightning: a callback for `Trainer` of the package `lightning` or `pytorch_lightning`.

>>> trainer = Trainer(callbacks=[StatagentCallback(run="base")])
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from .._runtime.agent import Agent
from .._runtime.process import disabled
from ..watch import Watch, watch
from ._training import log_numbers, missing, start

FLUSH_SECONDS = 10.0


def _callback_class() -> Any:
    """The base class of the package that the program uses. Each package accepts only callbacks of its own class."""
    if sys.modules.get("pytorch_lightning") is not None and sys.modules.get("lightning.pytorch") is None:
        from pytorch_lightning import Callback

        return Callback
    try:
        from lightning.pytorch import Callback  # type: ignore[assignment, no-redef, unused-ignore]
    except ImportError as first:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise missing("lightning", "lightning", first) from first
    return Callback


class StatagentCallback(_callback_class()):  # type: ignore[misc]
    """Watches the LightningModule and all optimizers of a `Trainer`, from the beginning of `fit()`.

    watch: further arguments of `statagent.watch`. batches: record fingerprints of the arguments of `training_step`. init: arguments of
    `statagent.init`, used if no agent is running; rank and world size are the Trainer's. A training that resumes from a checkpoint is
    appended to its run and continues at the checkpoint's step.

    A step is an update of the optimizer, or of all of them. With accumulate_grad_batches it has several micro-batches. Validation is not
    recorded unless `watch` has eval=True. The loss of each micro-batch is the scalar `loss`; values that the module logs with on_step=True keep
    their names. `fit()` raises the errors of `init` and `watch` when it begins; nothing is raised later."""

    def __init__(self, watch: Mapping[str, Any] | None = None, batches: bool = True, **init: Any) -> None:
        super().__init__()
        self._watch_options, self._batches, self._init = dict(watch or {}), batches, init
        self._agent: Agent | None = None
        self._watch: Watch | None = None
        self._step = 0  # of the current batch
        self._trained: set[str] = set()  # metrics logged while training; the Trainer keeps them with those of the validation
        self._validated: set[str] = set()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._stop()
        if disabled():
            return
        ranks = {"rank": trainer.global_rank, "local_rank": trainer.local_rank, "world_size": trainer.world_size}
        self._agent = start({**ranks, **_launch(trainer), **self._init}, int(trainer.global_step))
        self._watch = watch(pl_module, optimizer=list(trainer.optimizers) or None, **self._watch_options)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._agent is None or self._watch is None:
            return
        self._step = self._agent.current_step()
        if self._batches and self._agent.clock.inputs_wanted:
            self._agent.log_batch(**(batch if _named(batch) else {"batch": batch}))
        self._watch.begin_pass(pl_module)  # training_step may call parts of the module only

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self._agent is None or self._watch is None:
            return
        self._watch.end_pass()
        # Lightning has divided the loss.
        parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._agent.log_scalar("loss", loss.detach() * parts if parts != 1 else loss)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._watch is not None:
            self._watch.note_backward()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._agent is None or self._watch is None:
            return
        self._watch.end_pass()
        if self._agent.current_step() > self._step:
            names = {name for name in trainer.logged_metrics if not name.endswith("_epoch")} - self._validated - {"loss"}
            self._trained |= names
            self._log(trainer, names)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._agent is not None and not trainer.sanity_checking:
            names = set(trainer.logged_metrics) - self._trained - {"loss"}
            self._validated |= names
            self._log(trainer, names)

    def _log(self, trainer: Any, names: set[str]) -> None:
        if self._agent is not None:
            log_numbers(self._agent, {name: _on_cpu(trainer.logged_metrics[name]) for name in sorted(names)})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._stop()
        if self._agent is not None:
            self._agent.flush(FLUSH_SECONDS)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.remove()
        self._watch = None


def _launch(trainer: Any) -> dict[str, str]:
    """An identifier that is common to the ranks that Lightning starts itself: the port where they meet. No variable contains one."""
    environment: Any = getattr(trainer.strategy, "cluster_environment", None)
    given = "STATAGENT_LAUNCH" in os.environ
    if given or type(environment).__name__ != "LightningEnvironment" or trainer.world_size == 1:
        return {}
    return {"launch": f"lightning {environment.main_address}:{environment.main_port}"}


def _named(batch: Any) -> bool:
    return isinstance(batch, Mapping) and all(isinstance(name, str) for name in batch)


def _on_cpu(value: Any) -> Any:
    """The number in a tensor of one element on the CPU; other values unchanged. Does not wait for a GPU."""
    if getattr(value, "is_cpu", False) and value.numel() == 1:
        return float(value.detach())
    return value
