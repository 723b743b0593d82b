"""Hooks on a model: what its modules compute, the gradients of that, its weights and its optimizer's state."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union

from . import _library, _tracing
from . import agent as _agent
from ._autograd import GradientHook, hook_result, in_backward
from ._buffers import BufferObserver, Position
from ._checklist import Checklist
from ._density import DensityObserver, check_density
from ._inputs import InputObserver
from ._log import warn_once
from ._memory import MemoryObserver, check_memory, queue_after_backward
from ._modules import INERT_COPY, Named, Selection, name_buffers, name_modules, name_parameters, sharding, unwrap
from ._optimizers import RUN_THE_WATCHED, OptimizerHooks
from ._random_state import RandomStates
from ._tensors import Place
from ._training_scalars import TrainingScalars, check_scaler
from ._transitions import Transitions
from .agent import Agent
from .errors import InvalidArgumentError, StatagentError
from .flatten import flatten

if TYPE_CHECKING:
    import torch

    class _WrapsOptimizer(Protocol):
        """An optimizer of Lightning or Accelerate: the real one is inside."""

        @property
        def optimizer(self) -> torch.optim.Optimizer: ...

    # What torch.compile returns is annotated as a function.
    Model = Union[torch.nn.Module, Callable[..., Any]]
    OptimizerLike = Union[torch.optim.Optimizer, _WrapsOptimizer]

Kind = Literal["output", "input", "grad_output", "grad_input", "weight", "weight_grad", "optimizer_state", "buffer"]
MemoryChoice = Literal["phases", "modules", "peaks"]

_FORWARD_KINDS: tuple[Kind, ...] = ("output", "input", "grad_output", "grad_input")
_OPTIMIZER_KINDS: tuple[Kind, ...] = ("weight_grad", "optimizer_state")
KINDS: tuple[Kind, ...] = (*_FORWARD_KINDS, "weight", *_OPTIMIZER_KINDS, "buffer")
NAME_BYTES_MAX = 256  # of the prefix; names as a whole have 1,024
_DEFAULT_KINDS = frozenset(("output", "grad_output", "weight", "buffer"))

# What a module's hook does. DECIDE: no pass of the root is running; the module itself tells whether it trains.
_SKIP, _TRAIN, _EVAL, _DECIDE = 0, 1, 2, 3


class _Steps:
    """The steps that a watch records."""

    def __init__(self, text: str | None, argument: str) -> None:
        self._steps = ctypes.c_void_p()
        if text is not None:
            _library.check(_library.load().statagent_steps_parse(_agent._encode(f"watch: {argument}", text), self._steps))

    def __contains__(self, step: int) -> bool:
        return not self._steps or bool(_library.load().statagent_steps_contains(self._steps, step))

    def __del__(self) -> None:
        if self._steps:
            _library.load().statagent_steps_free(self._steps)


class Watch:
    """A model's hooks. `remove` takes them off; as a context manager it does so at the end of the block."""

    def __init__(self, agent: Agent | None) -> None:
        self._agent = agent
        self._removables: list[Any] = []
        self._optimizers: list[OptimizerHooks] = []
        self._leaf_hooks: list[Any] = []
        self._claimed: list[tuple[str, str]] = []
        self._steps: _Steps | None = None
        self._parameter_steps: _Steps | None = None
        self._state = _SKIP
        self._resting = _SKIP  # _state while the root is not running
        self._evaluations = False
        self._backward_seen = False
        self._pass_seen = False
        self._ever_run = False
        self._trained_last = False  # whether the last pass of the root was recorded as training
        self._backward_began = False  # since then
        self._memory: MemoryObserver | None = None
        self._random_states: RandomStates | None = None
        self._buffers: BufferObserver | None = None
        self.in_graph = False  # hooks are part of a compiled graph that has run
        self.between = False  # whether inputs are recorded that no watched module has returned
        self.micro_batch = 0
        self.epoch = 0  # grows when call indices begin anew: with each micro-batch and step
        self.step_epoch = 0
        self.tensor_type: Any = None if agent is None else _torch().Tensor

    def remove(self) -> None:
        """Takes all hooks off. Later calls do nothing."""
        self._state = self._resting = _SKIP
        for removable in [*self._removables, *self._leaf_hooks, *self._optimizers]:
            removable.remove()
        self._removables, self._leaf_hooks, self._optimizers = [], [], []
        if self._agent is not None:
            self._agent.remove_step_listener(self._step_changed)
            self._agent.remove_flush_listener(self._tell_if_never_run)
            for key in self._claimed:
                self._agent.watched.pop(key, None)
            if self in self._agent.watches:
                self._agent.watches.remove(self)
        self._claimed = []

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # --- made by watch() ---------------------------------------------------------------------------------------------------

    def _claim(self, named: Named, kinds: Iterable[str]) -> None:
        """One name and kind belong to one watch, or their call indices would mix."""
        assert self._agent is not None
        for kind in sorted(kinds):
            if self._agent.watched.setdefault((named.name, kind), id(self)) != id(self):
                raise InvalidArgumentError(
                    f"watch: '{named.name}' ({kind}) is watched already; expected each once; "
                    "remove() the other watch, leave it out with exclude=, or tell two models apart with name="
                )
            self._claimed.append((named.name, kind))

    def _attach(self, root: Any, modules: list[Named], kinds: frozenset[str]) -> None:
        assert self._agent is not None
        self._root, key = root, _tracing.compiled.Key(root=self)
        self._removables += [key, root.register_forward_pre_hook(_RootHook(self._enter, key, True))]
        inside = _inside_script(root)
        for named in modules:
            if id(named.value) in inside:
                self._agent.tell_not_recorded(
                    named.name, "output", "it runs inside of a TorchScript module, which calls no hooks of its parts"
                )
                continue
            try:
                if kinds & {"input", "grad_input"}:
                    before = _InputHook(self, named, "input", "input" in kinds, "grad_input" in kinds)
                    self._removables += [before.key, named.value.register_forward_pre_hook(before, with_kwargs=True)]
                if self.between:
                    unknown = _BetweenHook(self, named, named.value is root)
                    self._removables += [unknown.key, named.value.register_forward_pre_hook(unknown)]
                if kinds & {"output", "grad_output"}:
                    after = _OutputHook(self, named, "output", "output" in kinds, "grad_output" in kinds)
                    self._removables += [after.key, named.value.register_forward_hook(after)]
            except (RuntimeError, TypeError) as error:
                reason = f"a {named.class_name} takes no hooks: {error}"
                warn_once(f"hook {named.name}", f"watch: '{named.name}': {reason}")
                self._agent.tell_not_recorded(named.name, "output", reason)
        self._removables.append(root.register_forward_hook(_RootHook(self._leave, key, False), always_call=True))

    def _observe_memory(self, model: Any, modules: list[Named], optimizers: list[Any], choices: frozenset[str]) -> None:
        if not choices:
            return
        assert self._agent is not None
        self._memory = memory = MemoryObserver(self._agent, model, optimizers, choices)
        for hooks in self._optimizers:
            hooks.on_phase = self.phase_of_optimizer
        for named in modules if memory.modules_wanted else ():
            enter, leave = memory.module_hooks(named, self.training)
            self._removables.append(named.value.register_forward_pre_hook(_Inert(enter)))
            self._removables.append(named.value.register_forward_hook(_Inert(leave), always_call=True))

    def _observe_inputs(self, root: Any, parameters: list[Named], padding: dict[str, int] | None, fingerprints: bool) -> None:
        agent = self._agent
        assert agent is not None
        density = None if padding is None else DensityObserver(agent, parameters, padding, self.training)
        if density is not None:
            self._removables.append(density)
        if density is not None or fingerprints:
            observer = InputObserver(agent, root, density, fingerprints, self.training)
            key = _tracing.compiled.Key(inputs=observer)
            note = _InertWithKeywords(observer, key.tensor, observer.names)
            self._removables += [key, root.register_forward_pre_hook(note, with_kwargs=True)]

    def _observe_buffers(self, buffers: list[Named]) -> None:
        assert self._agent is not None
        position = Position(self.wanted, self._trains, lambda: (self.micro_batch, self.epoch))
        self._buffers = BufferObserver(self._agent, buffers, position)
        self._removables.append(self._buffers)

    def _trains(self, module: Any) -> bool:
        """Whether the pass of a module is recorded as training."""
        if self._state == _DECIDE:
            return self.decide(module, _torch().is_grad_enabled()) == _TRAIN
        return self._state == _TRAIN

    def _begin(self, evaluations: bool, steps: _Steps, parameter_steps: _Steps) -> None:
        assert self._agent is not None
        self._evaluations, self._steps, self._parameter_steps = evaluations, steps, parameter_steps
        self._agent.add_step_listener(self._step_changed)
        self._agent.add_flush_listener(self._tell_if_never_run)
        self._agent.watches.append(self)
        self._step_changed()

    def _accompany(self, model: Any, optimizers: list[Any], name: str, scaler: Any, input_sizes: bool) -> None:
        """What is recorded besides tensors."""
        assert self._agent is not None
        checklist = Checklist(self._agent, model, optimizers, name)
        self._removables.append(checklist)
        self._removables.append(Transitions(self._agent, model, input_sizes))
        scalars = TrainingScalars(self._agent, optimizers, scaler, name)
        self._removables.append(scalars)
        for hooks in self._optimizers:
            hooks.before_update += [checklist.before_update, scalars.before_update]

    def _record_updates(self, steps: str | None) -> None:
        if steps is None:
            return
        if not self._optimizers:
            raise InvalidArgumentError("watch: updates needs the optimizer; found none; give optimizer=")
        recorded, agent = _Steps(steps, "updates"), self._agent
        assert agent is not None
        for hooks in self._optimizers:
            hooks.updates_wanted = lambda: self.wanted() and agent.current_step() in recorded

    # --- while training ----------------------------------------------------------------------------------------------------

    def wanted(self) -> bool:
        return self._resting != _SKIP

    def parameters_wanted(self) -> bool:
        """Whether weights, their gradients and the optimizer's state are recorded in this step."""
        assert self._agent is not None
        return self.wanted() and self._parameter_steps is not None and self._agent.current_step() in self._parameter_steps

    def trained(self) -> bool:
        """Whether the model has been run in this step, as far as the hooks can tell."""
        return self._pass_seen or self._backward_seen

    def _step_changed(self) -> None:
        agent = self._agent
        assert agent is not None
        wanted = agent.wanted and self._steps is not None and agent.current_step() in self._steps
        self._state = self._resting = _DECIDE if wanted else _SKIP
        self.micro_batch = 0
        self.epoch += 1
        self.step_epoch += 1
        self._ever_run = self._ever_run or self._pass_seen
        self._backward_seen = self._pass_seen = False
        for removable in self._leaf_hooks:
            removable.remove()
        self._leaf_hooks.clear()

    def _tell_if_never_run(self) -> None:
        """At close: whoever trains a copy, or what was loaded from a file, else wonders where the records are."""
        agent = self._agent
        if agent is not None and agent.closing and not self._ever_run and not self._pass_seen:
            agent.tell_not_recorded("", "output", f"the watched {type(self._root).__name__} was never run; {RUN_THE_WATCHED}")

    def _enter(self, root: Any, *_: Any) -> None:
        """The root's forward pass begins."""
        self._begin_pass(root, _torch().is_grad_enabled(), in_graph=False)

    def enter_compiled(self, grad_enabled: bool) -> None:
        """As _enter, within a compiled graph: grad mode there is what it was when the graph was traced."""
        self.in_graph = True
        self._begin_pass(self._root, grad_enabled, in_graph=True)

    def _begin_pass(self, root: Any, grad_enabled: bool, in_graph: bool) -> None:
        self._pass_seen = True
        self.note_pass(root, grad_enabled)
        if self._resting == _SKIP or self._state != _DECIDE or in_backward():
            return
        agent = self._agent
        assert agent is not None
        self._state = self.decide(root, grad_enabled)
        agent.muted = self._state == _SKIP
        self._trained_last, self._backward_began = self._state == _TRAIN, False
        if self._state != _TRAIN:
            return
        if self._buffers is not None:
            self._buffers.before_pass(in_graph)
        if self._backward_seen:
            self._backward_seen = False
            self.micro_batch += 1
            self.epoch += 1
        agent.backward_seen = False
        agent.micro_batch = self.micro_batch
        if self._random_states is not None:
            self._random_states.log()
        self._phase("pre_forward")

    def note_pass(self, module: Any, grad_enabled: bool) -> None:
        """A pass of the model or a part of it. One that trains begins the step, also one that is not recorded."""
        agent = self._agent
        if agent is not None and agent.between_steps and grad_enabled and module.training and not in_backward():
            agent.begin_step()

    def _leave(self, root: Any, args: Any, output: Any) -> None:
        """The root's forward pass is over, or failed."""
        assert self._agent is not None
        state = self._state
        self.leave_compiled()
        if state != _TRAIN:
            return
        try:
            for _, tensor in flatten(output):
                if tensor.requires_grad:
                    self.hook_gradient(tensor, GradientHook(self.note_backward))
        except Exception as error:
            self._agent.refuse(str(error), type(root).__name__, "output")

    def leave_compiled(self) -> None:
        """The root's forward pass is over. Within a compiled graph its outputs are hooked there."""
        state, self._state = self._state, self._resting
        if self._agent is not None:
            self._agent.muted = False
        if state == _TRAIN:
            self._phase("post_forward")

    def decide(self, module: Any, grad_enabled: bool) -> int:
        self._ever_run = True  # also where a part of the model runs without the whole
        if module.training and grad_enabled:
            state = _TRAIN
        else:
            state = _EVAL if self._evaluations else _SKIP
        if state != _SKIP and self._agent is not None:
            self._agent.begin_step()
        return state

    def training(self) -> bool:
        """Whether the root's pass that runs, or ran last, is recorded as training."""
        return self._resting != _SKIP and self._trained_last

    def _phase(self, name: str) -> None:
        if self._memory is not None:
            self._memory.phase(name)

    def phase_of_optimizer(self, name: str) -> None:
        if self.wanted():
            self._phase(name)

    def _backward_ends(self) -> None:
        if self._resting != _SKIP:
            self._phase("post_backward")

    def begin_pass(self, model: Any) -> None:
        """A pass of the model begins: for frameworks that run its parts without calling it."""
        self._enter(model)

    def end_pass(self) -> None:
        """The pass of `begin_pass` is over, if the model's own hooks did not say so already."""
        self.leave_compiled()

    def note_backward(self, _: Any = None) -> None:
        if self._memory is not None and not self._backward_began and self._resting != _SKIP:
            self._backward_began = True
            self._phase("pre_backward")
            queue_after_backward(self._backward_ends)
        self._backward_seen = True
        if self._agent is not None:
            self._agent.backward_seen = True

    def hook_gradient(self, tensor: Any, hook: Callable[[Any], None]) -> None:
        removable = tensor.register_hook(hook)
        if tensor.is_leaf:  # its hooks live as long as itself, not as long as a graph
            self._leaf_hooks.append(removable)


