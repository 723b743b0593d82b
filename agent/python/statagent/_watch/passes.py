"""The passes of a watched model: which one runs, whether it is recorded, and to which micro-batch it belongs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from .._native.host import PassCells
from .._runtime.agent import Agent
from .._runtime.positions import Position
from .._torch.autograd import GradientHook, gradients_follow, in_backward
from ..flatten import flatten
from .buffers import BufferObserver
from .memory import MemoryObserver, queue_after_backward
from .optimizers import RUN_THE_WATCHED
from .random_states import RandomStates
from .steps import Steps

# What a module's hook does. DECIDE: no pass is running, so the module's own mode decides.
SKIP, TRAIN, EVAL, DECIDE = 0, 1, 2, 3


class Seen:
    """Whether a watched model was ever run. Outlives the model."""

    ran = False


def report_never_run(find_agent: Callable[[], Any], seen: Seen, class_name: str) -> None:
    """Explains the missing records to those who trained a copy of the model, or one loaded from a file."""
    agent = find_agent()
    if agent is not None and not seen.ran:
        agent.report_not_recorded("", "output", f"the watched {class_name} was never run; {RUN_THE_WATCHED}")


class Passes(PassCells):
    """State of one watched model, read by its hooks. Threads: those that run the model, one at a time; any may end the step.

    A pass is a call of the root. Outside of these, a training call of a part that has parts itself is a pass, too, until it returns; any
    other module that runs then decides for itself whether it is recorded. Passes and modules without a backward pass between them share a
    micro-batch.

    If another thread ends the step while a pass of this model runs (another model's optimizer does), the rest of that pass, and of its
    backward pass, is recorded in the new step under its old micro-batch, which the model's next passes in that step leave out. Numbers count
    from 0 again with the model's next pass. A hook compares `steps` with the clock's `steps_ending` after each record: if they differ, the
    record may be in a later step than the pass began in."""

    def __init__(self, agent: Agent, root: Any) -> None:
        self.agent, self.clock, self._root = agent, agent.clock, root
        self.owner: Any = None  # what lives as long as the model's hooks
        self._here = Position()  # of the thread that ran the model last
        self._thread = 0  # that thread; 0: none
        self._inside = False  # a pass has begun and not ended
        # What the thread's position said before: whether another watch's pass runs, whether it is muted, and its micro-batch.
        self._outside = (False, False, 0)
        self.steps = agent.clock.steps_ended  # when the numbers counted from 0 last
        self.straddled = False  # a record may be in a later step; set by hooks
        self._straddled_from = -1  # the first micro-batch of which that is so
        self._reserved = range(0)  # micro-batches of passes that began before this step
        self.eval_micro_batch = 0  # of passes in evaluation: 1 while 0 is that of such a pass
        self.tensor_type: Any = _torch().Tensor
        self.state = SKIP  # of the pass that runs
        self.resting = SKIP  # the state while the root is not running: SKIP or DECIDE
        self.micro_batch = 0
        self.epoch = 0  # grows when call indexes start from 0 again: with each micro-batch and step
        self._begun_epoch = -1  # the epoch in which something trained last
        self.step_epoch = 0  # grows with each step
        self.in_graph = False  # hooks are part of a compiled graph that has run
        # Observers that follow the passes, if any.
        self.buffers: BufferObserver | None = None
        self.memory: MemoryObserver | None = None
        self.random_states: RandomStates | None = None
        # The step is not recorded in full, but its scalars and batches are: micro-batches are counted, modules are not looked at.
        self._light = self._in_light_pass = False
        self.uncounted = False  # the step is such a one, and no pass runs
        self._evaluations = False
        self._steps: Steps | None = None
        self._parameter_steps: Steps | None = None
        self._backward_seen = False
        self._pass_seen = False
        self.seen = Seen()
        self._trained_last = False  # whether the last pass was recorded as training
        self._part_last = False  # whether that was a pass of a part: the phases of memory are those of the root's
        self._backward_began = True  # since the root's last pass
        self._leaf_hooks: list[Any] = []

    def begin(self, evaluations: bool, steps: Steps, parameter_steps: Steps) -> None:
        """Records passes from now on. `evaluations`: also those in evaluation mode or without gradients."""
        self._evaluations, self._steps, self._parameter_steps = evaluations, steps, parameter_steps
        self.clock.step_listeners.append(self._step_changed)
        self.clock.flush_listeners.append(self._report_if_never_run)
        self._step_changed()

    def end(self) -> None:
        self.state = self.resting = SKIP
        self.uncounted = False
        self._remove_leaf_hooks()
        self.clock.step_listeners.remove(self._step_changed)
        self.clock.flush_listeners.remove(self._report_if_never_run)

    # --- questions ---------------------------------------------------------------------------------------------------------

    def wanted(self) -> bool:
        """Whether this step is recorded."""
        return self.resting != SKIP

    def parameters_wanted(self) -> bool:
        """Whether weights, their gradients and the optimizer's state are recorded in this step."""
        return self.wanted() and self._parameter_steps is not None and self.agent.current_step() in self._parameter_steps

    def trained(self) -> bool:
        """Whether the model has been run in this step, as far as the hooks can see."""
        return self._pass_seen or self._backward_seen

    def training(self) -> bool:
        """Whether the current or last pass is recorded as training."""
        return (self.resting != SKIP or self._light) and self._trained_last

    def training_in_full(self) -> bool:
        """As `training`, of the root itself, where the step is recorded in full."""
        return self.resting != SKIP and self._trained_last and not self._part_last

    def recorded(self) -> None:
        """Something of a pass has been recorded."""
        if self.steps != self.clock.steps_ending:
            self.straddled = True

    def is_here(self) -> bool:
        """Whether the model was run last by the thread that asks, or by none."""
        return self._thread in (0, get_ident())

    def elsewhere(self) -> bool:
        """Whether another thread runs the model, as far as this one can tell."""
        return not self.is_here()

    def trains(self, module: Any) -> bool:
        """Whether the pass of a module is recorded as training."""
        if self.state == DECIDE:
            return self.decide(module, gradients_follow()) == TRAIN
        return self.state == TRAIN

    def decide(self, module: Any, gradients: bool) -> int:
        """The state of a module that runs, or has just run, while no pass does. `gradients`: whether they follow."""
        self._stop_if_due(module, gradients)
        state = self._state_of(module, gradients)
        if state == TRAIN and not in_backward():
            self._pass_seen = True
            self._take_place()
            self._count_on()
            self._begin_micro_batch()
            self._leave_place()
        return state

    def _state_of(self, module: Any, gradients: bool) -> int:
        """The state of a pass of this module."""
        self.seen.ran = True  # also where a part of the model runs without the whole
        if _is_rehearsal():
            state = SKIP
        elif gradients and _is_training(module):
            state = TRAIN
        else:
            state = EVAL if self._evaluations else SKIP
        if state != SKIP:
            self.clock.begin_step()
        return state

    # --- forward -----------------------------------------------------------------------------------------------------------

    def enter(self, root: Any, *_: Any) -> None:
        """The root's forward pass begins. Never raises."""
        try:
            self._begin_pass(root, gradients_follow(), in_graph=False)
        except Exception as error:
            self.agent.refuse(f"pass of the model: {error}", type(root).__name__, "output")

    def enter_compiled(self, grad_enabled: bool) -> None:
        """As `enter`, in a compiled graph, whose grad mode is that of the time when the graph was traced."""
        self.in_graph = True
        self._begin_pass(self._root, grad_enabled, in_graph=True)

    def enter_part(self, part: Any) -> bool:
        """A part of the root is called; whether that begins a pass, which `leave` ends. May raise."""
        if not (self.state == DECIDE or self.uncounted) or in_backward() or not _is_training(part) or not gradients_follow():
            return False
        self._begin_pass(part, True, in_graph=False, part=True)
        return True

    def _begin_pass(self, module: Any, gradients: bool, in_graph: bool, part: bool = False) -> None:
        self._stop_if_due(module, gradients)
        self._pass_seen = self.seen.ran = True
        if not in_backward():
            self._take_place()
        self.note_pass(module, gradients)
        if self._light:
            self._begin_light_pass(module, gradients)
            return
        if self.resting == SKIP or self.state != DECIDE or in_backward():
            return
        begun = perf_counter_ns()
        self._count_on()
        self.state = self._state_of(module, gradients)
        self._here.muted = self.state == SKIP
        self._trained_last, self._part_last = self.state == TRAIN, part
        if self.state == TRAIN:
            goes_on = part and self._begun_epoch == self.epoch and not self._backward_seen
            if self.buffers is not None and not goes_on:
                self.buffers.before_pass(in_graph)
            self._begin_micro_batch()
        if not part:
            self._backward_began = False
            if self.state == TRAIN:
                self._phase("pre_forward")
        self.clock.note_spent(begun)

    def _stop_if_due(self, module: Any, gradients: bool) -> None:
        """Ends the program at the training pass that begins after the last step asked for."""
        if self.agent.stopping.due and gradients and _is_training(module) and not in_backward() and not _is_rehearsal():
            self.agent.stopping.check()

    def _begin_light_pass(self, module: Any, gradients: bool) -> None:
        if self._in_light_pass or in_backward():
            return
        begun = perf_counter_ns()
        self._in_light_pass, self.uncounted = True, False
        self._count_on()
        state = self._state_of(module, gradients)
        self._here.muted, self._trained_last = state == SKIP, state == TRAIN
        if self._trained_last:
            self._begin_micro_batch()
        self.clock.note_spent(begun)

    def _take_place(self) -> None:
        """This thread runs the model now."""
        if not self._inside or self.elsewhere():
            here = self.clock.own_position()
            self._thread, self._here, self._inside = get_ident(), here, True
            self._outside = here.in_pass, here.muted, here.micro_batch
        self._here.in_pass = True

    def _leave_place(self) -> None:
        """What runs now in this thread is what ran before."""
        if self._inside:
            here, self._inside = self._here, False
            here.in_pass, here.muted, micro_batch = self._outside
            if here.in_pass:
                here.micro_batch = micro_batch

    def _begin_micro_batch(self) -> None:
        """A training pass begins: a new micro-batch if a backward pass has ended the one before."""
        if self.agent.messages.waiting:
            self.agent.messages.begin(self.agent.run)
        if self._backward_seen:
            self._backward_seen = False
            self.micro_batch += 1
            self.epoch += 1
        if self.micro_batch in self._reserved:
            self.micro_batch = self._reserved.stop
        self._begun_epoch = self.epoch
        self._here.backward_seen = self._here.stale = False
        self._here.micro_batch = self.micro_batch
        if self.random_states is not None:
            self.random_states.log()

    def note_pass(self, module: Any, gradients: bool) -> None:
        """A pass of the model, or a part of it, begins. A training pass begins the step, even if it is not recorded."""
        if self.clock.between_steps and gradients and not in_backward() and _is_training(module):
            self.clock.begin_step()

    def note_uncounted(self, module: Any, output: Any) -> None:
        """A module without parts has run while no pass does, in a step that is not recorded in full."""
        if not in_backward() and self.decide(module, gradients_follow()) == TRAIN:
            self.expect_backward(output)

    def leave(self, module: Any, _: Any, output: Any) -> None:
        """A pass has ended or failed."""
        training = self.state == TRAIN or (self._in_light_pass and self._trained_last)
        self.leave_compiled()
        if not training:
            return
        try:
            self.expect_backward(output)
        except Exception as error:
            self.agent.refuse(str(error), type(module).__name__, "output")

    def leave_compiled(self) -> None:
        """As `leave`, in a compiled graph, which hooks its outputs itself."""
        state, self.state = self.state, self.resting
        self._in_light_pass, self.uncounted = False, self._light
        if not in_backward():
            self._leave_place()
        if state == TRAIN and not self._part_last:
            self._phase("post_forward")

    # --- backward ----------------------------------------------------------------------------------------------------------

    def expect_backward(self, output: Any) -> None:
        """Notes the backward pass when it reaches what a pass has returned."""
        for _path, tensor in flatten(output):
            if tensor.requires_grad:
                self.hook_gradient(tensor, GradientHook(self.note_backward))

    def hook_gradient(self, tensor: Any, hook: Callable[[Any], None]) -> None:
        """Calls the hook with the tensor's gradient, once it is known."""
        removable = tensor.register_hook(hook)
        if tensor.is_leaf:  # its hooks live as long as the leaf, not as long as a graph
            self._leaf_hooks.append(removable)

    def note_gradient(self) -> None:
        """A gradient has been computed: the micro-batch's backward pass has begun."""
        self._backward_seen = self._here.backward_seen = True

    def note_backward(self, _: Any = None) -> None:
        """The backward pass has reached what a pass returned."""
        if self.memory is not None and not self._backward_began and self.resting != SKIP:
            begun = perf_counter_ns()
            self._backward_began = True
            self._phase("pre_backward")
            queue_after_backward(self._backward_ends)
            self.clock.note_spent(begun)
        self.note_gradient()

    def _backward_ends(self) -> None:
        if self.resting != SKIP:
            begun = perf_counter_ns()
            self._phase("post_backward")
            self.clock.note_spent(begun)

    # --- phases and steps --------------------------------------------------------------------------------------------------

    def phase_of_optimizer(self, name: str) -> None:
        """An update begins or ends: "pre_optimizer", "post_optimizer"."""
        if self.wanted():
            self._phase(name)

    def _phase(self, name: str) -> None:
        if self.memory is not None:
            self.memory.phase(name)

    def _step_changed(self) -> None:
        clock, steps = self.clock, self._steps
        wanted = clock.inputs_wanted and steps is not None and clock.current_step() in steps
        full = wanted and (clock.wanted or (steps is not None and steps.asked))
        self.resting = DECIDE if full else SKIP
        self._light = wanted and not full
        if self._inside and self.elsewhere():  # the rest of its pass is recorded as it began, or not at all
            self.state, self.uncounted = self.state if full else SKIP, False
        else:
            self.state, self._in_light_pass, self.uncounted = self.resting, False, self._light
        if self.is_here():
            self.straddled, self._pass_seen = False, False
            self._restart(clock.steps_ended)

    def _count_on(self) -> None:
        """A pass begins: numbers count from 0 if another thread has ended the step since they did last."""
        steps = self.clock.steps_ended
        if self.straddled and self._straddled_from < 0:
            self._straddled_from = self.micro_batch
        if steps != self.steps:
            self._restart(steps)

    def _restart(self, steps: int) -> None:
        """Micro-batches and call indexes count from 0, in the step after so many have ended."""
        if self.straddled:
            self._reserved = range(self._straddled_from, self.micro_batch + 1)
            self.eval_micro_batch = 1 - self.eval_micro_batch
        else:
            self._reserved, self.eval_micro_batch = range(0), 0
        self.steps, self.straddled, self._straddled_from, self._backward_seen = steps, False, -1, False
        self.micro_batch = 0
        self.epoch += 1
        self.step_epoch += 1
        self._remove_leaf_hooks()

    def _remove_leaf_hooks(self) -> None:
        for removable in self._leaf_hooks:
            removable.remove()
        self._leaf_hooks.clear()

    def _report_if_never_run(self) -> None:
        """At close."""
        if self.agent.closing:
            report_never_run(lambda: self.agent, self.seen, type(self._root).__name__)


def _is_training(module: Any) -> bool:
    try:
        return bool(module.training)
    except Exception:  # a property of the module's own
        return False


def _is_rehearsal() -> bool:
    """Whether this is the pass of uninitialised memory in which a stage of torch's pipelines learns its shapes."""
    if "torch.distributed.pipelining.stage" not in sys.modules:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in ("_forward_metadata_inference", "_shape_inference"):
            return True
        frame = frame.f_back
    return False


def _torch() -> Any:
    return sys.modules["torch"]
