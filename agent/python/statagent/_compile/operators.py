"""Hooks inside of compiled graphs. Imports torch: only what has torch already may import this module.

torch.compile traces a module's hooks into the graph. What a hook does in eager mode cannot be traced, so there it calls operators instead,
whose Python runs each time the graph runs:

    ticket(key, site) -> ticket              a number for this call of the module; pure, so that a checkpoint may compute it again
    observe(values, ticket, key, ...)        the values of the call
    gradient(gradient, ticket, key, ...)     one gradient of that call, in the backward graph
    mark(key, entering, grad_enabled)        the root's forward pass begins or ends
    passed(gradient, key)                    the backward pass comes to an output of the root
    inputs(values, key, names)               what the root is called with
    attend(key, training, schema)            the root is called, with inputs of this schema
    padded(value, kind, pad)                 whole numbers go into an embedding or a loss that ignores one of them

`key` is a tensor with the number of the hook, an input of the graph: a graph that is used for many like modules observes each under its own
name, and nothing that changes from step to step is guarded. `site` is a constant, another one for each place where a hook was traced.
All but the first are declared to have an ordered effect: no pass of the compiler drops, repeats or reorders them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from . import agent as _agent
from ._autograd import in_backward
from ._log import warn_once
from ._modules import Named

NEEDS = "torch.library with effectful operators, and hooks on intermediate tensors in graphs (torch 2.13 has both)"
_DEPTH_MAX = 16
_SCHEMA_DEPTH_MAX = 6
_SEPARATOR = "\x1f"
_FIELD = "\x1d"  # between a name and the path in it
_UNREADABLE = "\x1e"  # before the path of a tensor that is no plain one


class Recorder(Protocol):
    """What the operators call, at run time. A call is whatever `begin` made of it."""

    def active(self) -> bool:
        """Whether anything is recorded now."""

    def begin(self, paths: list[str], grad_enabled: bool) -> Any:
        """A call of the module begins; None: it is not recorded."""

    def value(self, call: Any, path: str, tensor: Any) -> None: ...

    def gradient(self, call: Any, path: str, gradient: Any) -> None: ...

    def unhooked(self) -> Any:
        """The last call made without gradients that a reentrant checkpoint computes again now; None if there is none."""

    def epoch(self) -> int:
        """Grows with each step."""

    def refuse(self, message: str) -> None: ...


class Root(Protocol):
    """What the operators call for the root of a watched model."""

    def enter_compiled(self, grad_enabled: bool) -> None: ...

    def leave_compiled(self) -> None: ...

    def note_backward(self) -> None: ...


class Inputs(Protocol):
    """What the operators call with the root's inputs."""

    def see_all(self, found: list[tuple[str, str, Any]]) -> None:
        """Name, path in it ("" for a bare tensor), tensor."""


class Attendant(Protocol):
    """What the operators tell how the root is called."""

    def attend_schema(self, training: bool, schema: str) -> None:
        """schema: for `read_schema`; equal for equal schemas."""


@dataclasses.dataclass
class _Open:
    """A call whose gradients are still to come."""

    ticket: int
    call: Any
    site: int
    paths: set[str]


class Tickets:
    """Calls of one recorder whose gradients are still to come, those of this step and the last.

    Threads: any one at a time, as the hooks."""

    def __init__(self) -> None:
        self._epoch = -1
        self._open: list[_Open] = []  # in the order of the calls
        self._older: list[_Open] = []

    def give(self, ticket: int, site: int, call: Any, paths: set[str], epoch: int) -> None:
        """ticket 0: gradients will be asked for by `take_last`."""
        if epoch != self._epoch:
            self._epoch, self._older, self._open = epoch, self._open, []
        if paths:
            self._open.append(_Open(ticket, call, site, paths))

    def again(self, site: int) -> int:
        """A checkpoint computes a call again: autograd does the last one first. 0 if there is none."""
        for found in reversed(self._open):
            if found.site == site and found.ticket > 0:
                found.site = -site  # the next one computed again is another
                return found.ticket
        return 0

    def take(self, ticket: int, path: str) -> Any:
        """The call of a ticket, once for each path; else None."""
        return self._take(path, lambda found: found.ticket == ticket)

    def take_last(self, site: int, path: str) -> Any:
        """The last call that has not been taken for this path; else None."""
        return self._take(path, lambda found: found.site == site and found.ticket == 0)

    def _take(self, path: str, wanted: Callable[[_Open], bool]) -> Any:
        for calls in (self._open, self._older):
            for found in reversed(calls):
                if path in found.paths and wanted(found):
                    found.paths.discard(path)
                    if not found.paths:
                        calls.remove(found)
                    return found.call
        return None


@dataclasses.dataclass
class _Entry:
    recorder: Recorder
    tickets: Tickets


