"""What is recorded of a worker of a sampling engine: rows of its model's layers, log-probabilities of sampled tokens, fingerprints of its weights.
Which rows are which tokens each engine says in its own way."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from .. import agent as _agent
from .._auto.launch import launch_arguments
from .._compile import tracing
from .._native.rows import token_keys
from .._runtime.agent import Agent
from .._runtime.current import running_agent
from .._runtime.log import warn_once
from .._tokens.logprobs import LOGPROB, all_log_probabilities, chosen_log_probabilities, taken
from .._tokens.rows import Rows
from .._tokens.taps import find_taps
from .._tokens.token_hooks import Recorder, Stream, hook_taps
from .._torch.modules import INERT_COPY, name_modules, unwrap
from .._watch.arguments import check_tokens
from ..fingerprint import fingerprint
from ._engine_batch import Batch, Ends, Scheduled
from ._engine_guard import attempt


def start_agent(engine: str, settings: Mapping[str, str], own_process: bool = False) -> Agent | None:
    """The agent of an engine's worker. None: nothing of it is recorded.

    Only a process of the engine's own gets an agent here: in the program's, statagent.init() is the program's."""
    agent = running_agent()
    if agent is None and (own_process or multiprocessing.parent_process() is not None):
        agent = _agent.init(config={"engine": dict(settings)}, **launch_arguments())
    elif agent is None:
        warn_once(f"{engine} process", f"{engine} runs in the program's own process; call statagent.init() before the engine is made; nothing "
                  "of it is recorded")  # fmt: skip
    elif len(list(agent.watches.attached)):
        _say_trainer(engine)
        return None
    else:
        agent.add_config({f"engine.{key}": value for key, value in settings.items()})
    return None if agent is None or agent.idle else agent


def _say_trainer(engine: str) -> None:
    warn_once(f"{engine} trainer", f"{engine} runs in the process of a trainer; expected a process of its own, because a process records one "
              "run, which is the trainer's; nothing of the engine is recorded")  # fmt: skip


class Tokens(Protocol):
    """Of the batch that an engine is about to compute."""

    @property
    def always_read(self) -> bool:
        """Whether ids are seen in each batch or never: then also batches without chosen tokens are read."""

    def scheduled(self) -> Scheduled:
        """Without a wait for a GPU."""

    def read(self, before: Ends) -> Batch:
        """before: `ends` of the batch before."""


