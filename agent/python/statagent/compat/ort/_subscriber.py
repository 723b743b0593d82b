"""What users derive their own subscribers from, and the context that their methods are given."""

from __future__ import annotations

import sys
import weakref
from typing import Any


class GlobalStates:
    """execution_step: forward passes of the root so far. The module's index is its place in the tree, depth first, the root 0;
    its depth is 1 at the root. Modules are not kept alive."""

    def __init__(self) -> None:
        self.execution_step = 0
        self.module_index_to_depth: dict[int, int] = {}
        self.module_to_module_index: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._parents: dict[int, str] = {}  # index -> "Block_4", the module around it


class RuntimeStates:
    """Of one subscription."""

    def __init__(self) -> None:
        self.global_states = GlobalStates()


class SubscriberBase:
    """Actions around the forward pass of every module, in steps start_step to end_step, the latter excluded.

    The manager calls each X, which calls X_impl in those steps: override X_impl. What it returns takes the place of what it was
    given; returning the same objects changes nothing. Exceptions go through to the training script. Called in the order
    pre_forward_module, pre_forward_tensor (each tensor of the arguments, then of the keyword arguments), the module's forward,
    post_forward_module, post_forward_tensor (each tensor of the output); post_forward_outmost_module after all that, for the root."""

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self._start_step = 0 if start_step is None else start_step
        self._end_step = sys.maxsize if end_step is None else end_step

    def pre_forward_module_apply(self, run_rtx: RuntimeStates, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, kwargs
        return self.pre_forward_module_apply_impl(run_rtx, module, args, kwargs)

    def pre_forward_module_apply_impl(self, run_rtx: RuntimeStates, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before the module runs. Returns the arguments that it is to be given."""
        return args, kwargs

    def pre_forward_tensor_apply(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return tensor
        return self.pre_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def pre_forward_tensor_apply_impl(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        """Each tensor of the arguments; the index counts from 0, and anew for the keyword arguments."""
        return tensor

    def post_forward_module_apply(self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, output
        return self.post_forward_module_apply_impl(run_rtx, module, args, output)

    def post_forward_module_apply_impl(self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        """After the module ran. Returns (args, output); the output is what the module's caller gets."""
        return args, output

    def post_forward_tensor_apply(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return tensor
        return self.post_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def post_forward_tensor_apply_impl(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        """Each tensor of the output, from 0; mappings by sorted key."""
        return tensor

    def post_forward_outmost_module_apply(self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, output
        return self.post_forward_outmost_module_apply_impl(run_rtx, module, args, output)

    def post_forward_outmost_module_apply_impl(
        self, run_rtx: RuntimeStates, module: Any, args: Any, output: Any
    ) -> tuple[Any, Any]:
        """After the root ran, before the step counts up. Returns (args, output)."""
        return args, output

    def _need_skip_step(self, current_step: int) -> bool:
        return not self._start_step <= current_step < self._end_step
