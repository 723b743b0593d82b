"""Frameworks with a callback of this package get it by themselves: it records more than a watch (the trainer's arguments, its steps)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .._runtime import by_hand
from .._runtime.current import running_agent
from .._runtime.log import warn_once
from .copies import follow_copies
from .training import Training


def attend(module: Any, training: Callable[[], Training | None]) -> None:
    """Of a framework's module with the class Trainer, which has just been imported."""
    if module.__name__ == "transformers.trainer":
        _around(module.Trainer, "train", training, _add_to_transformers)
    else:
        _around(module.Trainer, "fit", training, _add_to_lightning)


def _around(trainer_class: Any, method: str, training: Callable[[], Training | None], add: Callable[[Any], bool]) -> None:
    """Adds the callback when the trainer begins to train, unless the program has added one. Meanwhile no model is watched in another way."""
    train = getattr(trainer_class, method)

    @functools.wraps(train)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        mine = training()
        if mine is None or mine.left_alone:
            return train(self, *args, **kwargs)
        try:
            with by_hand.ours():
                added = add(self)
        except Exception as error:
            warn_once("trainer", f"cannot record {type(self).__name__}: {type(error).__name__}: {error}; training goes on")
            return train(self, *args, **kwargs)
        if not added:
            mine.leave_alone()
        with mine.paused():
            return train(self, *args, **kwargs)

    setattr(trainer_class, method, call)


def _add_to_transformers(trainer: Any) -> bool:
    from ..integrations import transformers

    if any(isinstance(each, transformers.StatagentCallback) for each in trainer.callback_handler.callbacks):
        return any(isinstance(each, _guarded(transformers.StatagentCallback)) for each in trainer.callback_handler.callbacks)
    trainer.callback_handler.callbacks.append(_guarded(transformers.StatagentCallback)())
    return True


def _add_to_lightning(trainer: Any) -> bool:
    from ..integrations import lightning

    if any(isinstance(each, lightning.StatagentCallback) for each in trainer.callbacks):
        return any(isinstance(each, _guarded(lightning.StatagentCallback)) for each in trainer.callbacks)
    trainer.callbacks.insert(0, _guarded(lightning.StatagentCallback)())
    return True


@functools.lru_cache
def _guarded(callback_class: Any) -> Any:
    """The callback, without the errors that it raises when the training begins: the program has not asked for it."""

    class Guarded(callback_class):  # type: ignore[misc]
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self._begin("on_train_begin", *args, **kwargs)

        def on_train_start(self, *args: Any, **kwargs: Any) -> None:
            self._begin("on_train_start", *args, **kwargs)

        def _begin(self, method: str, *args: Any, **kwargs: Any) -> None:
            try:
                with by_hand.ours():
                    getattr(super(), method)(*args, **kwargs)
                agent = running_agent()
                if agent is not None:
                    agent.automatic = True
                    follow_copies(agent)
            except Exception as error:
                warn_once("trainer", f"cannot record this training: {type(error).__name__}: {error}; it goes on")

    return Guarded
