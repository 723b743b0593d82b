"""Operators that traced hooks leave in compiled graphs. Imports torch, so it may only be imported once torch is there.

torch.compile traces the hooks of a module into its graph. What a hook does in eager mode cannot be traced, so a traced hook calls
operators instead; their Python code runs each time the graph runs:

    ticket(key, site) -> ticket              a number for this call of the module; pure, so that a checkpoint may recompute it
    observe(values, ticket, key, ...)        the values of the call
    gradient(gradient, ticket, key, ...)     one gradient of that call, in the backward graph
    mark(key, entering, grad_enabled)        the root's forward pass begins or ends
    passed(gradient, key)                    the backward pass reaches an output of the root
    inputs(values, key, names)               the inputs of the root
    attend(key, training, schema)            the root is called with inputs of this schema
    padded(value, kind, pad)                 whole numbers go into an embedding or a loss that ignores one of them
    noise(value, key, path, of_gradient)     what a module of a twin returns, or a gradient of it, with noise; pure within a step

`key` is a tensor with the number of the hook, and an input of the graph: a graph that is shared by similar modules records each under its
own name, and nothing that changes from step to step is guarded. `site` is a constant that differs for each place where a hook was traced.
All operators but the first and the last are declared to have an ordered effect, so that no pass of the compiler drops, repeats or reorders them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .._runtime.log import warn_once
from .._torch.autograd import in_backward
from . import padded_inputs, registry
from .dynamo import keep_dynamo_out
from .registry import FIELD, SEPARATOR, UNREADABLE

NEEDS = "torch.library with effectful operators, and hooks on intermediate tensors in graphs (torch 2.13 has both)"

# --- at run time -------------------------------------------------------------------------------------------------------------

_no_ticket = torch.zeros((), dtype=torch.int64, device="cpu")


def _ticket(key: Any, site: int, paths: str) -> Any:
    number = _new_ticket(key, site, paths)
    return _no_ticket.clone() if number == 0 else torch.tensor(number, dtype=torch.int64, device="cpu")


def _new_ticket(key: Any, site: int, paths: str) -> int:
    entry = registry.entries.get(key.item())
    if entry is None or not entry.recorder.active():
        return 0
    if not in_backward():
        return next(registry.ticket_numbers)
    ticket = entry.tickets.again(site)
    if ticket == 0:
        call = entry.recorder.unhooked()
        if call is not None:
            ticket = next(registry.ticket_numbers)
            entry.tickets.give(ticket, -site, call, set(paths.split(SEPARATOR)), entry.recorder.epoch())
    return ticket


def _observe(values: list[Any], ticket: Any, key: Any, site: int, paths: str, hooked: str, grad_enabled: bool) -> None:
    entry = registry.entries.get(key.item())
    if entry is None:
        return
    recorder = entry.recorder
    if not recorder.active() or in_backward():
        return
    try:
        names = paths.split(SEPARATOR) if paths else []
        call = recorder.begin(names, grad_enabled)
        if call is None:
            return
        if hooked:
            number = 0 if ticket is None else ticket.item()
            entry.tickets.give(number, site, call, set(hooked.split(SEPARATOR)), recorder.epoch())
        readable = iter(values)
        for name in names:
            if not name.startswith(UNREADABLE):
                recorder.value(call, name, next(readable))
            else:
                recorder.refuse(f"'{name[1:]}' is of a subclass of torch.Tensor inside of a compiled graph")
    except Exception as error:
        recorder.refuse(str(error))


def _gradient(gradient: Any, ticket: Any, key: Any, site: int, path: str) -> None:
    number = 0
    if ticket is not None:
        number = ticket.item()
        if number == 0:
            return
    entry = registry.entries.get(key.item())
    if entry is None:
        return
    try:
        call = entry.tickets.take(number, path) if number else entry.tickets.take_last(site, path)
        if call is not None:
            entry.recorder.gradient(call, path, gradient)
    except Exception as error:
        entry.recorder.refuse(str(error))


def _mark(key: Any, entering: bool, grad_enabled: bool) -> None:
    root = registry.roots.get(key.item())
    if root is not None and entering:
        root.enter_compiled(grad_enabled)
    elif root is not None:
        root.leave_compiled()


def _passed(gradient: Any, key: Any) -> None:
    root = registry.roots.get(key.item())
    if root is not None:
        root.note_backward()


def _given(values: list[Any], key: Any, names: str) -> None:
    inputs = registry.inputs_of.get(key.item())
    if inputs is not None and not in_backward():
        paths = [name.split(FIELD) for name in names.split(SEPARATOR)]
        inputs.see_all([(name, path, value) for (name, path), value in zip(paths, values)])


def _attend(key: Any, training: bool, schema: str) -> None:
    attendant = registry.attendants.get(key.item())
    if attendant is not None and not in_backward():
        attendant.attend_schema(training, schema)


def _padded(value: Any, kind: str, pad: int) -> None:
    if not in_backward():
        padded_inputs.notify(kind, value, pad)


def _noise(value: Any, key: Any, path: str, of_gradient: bool) -> Any:
    noisy = registry.noises.get(key.item())
    return value.clone() if noisy is None else noisy.perturb(value, path, of_gradient)


# --- in graphs ---------------------------------------------------------------------------------------------------------------

_library: Any = None
_tried = False


def _no_tensor(*_: Any) -> None:
    return None


def _define() -> Any:
    """Declares the operators. Raises an exception in a version of torch that lacks something."""
    from torch._higher_order_ops import register_hook as _  # noqa: F401 (hooks on intermediates, without compiled autograd)
    from torch._library.effects import EffectType

    library = torch.library.Library("statagent", "DEF")
    schemas: dict[str, tuple[str, Callable[..., Any]]] = {
        "ticket": ("(Tensor key, int site, str hooked) -> Tensor", _ticket),
        "observe": (
            "(Tensor[] values, Tensor? ticket, Tensor key, int site, str paths, str hooked, bool grad_enabled) -> ()",
            _observe,
        ),
        "gradient": ("(Tensor gradient, Tensor? ticket, Tensor key, int site, str path) -> ()", _gradient),
        "mark": ("(Tensor key, bool entering, bool grad_enabled) -> ()", _mark),
        "passed": ("(Tensor gradient, Tensor key) -> ()", _passed),
        "inputs": ("(Tensor[] values, Tensor key, str names) -> ()", _given),
        "attend": ("(Tensor key, bool training, str schema) -> ()", _attend),
        "padded": ("(Tensor value, str kind, int pad) -> ()", _padded),
    }
    for name, (schema, function) in schemas.items():
        library.define(name + schema)
        library.impl(name, function, "CompositeExplicitAutograd")
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # no operator has a gradient
        fake = _fake_ticket if name == "ticket" else _no_tensor
        torch.library.register_fake(f"statagent::{name}", fake, lib=library)
        torch.library.register_vmap(f"statagent::{name}", _vmap_ticket if name == "ticket" else _vmap_nothing, lib=library)
        if name != "ticket":
            library._register_effectful_op(f"statagent::{name}", EffectType.ORDERED)
    library.define("noise(Tensor value, Tensor key, str path, bool of_gradient) -> Tensor")
    library.impl("noise", _noise, "CompositeExplicitAutograd")
    torch.library.register_fake("statagent::noise", _fake_noise, lib=library)
    torch.library.register_autograd("statagent::noise", _gradient_of_noise, lib=library)
    torch.library.register_vmap("statagent::noise", _vmap_noise, lib=library)
    return library


def _fake_ticket(key: Any, site: int, hooked: str) -> Any:
    return torch.empty((), dtype=torch.int64, device="cpu")


def _fake_noise(value: Any, key: Any, path: str, of_gradient: bool) -> Any:
    return torch.empty_like(value)


def _gradient_of_noise(_: Any, gradient: Any) -> Any:
    return gradient, None, None, None


def _vmap_noise(info: Any, in_dims: Any, value: Any, key: Any, path: str, of_gradient: bool) -> Any:
    return torch.ops.statagent.noise(value, key, path, of_gradient), in_dims[0]


def _vmap_ticket(info: Any, in_dims: Any, key: Any, site: int, hooked: str) -> Any:
    return torch.ops.statagent.ticket(key, site, hooked), None


def _vmap_nothing(info: Any, in_dims: Any, *args: Any) -> Any:
    """Nothing is recorded within torch.vmap, where tensors are slices of others."""
    return None, None


def available() -> bool:
    """Whether hooks can be traced into graphs. Declares the operators at the first call. If that fails, which is reported once, each hook breaks
    the graph, as other Python code does."""
    global _library, _tried
    if not _tried:
        _tried = True
        try:
            _library = _define()
        except Exception as error:
            warn_once(
                "compile",
                f"torch {torch.__version__} lacks {NEEDS} ({type(error).__name__}: {error}); models compiled with torch.compile are "
                "recorded, but every hook breaks the graph",
            )
    if _library is not None and "torch._dynamo" in sys.modules:
        keep_dynamo_out()
    return _library is not None
