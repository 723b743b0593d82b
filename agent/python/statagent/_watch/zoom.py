"""Zoom: in one step, the operators of some parts of it are recorded (docs/zoom.md). Nothing here exists in a run that asks for none."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

from .._compile import tracing
from .._compile.inert_hook import InertHook
from .._runtime.agent import Agent
from .._runtime.log import warn_once
from .._torch.autograd import gradients_follow, in_backward
from .._torch.modules import Named
from ..flatten import flatten
from .optimizers import OptimizerHooks
from .passes import DECIDE, TRAIN, Passes
from .zoom_backward import Backward, Recomputed
from .zoom_lines import parts
from .zoom_operators import BYTES_MAX, OPERATORS_MAX, Budget, Operators, make_mode, sequence_number
from .zoom_regions import UPDATE, Between, Loss, Region, Update
from .zoom_spec import LOSS, VARIABLE, ZoomSpec, matching, why_not

EVENT = "zoom"
MISSED = "zoom_missed"


class Zoom:
    """The zoomed parts of one watch. Threads: those that run the model; one part at a time is recorded."""

    def __init__(
        self, agent: Agent, passes: Passes, modules: list[Named], parameters: list[Named], optimizers: list[OptimizerHooks], asked: list[ZoomSpec]
    ) -> None:  # fmt: skip
        self.agent, self.passes = agent, passes
        self._root, self._modules, self.parameters, self._optimizers = modules[0], modules, parameters, optimizers
        self._budget, self._budget_step = Budget(), -1
        self._open: list[Any] = []  # what is being recorded: one, or several updates
        self._seen: set[ZoomSpec] = set()
        self._wanted: dict[ZoomSpec, str] = {}  # and what has to happen
        self._hooks: list[_Hooks] = []
        self._regions: list[Region] = []
        self._backwards: list[Backward] = []
        for spec in asked:
            reason = self._attach(spec)
            if reason:
                warn_once(f"zoom {spec.text()}", f"{reason}; nothing is zoomed for it")
                agent.log_event(MISSED, reason, {"zoom": spec.text()})
        agent.add_config({"recording.zoom": "; ".join(spec.text() for spec in asked)})
        self._eager: Any = None  # while torch.compile is off
        agent.clock.flush_listeners.append(self._report_missed)
        agent.clock.ending_listeners.append(self._step_ends)
        agent.clock.step_listeners.append(self._step_changed)
        self._step_changed()

    def _attach(self, spec: ZoomSpec) -> str:
        """Hooks what is asked for. Returns why not, or "". May raise."""
        modules, root = self._modules, self._root
        found = spec.matching(modules)
        regions: list[Region] = []
        never = "no training pass of the module was recorded"
        prefix = root.name.removesuffix(root.class_name)
        if found:
            self._hooks += [_Hooks(self, named, spec) for named in found]
        elif spec.parameter is not None:
            parameters = matching(self.parameters, spec.parameter)
            if not parameters:
                return why_not("parameter", spec.parameter, self.parameters)
            if not self._optimizers:
                return f"{VARIABLE}: {spec.text()} needs an optimizer that is watched; expected watch(model, optimizer)"
            regions += [Update(self, parameter, spec) for parameter in parameters]
        elif spec.ends is not None:
            before, after = (matching(modules, end) for end in spec.ends)
            if not before or not after:
                return why_not("module", spec.ends[1 if before else 0], modules)
            regions.append(Between(self, before[0], after[0], root.value, spec))
        elif spec.target in (LOSS, f"{prefix}.{LOSS}" if prefix else LOSS):
            regions.append(Loss(self, spec.target, root.value, spec))
        else:
            return why_not("module", spec.target, modules)
        self._regions += regions
        for hooks in self._optimizers:
            hooks.zooms += [region for region in regions if isinstance(region, (Loss, Update))]
        self._wanted[spec] = regions[0].never if regions else never
        return ""

    def remove(self) -> None:
        clock = self.agent.clock
        clock.flush_listeners.remove(self._report_missed)
        clock.ending_listeners.remove(self._step_ends)
        clock.step_listeners.remove(self._step_changed)
        self._compile_again()
        for hooks in self._optimizers:
            hooks.zooms = []
        attached: list[Any] = [*self._hooks, *self._regions, *self._backwards]
        for each in attached:
            each.remove()
        self._hooks, self._regions, self._backwards = [], [], []

    def _step_changed(self) -> None:
        """In a zoomed step nothing runs in compiled graphs, whose operators nobody sees."""
        step = self.agent.current_step()
        if not any(spec.step == step for spec in self._wanted):
            self._compile_again()
        elif self._eager is None and "torch._dynamo" in sys.modules:
            self._eager = sys.modules["torch"].compiler.set_stance("force_eager")

    def _compile_again(self) -> None:
        if self._eager is not None:
            self._eager.__exit__(None, None, None)
            self._eager = None

    def _step_ends(self) -> None:
        for region in self._regions:
            region.step_ends()
        for backward in list(self._backwards):
            self._backward_over(backward)
        for hooks in self._hooks:
            hooks.without_graph = []

    # --- one part at a time

    def _budget_of(self, step: int) -> Budget:
        if self._budget_step != step:
            self._budget, self._budget_step = Budget(), step
        return self._budget

    def _is_busy(self, spec: ZoomSpec) -> bool:
        """Whether something else is being recorded."""
        if self._open and spec in self._wanted:
            self._wanted[spec] = f"{self._open[0].spec.text()} was being recorded when it began"
        return bool(self._open)

    def claim(self, region: Region, call: int | None) -> Operators | None:
        """What records the region, if the step is the one that is zoomed and nothing else is being recorded."""
        step = self.agent.current_step()
        together = region.phase == UPDATE and all(isinstance(each, Update) for each in self._open)
        if step != region.spec.step or not self.passes.wanted() or (not together and self._is_busy(region.spec)):
            return None
        self._open.append(region)
        budget, passes = self._budget_of(step), self.passes
        if region.phase == UPDATE:
            return region.make(0, call or 0, budget)
        return region.make(passes.micro_batch, region.next_call(passes.epoch), budget)

    def release(self, region: Region) -> None:
        if region in self._open:
            self._open.remove(region)

    def enter(self, hooks: _Hooks, args: Any, kwargs: Any) -> None:
        """A zoomed module is called. May raise."""
        agent, passes, step = self.agent, self.passes, self.agent.current_step()
        if step != hooks.spec.step or tracing.exporting() or self._is_busy(hooks.spec):
            return
        if in_backward():
            hooks.enter_again(args, kwargs)
            return
        state = passes.state
        if state == DECIDE:
            state = passes.decide(hooks.named.value, gradients_follow())
        if state != TRAIN:
            return
        operators = Operators(
            agent, hooks.named, "forward", passes.micro_batch, hooks.next_call(passes.epoch), self._budget_of(step)
        )
        operators.label(args, kwargs)
        hooks.record(operators, args, kwargs)
        self._open.append(hooks)

    def leave(self, hooks: _Hooks, output: Any) -> None:
        """The call has returned or failed. May raise."""
        if hooks.current is None:
            return
        if hooks in self._open:
            self._open.remove(hooks)
        call, hooks.current = hooks.current, None
        call.mode.__exit__(None, None, None)
        operators = call.operators
        if not isinstance(operators, Recomputed):
            for path, tensor in flatten(output):
                operators.hand_on(f"output {path}", tensor)
            self.send(hooks.spec, operators)
            self.passes.recorded()
        if operators.budget.spent():
            return  # nothing of it could be recorded
        backward = Backward(operators, call.first, call.inputs, output, self._backward_over)
        if backward.waiting:
            self._backwards.append(backward)
        elif not isinstance(operators, Recomputed) and operators.count:
            hooks.without_graph.append(operators)

    def _backward_over(self, backward: Backward) -> None:
        if backward not in self._backwards:
            return
        self._backwards.remove(backward)
        backward.remove()
        try:
            if backward.operators.count:
                _send(self.agent, backward.operators, self._eager is not None)
        except Exception as error:
            self.refuse(backward.operators.named, error)

    def send(self, spec: ZoomSpec, operators: Operators) -> None:
        """May raise."""
        self._seen.add(spec)
        _send(self.agent, operators, self._eager is not None)

    def refuse(self, named: Named, error: Exception) -> None:
        self.agent.refuse(f"zoom: {type(error).__name__}: {error}", named.name, "operator")

    def _report_missed(self) -> None:
        """At close."""
        if not self.agent.closing:
            return
        self._step_ends()
        for spec in [spec for spec in self._wanted if spec not in self._seen]:
            reason = (
                f"{VARIABLE}: {spec.text()} was not recorded: {self._wanted.pop(spec)} in step {spec.step}; "
                f"the run ended in step {self.agent.current_step()}"
            )
            warn_once(f"zoom missed {spec.text()}", reason)
            self.agent.log_event(MISSED, reason, {"zoom": spec.text()})


class _Call:
    """A call of a module while it runs."""

    def __init__(self, operators: Operators, args: Any, kwargs: Any) -> None:
        """May raise."""
        self.operators, self.mode = operators, make_mode(operators)
        given = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
        self.inputs = [(f"input {path}", edge) for path, tensor in flatten(given) if (edge := _edge_of(tensor)) is not None]
        self.first = sequence_number()


def _edge_of(tensor: Any) -> Any:
    """Node and number that the tensor's gradient goes to; None without one, or in a transform of functorch."""
    try:
        return sys.modules["torch"].autograd.graph.get_gradient_edge(tensor)[:2] if tensor.requires_grad else None
    except Exception:
        return None


