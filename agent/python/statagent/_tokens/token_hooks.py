"""Hooks that record rows of a watched model under the keys of their tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .._compile import tracing
from .._compile.inert_hook import InertHook
from .._runtime.agent import Agent
from .._runtime.log import warn_once
from .._torch.autograd import in_backward
from .._torch.modules import Named
from .choice import Choice, Steps
from .inputs import Arguments, find_cache, find_tokens
from .logprobs import LOGPROB, chosen_scores, find_logits, find_scores, log_probabilities
from .prefixes import Keyed, Prefixes
from .routers import RouterTap, hook_routers
from .rows import Rows
from .taps import Place, Tap, find_taps

KIND = "tokens"
Stream = Callable[[Any, Any, Any], Any]


def hook_taps(recorder: Recorder, taps: list[Tap], stream: Stream | None = None) -> list[Any]:
    """Hooks of these modules that record their rows, if the pass has some.

    stream: the residual stream after a layer, from its arguments and what it returns; default: `stream_of`."""
    removables = []
    for tap in taps:
        if tap.place is Place.INPUT:
            before = InertHook(partial(_see_input, recorder, tap))
            removables.append(tap.module.register_forward_pre_hook(before, with_kwargs=True))
        elif tap.place is Place.BLOCK:
            after = InertHook(partial(_see_stream, recorder, tap, stream or stream_of))
            removables.append(tap.module.register_forward_hook(after, with_kwargs=True))
        else:
            removables.append(tap.module.register_forward_hook(InertHook(partial(_see_output, recorder, tap))))
    return removables


def _see_input(recorder: Recorder, tap: Tap, _: Any, args: Any, kwargs: Any) -> None:
    recorder.see(tap, lambda: [*args, *kwargs.values()])


def _see_stream(recorder: Recorder, tap: Tap, stream: Stream, _: Any, args: Any, kwargs: Any, output: Any) -> None:
    recorder.see(tap, lambda: [stream(args, kwargs, output)])


def _see_output(recorder: Recorder, tap: Tap, _: Any, __: Any, output: Any) -> None:
    recorder.see(tap, lambda: [_first(output)])


class Recorder:
    """Records tensors of taps while a pass has `rows`. Threads: that of the model."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.rows: Rows | None = None  # of the pass that runs
        self.passes = 0  # that had tokens

    def see(self, tap: Tap, values: Callable[[], list[Any]]) -> None:
        """Records the first of the values that has a row for each token. They are asked for only if the pass has rows."""
        rows = self.rows
        if rows is None:
            return
        begun = time.perf_counter_ns()
        try:
            if not in_backward():
                found = next((each for each in map(rows.of, values()) if each is not None), None)
                if found is not None:
                    self.record(tap.name, found, rows.keys, rows.positions, rows.chosen)
        except Exception as error:
            self.agent.refuse(str(error), tap.name, KIND)
        self.agent.clock.note_spent(begun)

    def record(self, name: str, rows: Any, keys: Any, positions: Any, index: Any = None, first_column: int = 0) -> None:
        """May raise."""
        clock = self.agent.clock
        with clock.gate.recording():
            call = clock.next_call(KIND, name)
            step = clock.current_step()
            self.agent.record_rows(name, rows, keys, positions, step=step, call=call, first_column=first_column, index=index)


def _first(output: Any) -> Any:
    """The tensor that a module returns, alone or before others; what else it is, if it is none."""
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output


def stream_of(_: Any, __: Any, output: Any) -> Any:
    """The residual stream in what a layer returns. Engines return what the layer adds apart from what it is added to."""
    first = _first(output)
    if isinstance(output, (tuple, list)) and len(output) == 2:
        second = output[1]
        if hasattr(first, "dim") and getattr(second, "shape", None) == first.shape and second.dtype == first.dtype:
            return first.detach() + second.detach()
    return first


