"""The losses: tensors of one element on which the program calls backward()."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .._native.tensors import capturing
from .._runtime.current import running_agent
from .._torch.autograd import in_backward
from .models import variable_of

NAME = "loss"
_UNSCALED = "_statagent_unscaled"  # attribute of a scaled loss: the loss


def is_compiling() -> Callable[[], bool]:
    """torch's function that says whether the code that calls it is traced into a graph."""
    found: Callable[[], bool] | None = getattr(sys.modules["torch"].compiler, "is_compiling", None)
    return (lambda: False) if found is None else found


class Losses:
    """Replaces torch.autograd.backward, which Tensor.backward calls, and GradScaler.scale. `begins` is called before each backward pass."""

    def __init__(self, begins: Any) -> None:
        self._begins = begins
        self.several = False  # several models are trained: a loss is called as its variable
        self._step, self._used = -1, set[tuple[str, int]]()  # names and micro-batches of the step's losses
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        if self._replaced:
            return
        torch = sys.modules["torch"]
        self._replace(torch.autograd, "backward", self._around_backward)
        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
        self._replace(scaler, "scale", self._around_scale)

    def remove(self) -> None:
        for owner, name, before, ours in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, before)
        self._replaced = []

    def _replace(self, owner: Any, name: str, around: Any) -> None:
        before = getattr(owner, name)
        ours = functools.wraps(before)(around(before))
        setattr(owner, name, ours)
        self._replaced.append((owner, name, before, ours))

    def _around_backward(self, backward: Any) -> Any:
        torch, begins, log = sys.modules["torch"], self._begins, self._log
        compiling = is_compiling()

        def call(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not compiling() and not in_backward():
                begins()
                weight = args[0] if args else kwargs.get("grad_tensors")
                if weight is None and type(tensors) is torch.Tensor and tensors.numel() == 1:
                    log(tensors)
            return backward(tensors, *args, **kwargs)

        return call

    def _around_scale(self, scale: Any) -> Any:
        torch = sys.modules["torch"]

        def call(scaler: Any, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            if type(outputs) is torch.Tensor and scaled is not outputs and outputs.numel() == 1:
                setattr(scaled, _UNSCALED, outputs.detach())
            return scaled

        return call

    def _log(self, tensor: Any) -> None:
        """Logs the loss in its micro-batch. Never raises, and waits for no GPU."""
        agent = running_agent()
        if agent is None or not agent.automatic or capturing():
            return
        try:
            loss = vars(tensor).get(_UNSCALED, tensor.detach())
            if agent.steps_ended != self._step:
                self._step, self._used = agent.steps_ended, set()
            agent.log_scalar(self._name(tensor, agent.micro_batch), loss)
        except Exception as error:
            agent.refuse(f"loss: {error}", NAME, "scalar")

    def _name(self, tensor: Any, micro_batch: int) -> str:
        """`loss`; where that does not tell losses apart, the variable that holds it, or loss_2."""
        wanted = NAME
        if self.several or (NAME, micro_batch) in self._used:
            wanted = variable_of(tensor, sys._getframe(3)) or NAME
        name, number = wanted, 2
        while (name, micro_batch) in self._used:
            name, number = f"{wanted}_{number}", number + 1
        self._used.add((name, micro_batch))
        return name