def _inside_script(root: Any) -> set[int]:
    """Ids of the modules within scripted or traced ones."""
    script = _torch().jit.ScriptModule
    return {
        id(part) for module in root.modules() if isinstance(module, script) for part in module.modules() if part is not module
    }


class _Inert:
    """A hook that stays behind when its module is copied or pickled: copies are not watched."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        if not _tracing.tracing():  # read into a graph it leaves nothing there
            self._function(*args)

    def __reduce__(self) -> Any:
        return INERT_COPY


class _InertWithKeywords(_Inert):
    """A hook of what a module is called with: (args, kwargs). In a graph the key stands for it."""

    def __init__(self, function: Callable[..., None], key: Any, names: list[str]) -> None:
        super().__init__(function)
        self._key, self._names = key, names

    def __call__(self, _: Any, args: Any, kwargs: Any) -> None:
        if _tracing.tracing():
            _tracing.compiled.trace_inputs(self._key, self._names, args, kwargs)
        elif not _tracing.exporting():
            self._function(args, kwargs)


class _RootHook(_Inert):
    """Before and after the root's forward pass."""

    def __init__(self, function: Callable[..., None], key: Any, entering: bool) -> None:
        super().__init__(function)
        self._key, self._entering = key.tensor, entering

    def __call__(self, *args: Any) -> None:
        if _tracing.tracing():
            _tracing.compiled.trace_mark(self._key, self._entering, args[-1])
        else:
            self._function(*args)