class TokenHooks:
    """Of one watched model."""

    def __init__(
        self, agent: Agent, root: Any, modules: list[Named], choice: Choice, steps: Steps, passes: Any, routers: list[RouterTap]
    ) -> None:
        self._agent, self._choice, self._steps, self._passes = agent, choice, steps, passes
        self._recorder, self._prefixes, self._arguments = Recorder(agent), Prefixes(), Arguments(root)
        self._keyed: Keyed | None = None
        self._vocabulary = max((getattr(each.value, "num_embeddings", 0) for each in modules), default=0)
        taps = find_taps(modules)
        if not taps:
            self._say("found no layers, which are modules in a list that have parts; expected some")
        self._removables = [root.register_forward_pre_hook(InertHook(self._enter), with_kwargs=True)]
        self._removables += hook_taps(self._recorder, taps)
        tapped = {tap.name for tap in taps}
        self._removables += hook_routers(self._recorder, [replace(each, tapped=each.name in tapped) for each in routers])
        self._removables.append(root.register_forward_hook(InertHook(self._leave), with_kwargs=True, always_call=True))
        agent.clock.flush_listeners.append(self._say_if_compiled)

    def remove(self) -> None:
        for each in self._removables:
            each.remove()
        self._removables = []

    def _say(self, reason: str) -> None:
        warn_once(f"tokens {reason}", f"watch: tokens: {reason}; token records are missing")
        self._agent.report_not_recorded("", KIND, reason)

    def _say_if_compiled(self) -> None:
        if self._passes.in_graph and not self._recorder.passes:
            self._say("the model runs in a compiled graph, in which these hooks do not run; record them without torch.compile")

    def _enter(self, _: Any, args: Any, kwargs: Any) -> None:
        self._recorder.rows = self._keyed = None
        if in_backward() or tracing.exporting() or not self._wanted():
            return
        begun = time.perf_counter_ns()
        try:
            self._begin(self._arguments.named(args, kwargs))
        except Exception as error:
            self._agent.refuse(str(error), "", KIND)
        self._agent.clock.note_spent(begun)

    def _wanted(self) -> bool:
        clock = self._agent.clock
        return clock.wanted and clock.current_step() in self._steps

    def _begin(self, arguments: dict[str, Any]) -> None:
        cache = find_cache(arguments)
        cached = 0 if cache is None else int(cache.get_seq_length())
        tokens = find_tokens(arguments, cached)
        if tokens is None:
            self._say("found neither token ids nor embeddings among the arguments of the model's pass; expected input_ids")
            return
        keyed = self._prefixes.key(tokens, cached)
        if isinstance(keyed, str):
            self._say(f"the tokens before these are unknown: {keyed}")
            return
        self._keyed = keyed
        self._recorder.passes += 1
        chosen = tokens.live & self._choice.of(keyed.positions)
        index = np.flatnonzero(chosen)
        if len(index):
            self._recorder.rows = Rows(tokens.shape, index, keyed.keys[chosen], keyed.positions[chosen])

    def _leave(self, _: Any, args: Any, kwargs: Any, output: Any) -> None:
        keyed, self._keyed, self._recorder.rows = self._keyed, None, None
        if keyed is None or output is None:
            return
        begun = time.perf_counter_ns()
        try:
            logits = find_logits(output, keyed.tokens.shape, self._vocabulary)
            if logits is not None and keyed.tokens.named:
                self._record_logprobs(keyed, logits)
            elif logits is None and keyed.tokens.labelled is not None:
                self._record_scores(keyed, find_scores(output, keyed.tokens.shape))
            cache = keyed.tokens.cache
            if cache is None:
                cache = find_cache(output) if isinstance(output, dict) else None
            if cache is not None:
                self._prefixes.keep(cache, keyed, None if logits is None else _last(logits, keyed.tokens.live))
        except Exception as error:
            self._agent.refuse(str(error), LOGPROB, KIND)
        self._agent.clock.note_spent(begun)

    def _record_logprobs(self, keyed: Keyed, logits: Any) -> None:
        """Of each token whose predecessor's logits are known: the key is the token's own."""
        skipped = keyed.keys.shape[1] - logits.shape[1]
        chosen = keyed.tokens.live & self._choice.of(keyed.positions)
        values, at = [], []
        here = chosen & (keyed.before >= skipped)
        if here.any():
            row, _ = np.nonzero(here)
            flat = row * logits.shape[1] + keyed.before[here] - skipped
            values.append(log_probabilities(logits.reshape(-1, logits.shape[-1]), flat, keyed.tokens.ids[here]))
            at.append(np.flatnonzero(here))
        there = chosen & (keyed.before == -1)
        if keyed.logits is not None and there.any():
            row, _ = np.nonzero(there)
            values.append(log_probabilities(keyed.logits, row, keyed.tokens.ids[there]))
            at.append(np.flatnonzero(there))
        for value, index in zip(values, at):
            self._recorder.record(LOGPROB, value, keyed.keys.reshape(-1)[index], keyed.positions.reshape(-1)[index])

    def _record_scores(self, keyed: Keyed, scores: Any) -> None:
        """Of each label whose predecessor stands right before it."""
        if scores is None:
            return
        tokens = keyed.tokens
        before = np.arange(tokens.shape[1]) - 1
        chosen = tokens.live & tokens.labelled & self._choice.of(keyed.positions) & (keyed.before == before) & (before >= 0)
        if chosen.any():
            values = chosen_scores(scores, np.flatnonzero(chosen[:, 1:]))
            self._recorder.record(LOGPROB, values, keyed.keys[chosen], keyed.positions[chosen])


def _last(logits: Any, live: Any) -> Any:
    """The logits of each sequence's last token that is no padding; None if they are not among these."""
    import torch

    length, kept = live.shape[1], logits.shape[1]
    at = length - 1 - live[:, ::-1].argmax(axis=1) - (length - kept)
    if (at < 0).any():
        return None
    rows = torch.arange(len(at), device=logits.device)
    return logits.detach()[rows, torch.from_numpy(at).to(logits.device)].clone()
