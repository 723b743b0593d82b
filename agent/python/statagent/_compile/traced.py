"""Functions that torch.compile reads and never runs: they see which tensors there are and under which paths, and leave operator calls in
the graph. They must not read state that changes between steps. Imports torch, so it may only be imported once torch is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from .dynamo import gradients_can_be_hooked, new_site
from .inspections import inspections
from .registry import FIELD, SEPARATOR, UNREADABLE

_DEPTH_MAX = 16
_SCHEMA_DEPTH_MAX = 6


def trace(key: Any, value: Any, inputs: Any, values: bool, gradients: bool) -> None:
    """Observes the tensors of `value` and their gradients. `key`: the tensor of a Key; `inputs`: the arguments of the module."""
    if torch.compiler.is_exporting():
        return
    found: list[tuple[str, Any]] = []
    _flatten("", value, 0, found)
    given: list[tuple[str, Any]] = []
    _flatten("", inputs, 0, given)
    _trace_found(key, found, [tensor for _, tensor in given], values, gradients)


def _trace_found(key: Any, found: list[tuple[str, Any]], given: list[Any], values: bool, gradients: bool) -> None:
    grad_enabled = torch.is_grad_enabled()
    site = new_site()
    hooked = []
    if gradients and grad_enabled and gradients_can_be_hooked():
        hooked = [(path, tensor) for path, tensor in found if _can_hook(tensor)]
    names = SEPARATOR.join([path for path, _ in hooked])
    # A tensor from outside of a checkpointed part is hooked outside, where a ticket of the inside is unknown.
    outside = any(tensor is other for _, tensor in hooked for other in given)
    ticket = torch.ops.statagent.ticket(key, site, names) if hooked and not outside else None
    read, paths = [], []
    if values:
        for path, tensor in found:
            plain = _plain(tensor)
            if plain is None:
                paths.append(UNREADABLE + path)
            else:
                read.append(plain)
                paths.append(path)
    torch.ops.statagent.observe(read, ticket, key, site, SEPARATOR.join(paths), names, grad_enabled)
    for path, tensor in hooked:
        _hook(tensor, ticket, key, site, path)


def trace_noise(key: Any, value: Any, args: Any, kwargs: Any) -> Any:
    """The value with the noise of a twin in its tensors, whose gradients are hooked, too. `args`, `kwargs`: what the module was called with."""
    if torch.compiler.is_exporting():
        return None
    given: list[tuple[str, Any]] = []
    _flatten("", args, 0, given)
    _flatten("", kwargs, 0, given)
    return _noisy("", value, key, [tensor for _, tensor in given], 0)


def _noisy(path: str, value: Any, key: Any, given: list[Any], depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        passed_on = any(value is other for other in given)
        floating = value.dtype.is_floating_point or value.dtype.is_complex
        return value if passed_on or not floating or _plain(value) is None else _noisy_tensor(path or "0", value, key)
    if depth >= _DEPTH_MAX:
        return value
    prefix = path + "." if path else ""
    if isinstance(value, (tuple, list)):
        items = [_noisy(prefix + str(index), child, key, given, depth + 1) for index, child in enumerate(value)]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict) and type(value) is dict:
        return {name: _noisy(prefix + str(name), child, key, given, depth + 1) for name, child in value.items()}
    return value


def _noisy_tensor(path: str, tensor: Any, key: Any) -> Any:
    made = torch.ops.statagent.noise(tensor, key, path, False)
    if torch.is_grad_enabled() and made.requires_grad and gradients_can_be_hooked():

        def hook(gradient: Any) -> Any:  # properties of the gradient must not be read here
            return torch.ops.statagent.noise(gradient, key, path, True)

        made.register_hook(hook)
    return made


def trace_inspect(name: str, tensor: Any) -> None:
    """Observes one tensor under a name, and its gradient."""
    if not torch.compiler.is_exporting() and isinstance(tensor, torch.Tensor):
        _trace_found(inspections.tensor, [(name, tensor)], [], True, True)


def trace_mark(key: Any, entering: bool, output: Any = None) -> None:
    """The root's forward pass begins or ends."""
    if torch.compiler.is_exporting():
        return
    torch.ops.statagent.mark(key, entering, torch.is_grad_enabled())
    if not entering and torch.is_grad_enabled() and gradients_can_be_hooked():
        found: list[tuple[str, Any]] = []
        _flatten("", output, 0, found)
        for _, tensor in found:
            if _can_hook(tensor):
                _hook_root(tensor, key)