class Engine:
    """Threads: the worker's. Nothing raises into the engine."""

    def __init__(self, name: str, agent: Agent, model: Any) -> None:
        self._name, self._agent, self._model, self._recorder = name, agent, unwrap(model), Recorder(agent)
        self._choice = check_tokens(os.environ.get("STATAGENT_TOKENS") or True, "STATAGENT_TOKENS")
        self._tokens: Tokens | None = None  # of the batch that runs, unless it is a warm-up
        self._batch: Batch | None = None  # the one that runs, once it has been read
        self._ends: Ends = {}  # of the batch before
        self._scores: Any = None  # log-probabilities of all ids, of requests that get a token: the sampler changes the logits
        self._changed_at: int | None = None  # the step in which the weights changed; None: they are recorded

    # --- weights

    def weights_changed(self, *_: Any) -> None:
        self._changed_at = self._agent.current_step()

    def record_weights(self) -> None:
        fingerprint(self._model)

    def _record_changed(self) -> None:
        """Before a batch that uses them: the step counts updates, unless the program has called `fingerprint` after this one."""
        at, self._changed_at = self._changed_at, None
        if at is not None and at == self._agent.current_step():
            self._agent.end_step()
            self.record_weights()

    # --- batches

    def begin_batch(self, tokens: Tokens | None) -> None:
        """tokens: None: not known."""
        self.end_batch()
        self._batch = None
        if len(list(self._agent.watches.attached)):
            _say_trainer(self._name)
            return
        attempt("weights", self._record_changed)
        if self._agent.clock.wanted:
            self._tokens = tokens

    def end_batch(self, *_: Any) -> None:
        self._tokens = self._scores = self._recorder.rows = None

    def _wanted(self) -> bool:
        """Whether the batch has tokens whose positions are chosen, or whose followers' are; most of a long generation has not."""
        if self._tokens is None:
            return False
        if self._batch is not None or self._tokens.always_read:
            return True
        return bool(self._choice.of(self._tokens.scheduled().positions(more=1)).any())

    def _now(self) -> Batch:
        assert self._tokens is not None
        if self._batch is None:
            self._batch = self._tokens.read(self._ends)
            self._ends = self._batch.ends()
        return self._batch

    # --- layers

    def hook_layers(self, stream: Stream | None = None) -> None:
        """stream: see hook_taps. `hook_passes`, or begin_pass and end_pass, say when the model runs."""
        tracing.prepare()
        hook_taps(self._recorder, find_taps(name_modules(self._model)), stream)

    def hook_passes(self) -> None:
        """Of an engine that calls the model with names of its arguments."""

        def enter(_: Any, __: Any, kwargs: Any) -> None:
            inputs = kwargs.get("input_ids")
            self.begin_pass(kwargs.get("inputs_embeds") if inputs is None else inputs)

        self._model.register_forward_pre_hook(_Hook("pass", enter), with_kwargs=True)
        self._model.register_forward_hook(_Hook("pass", self.end_pass), always_call=True)

    def begin_pass(self, inputs: Any) -> None:
        """inputs: a row for each row of the layers' tensors, of which the batch's tokens are the first; None: nothing is recorded."""
        self._recorder.rows = None
        if inputs is None or not self._wanted():
            return
        batch = self._now()
        index = np.flatnonzero(batch.known & self._choice.of(batch.positions))
        if len(index):
            self._recorder.rows = Rows((len(inputs),), index, batch.keys[index], batch.positions[index])

    def end_pass(self, *_: Any) -> None:
        self._recorder.rows = None

    # --- log-probabilities of sampled tokens

    def hook_sampler(self, sampler: Any, logits_of: Callable[..., Any] | None, ids_of: Callable[[Any], Any]) -> None:
        """logits_of: the logits among the sampler's arguments; None: `see_logits` gets them earlier. ids_of: the ids in what it returns."""
        tracing.prepare()
        if logits_of is not None:
            find = logits_of
            before = _Hook("sampler", lambda _, args, kwargs: self.see_logits(find(*args, **kwargs)))
            sampler.register_forward_pre_hook(before, with_kwargs=True)
        sampler.register_forward_hook(_Hook("sampler", lambda _, __, output: self._see_sampled(lambda: ids_of(output))))

    def see_logits(self, logits: Any) -> None:
        """A row for each request, before the sampler has changed them."""
        self._scores = None
        if logits is None or not self._wanted() or len(logits) != len(self._now().requests):
            return
        rows = self._sampled_rows()
        if len(rows):
            self._scores = all_log_probabilities(taken(logits, rows))

    def _sampled_rows(self) -> Any:
        """Requests that get a token whose position is chosen."""
        batch = self._now()
        return np.flatnonzero(batch.samples & batch.known[batch.last] & self._choice.of(batch.positions[batch.last] + 1))

    def _see_sampled(self, find: Callable[[], Any]) -> None:
        scores, self._scores = self._scores, None
        if scores is None:
            return
        batch, rows = self._now(), self._sampled_rows()
        ids = taken(find().detach().reshape(len(batch.requests), -1)[:, 0], rows)
        keys = token_keys(ids.cpu().numpy().astype(np.int64)[:, None], batch.keys[batch.last[rows]])[:, 0]
        self._recorder.record(LOGPROB, chosen_log_probabilities(scores, ids), keys, batch.positions[batch.last[rows]] + 1)


class _Hook:
    """A hook whose errors are reported; nothing in a copy of its module or in a traced graph."""

    def __init__(self, what: str, function: Callable[..., None]) -> None:
        self._what, self._function = what, function

    def __call__(self, *args: Any) -> None:
        if not tracing.active():
            attempt(self._what, self._function, *args)

    def __reduce__(self) -> Any:
        return INERT_COPY
