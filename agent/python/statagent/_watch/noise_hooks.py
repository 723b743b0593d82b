"""Hooks that put the noise of a twin into what modules return, and into gradients."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from .._compile import tracing
from .._torch.autograd import hook_result
from .._torch.modules import INERT_COPY, Named
from ..flatten import DEPTH_MAX


class Perturber(Protocol):
    """What the hooks ask: NoiseHooks of noise.py."""

    active: bool
    in_graph: bool
    tensor_type: Any
    noise: Any

    def perturbed(self, tensor: Any, key: int) -> Any: ...
    def refuse(self, name: str, kind: str, error: Exception) -> None: ...


class NoiseHook:
    """After a module's forward pass: returns its output with noise, and hooks the gradients. What the module has only passed on stays."""

    def __init__(self, perturber: Perturber, named: Named) -> None:
        self._perturber, self._name = perturber, named.name
        self._tensor_type, self._dispatch_modes = perturber.tensor_type, sys.modules["torch"]._C._len_torch_dispatch_stack
        self._keys: dict[str, tuple[int, int]] = {}  # by path: of the value and of its gradient
        self._key, self._gradient_key = self._keys_of("0")
        self.key = tracing.compiled.Key(noise=self)
        self._traced_key = self.key.tensor

    def __reduce__(self) -> Any:
        return INERT_COPY

    def __call__(self, module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        if tracing.active():
            return tracing.compiled.trace_noise(self._traced_key, output, args, kwargs)
        if not self._perturber.active or tracing.exporting():
            return None
        try:
            given = [*args, *kwargs.values()] if kwargs else args
            if type(output) is self._tensor_type:
                return self._value(output, self._key, self._gradient_key, given)
            return mapped(output, lambda path, tensor: self._value(tensor, *self._keys_of(path), given))
        except Exception as error:
            self._perturber.refuse(self._name, "output", error)
            return None

    def _value(self, tensor: Any, key: int, gradient_key: int, given: Iterable[Any]) -> Any:
        if not (tensor.is_floating_point() or tensor.is_complex()) or _is_passed_on(tensor, given):
            return tensor
        if self._is_fresh(tensor):
            self._perturber.noise.add(tensor, key)
            made = tensor
        else:
            made = self._perturber.perturbed(tensor, key)
            if made is tensor:
                return tensor
        if made.requires_grad:
            hook = GradientNoise(self._perturber, self._name, gradient_key)
            if type(made) is self._tensor_type and made.grad_fn is not None:
                hook_result(made, hook)
            else:
                made.register_hook(hook)
        return made

    def _is_fresh(self, tensor: Any) -> bool:
        """Whether an operator has just computed the tensor into memory that nothing else has, so that the noise may be added in place: an
        operator that has saved its result for the backward pass then uses it with noise, too. A dispatch mode may keep results, and hand them
        out when a checkpoint computes them again."""
        return (
            type(tensor) is self._tensor_type
            and tensor.is_cpu
            and tensor.grad_fn is not None
            and tensor._base is None
            and tensor.is_contiguous()
            and self._perturber.noise.takes(tensor)
            and not self._dispatch_modes()
        )

    def _keys_of(self, path: str) -> tuple[int, int]:
        found = self._keys.get(path)
        if found is None:
            noise = self._perturber.noise
            found = noise.key(self._name, "output", path), noise.key(self._name, "grad_output", path)
            self._keys[path] = found
        return found

    # --- a Noisy, for calls inside of compiled graphs

    def perturb(self, tensor: Any, path: str, gradient: bool) -> Any:
        """A new tensor: with noise, or a copy. Never raises."""
        self._perturber.in_graph = True
        if self._perturber.active:
            try:
                made = self._perturber.perturbed(tensor.detach(), self._keys_of(path)[int(gradient)])
                if made is not tensor:
                    return made
            except Exception as error:
                self._perturber.refuse(self._name, "grad_output" if gradient else "output", error)
        return tensor.clone()


class GradientNoise:
    """Tensor hook that returns the gradient with noise."""

    __slots__ = ("_key", "_name", "_perturber")
    _kind = "grad_output"

    def __init__(self, perturber: Perturber, name: str, key: int) -> None:
        self._perturber, self._name, self._key = perturber, name, key

    def __call__(self, gradient: Any) -> Any:
        if not self._perturber.active:
            return None
        try:
            return self._perturber.perturbed(gradient, self._key)
        except Exception as error:
            self._perturber.refuse(self._name, self._kind, error)
            return None


class Seen(Protocol):
    seen: bool


class ParameterNoise(GradientNoise):
    """The same for a parameter's gradient, before it is reduced over ranks."""

    __slots__ = ("_seen",)
    _kind = "weight_grad"

    def __init__(self, perturber: Perturber, name: str, key: int, seen: Seen) -> None:
        super().__init__(perturber, name, key)
        self._seen = seen

    def __call__(self, gradient: Any) -> Any:
        self._seen.seen = True
        return super().__call__(gradient)


def _is_passed_on(tensor: Any, given: Iterable[Any]) -> bool:
    """Whether a tensor is one of the arguments, or begins in the same memory: Identity, Flatten, whatever works in place."""
    types = sys.modules["torch"].Tensor
    memory = _memory(tensor, types)
    return any(each is tensor or (isinstance(each, types) and _memory(each, types) == memory) for each in given)


def _memory(tensor: Any, plain: Any) -> int:
    local = tensor if type(tensor) is plain else getattr(tensor, "_local_tensor", tensor)
    try:
        return int(local.data_ptr())
    except RuntimeError:  # a layout without memory of its own
        return id(local)


def mapped(value: Any, function: Callable[[str, Any], Any], path: str = "", depth: int = 0) -> Any:
    """The value with each tensor replaced by function(path, tensor), with the paths of flatten.flatten. Containers in which nothing changes, and
    those of unknown kinds, are returned as they are; others are copied."""
    if isinstance(value, sys.modules["torch"].Tensor):
        return function(path or "0", value)
    if depth >= DEPTH_MAX:
        return value
    prefix = path + "." if path else ""

    def changed(items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        made = {key: (child, mapped(child, function, f"{prefix}{key}", depth + 1)) for key, child in items}
        return {key: after for key, (before, after) in made.items() if after is not before}

    if isinstance(value, (tuple, list)):
        new = changed(enumerate(value))
        items = [new.get(index, child) for index, child in enumerate(value)]
        if not new:
            return value
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*items)
        return type(value)(items)
    if isinstance(value, Mapping):
        new = changed(value.items())
        return _with_items(value, new) if new else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = changed((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
        return _with_fields(value, fields) if fields else value
    return value


def _with_items(value: Any, new: Mapping[Any, Any]) -> Any:
    made = copy.copy(value)
    for key, child in new.items():
        made[key] = child
    return made


def _with_fields(value: Any, new: Mapping[str, Any]) -> Any:
    made = copy.copy(value)
    for name, child in new.items():
        object.__setattr__(made, name, child)
    return made
