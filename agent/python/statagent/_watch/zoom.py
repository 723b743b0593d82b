"""Zoom: in one step, the operators of some modules are recorded (docs/zoom.md). Nothing here exists in a run that asks for none."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

from .._compile import tracing
from .._runtime.agent import Agent
from .._runtime.log import warn_once
from .._torch.autograd import gradients_follow, in_backward
from .._torch.modules import INERT_COPY, Named
from .passes import DECIDE, TRAIN, Passes
from .zoom_lines import parts
from .zoom_operators import BYTES_MAX, OPERATORS_MAX, Budget, Operators, make_mode
from .zoom_spec import ZoomSpec

EVENT = "zoom"
MISSED = "zoom_missed"


class Zoom:
    """The zoomed modules of one watch. Threads: those that run the model; one call at a time is recorded."""

    def __init__(self, agent: Agent, passes: Passes, modules: list[Named], asked: list[ZoomSpec]) -> None:
        self._agent, self._passes = agent, passes
        self._budget, self._budget_step = Budget(), -1
        self._open: _Hooks | None = None
        self._seen: set[ZoomSpec] = set()
        self._wanted: list[ZoomSpec] = []
        self._hooks: list[_Hooks] = []
        for spec in asked:
            found = spec.matching(modules)
            if not found:
                warn_once(f"zoom {spec.text()}", f"{spec.why_not(modules)}; nothing is zoomed for it")
                agent.log_event(MISSED, spec.why_not(modules), {"zoom": spec.text()})
                continue
            self._wanted.append(spec)
            self._hooks += [_Hooks(self, named, spec) for named in found]
        agent.add_config({"recording.zoom": "; ".join(spec.text() for spec in asked)})
        self._eager: Any = None  # while torch.compile is off
        agent.clock.flush_listeners.append(self._report_missed)
        agent.clock.step_listeners.append(self._step_changed)
        self._step_changed()

    def remove(self) -> None:
        self._agent.clock.flush_listeners.remove(self._report_missed)
        self._agent.clock.step_listeners.remove(self._step_changed)
        self._compile_again()
        for each in self._hooks:
            each.remove()
        self._hooks = []

    def _step_changed(self) -> None:
        """In a zoomed step nothing runs in compiled graphs, whose operators nobody sees."""
        step = self._agent.current_step()
        if not any(spec.step == step for spec in self._wanted):
            self._compile_again()
        elif self._eager is None and "torch._dynamo" in sys.modules:
            self._eager = sys.modules["torch"].compiler.set_stance("force_eager")

    def _compile_again(self) -> None:
        if self._eager is not None:
            self._eager.__exit__(None, None, None)
            self._eager = None

    def enter(self, hooks: _Hooks, args: Any, kwargs: Any) -> None:
        """A zoomed module is called. May raise."""
        agent, passes, step = self._agent, self._passes, self._agent.current_step()
        if step != hooks.spec.step or self._open is not None or in_backward() or tracing.exporting():
            return
        state = passes.state
        if state == DECIDE:
            state = passes.decide(hooks.named.value, gradients_follow())
        if state != TRAIN:
            return
        if self._budget_step != step:
            self._budget, self._budget_step = Budget(), step
        operators = Operators(agent, hooks.named, passes.micro_batch, hooks.next_call(passes.epoch), self._budget)
        operators.label(args, kwargs)
        mode = make_mode(operators)
        mode.__enter__()
        self._open, hooks.current = hooks, (operators, mode)
        self._seen.add(hooks.spec)

    def leave(self, hooks: _Hooks) -> None:
        """The call has returned or failed. May raise."""
        if self._open is not hooks or hooks.current is None:
            return
        (operators, mode), hooks.current, self._open = hooks.current, None, None
        mode.__exit__(None, None, None)
        _send(self._agent, hooks.named, operators, self._eager is not None)
        self._passes.recorded()

    def refuse(self, hooks: _Hooks, error: Exception) -> None:
        self._agent.refuse(f"zoom: {type(error).__name__}: {error}", hooks.named.name, "operator")

    def _report_missed(self) -> None:
        """At close."""
        missed = [spec for spec in self._wanted if spec not in self._seen] if self._agent.closing else []
        for spec in missed:
            self._wanted.remove(spec)
            reason = (
                f"STATAGENT_ZOOM: {spec.text()} was not recorded: no training pass of the module was recorded in step {spec.step}; "
                f"the run ended in step {self._agent.current_step()}"
            )
            warn_once(f"zoom missed {spec.text()}", reason)
            self._agent.log_event(MISSED, reason, {"zoom": spec.text()})


class _Hooks:
    """Before and after one zoomed module. In a copy or pickle of the module they do nothing."""

    def __init__(self, zoom: Zoom, named: Named, spec: ZoomSpec) -> None:
        self._zoom, self.named, self.spec = zoom, named, spec
        self.current: tuple[Operators, Any] | None = None
        self._epoch, self._calls, self._depth, self._thread = -1, 0, 0, 0
        module = named.value
        self._removables = [
            module.register_forward_pre_hook(_Hook(self._enter), with_kwargs=True),
            module.register_forward_hook(_Hook(self._leave), prepend=True, always_call=True),
        ]

    def remove(self) -> None:
        for each in self._removables:
            each.remove()

    def next_call(self, epoch: int) -> int:
        if self._epoch != epoch:
            self._epoch, self._calls = epoch, 0
        self._calls += 1
        return self._calls - 1

    def _enter(self, _: Any, args: Any, kwargs: Any) -> None:
        if self.current is not None:
            self._depth += self._thread == get_ident()  # the module calls itself
            return
        self._thread = get_ident()
        try:
            self._zoom.enter(self, args, kwargs)
        except Exception as error:
            self._zoom.refuse(self, error)

    def _leave(self, *_: Any) -> None:
        if self._thread != get_ident():
            return
        if self._depth:
            self._depth -= 1
            return
        try:
            self._zoom.leave(self)
        except Exception as error:
            self._zoom.refuse(self, error)


class _Hook:
    """Does nothing in a copy or pickle of its module, and leaves nothing in a traced graph."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        if not tracing.active():
            self._function(*args)

    def __reduce__(self) -> Any:
        return INERT_COPY


def _send(agent: Agent, named: Named, operators: Operators, eagerly: bool) -> None:
    made = parts(operators.lines)
    text = f"zoom into {named.name}: {operators.count} operators of its forward pass"
    if eagerly:
        text += "; compiled modules, if any, ran eagerly in this step"
    if operators.left_out:
        text += f"; {operators.left_out} more were left out (at most {OPERATORS_MAX} and {BYTES_MAX >> 20} MiB of text in a step)"
    what = {
        "module": named.name, "class": named.class_name, "phase": "forward", "micro_batch": str(operators.micro_batch),
        "call": str(operators.call), "operators": str(operators.count), "left_out": str(operators.left_out), "parts": str(len(made)),
    }  # fmt: skip
    for number, fields in enumerate(made or [{}]):
        agent.log_event(EVENT, text, {**what, "part": str(number), **fields})