_entries: dict[int, _Entry] = {}
_roots: dict[int, Root] = {}
_inputs: dict[int, Inputs] = {}
_attendants: dict[int, Attendant] = {}
_keys = itertools.count(1)
_tickets = itertools.count(1)
_sites = itertools.count(1)


class Key:
    """The number of a recorder or a root, and the tensor that carries it into graphs."""

    def __init__(
        self,
        recorder: Recorder | None = None,
        root: Root | None = None,
        inputs: Inputs | None = None,
        attendant: Attendant | None = None,
    ) -> None:
        self.number = next(_keys)
        self.tensor = torch.tensor(self.number, dtype=torch.int64, device="cpu", requires_grad=False)
        if recorder is not None:
            _entries[self.number] = _Entry(recorder, Tickets())
        if root is not None:
            _roots[self.number] = root
        if inputs is not None:
            _inputs[self.number] = inputs
        if attendant is not None:
            _attendants[self.number] = attendant

    def remove(self) -> None:
        """Graphs that still carry the number record nothing from now on."""
        _entries.pop(self.number, None)
        _roots.pop(self.number, None)
        _inputs.pop(self.number, None)
        _attendants.pop(self.number, None)


class _Inspections:
    """inspect() inside of a graph, a Recorder: the path is the name; a call is (micro-batch, call index)."""

    def active(self) -> bool:
        agent = _agent.current()
        return agent is not None and not agent.closed and agent.wanted and not agent.muted

    def begin(self, paths: list[str], grad_enabled: bool) -> Any:
        agent = _agent.current()
        assert agent is not None
        at = agent.micro_batch
        return at, agent.next_call(paths[0], "inspect", "", at)

    def value(self, call: Any, path: str, tensor: Any) -> None:
        self._observe("inspect", call, path, tensor)

    def gradient(self, call: Any, path: str, gradient: Any) -> None:
        self._observe("inspect_grad", call, path, gradient)

    def _observe(self, kind: str, call: Any, name: str, tensor: Any) -> None:
        agent = _agent.current()
        if agent is not None and not agent.closed:
            agent.observe_handle(agent.intern(name, kind, "", *call), tensor)

    def unhooked(self) -> Any:
        return None

    def epoch(self) -> int:
        agent = _agent.current()
        return agent.current_step() if agent is not None else 0

    def refuse(self, message: str) -> None:
        agent = _agent.current()
        if agent is not None:
            agent.refuse(f"inspect: {message}")


_inspections = Key(_Inspections())

# --- operators, at run time --------------------------------------------------------------------------------------------------


_no_ticket = torch.zeros((), dtype=torch.int64, device="cpu")


def _ticket(key: Any, site: int, paths: str) -> Any:
    number = _new_ticket(key, site, paths)
    return _no_ticket.clone() if number == 0 else torch.tensor(number, dtype=torch.int64, device="cpu")


def _new_ticket(key: Any, site: int, paths: str) -> int:
    entry = _entries.get(key.item())
    if entry is None or not entry.recorder.active():
        return 0
    if not in_backward():
        return next(_tickets)
    ticket = entry.tickets.again(site)
    if ticket == 0:
        call = entry.recorder.unhooked()
        if call is not None:
            ticket = next(_tickets)
            entry.tickets.give(ticket, -site, call, set(paths.split(_SEPARATOR)), entry.recorder.epoch())
    return ticket


def _observe(values: list[Any], ticket: Any, key: Any, site: int, paths: str, hooked: str, grad_enabled: bool) -> None:
    entry = _entries.get(key.item())
    if entry is None:
        return
    recorder = entry.recorder
    if not recorder.active() or in_backward():
        return
    try:
        names = paths.split(_SEPARATOR) if paths else []
        call = recorder.begin(names, grad_enabled)
        if call is None:
            return
        if hooked:
            number = 0 if ticket is None else ticket.item()
            entry.tickets.give(number, site, call, set(hooked.split(_SEPARATOR)), recorder.epoch())
        readable = iter(values)
        for name in names:
            if not name.startswith(_UNREADABLE):
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
    entry = _entries.get(key.item())
    if entry is None:
        return
    try:
        call = entry.tickets.take(number, path) if number else entry.tickets.take_last(site, path)
        if call is not None:
            entry.recorder.gradient(call, path, gradient)
    except Exception as error:
        entry.recorder.refuse(str(error))


def _mark(key: Any, entering: bool, grad_enabled: bool) -> None:
    root = _roots.get(key.item())
    if root is not None and entering:
        root.enter_compiled(grad_enabled)
    elif root is not None:
        root.leave_compiled()


def _passed(gradient: Any, key: Any) -> None:
    root = _roots.get(key.item())
    if root is not None:
        root.note_backward()