class _ModuleHook:
    """Inputs or outputs of one module, and their gradients."""

    def __init__(self, watch: Watch, named: Named, kind: str, values: bool, gradients: bool) -> None:
        assert watch._agent is not None
        self._watch, self._agent, self._named = watch, watch._agent, named
        self._kind, self._values, self._gradients = kind, values, gradients
        self._tensor_type, self._grad_enabled = _torch().Tensor, _torch().is_grad_enabled
        self._known = watch._agent.known if watch.between and kind == "output" else None
        self._epoch = self._eval_epoch = -1
        self._calls = self._eval_calls = 0
        # (path, micro-batch, call, mode) -> handles of the value and of its gradient; -1: not recorded.
        self._handles: dict[tuple[str, int, int, int], tuple[int, int]] = {}
        # path -> places of the value and of its gradient. The path of a bare tensor has its own.
        self._places: dict[str, tuple[Place, Place]] = {"0": (Place(), Place())}
        self._value_place, self._gradient_place = self._places["0"]
        # Calls made without gradients within a training pass: reentrant checkpoints compute them again, last first.
        self._unhooked: list[tuple[int, int]] = []
        self._told_empty = False
        self.key = _tracing.compiled.Key(recorder=self)
        self._key = self.key.tensor

    def __reduce__(self) -> Any:
        return INERT_COPY

    def _see(self, state: int, module: Any, value: Any) -> None:
        try:
            if _tracing.exporting():
                return
            recomputing = in_backward()
            if state == _DECIDE and not recomputing:
                state = self._watch.decide(module, self._grad_enabled())
                if state == _SKIP:
                    return
            found = [("0", value)] if isinstance(value, self._tensor_type) else flatten(value)
            if not found and not self._told_empty:
                self._tell_empty(value)
            if recomputing:
                self._hook_recomputed(found)
            elif state == _TRAIN:
                self._record(found, self._watch.micro_batch, self._next_call(), state)
            else:
                self._record(found, 0, self._next_eval_call(), state)
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)

    def _tell_empty(self, value: Any) -> None:
        self._told_empty = True
        if self._kind == "output":
            self._agent.tell_not_recorded(
                self._named.name, self._kind,
                f"found {_describe(value)}; expected a tensor, or sequences, mappings or dataclasses with some; "
                "hand what matters to statagent.inspect()",
            )  # fmt: skip

    def _next_call(self) -> int:
        if self._epoch != self._watch.epoch:
            self._epoch, self._calls = self._watch.epoch, 0
            self._unhooked.clear()
        self._calls += 1
        return self._calls - 1

    def _next_eval_call(self) -> int:
        if self._eval_epoch != self._watch.step_epoch:
            self._eval_epoch, self._eval_calls = self._watch.step_epoch, 0
        self._eval_calls += 1
        return self._eval_calls - 1

    def _record(self, found: list[tuple[str, Any]], micro_batch: int, call: int, state: int) -> None:
        hooking = self._gradients and state == _TRAIN
        if hooking and not self._grad_enabled():
            hooking = False
            self._unhooked.append((micro_batch, call))
        for path, tensor in found:
            key = (path, micro_batch, call, state)
            handle, gradient_handle = self._handles.get(key) or self._intern(*key)
            place, gradient_place = self._places_of(path)
            if self._values:
                if type(tensor) is self._tensor_type:
                    self._agent.observe_at(place, handle, tensor)
                    if self._known is not None:
                        self._known.note(tensor)
                else:
                    self._agent.observe_handle(handle, tensor)
            if hooking and tensor.requires_grad:
                self._watch.hook_gradient(tensor, _GradientOf(self._watch, gradient_place, gradient_handle))

    def _hook_recomputed(self, found: list[tuple[str, Any]]) -> None:
        """A checkpoint computes the module again. If its gradients flow through the new tensors (reentrant checkpoints), they
        are those of the call that had none."""
        if not self._unhooked or self._epoch != self._watch.epoch or not self._grad_enabled():
            return
        micro_batch, call = self._unhooked.pop()
        for path, tensor in found:
            if tensor.requires_grad:
                key = (path, micro_batch, call, _TRAIN)
                self._watch.hook_gradient(tensor, self._gradient_hook(path, key))

    def _places_of(self, path: str) -> tuple[Place, Place]:
        return self._places.get(path) or self._places.setdefault(path, (Place(), Place()))

    def _gradient_hook(self, path: str, key: tuple[str, int, int, int]) -> _GradientOf:
        handle = (self._handles.get(key) or self._intern(*key))[1]
        return _GradientOf(self._watch, self._places_of(path)[1], handle)

    # --- a Recorder, for calls inside of compiled graphs; a call is (micro-batch, call index, state)

    def active(self) -> bool:
        self._watch.in_graph = True
        return self._watch._state != _SKIP

    def begin(self, paths: list[str], grad_enabled: bool) -> tuple[int, int, int] | None:
        state = self._watch._state
        if state == _DECIDE:
            state = self._watch.decide(self._named.value, grad_enabled)
        if state == _SKIP:
            return None
        if state != _TRAIN:
            return 0, self._next_eval_call(), state
        micro_batch, call = self._watch.micro_batch, self._next_call()
        if self._gradients and not grad_enabled:
            self._unhooked.append((micro_batch, call))
        return micro_batch, call, state

    def value(self, call: tuple[int, int, int], path: str, tensor: Any) -> None:
        key = (path, *call)
        handle = (self._handles.get(key) or self._intern(*key))[0]
        self._agent.observe_at(self._places_of(path)[0], handle, tensor)

    def gradient(self, call: tuple[int, int, int], path: str, gradient: Any) -> None:
        if call[2] == _TRAIN:
            self._gradient_hook(path, (path, *call))(gradient)

    def unhooked(self) -> tuple[int, int, int] | None:
        if not self._unhooked or self._epoch != self._watch.epoch:
            return None
        return (*self._unhooked.pop(), _TRAIN)

    def epoch(self) -> int:
        return self._watch.step_epoch

    def refuse(self, message: str) -> None:
        self._agent.refuse(message, self._named.name, self._kind)

    def _intern(self, path: str, micro_batch: int, call: int, state: int) -> tuple[int, int]:
        def handle(wanted: bool, kind: str) -> int:
            if not wanted:
                return -1
            named, mode = self._named, "eval" if state == _EVAL else "train"
            return self._agent.intern(
                named.name, kind, path, micro_batch, call, mode, named.parent, named.class_name, named.depth
            )

        gradients = self._gradients and state == _TRAIN
        made = handle(self._values, self._kind), handle(gradients, f"grad_{self._kind}")
        self._handles[(path, micro_batch, call, state)] = made
        return made


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Iterator):
        return f"a {type(value).__name__}, which looking inside would use up"
    return f"a {type(value).__name__} without tensors"


