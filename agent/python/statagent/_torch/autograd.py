"""The state of autograd in this thread, and hooks on gradients."""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable
from typing import Any

_hook_ids = itertools.count(-1, -1)  # torch numbers its own from 0 upwards
_graph_task_id: Callable[[], int] | None = None
_looked_up = False


def in_backward() -> bool:
    """Whether a backward pass runs in this thread. A forward pass in it is the recomputation of an activation checkpoint."""
    global _graph_task_id, _looked_up
    if not _looked_up:
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        _graph_task_id = getattr(torch._C, "_current_graph_task_id", None)
        _looked_up = True
    return _graph_task_id is not None and _graph_task_id() != -1


def gradients_follow() -> bool:
    """Whether what this thread computes now gets gradients. forward(ctx, ...) of an autograd.Function, such as a reentrant checkpoint, runs with
    gradients switched off; its node has edges in the graph if a gradient is wanted. Cost, where they are off: one look at the stack."""
    torch = sys.modules["torch"]
    if torch.is_grad_enabled():
        return True
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_varnames[:1] == ("ctx",):
            node = frame.f_locals.get("ctx")
            if isinstance(node, torch._C._FunctionBase) and any(edge is not None for edge, _ in node.next_functions):
                return True
        frame = frame.f_back
    return False


def current_node() -> int:
    """The node of the graph that a backward pass runs in this thread; 0 if torch does not say. Precondition: in_backward()."""
    current = getattr(sys.modules["torch"]._C, "_current_autograd_node", None)
    return 0 if current is None else id(current())


def hook_result(tensor: Any, hook: Callable[[Any], None]) -> None:
    """As tensor.register_hook(hook), but without a handle to remove the hook, which would cost more than everything else.
    Precondition: type(tensor) is torch.Tensor, and it has a grad_fn."""
    hooks = tensor._backward_hooks
    if hooks is None:
        hooks = tensor._backward_hooks = collections.OrderedDict()
        tensor.grad_fn._register_hook_dict(tensor)
    hooks[next(_hook_ids)] = hook


class GradientHook:
    """Tensor hook that passes on the first gradient. Further backward passes through the same graph are ignored, and so is None, which torch
    says where another output of the same node has a gradient."""

    __slots__ = ("_fired", "_record")

    def __init__(self, record: Callable[[Any], None]) -> None:
        self._record, self._fired = record, False

    def __call__(self, gradient: Any) -> None:
        if not self._fired and gradient is not None:
            self._fired = True
            self._record(gradient)
