"""Watches the models that a program trains: each before its first training pass, with the optimizers that have its parameters."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import agent as _agent
from .._runtime import by_hand, process
from .._runtime.agent import Agent
from .._runtime.callbacks import weak
from .._runtime.current import current_agent, running_agent
from .._runtime.log import warn_once
from .._torch.modules import unwrap
from ..watch import Watch, watch
from .copies import follow_copies
from .launch import launch_arguments
from .losses import Losses, is_compiling
from .models import Root, find_roots, holds, name_roots, outermost, own_parameters, updates_made

_LATE_MAX = 3  # backward passes for which an optimizer may wait for its model's training pass, once another model is watched
_BY_HAND = "add statagent.init(), statagent.watch(model)"
_training: Training | None = None


def training(note: Callable[[str], None]) -> Training | None:
    """This process's; None where nothing is to be recorded. `note` adds a line to what statctl reads."""
    global _training
    if process.disabled():
        note("nothing STATAGENT_DISABLE is set; unset it to record")
        return None
    if _training is None:
        _training = Training(note)
    return _training


class _Watched:
    """A model that is watched."""

    def __init__(self, root: Root, made: Watch) -> None:
        self.find, self.watch, self.name = weak(root.model), made, root.name
        self.optimizers = [weak(each) for each in root.optimizers]

    def is_of(self, model: Any) -> bool:
        mine = self.find()
        return mine is not None and unwrap(mine) is unwrap(model)