class _GradientOf:
    """Tensor hook that observes one gradient. A second backward pass through the graph is not another observation."""

    __slots__ = ("_fired", "_handle", "_place", "_watch")

    def __init__(self, watch: Watch, place: Place, handle: int) -> None:
        self._watch, self._place, self._handle, self._fired = watch, place, handle, False

    def __call__(self, gradient: Any) -> None:
        if self._fired:
            return
        self._fired = True
        watch = self._watch
        agent = watch._agent
        assert agent is not None
        watch._backward_seen = agent.backward_seen = True
        if watch._resting:
            if type(gradient) is watch.tensor_type:
                agent.observe_at(self._place, self._handle, gradient)
            else:
                agent.observe_handle(self._handle, gradient)


class _OutputHook(_ModuleHook):
    """After a module's forward pass."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        if _tracing.tracing():
            _tracing.compiled.trace(self._key, output, args, self._values, self._gradients)
            return
        watch = self._watch
        state = watch._state
        if state != _TRAIN or type(output) is not self._tensor_type or in_backward():
            if state:
                self._see(state, module, output)
            elif self._agent.between_steps:
                watch.note_pass(module, self._grad_enabled())
            return
        # What _see does for almost every output, in as few calls as it takes.
        try:
            call, micro_batch = self._next_call(), watch.micro_batch
            key = ("0", micro_batch, call, _TRAIN)
            handle, gradient_handle = self._handles.get(key) or self._intern(*key)
            if self._values:
                self._agent.observe_at(self._value_place, handle, output)
                if self._known is not None:
                    self._known.note(output)
            if self._gradients:
                if not self._grad_enabled():
                    self._unhooked.append((micro_batch, call))
                elif output.requires_grad:
                    hook = _GradientOf(watch, self._gradient_place, gradient_handle)
                    if output.grad_fn is None:
                        watch.hook_gradient(output, hook)
                    else:
                        hook_result(output, hook)
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)


class _InputHook(_ModuleHook):
    """Before a module's forward pass; positional arguments are "0", "1", the others go by name."""

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        if _tracing.tracing():
            inputs = {**{str(i): value for i, value in enumerate(args)}, **kwargs}
            _tracing.compiled.trace(self._key, inputs, inputs, self._values, self._gradients)
            return
        state = self._watch._state
        if state:
            self._see(state, module, {**{str(i): value for i, value in enumerate(args)}, **kwargs})