class _Hooks:
    """Before and after one zoomed module. In a copy or pickle of the module they do nothing."""

    def __init__(self, zoom: Zoom, named: Named, spec: ZoomSpec) -> None:
        self._zoom, self.named, self.spec = zoom, named, spec
        self.current: _Call | None = None
        self.without_graph: list[Operators] = []  # recorded calls whose graph a checkpoint makes in the backward pass
        self._epoch, self._calls, self._depth, self._thread = -1, 0, 0, 0
        module = named.value
        self._removables = [
            module.register_forward_pre_hook(InertHook(self._enter), with_kwargs=True),
            module.register_forward_hook(InertHook(self._leave), prepend=True, always_call=True),
        ]

    def remove(self) -> None:
        for each in self._removables:
            each.remove()

    def next_call(self, epoch: int) -> int:
        if self._epoch != epoch:
            self._epoch, self._calls = epoch, 0
        self._calls += 1
        return self._calls - 1

    def record(self, operators: Operators, args: Any, kwargs: Any) -> None:
        """May raise."""
        self.current = _Call(operators, args, kwargs)
        self.current.mode.__enter__()

    def enter_again(self, args: Any, kwargs: Any) -> None:
        """A checkpoint repeats the last call that has no graph yet. May raise."""
        if self.without_graph and gradients_follow():
            self.record(Recomputed(self.without_graph.pop()), args, kwargs)

    def _enter(self, _: Any, args: Any, kwargs: Any) -> None:
        if self.current is not None:
            self._depth += self._thread == get_ident()  # the module calls itself
            return
        self._thread = get_ident()
        try:
            self._zoom.enter(self, args, kwargs)
        except Exception as error:
            self._zoom.refuse(self.named, error)

    def _leave(self, *args: Any) -> None:
        if self._thread != get_ident():
            return
        if self._depth:
            self._depth -= 1
            return
        try:
            self._zoom.leave(self, args[-1])
        except Exception as error:
            self._zoom.refuse(self.named, error)


def _send(agent: Agent, operators: Operators, eagerly: bool) -> None:
    named, phase = operators.named, operators.phase
    made = parts(operators.lines)
    text = f"zoom into {named.name}: {operators.count} operators of its {phase}{'' if phase == UPDATE else ' pass'}"
    if eagerly:
        text += "; compiled modules, if any, ran eagerly in this step"
    if operators.left_out:
        text += f"; {operators.left_out} more were left out (at most {OPERATORS_MAX} and {BYTES_MAX >> 20} MiB of text in a step)"
    what = {
        "module": named.name, "class": named.class_name, "phase": phase, "micro_batch": str(operators.micro_batch),
        "call": str(operators.call), "operators": str(operators.count), "left_out": str(operators.left_out), "parts": str(len(made)),
    }  # fmt: skip
    for number, fields in enumerate(made or [{}]):
        agent.log_event(EVENT, text, {**what, "part": str(number), **fields})
