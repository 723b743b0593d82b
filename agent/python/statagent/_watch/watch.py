"""One watched model: everything that is attached to it, and how to remove it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .._compile import tracing
from .._layouts.layouts import Layouts, ModelLayouts
from .._layouts.sharded import Shards, Wrapper
from .._runtime.agent import Agent
from .._runtime.log import warn_once
from .._runtime.placing import Placing
from .._settings.checklist import Checklist
from .._torch.modules import Named
from ..errors import InvalidArgumentError
from .buffers import BufferObserver, Position
from .density import DensityObserver
from .inputs import InputObserver
from .memory import MemoryObserver
from .module_hooks import BetweenHook, InputHook, OutputHook
from .optimizers import OptimizerHooks
from .passes import Passes
from .random_states import RandomStates
from .root_hooks import InertHook, InputsHook, RootHook
from .sharded_optimizers import ShardedOptimizerHooks
from .steps import Steps
from .training_scalars import TrainingScalars
from .transitions import Transitions


class Watch:
    """A model's hooks. `remove` removes them. As a context manager, the watch does so at the end of the block."""

    def __init__(self, agent: Agent | None, root: Any = None) -> None:
        """`agent`: None for a watch that does nothing (STATAGENT_DISABLE). `root`: the watched module without wrappers."""
        self._agent, self._root = agent, root
        self._passes = None if agent is None else Passes(agent, root)
        self._removables: list[Any] = []
        self._optimizers: list[OptimizerHooks] = []
        self._claimed: list[tuple[str, str]] = []

    def remove(self) -> None:
        """Removes all hooks. Later calls do nothing."""
        if self._agent is None or self._passes is None:
            return
        self._passes.end()
        for removable in [*self._removables, *self._optimizers]:
            removable.remove()
        self._removables, self._optimizers = [], []
        for key in self._claimed:
            self._agent.watched.pop(key, None)
        self._claimed = []
        if self in self._agent.watches:
            self._agent.watches.remove(self)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def in_graph(self) -> bool:
        """Whether hooks are part of a compiled graph that has run."""
        return self._passes is not None and self._passes.in_graph

    # --- for frameworks that run parts of the model without calling the model ----------------------------------------------

    def begin_pass(self, model: Any) -> None:
        """A pass of the model begins."""
        if self._passes is not None:
            self._passes.enter(model)

    def end_pass(self) -> None:
        """The pass of `begin_pass` has ended, unless the model's own hooks have already noticed that."""
        if self._passes is not None:
            self._passes.leave_compiled()

    def note_backward(self) -> None:
        """The backward pass of the micro-batch has begun."""
        if self._passes is not None:
            self._passes.note_backward()


