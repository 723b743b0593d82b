"""Inspecting a tensor by name, and the oldest spelling of subscribing."""

from __future__ import annotations

from typing import Any, TypeVar

from ..._compile import tracing
from ..._runtime import process
from ._manager import GlobalSubscriberManager, break_graph
from ._statistics import StatisticsSubscriber
from ._subscriber import RuntimeStates

T = TypeVar("T")


def inspect_activation(activation_name: str, tensor: T) -> T:
    """Records a named intermediate tensor and its gradient, in the steps of the StatisticsSubscriber that is subscribed with
    GlobalSubscriberManager; returns the same object. Raises RuntimeError if there is none."""
    if tracing.active():
        break_graph()
    if process.disabled():
        return tensor
    recorder = GlobalSubscriberManager.find_recorder()
    if recorder is None:
        raise RuntimeError(
            "StatisticsSubscriber is not registered, cannot inspect activation "
            f"'{activation_name}'; call GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(...)]) first"
        )
    if not recorder.idle():
        recorder.see(activation_name, tensor)
    return tensor


class _InspectActivation:
    """The older spelling of inspect_activation."""

    @staticmethod
    def apply(activation_name: str, module_idx: int | None, run_ctx: RuntimeStates, input_tensor: T) -> T:
        """Records a tensor. With a module's index it counts as an output at that module's depth."""
        if tracing.active():
            break_graph()
        recorder = GlobalSubscriberManager.find_recorder()
        if recorder is None or recorder.idle():
            return input_tensor
        if module_idx is None:
            recorder.see(activation_name, input_tensor)
        else:
            states = run_ctx.global_states
            depth, parent = states.module_index_to_depth[module_idx], states.module_index_to_parent[module_idx]
            recorder.see(activation_name, input_tensor, class_name="", parent=parent, depth=depth)
        return input_tensor


class ActivationSummarizer:
    """The oldest spelling: ActivationSummarizer("dir").initialize(model). A run of that name is replaced."""

    def __init__(self, name: Any, start_step_inclusive: int = 0, end_step_exclusive: int = 1000000) -> None:
        self._subscriber = StatisticsSubscriber(name, start_step_inclusive, end_step_exclusive, override_output_dir=True)

    def initialize(self, module: Any) -> None:
        GlobalSubscriberManager.subscribe(module, [self._subscriber])