class _BetweenHook(_ModuleHook):
    """Before a module's forward pass: records positional arguments that no watched module has returned."""

    def __init__(self, watch: Watch, named: Named, is_root: bool) -> None:
        super().__init__(watch, named, "input", True, False)
        self._is_root, self._all = is_root, self._agent.known

    def __call__(self, module: Any, args: Any) -> None:
        if _tracing.tracing():
            return
        state = self._watch._state
        if not state or in_backward():
            return
        try:
            if _tracing.exporting():
                return
            if state == _DECIDE:
                state = self._watch.decide(module, self._grad_enabled())
                if state == _SKIP:
                    return
            training = state == _TRAIN
            call = self._next_call() if training else self._next_eval_call()
            for index, tensor in enumerate(args):
                if type(tensor) is self._tensor_type and not self._all.holds(tensor):
                    self._see_unknown(tensor, str(index), self._watch.micro_batch if training else 0, call, state)
        except Exception as error:
            self._agent.refuse(str(error), self._named.name, self._kind)

    def _see_unknown(self, tensor: Any, path: str, micro_batch: int, call: int, state: int) -> None:
        if not tensor.data_ptr():
            return
        self._all.note(tensor)
        if self._is_root and not tensor.requires_grad:
            return  # recorded as batch
        if (self._named.name, "input") in self._agent.watched:
            return  # another watch records all inputs
        key = (path, micro_batch, call, state)
        handle = (self._handles.get(key) or self._intern(*key))[0]
        self._agent.observe_at(self._places_of(path)[0], handle, tensor)


