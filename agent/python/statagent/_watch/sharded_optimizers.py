"""Hooks on optimizers of DeepSpeed and Megatron-Core: they update tensors of their own, by optimizers of torch inside of them."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from .._layouts.sharded import Shards, Wrapper
from .._runtime.agent import Agent
from .._runtime.callbacks import WeakList, weak, weakly
from .._torch.modules import Named
from .._torch.passing import passes_on
from .optimizers import OptimizerHooks


class ShardedOptimizerHooks(OptimizerHooks):
    """The wrapper's step() is the update. Within it the optimizers inside may be called several times, each time for some tensors: this rank's
    gradients are recorded before such a call, its state after it, and as path "main" the weights that it updates, where the model has them in another
    precision. Weights are recorded at the end, as the model uses them."""

    def __init__(
        self,
        agent: Agent,
        wrapper: Wrapper,
        parameters: list[Named],
        shards: Shards,
        kinds: frozenset[str],
        wanted: Callable[[], bool],
        trained: Callable[[], bool],
        parameters_wanted: Callable[[], bool],
    ) -> None:
        self._wrapper = wrapper
        self._names = {id(named.value): named for named in parameters}
        super().__init__(agent, wrapper.outer, parameters, shards, kinds, wanted, trained, parameters_wanted)
        self._of_torch = WeakList(wrapper.inner)
        del self._wrapper  # which would keep it alive

    def _attach(self, optimizer: Any) -> list[Any]:
        inner = self._wrapper.inner
        return [
            _AroundStep(optimizer, weakly(self._begin), weakly(self._end_update)),
            *(each.register_step_pre_hook(weakly(self._before_part)) for each in inner),
            *(each.register_step_post_hook(weakly(self._after_part)) for each in inner),
        ]

    def _follow_parameters(self) -> None:
        self._parameters = [named for named in self._model_parameters if named.value.requires_grad]

    def _begin(self) -> None:
        self._agent.clock.begin_step()
        self._begin_update()

    def _record_gradients(self) -> None:
        """Records nothing: the wrapper has not made the gradients yet."""

    def _record_state(self, named: Named) -> None:
        """Records nothing: each state is recorded after its part of the update."""

    def _before_part(self, optimizer: Any, *_: Any) -> None:
        if self._parameters_wanted() and "weight_grad" in self._kinds:
            self._record_parts(optimizer, "weight_grad", lambda tensor: [] if tensor.grad is None else [("", tensor.grad)])

    def _after_part(self, optimizer: Any, *_: Any) -> None:
        if self._parameters_wanted() and "optimizer_state" in self._kinds:
            state = optimizer.state
            self._record_parts(
                optimizer, "optimizer_state", lambda tensor: self._tensors(state.get(tensor, {})) + self._main_copy(tensor)
            )

    def _main_copy(self, tensor: Any) -> list[tuple[str, Any]]:
        """The tensor, if it has parameters in another precision than the model: what these are in the next step follows from it."""
        parts = self._shards.in_tensor(tensor)
        return [("main", tensor)] if any(named.value.dtype != tensor.dtype for named, _ in parts) else []

    def _record_parts(self, optimizer: Any, kind: str, values: Callable[[Any], list[tuple[str, Any]]]) -> None:
        """Records parts of the tensors for which the optimizer is called now. By path: tensors that are like one that it updates."""
        for tensor in [each for group in optimizer.param_groups for each in group["params"]]:
            try:
                for path, value in values(tensor):
                    if id(tensor) in self._names:
                        self._record(self._names[id(tensor)], kind, path, value)
                    for named, part in self._shards.in_tensor(tensor):
                        here = part.of(value)
                        if here is not None:
                            self._record(named, kind, path, here)
            except Exception as error:
                self._agent.refuse(str(error), "", kind)
        self._observe_list()


class _AroundStep:
    """Calls functions, which do not raise, before and after an object's step()."""

    def __init__(self, optimizer: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._find_optimizer, self._calls = weak(optimizer), (before, after)
        self._own = optimizer.__dict__.get("step")  # if another program has replaced the method
        step, self._active = optimizer.step, True
        own = isinstance(step, types.MethodType) and step.__self__ is optimizer
        self._find_step: Callable[[], Any] = weakref.WeakMethod(step) if own else lambda: step
        self._replacement: Any = self._call
        optimizer.step = self._replacement

    @passes_on
    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._active:
            self._calls[0]()
        result = self._find_step()(*args, **kwargs)
        if self._active:
            self._calls[1]()
        return result

    def remove(self) -> None:
        self._active = False
        optimizer = self._find_optimizer()
        if optimizer is None:
            return
        if optimizer.__dict__.get("step") is not self._replacement:
            return  # replaced once more: what is there calls this
        if self._own is None:
            del optimizer.step
        else:
            optimizer.step = self._own