def _given(values: list[Any], key: Any, names: str) -> None:
    inputs = _inputs.get(key.item())
    if inputs is not None and not in_backward():
        paths = [name.split(_FIELD) for name in names.split(_SEPARATOR)]
        inputs.see_all([(name, path, value) for (name, path), value in zip(paths, values)])


def _attend(key: Any, training: bool, schema: str) -> None:
    attendant = _attendants.get(key.item())
    if attendant is not None and not in_backward():
        attendant.attend_schema(training, schema)


def read_schema(schema: str) -> dict[str, str]:
    """Path of a leaf -> what it is, of what `trace_schema` left in a graph."""
    return dict(entry.split(_FIELD, 1) for entry in schema.split(_SEPARATOR)) if schema else {}


def _padded(value: Any, kind: str, pad: int) -> None:
    from ._density import seen

    if not in_backward():
        seen(kind, value, pad)


# --- operators, in graphs ----------------------------------------------------------------------------------------------------

_library: Any = None
_tried = False


def _no_tensor(*_: Any) -> None:
    return None


def _define() -> Any:
    """Declares the operators. Raises what an older torch lacks."""
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
    return library


def _fake_ticket(key: Any, site: int, hooked: str) -> Any:
    return torch.empty((), dtype=torch.int64, device="cpu")


def _vmap_ticket(info: Any, in_dims: Any, key: Any, site: int, hooked: str) -> Any:
    return torch.ops.statagent.ticket(key, site, hooked), None


def _vmap_nothing(info: Any, in_dims: Any, *args: Any) -> Any:
    """Within torch.vmap nothing is recorded: its tensors are slices of others."""
    return None, None


def available() -> bool:
    """Whether hooks can be traced into graphs; declares the operators the first time. If not, a hook breaks the graph as any Python does,
    which is said once."""
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
        _keep_dynamo_out()
    return _library is not None


def _never() -> bool:
    return False


def tracing() -> Callable[[], bool]:
    """The function that tells a hook whether it is being traced into a graph. Must be called directly: tracing replaces it."""
    return torch.compiler.is_dynamo_compiling if available() else _never


exporting: Callable[[], bool] = torch.compiler.is_compiling  # outside of Dynamo, which does not run us


def forget_graphs(modules: list[Named]) -> None:
    """Graphs made before the hooks were there do not notice them: those that begin in a watched module are made anew at their next call."""
    if "torch._dynamo" not in sys.modules:
        return
    from torch._dynamo.eval_frame import remove_from_cache

    for forward in {getattr(type(named.value), "forward", None) for named in modules}:  # TorchScript has none there
        if isinstance(forward, types.FunctionType):
            remove_from_cache(forward)


_kept_out = False


def _keep_dynamo_out() -> None:
    """Our functions outside of graphs run as they are: torch.compile would else try to compile each as a graph of its own. Inside of
    graphs hooks are traced nevertheless."""
    global _kept_out
    if _kept_out:
        return
    _kept_out = True
    try:
        from torch._dynamo.eval_frame import skip_code
    except ImportError:
        return
    package = __name__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for code in _codes(module):
                skip_code(code)
    skip_code(contextlib.nullcontext.__exit__.__code__)  # what a hook becomes in a copy of its model