def trace_inputs(key: Any, names: list[str], args: Any, kwargs: Any) -> None:
    """The root is called with these arguments; `names` are those of the positional ones. Inputs that need a gradient are left out, because
    they are not data."""
    if torch.compiler.is_exporting():
        return
    named = [(names[i] if i < len(names) else str(i), value) for i, value in enumerate(args)] + list(kwargs.items())
    values, paths = [], []
    for name, value in named:
        found: list[tuple[str, Any]] = []
        _flatten("", value, 0, found)
        for path, tensor in found:
            plain = _plain(tensor)
            if plain is not None and not tensor.requires_grad:
                values.append(plain)
                paths.append(name + FIELD + ("" if isinstance(value, torch.Tensor) else path))
    if values:
        torch.ops.statagent.inputs(values, key, SEPARATOR.join(paths))


def trace_schema(key: Any, training: bool, args: Any, kwargs: Any) -> None:
    """The root is called with inputs of this schema. It is a constant, because torch compiles another graph for another schema. Sizes are
    left out: with them, each would need a graph of its own."""
    if torch.compiler.is_exporting():
        return
    found: list[str] = []
    for index, value in enumerate(args):
        _describe(str(index), value, 0, found)
    for name, value in kwargs.items():
        _describe(name, value, 0, found)
    torch.ops.statagent.attend(key, training, SEPARATOR.join(found))


def read_schema(schema: str) -> dict[str, str]:
    """The schema that `trace_schema` put into a graph: path of a leaf -> description."""
    return dict(entry.split(FIELD, 1) for entry in schema.split(SEPARATOR)) if schema else {}


def _describe(path: str, value: Any, depth: int, found: list[str]) -> None:
    """As transitions.describe, in a form that torch.compile can trace."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).replace("torch.", "")
        found.append(f"{path}{FIELD}{dtype} rank {value.dim()}" + (", needs gradient" if value.requires_grad else ""))
        return
    if value is None or isinstance(value, bool):
        found.append(path + FIELD + str(value))
        return
    found.append(path + FIELD + type(value).__name__)
    if depth >= _SCHEMA_DEPTH_MAX:
        return
    if isinstance(value, (tuple, list)):
        for index, child in enumerate(value):
            _describe(f"{path}.{index}", child, depth + 1, found)
    elif isinstance(value, (dict, Mapping)):
        for name, child in value.items():
            _describe(f"{path}.{name}", child, depth + 1, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _describe(f"{path}.{field.name}", getattr(value, field.name, None), depth + 1, found)


def trace_padded(kind: str, value: Any, pad: Any) -> None:
    """A tensor goes into an embedding or a loss, which ignores the value `pad`. Runs while a later stage of the compiler traces the graph."""
    if not torch.compiler.is_exporting() and isinstance(pad, int) and torch.is_grad_enabled():
        torch.ops.statagent.padded(value.detach(), kind, pad)


def _hook_root(tensor: Any, key: Any) -> None:
    sharded = hasattr(tensor, "to_local")

    def hook(gradient: Any) -> None:  # properties of the gradient must not be read here
        torch.ops.statagent.passed((gradient.to_local() if sharded else gradient).detach(), key)

    tensor.register_hook(hook)


def _hook(tensor: Any, ticket: Any, key: Any, site: int, path: str) -> None:
    sharded = hasattr(tensor, "to_local")

    def hook(gradient: Any) -> None:  # properties of the gradient must not be read here
        plain = (gradient.to_local() if sharded else gradient).detach()
        torch.ops.statagent.gradient(plain, ticket, key, site, path)

    tensor.register_hook(hook)


def _can_hook(tensor: Any) -> bool:
    # A parameter's hooks would live as long as the parameter; the optimizer's hooks record its gradient.
    return bool(tensor.requires_grad) and not isinstance(tensor, torch.nn.Parameter) and _plain(tensor) is not None


def _plain(tensor: Any) -> Any:
    """The tensor without its history, this rank's shard of a DTensor; None for other subclasses and layouts."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if isinstance(tensor, torch.nn.Parameter) or type(tensor) is torch.Tensor:
        return tensor.detach() if tensor.layout == torch.strided else None
    return None


def _flatten(path: str, value: Any, depth: int, found: list[tuple[str, Any]]) -> None:
    """The paths of flatten.flatten, in a form that torch.compile can trace."""
    if isinstance(value, torch.Tensor):
        found.append((path or "0", value))
    elif depth < _DEPTH_MAX:
        prefix = path + "." if path else ""
        if isinstance(value, (tuple, list)):
            for index, child in enumerate(value):
                _flatten(prefix + str(index), child, depth + 1, found)
        elif isinstance(value, (dict, Mapping)):
            for name, child in value.items():
                _flatten(prefix + str(name), child, depth + 1, found)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                _flatten(prefix + field.name, getattr(value, field.name, None), depth + 1, found)
