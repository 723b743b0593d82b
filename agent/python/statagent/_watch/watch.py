"""One watched model: everything that is attached to it, how to remove it, and that it goes with the model."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from .._compile import tracing
from .._compile.inert_hook import InertHook
from .._layouts import experts
from .._layouts.layouts import Layouts, ModelLayouts
from .._layouts.sharded import Shards, Wrapper
from .._runtime.agent import Agent
from .._runtime.callbacks import weak
from .._runtime.log import warn_once
from .._runtime.placing import Placing
from .._settings.checklist import Checklist
from .._torch import parts
from .._torch.modules import Named
from ..errors import InvalidArgumentError, StatagentError
from .buffers import BufferObserver, Position
from .density import DensityObserver
from .inputs import InputObserver
from .memory import MemoryObserver
from .module_hooks import BetweenHook, InputHook, OutputHook
from .noise import NoiseHooks
from .optimizers import OptimizerHooks
from .passes import Passes, report_never_run
from .random_states import RandomStates
from .root_hooks import InputsHook, PartHook, RootHook
from .sharded_optimizers import ShardedOptimizerHooks
from .steps import Steps
from .training_scalars import TrainingScalars
from .transitions import Transitions
from .zoom import Zoom
from .zoom_spec import ZoomSpec


class Watch:
    """What `watch` returns: `remove` removes the model's hooks. As a context manager, the watch does so at the end of the block. It keeps
    neither the model nor the optimizers alive; the hooks go with the model."""

    def __init__(self, hooks: Hooks | None = None) -> None:
        """`hooks`: None for a watch that does nothing."""
        self._find: Callable[[], Any] = weak(hooks) if hooks is not None else lambda: None

    def remove(self) -> None:
        """Removes all hooks. Later calls do nothing."""
        hooks = self._find()
        if hooks is not None:
            hooks.remove()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def in_graph(self) -> bool:
        """Whether hooks are part of a compiled graph that has run."""
        hooks = self._find()
        return hooks is not None and hooks.in_graph

    # --- for frameworks that run parts of the model without calling the model ----------------------------------------------

    def begin_pass(self, model: Any) -> None:
        """A pass of the model begins."""
        hooks = self._find()
        if hooks is not None:
            hooks.passes.enter(model)

    def end_pass(self) -> None:
        """The pass of `begin_pass` has ended, unless the model's own hooks have already noticed that."""
        hooks = self._find()
        if hooks is not None:
            hooks.passes.leave_compiled()

    def note_backward(self) -> None:
        """The backward pass of the micro-batch has begun."""
        hooks = self._find()
        if hooks is not None:
            hooks.passes.note_backward()


class Hooks:
    """A model's hooks, and everything that they need. The model's own hooks keep it alive, nothing else does: it goes with the model."""

    def __init__(self, agent: Agent, root: Any) -> None:
        """`root`: the watched module without wrappers."""
        self._agent, self.passes = agent, Passes(agent, root)
        self.passes.owner = self
        self.find_root = weak(root)
        self.removables: list[Any] = []
        self.optimizers: list[OptimizerHooks] = []
        self.claims = _Claims(agent)
        seen = self.passes.seen, type(root).__name__
        self._endings: list[Any] = [
            weakref.finalize(self, self.claims.give_back), weakref.finalize(self, report_never_run, weak(agent), *seen),
        ]  # fmt: skip
        for ending in self._endings:
            ending.atexit = False

    def remove(self) -> None:
        """Removes all hooks. Later calls do nothing."""
        for ending in self._endings:
            ending.detach()
        self.passes.end()
        for removable in [*self.removables, *self.optimizers]:
            removable.remove()
        self.removables, self.optimizers = [], []
        self.claims.give_back()
        self._agent.watches.attached.remove(self)

    @property
    def in_graph(self) -> bool:
        """Whether hooks are part of a compiled graph that has run."""
        return self.passes.in_graph