def _codes(module: Any) -> list[types.CodeType]:
    found: list[types.CodeType] = []

    def visit(code: types.CodeType) -> None:
        found.append(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                visit(constant)

    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                visit(function.__code__)
    return found


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _site() -> int:
    """Runs when a hook is traced; the result is a constant of the graph."""
    _keep_dynamo_out()
    return next(_sites)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _gradients_can_be_hooked() -> bool:
    """With compiled autograd hooks need a backward pass that is compiled, too: nothing tells whether it will be."""
    from torch._dynamo import compiled_autograd

    return not compiled_autograd.compiled_autograd_enabled


# --- traced ------------------------------------------------------------------------------------------------------------------
# What follows is read by torch.compile, never run: it sees which tensors there are and under which paths, and leaves operator calls in
# the graph. No state that changes between steps may be read here.


def trace(key: Any, value: Any, inputs: Any, values: bool, gradients: bool) -> None:
    """Leaves in the graph what observes the tensors of `value` and their gradients. key: tensor of a Key; inputs: what the module was
    given."""
    if torch.compiler.is_exporting():
        return
    found: list[tuple[str, Any]] = []
    _flatten("", value, 0, found)
    given: list[tuple[str, Any]] = []
    _flatten("", inputs, 0, given)
    _trace_found(key, found, [tensor for _, tensor in given], values, gradients)


def _trace_found(key: Any, found: list[tuple[str, Any]], given: list[Any], values: bool, gradients: bool) -> None:
    grad_enabled = torch.is_grad_enabled()
    site = _site()
    hooked = []
    if gradients and grad_enabled and _gradients_can_be_hooked():
        hooked = [(path, tensor) for path, tensor in found if _can_hook(tensor)]
    names = _SEPARATOR.join([path for path, _ in hooked])
    # A tensor from outside of a checkpointed part is hooked outside of it, where a ticket of the inside is not known.
    outside = any(tensor is other for _, tensor in hooked for other in given)
    ticket = torch.ops.statagent.ticket(key, site, names) if hooked and not outside else None
    read, paths = [], []
    if values:
        for path, tensor in found:
            plain = _plain(tensor)
            if plain is None:
                paths.append(_UNREADABLE + path)
            else:
                read.append(plain)
                paths.append(path)
    torch.ops.statagent.observe(read, ticket, key, site, _SEPARATOR.join(paths), names, grad_enabled)
    for path, tensor in hooked:
        _hook(tensor, ticket, key, site, path)


def trace_inspect(name: str, tensor: Any) -> None:
    """Leaves in the graph what observes one tensor under a name, and its gradient."""
    if not torch.compiler.is_exporting() and isinstance(tensor, torch.Tensor):
        _trace_found(_inspections.tensor, [(name, tensor)], [], True, True)


def trace_mark(key: Any, entering: bool, output: Any = None) -> None:
    """The root's forward pass begins or is over."""
    if torch.compiler.is_exporting():
        return
    torch.ops.statagent.mark(key, entering, torch.is_grad_enabled())
    if not entering and torch.is_grad_enabled() and _gradients_can_be_hooked():
        found: list[tuple[str, Any]] = []
        _flatten("", output, 0, found)
        for _, tensor in found:
            if _can_hook(tensor):
                _hook_root(tensor, key)


def trace_inputs(key: Any, names: list[str], args: Any, kwargs: Any) -> None:
    """The root is called with these; names: of its positional arguments. What needs a gradient comes from elsewhere."""
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
                paths.append(name + _FIELD + ("" if isinstance(value, torch.Tensor) else path))
    if values:
        torch.ops.statagent.inputs(values, key, _SEPARATOR.join(paths))


def trace_schema(key: Any, training: bool, args: Any, kwargs: Any) -> None:
    """The root is called with inputs of this schema: a constant, because torch makes another graph for another one. Without sizes, which would
    make graphs of their own."""
    if torch.compiler.is_exporting():
        return
    found: list[str] = []
    for index, value in enumerate(args):
        _describe(str(index), value, 0, found)
    for name, value in kwargs.items():
        _describe(name, value, 0, found)
    torch.ops.statagent.attend(key, training, _SEPARATOR.join(found))


def _describe(path: str, value: Any, depth: int, found: list[str]) -> None:
    """The same as _transitions.describe, in terms that can be traced."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).replace("torch.", "")
        found.append(f"{path}{_FIELD}{dtype} rank {value.dim()}" + (", needs gradient" if value.requires_grad else ""))
        return
    if value is None or isinstance(value, bool):
        found.append(path + _FIELD + str(value))
        return
    found.append(path + _FIELD + type(value).__name__)
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
    """A tensor goes into an embedding or a loss; pad: what of it does not count. Runs while a later stage traces the graph."""
    if not torch.compiler.is_exporting() and isinstance(pad, int) and torch.is_grad_enabled():
        torch.ops.statagent.padded(value.detach(), kind, pad)


def _hook_root(tensor: Any, key: Any) -> None:
    sharded = hasattr(tensor, "to_local")

    def hook(gradient: Any) -> None:  # what the gradient is like must not be asked here
        torch.ops.statagent.passed((gradient.to_local() if sharded else gradient).detach(), key)

    tensor.register_hook(hook)


def _hook(tensor: Any, ticket: Any, key: Any, site: int, path: str) -> None:
    sharded = hasattr(tensor, "to_local")

    def hook(gradient: Any) -> None:  # what the gradient is like must not be asked here
        plain = (gradient.to_local() if sharded else gradient).detach()
        torch.ops.statagent.gradient(plain, ticket, key, site, path)

    tensor.register_hook(hook)


def _can_hook(tensor: Any) -> bool:
    # A parameter's hooks would live as long as itself; its gradient is recorded by the optimizer's hooks.
    return bool(tensor.requires_grad) and not isinstance(tensor, torch.nn.Parameter) and _plain(tensor) is not None


def _plain(tensor: Any) -> Any:
    """The tensor without its history, this rank's shard of a DTensor; None for other subclasses and layouts."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if isinstance(tensor, torch.nn.Parameter) or type(tensor) is torch.Tensor:
        return tensor.detach() if tensor.layout == torch.strided else None
    return None


def _flatten(path: str, value: Any, depth: int, found: list[tuple[str, Any]]) -> None:
    """The same paths as flatten.flatten gives, in terms that can be traced."""
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