class Training:
    """Of this process. Its methods are called by hooks in torch, from any thread, and never raise."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._pid = note, os.getpid()
        self._pending: list[Callable[[], Any]] = []  # optimizers whose models are not watched yet
        self._watched: list[_Watched] = []
        self._losses = Losses(self._backward_begins)
        self._call: tuple[Any, Any] | None = None  # torch's Module.__call__ and what stands in for it
        self._update_hook: Any = None  # of all optimizers, as long as some wait
        self._others: dict[int, Callable[[], Any]] = {}  # modules, by id, that hold no parameters of the pending optimizers
        self._busy = threading.local()
        self._late = 0  # backward passes since an optimizer was made, without a training pass of its model
        self._made = False  # whether an optimizer was
        self._paused = False  # a framework's callback does it
        self.left_alone = False  # the program, or a trainer's callback, does it all
        self.recorded = False  # a run has begun
        self.unwatched = ""  # why something that trains is not recorded, and what to do
        atexit.register(self._explain)
        by_hand.on_use(self.leave_alone)

    # --- what the program does ---------------------------------------------------------------------------------------------

    def optimizer_made(self, optimizer: Any) -> None:
        if self.left_alone or self._paused:
            return
        if not self._made:
            self._made = True
            self._note("optimizer")
            self.unwatched = "an optimizer was made, but nothing was trained with it"
        self._pending.append(weak(optimizer))
        self._late = 0
        self._others.clear()
        try:
            self._install()
        except Exception as error:
            self._give_up(error)

    def backward_without_optimizer(self) -> None:
        """The first backward pass of the process."""
        if not (self._made or self.left_alone or self._paused):
            self.unwatched = f"backward() was called, but no torch.optim.Optimizer was made; {_BY_HAND}, and statagent.step() after each update"

    def leave_alone(self) -> None:
        """The program calls the package itself, or a framework's callback does it: nothing is watched or logged from here."""
        if self.left_alone:
            return
        self.left_alone, self.unwatched, self._pending = True, "", []
        self._uninstall()
        self._losses.remove()
        for each in self._watched:
            each.watch.remove()
        self._watched = []
        self._note("by hand")

    def _pass_begins(self, module: Any) -> None:
        """A module in training mode is called, with gradients, while optimizers wait for their models."""
        known = self._others.get(id(module))
        if getattr(self._busy, "now", False) or (known is not None and known() is module):
            return
        self._busy.now = True
        try:
            optimizers = self._waiting()
            own = own_parameters(module)
            if not any(holds(module, each, own) for each in optimizers):
                self._others[id(module)] = weak(module)
                return
            self._watch(module, optimizers, sys._getframe(2))
        except Exception as error:
            self._give_up(error)
        finally:
            self._busy.now = False

    def _backward_begins(self) -> None:
        """A backward pass begins. If optimizers still wait, their models were run in another way than by a call in training mode."""
        if not self._pending or self.left_alone or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            optimizers = self._waiting()
            self._late += 1
            if optimizers and self._late >= (_LATE_MAX if self._watched else 1):
                self._watch(None, optimizers, sys._getframe(2))
                self._report_evaluation_mode()
        except Exception as error:
            self._give_up(error)
        finally:
            self._busy.now = False

    def _update_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An update with a closure runs the model inside of it, where it would be too late for hooks on the optimizer."""
        if not any(callable(each) for each in (*args[1:], kwargs.get("closure"))) or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            optimizers = self._waiting()
            if any(each is optimizer for each in optimizers):
                self._watch(None, optimizers, sys._getframe(2))
        except Exception as error:
            self._give_up(error)
        finally:
            self._busy.now = False

    def _waiting(self) -> list[Any]:
        """The pending optimizers that are alive and complete."""
        made = [each for each in (find() for find in self._pending) if each is not None]
        return outermost(made)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A framework's callback watches what is trained inside; optimizers that are made meanwhile, or were made for it, are its own."""
        self._pending, before, self._paused, self.unwatched = [], self._paused, True, ""
        self._uninstall()
        self._losses.remove()
        try:
            yield
        finally:
            self._paused, self._pending = before, []

    # --- what is done about it ---------------------------------------------------------------------------------------------

    def _watch(self, called: Any, optimizers: list[Any], frame: Any) -> None:
        roots = find_roots(called, optimizers, frame)
        if roots and self._start() is not None:
            before = {id(each): each for each in self._watched}
            several = len(roots) + len(before) > 1
            again = [(root, next((each for each in before.values() if each.is_of(root.model)), None)) for root in roots]
            fresh = [root for root, known in again if known is None]
            if fresh and (len(fresh) > 1 or before):
                name_roots(fresh, [each.name for each in self._watched], frame)
            self._losses.several = several
            agent = running_agent()
            if agent is not None:
                agent.known_elsewhere |= {key for root in roots for key in own_parameters(root.model)}
                self._go_on_from(optimizers, agent)
            with by_hand.ours():
                for root, known in again:
                    self._watch_root(root, known)
            self._losses.install()
        elif not roots and optimizers:
            self.unwatched = (
                f"no torch.nn.Module has the parameters of the {type(optimizers[0]).__name__} that was made; add statagent.init(), "
                "statagent.inspect(name, tensor) for what is of interest, and statagent.step() after each update"
            )
        self._pending = []
        self._uninstall()

    def _go_on_from(self, optimizers: list[Any], agent: Agent) -> None:
        """A training that goes on from a checkpoint begins at the step after those that made it."""
        if self._watched or agent.current_step() or agent.steps_ended:
            return
        if made := max(map(updates_made, optimizers), default=0):
            agent.set_step(made)
            agent.messages.first = f"from step {made}, as the optimizer has made {made} updates"

    def _report_evaluation_mode(self) -> None:
        for each in self._watched:
            model = each.find()
            if model is not None and not model.training:
                warn_once(
                    "evaluation mode", f"{type(model).__name__} is trained in evaluation mode (model.eval()): its passes are not recorded, "
                    "only its weights; to record them, call statagent.init() and statagent.watch(model, optimizer=optimizer, eval=True)",
                )  # fmt: skip

    def _watch_root(self, root: Root, known: _Watched | None) -> None:
        if known is not None:  # it has got another optimizer
            self._watched.remove(known)
            known.watch.remove()
            root.name = known.name
            old = [each for each in (find() for find in known.optimizers) if each is not None]
            root.optimizers = [*(each for each in old if all(each is not new for new in root.optimizers)), *root.optimizers]
        self._watched.append(_Watched(root, watch(root.model, optimizer=root.optimizers or None, name=root.name)))

    def _start(self) -> Agent | None:
        agent = running_agent()
        if agent is not None:
            return agent
        if current_agent() is not None:  # closed
            return None
        with by_hand.ours():
            agent = _agent.init(**launch_arguments())
        agent.automatic = True
        follow_copies(agent)
        self._note("recording")
        self.recorded = True
        return agent

    def _give_up(self, error: Exception) -> None:
        self.unwatched = ""
        self._note(f"failed {type(error).__name__}: {error}")
        warn_once("auto", f"cannot record without a line: {error}; training goes on")
        self.left_alone, self._pending = True, []
        self._uninstall()
        self._losses.remove()

    def _explain(self) -> None:
        """At the end of a process that has trained without being recorded. Those that train nothing, such as launchers, say nothing."""
        if self.unwatched and not (self.recorded or self.left_alone) and os.getpid() == self._pid:
            self._note(f"nothing {self.unwatched}")
            if process.environment_rank() == 0 and not process.is_set("STATAGENT_QUIET"):
                warn_once("auto", f"nothing was recorded: {self.unwatched}")

    # --- Module.__call__ ---------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        """Puts a function around Module.__call__ until the models are found: no hook of torch's own for all modules, because
        torch.compile warns of those."""
        if self._call is not None:
            return
        self._losses.install()
        torch = sys.modules["torch"]
        call, compiling, gradients, begins = torch.nn.Module.__call__, is_compiling(), torch.is_grad_enabled, self._pass_begins

        @functools.wraps(call)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not compiling() and module.training and gradients():
                begins(module)
            return call(module, *args, **kwargs)

        self._update_hook = sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(self._update_begins)
        torch.nn.Module.__call__ = called
        self._call = call, called

    def _uninstall(self) -> None:
        if self._call is None:
            return
        (call, called), self._call = self._call, None
        self._update_hook.remove()
        module = sys.modules["torch"].nn.Module
        if module.__call__ is called:
            module.__call__ = call
        # What torch has imported meanwhile keeps the function that it takes for its own.
        for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module", "torch.fx._symbolic_trace"):
            keeper = sys.modules.get(name)
            for key, value in list(vars(keeper).items()) if keeper is not None else ():
                if value is called:
                    setattr(keeper, key, call)