def watch(
    model: Model,
    optimizer: OptimizerLike | Sequence[OptimizerLike] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    kinds: Kind | Iterable[Kind] | None = None,
    steps: str | None = None,
    eval: bool = False,  # noqa: A002 (the name that users know)
    name: str = "",
    memory: bool | MemoryChoice | Iterable[MemoryChoice] = True,
    density: bool | Mapping[str, int] = True,
    fingerprints: bool = True,
    parameter_steps: str | None = None,
    scaler: torch.amp.GradScaler | None = None,
    input_sizes: bool = False,
    updates: str | None = None,
    random_states: bool = True,
    between: bool = False,
) -> Watch:
    """Records what a torch module computes, from now on.

    optimizer: one or several; their update ends the step (with several: the last one's). include, exclude: patterns of module
    names, as "blocks.*.ln1". kinds: output, input, grad_output, grad_input, weight, buffer, and with an optimizer weight_grad and
    optimizer_state; default: output, grad_output, buffer, the weights as they are now, and with an optimizer also as they become,
    weight_grad and optimizer_state.
    steps: "0-9,20,100-", "0-99,every=10". eval: record evaluation and no-grad passes too. name: a prefix that tells two models apart.
    memory: at each phase of the step; "modules": also what each module adds, "peaks": also the highest within each step, or a list.
    parameter_steps: steps in which weights, their gradients and optimizer state are recorded, of those above ("every=100").
    fingerprints: record the model's inputs as kind `batch`, where log_batch does not.
    density: how much of the inputs is no padding, where the model or loss tells the padding index; or {"input_ids": 0}.
    scaler: the GradScaler, whose scale and skipped updates become scalars. input_sizes: a changed size of an input is a graph transition.
    updates: steps in which what the optimizer added to each weight is recorded, exactly (kind optimizer_state, path "update"); a copy
    of the weights is held while such an update runs. random_states: fingerprints of the random generators, as scalars of each step.
    between: also record inputs that no watched module has returned, such as sums, as kind input.

    Besides that it records what model and optimizers are made of (configuration), changes of inputs, modules and modes (events
    `graph_transition`, `setting_changed`), and learning rates (scalars).

    Raises InvalidArgumentError, TypeError, and StatagentError before init."""
    if _agent.disabled():
        return Watch(None)
    agent = _running_agent()
    _check_model(model)
    _check_name(name)
    optimizers, scaler = _check_optimizers(optimizer), check_scaler(scaler)
    chosen = _check_kinds(kinds, bool(optimizers))
    memory_choices, padding = check_memory(memory), check_density(density)
    selection = Selection(include, exclude)
    recorded_steps, recorded_parameters = _Steps(steps, "steps"), _Steps(parameter_steps, "parameter_steps")
    all_modules = name_modules(model, name)
    all_parameters = name_parameters(all_modules, name)
    all_buffers = name_buffers(all_modules, name)
    selection.check([named.name for named in [*all_modules, *all_parameters, *all_buffers]])
    modules = [named for named in all_modules if selection.module(named)]
    parameters = [named for named in all_parameters if selection.parameter(named)]
    buffers = [named for named in all_buffers if "buffer" in chosen and selection.parameter(named)]

    _tracing.prepare()
    made = Watch(agent)
    made.between = between and "input" not in chosen
    try:
        for named in modules:
            made._claim(named, chosen.intersection(_FORWARD_KINDS))
        for named in parameters:
            made._claim(named, chosen.difference(_FORWARD_KINDS, ("buffer",)))
        for named in buffers:
            made._claim(named, ["buffer"])
        made._attach(unwrap(model), modules, chosen)
        made._observe_buffers(buffers)
        made._optimizers = [
            OptimizerHooks(agent, each, parameters, chosen, made.wanted, made.trained, made.parameters_wanted)
            for each in optimizers
        ]
        made._observe_memory(unwrap(model), modules, optimizers, memory_choices)
        made._observe_inputs(unwrap(model), all_parameters, padding, fingerprints)
        made._begin(eval, recorded_steps, recorded_parameters)
        made._accompany(model, optimizers, name, scaler, input_sizes)
        made._record_updates(updates)
        made._random_states = RandomStates(agent) if random_states else None
        asked = {
            "kinds": ", ".join(sorted(chosen)),
            "include": ", ".join(selection.include),
            "exclude": ", ".join(selection.exclude),
            "steps": steps or "",
            "parameter_steps": parameter_steps or "",
            "updates": updates or "",
            "eval": "true" if eval else "false",
            "between": "true" if made.between else "false",
            "optimizer": "true" if optimizers else "false",
        }
        agent.tell_what_is_recorded(name, {option: value for option, value in asked.items() if value})
    except BaseException:
        made.remove()
        raise
    agent.add_config(sharding(model))
    if "weight" in chosen:
        _record_initial(agent, parameters, "weight")
    _record_initial(agent, buffers, "buffer")
    _tell_about_strangers(agent, optimizers, all_parameters)
    _tracing.compiled.forget_graphs(all_modules)
    return made


