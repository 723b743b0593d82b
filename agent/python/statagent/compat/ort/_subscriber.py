"""The base class of subscribers, and the context that is passed to their methods."""

from __future__ import annotations

import sys
import weakref
from typing import Any


class GlobalStates:
    """State of one subscription. execution_step: completed forward passes of the root. A module's index is its position in a depth-first
    walk of the tree, from 0 for the root; its depth is 1 at the root. Modules are not kept alive."""

    def __init__(self) -> None:
        self.execution_step = 0
        self.module_index_to_depth: dict[int, int] = {}
        self.module_to_module_index: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.module_index_to_parent: dict[int, str] = {}  # index -> "Block_4", the module around it


class RuntimeStates:
    """The context of one subscription."""

    def __init__(self) -> None:
        self.global_states = GlobalStates()


class SubscriberBase:
    """Actions around the forward pass of every module, in steps start_step to end_step, excluding the latter.

    The manager calls each method X, which calls X_impl in those steps: override X_impl. Its result replaces its argument; returning the
    same objects changes nothing. Exceptions reach the training script. The order is pre_forward_module, pre_forward_tensor (each
    tensor of the arguments, then of the keyword arguments), the module's forward, post_forward_module, post_forward_tensor (each tensor of
    the output), and at the end post_forward_outmost_module for the root."""

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self._start_step = 0 if start_step is None else start_step
        self._end_step = sys.maxsize if end_step is None else end_step

    def pre_forward_module_apply(self, run_rtx: RuntimeStates, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, kwargs
        return self.pre_forward_module_apply_impl(run_rtx, module, args, kwargs)

    def pre_forward_module_apply_impl(self, run_rtx: RuntimeStates, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Called before the module runs. Returns the arguments to pass to it."""
        return args, kwargs

    def pre_forward_tensor_apply(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return tensor
        return self.pre_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def pre_forward_tensor_apply_impl(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        """Called for each tensor of the arguments. Indexes count from 0, separately for the keyword arguments."""
        return tensor

    def post_forward_module_apply(self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, output
        return self.post_forward_module_apply_impl(run_rtx, module, args, output)

    def post_forward_module_apply_impl(self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        """Called after the module has run. Returns (args, output); the module's caller gets this output."""
        return args, output

    def post_forward_tensor_apply(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return tensor
        return self.post_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def post_forward_tensor_apply_impl(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        """Called for each tensor of the output. Indexes count from 0; mappings are in the order of their sorted keys."""
        return tensor

    def post_forward_outmost_module_apply(self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, output
        return self.post_forward_outmost_module_apply_impl(run_rtx, module, args, output)

    def post_forward_outmost_module_apply_impl(
        self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any
    ) -> tuple[Any, Any]:
        """Called after the root has run, before execution_step is incremented. Returns (args, output)."""
        return args, output

    def _need_skip_step(self, current_step: int) -> bool:
        return not self._start_step <= current_step < self._end_step