class Attachment:
    """Builds a Watch: each method attaches one kind of observer. After an error, call `remove` of the watch."""

    def __init__(self, agent: Agent, root: Any) -> None:
        self.watch = Watch(agent, root)
        passes = self.watch._passes
        assert passes is not None
        self._agent, self._root, self._passes, self._removables = agent, root, passes, self.watch._removables

    def claim(self, named: Named, kinds: Iterable[str]) -> None:
        """Reserves a name and kinds for this watch: call indexes of two watches would mix. Raises InvalidArgumentError."""
        for kind in sorted(kinds):
            if self._agent.watched.setdefault((named.name, kind), id(self.watch)) != id(self.watch):
                raise InvalidArgumentError(
                    f"watch: '{named.name}' ({kind}) is already watched; expected each name once; "
                    "remove() the other watch, exclude the name with exclude=, or distinguish two models with name="
                )
            self.watch._claimed.append((named.name, kind))

    def place(self, layouts: ModelLayouts | None) -> None:
        """Says where the model's tensors lie in logical tensors; None: this process is the only one."""
        if layouts is None:
            return
        if self._agent.placing is None:
            self._agent.placing = Placing(Layouts(self._agent.log_event))
            self._agent.add_ending_listener(self._agent.placing.layouts.end_step)
        known = self._agent.placing.layouts
        known.add(id(self.watch), layouts)
        self._removables.append(_Placed(known, id(self.watch)))

    def hook_modules(self, modules: list[Named], kinds: frozenset[str], between: bool) -> None:
        """Values and gradients of these kinds. `between`: also inputs that no watched module has returned."""
        root, passes = self._root, self._passes
        key = tracing.compiled.Key(root=passes)
        self._removables += [key, root.register_forward_pre_hook(RootHook(passes.enter, key, True))]
        inside = _inside_script(root)
        for named in modules:
            if id(named.value) in inside:
                self._agent.report_not_recorded(
                    named.name, "output", "it runs inside of a TorchScript module, which calls no hooks of its parts"
                )
                continue
            try:
                self._hook_module(named, kinds, between)
            except (RuntimeError, TypeError) as error:
                reason = f"a {named.class_name} does not accept hooks: {error}"
                warn_once(f"hook {named.name}", f"watch: '{named.name}': {reason}")
                self._agent.report_not_recorded(named.name, "output", reason)
        self._removables.append(root.register_forward_hook(RootHook(passes.leave, key, False), always_call=True))

    def _hook_module(self, named: Named, kinds: frozenset[str], between: bool) -> None:
        module, passes = named.value, self._passes
        if kinds & {"input", "grad_input"}:
            before = InputHook(passes, named, "input", "input" in kinds, "grad_input" in kinds)
            self._removables += [before.key, module.register_forward_pre_hook(before, with_kwargs=True)]
        if between:
            unknown = BetweenHook(passes, named, module is self._root)
            self._removables += [unknown.key, module.register_forward_pre_hook(unknown)]
        if kinds & {"output", "grad_output"}:
            after = OutputHook(passes, named, "output", "output" in kinds, "grad_output" in kinds, between)
            self._removables += [after.key, module.register_forward_hook(after)]

    def observe_buffers(self, buffers: list[Named]) -> None:
        passes = self._passes
        position = Position(passes.wanted, passes.trains, lambda: (passes.micro_batch, passes.epoch))
        passes.buffers = BufferObserver(self._agent, buffers, position)
        self._removables.append(passes.buffers)

    def hook_optimizers(
        self, optimizers: list[Any], wrappers: list[Wrapper], parameters: list[Named], shards: Shards, kinds: frozenset[str]
    ) -> None:
        """`optimizers`: of torch, including those inside of the wrappers."""
        passes, hooks = self._passes, self.watch._optimizers
        asks = passes.wanted, passes.trained, passes.parameters_wanted
        wrapped = {id(inner) for wrapper in wrappers for inner in wrapper.inner}
        for wrapper in wrappers:
            hooks.append(ShardedOptimizerHooks(self._agent, wrapper, parameters, shards, kinds, *asks))
        for each in optimizers:
            if id(each) not in wrapped:
                hooks.append(OptimizerHooks(self._agent, each, parameters, shards, kinds, *asks))

    def observe_memory(self, modules: list[Named], optimizers: list[Any], choices: frozenset[str]) -> None:
        if not choices:
            return
        passes = self._passes
        passes.memory = memory = MemoryObserver(self._agent, self._root, optimizers, choices)
        for hooks in self.watch._optimizers:
            hooks.on_phase = passes.phase_of_optimizer
        for named in modules if memory.modules_wanted else ():
            enter, leave = memory.module_hooks(named, passes.training_in_full)
            self._removables.append(named.value.register_forward_pre_hook(InertHook(enter)))
            self._removables.append(named.value.register_forward_hook(InertHook(leave), always_call=True))

    def observe_inputs(self, parameters: list[Named], padding: dict[str, int] | None, fingerprints: bool) -> None:
        """Densities of the inputs (`padding`: padding indexes by input; None: no densities) and fingerprints of the batch."""
        training = self._passes.training
        density = None if padding is None else DensityObserver(self._agent, parameters, padding, training)
        if density is not None:
            self._removables.append(density)
        if density is not None or fingerprints:
            observer = InputObserver(self._agent, self._root, density, fingerprints, training)
            key = tracing.compiled.Key(inputs=observer)
            hook = InputsHook(observer, key.tensor, observer.names)
            self._removables += [key, self._root.register_forward_pre_hook(hook, with_kwargs=True)]

    def begin(self, evaluations: bool, steps: Steps, parameter_steps: Steps) -> None:
        """Records from now on."""
        self._passes.begin(evaluations, steps, parameter_steps)
        self._agent.watches.append(self.watch)

    def accompany(self, model: Any, optimizers: list[Any], name: str, scaler: Any, input_sizes: bool) -> None:
        """Sets up what is recorded besides tensors: the checklist, graph transitions and the optimizer's scalars."""
        checklist = Checklist(self._agent, model, optimizers, name)
        self._removables.append(checklist)
        self._removables.append(Transitions(self._agent, model, input_sizes))
        scalars = TrainingScalars(self._agent, optimizers, scaler, name)
        self._removables.append(scalars)
        for hooks in self.watch._optimizers:
            hooks.before_update += [checklist.before_update, scalars.before_update]

    def record_updates(self, steps: str | None) -> None:
        """Sets up recording of the change that each update makes, in these steps. Raises InvalidArgumentError without an optimizer."""
        if steps is None:
            return
        if not self.watch._optimizers:
            raise InvalidArgumentError("watch: updates needs the optimizer; found none; give optimizer=")
        recorded, agent, passes = Steps(steps, "updates"), self._agent, self._passes
        for hooks in self.watch._optimizers:
            hooks.updates_wanted = lambda: passes.wanted() and agent.current_step() in recorded

    def log_random_states(self) -> None:
        self._passes.random_states = RandomStates(self._agent)


class _Placed:
    """Layouts of one watch, until it is removed."""

    def __init__(self, layouts: Layouts, key: int) -> None:
        self._layouts, self._key = layouts, key

    def remove(self) -> None:
        self._layouts.remove(self._key)


def _inside_script(root: Any) -> set[int]:
    """Ids of the modules within scripted or traced ones."""
    script = sys.modules["torch"].jit.ScriptModule
    return {
        id(part) for module in root.modules() if isinstance(module, script) for part in module.modules() if part is not module
    }