def _torch() -> Any:
    import torch

    return torch


def _running_agent() -> Agent:
    agent = _agent.current()
    if agent is None or agent.closed:
        found = "none" if agent is None else "one that is closed"
        raise StatagentError(f"watch: found {found} as this process's agent; expected a running one; call statagent.init() first")
    return agent


def _check_model(model: Any) -> None:
    torch = _torch()
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"watch: found a {type(model).__name__} as model; expected a torch.nn.Module")
    if isinstance(unwrap(model), torch.jit.ScriptModule):
        raise InvalidArgumentError(
            f"watch: found a {type(model).__name__} as model, which takes no hooks; expected one that is not TorchScript; watch the module "
            "that was scripted or traced, or a module around it"
        )


def _check_name(name: Any) -> None:
    """The library would refuse each record of a name that cannot be one."""
    good = isinstance(name, str) and name.isprintable() and len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX
    if not good:
        shown = f"{name!r:.100}"
        raise InvalidArgumentError(
            f"watch: name is {shown}; expected at most {NAME_BYTES_MAX} bytes of printable text, as 'teacher'"
        )


def _check_optimizers(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    given = [_unwrap_optimizer(each) for each in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer])]
    found = list({id(each): each for each in given}.values())  # each once
    for each in found:
        if not hasattr(each, "register_step_post_hook") or not hasattr(each, "param_groups"):
            raise InvalidArgumentError(
                f"watch: found a {type(each).__name__} as optimizer; expected a torch.optim.Optimizer, or a list"
            )
    return found