class _Claims:
    """Names and kinds that one watch has taken. Keeps neither the agent nor the model alive."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._taken = weak(agent), list[tuple[str, str]]()

    def take(self, name: str, kind: str) -> bool:
        """False: another watch has it."""
        watched = self._agent().watches.claims
        if watched.setdefault((name, kind), self) is not self:
            return False
        self._taken.append((name, kind))
        return True

    def give_back(self) -> None:
        agent = self._agent()
        taken, self._taken = self._taken, []
        for key in taken if agent is not None else ():
            agent.watches.claims.pop(key, None)


class Attachment:
    """Builds the hooks of one watch: each method attaches one kind of observer. What fails because of the model is reported and left out; the
    rest is attached. Raises only InvalidArgumentError; then call `hooks.remove`."""

    def __init__(self, agent: Agent, root: Any) -> None:
        self.hooks = Hooks(agent, root)
        self._agent, self._root, self._passes, self._removables = agent, root, self.hooks.passes, self.hooks.removables

    def attempt(self, what: str, attach: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result; None if it failed, because of a model whose parts are unlike those of torch."""
        try:
            return attach(*arguments)
        except StatagentError:
            raise
        except Exception as error:
            reason = f"this model does not allow to record {what}: {type(error).__name__}: {error}"
            warn_once(f"attach {what}", f"watch: {reason}")
            self._agent.report_not_recorded("", "output", reason)
            return None

    def claim(self, named: Named, kinds: Iterable[str]) -> None:
        """Reserves a name and kinds for this watch: call indexes of two watches would mix. Raises InvalidArgumentError."""
        for kind in sorted(kinds):
            take = self.hooks.claims.take
            if not take(named.name, kind) and not (gc.collect() and take(named.name, kind)):  # a model that is gone may hold it
                raise InvalidArgumentError(
                    f"watch: '{named.name}' ({kind}) is already watched; expected each name once; "
                    "remove() the other watch, exclude the name with exclude=, or distinguish two models with name="
                )

    def place(self, layouts: ModelLayouts | None) -> None:
        """Says where the model's tensors lie in logical tensors; None: this process is the only one."""
        if layouts is None:
            return
        if self._agent.watches.placing is None:
            self._agent.watches.placing = Placing(Layouts(self._agent.log_event))
            self._agent.clock.ending_listeners.append(self._agent.watches.placing.layouts.end_step)
        known = self._agent.watches.placing.layouts
        known.add(id(self.hooks), layouts)
        self._removables.append(_Placed(known, id(self.hooks), layouts))

    def perturb(
        self, modules: list[Named], parameters: list[Named], places: ModelLayouts | None, shards: Shards, wrappers: list[Wrapper],
    ) -> None:  # fmt: skip
        """Puts the noise of a twin into the model. Call it before everything that hooks or records."""
        agent = self._agent
        if agent.watches.perturbation is None:
            return
        if agent.watches.noise_hooks is None:
            agent.watches.noise_hooks = NoiseHooks(agent, agent.watches.perturbation)
        agent.watches.noise_hooks.attach(modules, _inside_script(self._root), parameters, places, shards, wrappers)

    def hook_modules(self, modules: list[Named], kinds: frozenset[str], between: bool) -> None:
        """Values and gradients of these kinds. `between`: also inputs that no watched module has returned."""
        root, passes = self._root, self._passes
        key = tracing.compiled.Key(root=passes)
        self._removables.append(key)
        self._hook_root(lambda: root.register_forward_pre_hook(RootHook(passes.enter, key, True)))
        inside = _inside_script(root)
        for named in modules:
            if id(named.value) in inside:
                self._agent.report_not_recorded(
                    named.name, "output", "it runs inside of a TorchScript module, which calls no hooks of its parts"
                )
                continue
            try:
                self._hook_module(named, kinds, between)
            except Exception as error:
                reason = f"a {named.class_name} does not accept hooks: {error}"
                warn_once(f"hook {named.name}", f"watch: '{named.name}': {reason}")
                self._agent.report_not_recorded(named.name, "output", reason)
        self._hook_root(lambda: root.register_forward_hook(RootHook(passes.leave, key, False), always_call=True))

    def hook_parts(self, modules: list[Named]) -> None:
        """The passes of parts that have parts, whether their output is recorded or not. Call it before everything that records."""
        inside = _inside_script(self._root)
        for named in modules:
            part = named.value
            if part is self._root or id(part) in inside or not parts.children(part):
                continue
            with contextlib.suppress(Exception):  # hook_modules reports that a module accepts no hooks
                self._removables.append(PartHook(self._passes, part))

    def _hook_root(self, register: Callable[[], Any]) -> None:
        """Without hooks of its root, each module of a model decides for itself whether its pass is recorded."""
        removable = self.attempt("its passes", register)
        if removable is not None:
            self._removables.append(removable)

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
        position = Position(
            passes.wanted, passes.trains, lambda: (passes.micro_batch, passes.epoch), passes.elsewhere, passes.recorded
        )
        passes.buffers = BufferObserver(self._agent, buffers, position)
        self._removables.append(passes.buffers)

    def hook_optimizers(
        self, optimizers: list[Any], wrappers: list[Wrapper], parameters: list[Named], shards: Shards, kinds: frozenset[str]
    ) -> None:
        """`optimizers`: of torch, including those inside of the wrappers."""
        passes, hooks = self._passes, self.hooks.optimizers
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
        for hooks in self.hooks.optimizers:
            hooks.on_phase = passes.phase_of_optimizer
        for named in modules if memory.modules_wanted else ():
            self.attempt(f"the memory of '{named.name}'", self._measure_module, memory, named)

    def _measure_module(self, memory: MemoryObserver, named: Named) -> None:
        enter, leave = memory.module_hooks(named, self._passes.training_in_full)
        self._removables.append(named.value.register_forward_pre_hook(InertHook(enter)))
        self._removables.append(named.value.register_forward_hook(InertHook(leave), always_call=True))

    def observe_inputs(self, parameters: list[Named], padding: dict[str, int] | None, fingerprints: bool) -> None:
        """Densities of the inputs (`padding`: padding indexes by input; None: no densities) and fingerprints of the batch."""
        training = self._passes.training
        is_here = self._passes.is_here
        density = None if padding is None else DensityObserver(self._agent, parameters, padding, training, is_here)
        if density is not None:
            self._removables.append(density)
        if density is not None or fingerprints:
            observer = InputObserver(self._agent, self._root, density, fingerprints, training)
            key = tracing.compiled.Key(inputs=observer)
            hook = InputsHook(observer, key.tensor, observer.names)
            self._removables += [key, self._root.register_forward_pre_hook(hook, with_kwargs=True)]

    def record_tokens(self, modules: list[Named], choice: Any, steps: Steps, given: Mapping[str, int]) -> None:
        """Rows of the model's layers under the keys of their tokens, and what routers choose for them. given: routers by pattern, with how many
        experts they choose."""
        from .._tokens.routers import RouterTap
        from .._tokens.token_hooks import TokenHooks  # needs NumPy

        found = {id(router.matrix): router for router in experts.routers(self._root)}
        routers = []
        for each in modules:
            chosen = next((number for pattern, number in given.items() if fnmatchcase(each.name, pattern)), None)
            router = found.get(id(each.value))
            if chosen is not None and router is None:
                routers.append(RouterTap(each.name, each.value, each.value, None, chosen))
            elif router is not None:
                routers.append(
                    RouterTap(
                        each.name, each.value, router.chooser, router.experts, chosen if chosen is not None else router.chosen
                    )
                )
        self._removables.append(TokenHooks(self._agent, self._root, modules, choice, steps, self._passes, routers))

    def begin(self, evaluations: bool, steps: Steps, parameter_steps: Steps) -> None:
        """Records from now on."""
        self._passes.begin(evaluations, steps, parameter_steps)
        self._agent.watches.attached.append(self.hooks)

    def accompany(self, model: Any, optimizers: list[Any], name: str, scaler: Any, input_sizes: bool) -> None:
        """Sets up what is recorded besides tensors: the checklist, graph transitions and the optimizer's scalars."""
        observers = [
            self.attempt("its settings", Checklist, self._agent, model, optimizers, name),
            self.attempt("changes of its inputs and parts", Transitions, self._agent, model, input_sizes),
            self.attempt("learning rates", TrainingScalars, self._agent, optimizers, scaler, name),
        ]
        self._removables += [each for each in observers if each is not None]
        noise = [] if self._agent.watches.noise_hooks is None else [self._agent.watches.noise_hooks.before_update]
        for hooks in self.hooks.optimizers:
            hooks.before_update += noise + [each.before_update for each in (observers[0], observers[2]) if each is not None]

    def record_updates(self, steps: Steps | None) -> None:
        """Sets up recording of the change that each update makes, in these steps; None: in none."""
        agent, passes = self._agent, self._passes
        if steps is None:
            return
        recorded = steps
        for hooks in self.hooks.optimizers:
            hooks.updates_wanted = lambda: passes.wanted() and agent.current_step() in recorded

    def zoom(self, modules: list[Named], parameters: list[Named], asked: list[ZoomSpec]) -> None:
        """Records the operators of what is asked for. Call it after everything else that hooks."""
        self._removables.append(Zoom(self._agent, self._passes, modules, parameters, self.hooks.optimizers, asked))

    def log_random_states(self) -> None:
        self._passes.random_states = RandomStates(self._agent)


class _Placed:
    """Layouts of one watch, until it is removed or gone."""

    def __init__(self, layouts: Layouts, key: int, own: ModelLayouts) -> None:
        self._layouts, self._key, self._own = layouts, key, own

    def remove(self) -> None:
        self._layouts.remove(self._key)


def _inside_script(root: Any) -> set[int]:
    """Ids of the modules within scripted or traced ones."""
    script = sys.modules["torch"].jit.ScriptModule
    return {
        id(part)
        for module in parts.all_modules(root)
        if isinstance(module, script)
        for part in parts.all_modules(module)
        if part is not module
    }
