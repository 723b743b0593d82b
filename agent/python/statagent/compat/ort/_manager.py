"""Attaches subscribers to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..._compile import tracing
from ..._runtime.log import warn_once
from ..._torch.modules import INERT_COPY, name_modules
from ._model import describe
from ._recorder import Recorder, aside
from ._statistics import StatisticsSubscriber, recorder_of
from ._structure import tensors_of, with_tensors
from ._subscriber import RuntimeStates, SubscriberBase

S = TypeVar("S", bound=SubscriberBase)


class SubscriberManager:
    """Subscribers of a model, and the hooks that call them. Scripts use the instance GlobalSubscriberManager."""

    def __init__(self) -> None:
        self._run_ctx = RuntimeStates()
        self._subscribers: list[SubscriberBase] = []
        self._pre_forward_hooks: list[Any] = []
        self._post_forward_hooks: list[Any] = []

    def subscribe(self, module: Any, subscribers: Iterable[SubscriberBase]) -> None:
        """Calls the subscribers around every module of the model from now on, in the given order. Earlier subscriptions of this manager end.

        Raises ValueError if the arguments are not a module and subscribers, RuntimeError if there is no subscriber."""
        import torch

        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"module must be a torch.nn.Module instance; found a {type(module).__name__}")
        chosen = list(subscribers)
        for subscriber in chosen:
            if not isinstance(subscriber, SubscriberBase):
                raise ValueError(f"subscriber must be a SubscriberBase instance; found a {type(subscriber).__name__}")
        if not chosen:
            raise RuntimeError("No subscribers are registered.")
        if sum(isinstance(subscriber, StatisticsSubscriber) for subscriber in chosen) > 1:
            raise ValueError(
                "subscribe: found several StatisticsSubscribers; expected at most one, because a process records one run"
            )
        self._unsubscribe()
        tracing.prepare()
        self._run_ctx, self._subscribers = RuntimeStates(), chosen
        root = _without_ortmodule(module)
        self._attach(root)
        tracing.compiled.forget_graphs(name_modules(root))
        for subscriber in chosen:
            recorder = recorder_of(subscriber)
            if recorder is not None:
                recorder.start()
                describe(recorder.agent, root, self._run_ctx.global_states.module_to_module_index, recorder.recording)

    def get_subscriber(self, subscriber_type: type[S]) -> S:
        """The first subscriber of that type. Raises RuntimeError if there is none."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, subscriber_type):
                return subscriber
        raise RuntimeError(f"Subscriber {subscriber_type} is not registered.")

    def get_run_context(self) -> RuntimeStates:
        return self._run_ctx

    def _unsubscribe(self) -> None:
        for removable in [*self._pre_forward_hooks, *self._post_forward_hooks]:
            removable.remove()
        self._pre_forward_hooks.clear()
        self._post_forward_hooks.clear()
        for subscriber in self._subscribers:
            recorder = recorder_of(subscriber)
            if recorder is not None:
                recorder.stop()

    def find_recorder(self) -> Recorder | None:
        """The recorder of the StatisticsSubscriber that is subscribed, if any."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, StatisticsSubscriber):
                return recorder_of(subscriber)
        return None

    def _attach(self, root: Any) -> None:
        calls = _Calls(self._run_ctx, self._subscribers, self.find_recorder())
        self._pre_forward_hooks.append(root.register_forward_pre_hook(_Hook(calls.begin), prepend=True))
        self._visit(root, calls, 1, "")
        self._post_forward_hooks.append(root.register_forward_hook(_Hook(calls.end)))
        self._post_forward_hooks.append(root.register_forward_hook(_Hook(calls.leave), always_call=True))

    def _visit(self, module: Any, calls: _Calls, depth: int, parent: str) -> None:
        states = self._run_ctx.global_states
        index = len(states.module_index_to_depth)
        states.module_index_to_depth[index], states.module_index_to_parent[index] = depth, parent
        states.module_to_module_index[module] = index
        inside = f"{type(module).__name__}_{index}" if _runs(module) else parent
        for child in module.children():
            if child not in states.module_to_module_index:
                self._visit(child, calls, depth + 1, inside)
        try:
            if calls.needed_before():
                self._pre_forward_hooks.append(module.register_forward_pre_hook(_Hook(calls.before), with_kwargs=True))
            if calls.needed_after():
                self._post_forward_hooks.append(module.register_forward_hook(_Hook(calls.after)))
        except (RuntimeError, TypeError) as error:  # of TorchScript
            name = f"{type(module).__name__}_{index}"
            warn_once(f"hook {name}", f"subscribe: '{name}' does not accept hooks, so subscribers are not called for it: {error}")


class _Calls:
    """The hooks of one subscription. A subscriber is only called for methods that it overrides."""

    def __init__(self, context: RuntimeStates, subscribers: list[SubscriberBase], recorder: Recorder | None) -> None:
        import torch

        self._context, self._recorder = context, recorder
        self._tensor_type = torch.Tensor
        self._pre_module, self._pre_tensor, self._post_module, self._post_tensor, self._outmost = (
            [subscriber for subscriber in subscribers if _overrides(subscriber, f"{method}_apply")]
            for method in ("pre_forward_module", "pre_forward_tensor", "post_forward_module", "post_forward_tensor",
                           "post_forward_outmost_module")
        )  # fmt: skip
        # The recorder, if it is the only one that reads outputs.
        alone = not self._post_module and [type(subscriber) for subscriber in self._post_tensor] == [StatisticsSubscriber]
        self._alone = recorder if alone else None

    def needed_before(self) -> bool:
        return bool(self._pre_module or self._pre_tensor)

    def needed_after(self) -> bool:
        return bool(self._post_module or self._post_tensor)

    # --- the root

    def begin(self, root: Any, _: Any) -> None:
        step = None if self._recorder is None else self._recorder.begin_pass(root)
        if step is not None:
            self._context.global_states.execution_step = step

    def end(self, root: Any, args: Any, output: Any) -> Any:
        found = output
        for subscriber in self._outmost:
            args, found = subscriber.post_forward_outmost_module_apply(self._context, root, args, found)
        if self._recorder is not None:
            self._recorder.end_pass(self._tensors(found))
        if not aside() and (self._recorder is None or self._recorder.counts_passes()):
            self._context.global_states.execution_step += 1
        return None if found is output else found

    def leave(self, *_: Any) -> None:
        if self._recorder is not None:
            self._recorder.leave()

    # --- every module

    def before(self, module: Any, args: Any, kwargs: Any) -> Any:
        found_args, found_kwargs = args, kwargs
        for subscriber in self._pre_module:
            found_args, found_kwargs = subscriber.pre_forward_module_apply(self._context, module, found_args, found_kwargs)
        for subscriber in self._pre_tensor:
            found_args = self._each(subscriber.pre_forward_tensor_apply, module, found_args)
            found_kwargs = self._each(subscriber.pre_forward_tensor_apply, module, found_kwargs)
        return None if found_args is args and found_kwargs is kwargs else (found_args, found_kwargs)

    def after(self, module: Any, args: Any, output: Any) -> Any:
        if self._alone is not None and self._alone.idle():
            return None
        found = output
        for subscriber in self._post_module:
            _, found = subscriber.post_forward_module_apply(self._context, module, args, found)
        for subscriber in self._post_tensor:
            found = self._each(subscriber.post_forward_tensor_apply, module, found)
        return None if found is output else found

    def _each(self, apply: Callable[[RuntimeStates, Any, int, Any], Any], module: Any, value: Any) -> Any:
        """The value with the method applied to each tensor in it; the value itself if none was replaced."""
        tensors = self._tensors(value)
        new = [apply(self._context, module, index, tensor) for index, tensor in enumerate(tensors)]
        if all(one is other for one, other in zip(new, tensors)):
            return value
        return with_tensors(value, new, self._is_tensor)

    def _tensors(self, value: Any) -> list[Any]:
        return [value] if type(value) is self._tensor_type else tensors_of(value, self._is_tensor)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._tensor_type)


def break_graph() -> None:
    """Traced by torch.compile: ends the graph here, so that the caller runs in Python."""
    import torch

    tracing.compiled.new_site()  # keeps the package's functions out of graphs of their own
    torch._dynamo.graph_break()


class _Hook:
    """A hook that does nothing in copies and pickles of its module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        if tracing.active():
            break_graph()
        return self._function(*args)

    def __reduce__(self) -> Any:
        return INERT_COPY


def _overrides(subscriber: SubscriberBase, method: str) -> bool:
    return any(
        name in vars(subscriber) or getattr(type(subscriber), name) is not getattr(SubscriberBase, name)
        for name in (method, f"{method}_impl")
    )


def _runs(module: Any) -> bool:
    """Whether a module has a forward pass: False for containers such as ModuleList."""
    import torch

    return not isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))


def _without_ortmodule(module: Any) -> Any:
    """The model inside ONNX Runtime's ORTModule."""
    is_wrapper = any(base.__name__ == "ORTModule" for base in type(module).__mro__)
    return module.module if is_wrapper else module


GlobalSubscriberManager = SubscriberManager()