def _unwrap_optimizer(optimizer: Any) -> Any:
    """The optimizer inside of Accelerate's and Lightning's: its hooks run when it really makes an update."""
    real = _torch().optim.Optimizer
    for _ in range(4):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, real) or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def _check_kinds(kinds: Iterable[str] | None, optimizer: bool) -> frozenset[str]:
    if kinds is None:
        return _DEFAULT_KINDS.union(_OPTIMIZER_KINDS if optimizer else ())
    if not isinstance(kinds, Iterable):
        raise InvalidArgumentError(f"watch: kinds is {kinds!r}; expected some of: {', '.join(KINDS)}")
    chosen = frozenset([kinds] if isinstance(kinds, str) else kinds)
    for kind in sorted(map(str, chosen)):
        if kind not in KINDS:
            raise InvalidArgumentError(f"watch: found '{kind}' in kinds; expected some of: {', '.join(KINDS)}")
        if kind in _OPTIMIZER_KINDS and not optimizer:
            raise InvalidArgumentError(f"watch: kind '{kind}' needs the optimizer; found none; give optimizer=")
    if not chosen:
        raise InvalidArgumentError(f"watch: kinds is empty; expected some of: {', '.join(KINDS)}")
    return chosen


def _record_initial(agent: Agent, tensors: list[Named], kind: Kind) -> None:
    for named in tensors:
        try:
            handle = agent.intern(named.name, kind, "", 0, 0, "init", named.parent, named.class_name, named.depth)
        except StatagentError as error:
            agent.refuse(str(error), named.name, kind)
            continue
        agent.observe_handle(handle, named.value)


def _tell_about_strangers(agent: Agent, optimizers: list[Any], parameters: list[Named]) -> None:
    known = {id(named.value) for named in parameters}
    updated = [parameter for each in optimizers for group in each.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in known for parameter in updated)
    if strangers:
        reason = f"the optimizer has {len(updated)} parameters, {strangers} of them outside of the model"
        warn_once("strangers", f"watch: {reason}; those are not recorded")
        agent.tell_not_recorded("", "weight", reason)
