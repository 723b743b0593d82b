"""Graph transitions: changes of a model's inputs, composition or mode.

Each is an event `graph_transition` with the fields mode (train or eval), reason, element, from, to:

    first          the input schema of the first pass, recorded once for training and once for evaluation
    input_schema   a path appears or disappears; another dtype, rank, structure, need of a gradient; a bool or None changes
    modules        a child was added, removed or replaced
    train_eval     the root changed between training and evaluation
    requires_grad  a parameter starts or stops to require a gradient
    recompilation  torch.compile has compiled another graph

A schema is reported when it first appears; programs that alternate between two schemas cause one event for each. Sizes of dimensions are
part of it only if `sizes` is true. There are at most EVENTS_MAX events for a reason; a last one says that further ones are not reported.

Cost: the signature of the inputs in each pass of the root. Modules are compared with copies of their dictionaries in every step if there are at
most MODULES_CHECKED_MAX of them, and flags of parameters if there are at most PARAMETERS_CHECKED_MAX. Larger models are checked less often,
so that the average cost of a step stays the same: the change of a parameter is reported up to (parameters / 32) steps late."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._compile import tracing
from .._runtime.agent import Agent
from .._torch import parts
from .._torch.modules import INERT_COPY, Named, name_modules, unwrap
from ..flatten import children_of

EVENTS_MAX = 16  # of one reason a run
SCHEMAS_MAX = 64  # remembered for each mode
MODULES_CHECKED_MAX = 400  # in one step, on average
PARAMETERS_CHECKED_MAX = 32
DEPTH_MAX = 6
ENTRIES_MAX = 256
_TEXT_MAX = 200
_requires_grad = operator.attrgetter("requires_grad")

# Path of a leaf -> description: dtype, rank or sizes and "needs gradient" of a tensor, a bool, None, or the name of a type.
Schema = dict[str, Any]


def make_signature(tensor_type: Any, sizes: bool) -> Callable[[Any, Any], Any]:
    """A cheap function of (args, kwargs) whose results are equal for inputs of the same schema."""

    def one(value: Any, depth: int) -> Any:
        if isinstance(value, tensor_type):
            return (value.dtype, value.shape if sizes else value.dim(), value.requires_grad)
        if value is None or value is True or value is False:
            return value
        if depth < DEPTH_MAX:
            if isinstance(value, (tuple, list)):
                return (type(value).__name__, *[one(each, depth + 1) for each in value[:ENTRIES_MAX]])
            if isinstance(value, Mapping):
                return {key: one(each, depth + 1) for key, each in list(value.items())[:ENTRIES_MAX]}
            fields = getattr(type(value), "__dataclass_fields__", None)
            if fields is not None:
                return {key: one(getattr(value, key, None), depth + 1) for key in fields}
        return type(value).__name__

    def signature(args: Any, kwargs: Any) -> Any:
        if not kwargs and len(args) == 1 and isinstance(args[0], tensor_type):
            value = args[0]
            return (value.dtype, value.shape if sizes else value.dim(), value.requires_grad)
        return [one(value, 0) for value in args], {key: one(value, 0) for key, value in kwargs.items()}

    return signature


def describe(args: Any, kwargs: Any, tensor_type: Any, sizes: bool) -> Schema:
    """The schema in words. Paths are those of flatten(): positional arguments are "0", "1", ..., others go by name."""
    found: Schema = {}

    def visit(path: str, value: Any, depth: int) -> None:
        if len(found) >= ENTRIES_MAX:
            return
        if isinstance(value, tensor_type):
            shape = f"shape {tuple(value.shape)}" if sizes else f"rank {value.dim()}"
            dtype = str(value.dtype).replace("torch.", "")
            found[path] = f"{dtype} {shape}{', needs gradient' if value.requires_grad else ''}"
        elif (children := children_of(value)) is not None and depth < DEPTH_MAX:
            found[path] = type(value).__name__
            for key, child in children:
                visit(f"{path}.{key}", child, depth + 1)
        elif value is None or isinstance(value, bool):
            found[path] = str(value)
        else:
            found[path] = type(value).__name__

    for index, value in enumerate(args):
        visit(str(index), value, 0)
    for key, value in kwargs.items():
        visit(key, value, 0)
    return found


def schema_changes(before: Schema, after: Schema) -> Iterator[tuple[str, str, str]]:
    """(path, from, to) of each difference; a missing path is "absent"."""
    for path in [*before, *(path for path in after if path not in before)]:
        if before.get(path) != after.get(path):
            yield path, before.get(path, "absent"), after.get(path, "absent")


class Transitions:
    """Follows one root. Threads: those that run the root. Never raises.

    The hook is on the module that the program calls: the wrapper, if there is one."""

    def __init__(self, agent: Agent, model: Any, sizes: bool = False) -> None:
        import torch

        self._agent, self._sizes, self._tensor_type = agent, sizes, torch.Tensor
        self._compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
        self._signature_of = make_signature(torch.Tensor, sizes)
        self._last_signature: Any = None
        self._last_training: bool | None = None
        self._seen: dict[str, list[Any]] = {"train": [], "eval": []}
        self._schemas: dict[str, Schema] = {}
        self._events: dict[str, int] = {}
        self._model, self._graphs, self._steps = model, -1, 0
        self._live: list[dict[str, Any]] = []
        self._known: list[dict[str, Any]] = []
        self._parameters: list[Any] = []
        self._learn(name_modules(model))
        tracing.prepare()
        self._key = tracing.compiled.Key(attendant=self)
        self._removable = model.register_forward_pre_hook(_Attend(self), with_kwargs=True)
        agent.clock.step_listeners.append(self.step_ended)

    def remove(self) -> None:
        self._removable.remove()
        self._key.remove()
        self._agent.clock.step_listeners.remove(self.step_ended)
        self._live, self._known, self._parameters = [], [], []

    # --- each pass of the root

    def attend(self, root: Any, args: Any, kwargs: Any) -> None:
        """The root is called."""
        try:
            training = root.training
            signature = self._signature_of(args, kwargs)
            if training is self._last_training and signature == self._last_signature:
                return
            self._changed(training, signature, lambda: describe(args, kwargs, self._tensor_type, self._sizes))
        except Exception as error:
            self._agent.refuse(f"transitions: {error}")

    def attend_schema(self, training: bool, schema: str) -> None:
        """As `attend`, called by a compiled graph, which was compiled for one schema."""
        try:
            if training is not self._last_training or schema != self._last_signature:
                self._changed(training, schema, lambda: tracing.compiled.read_schema(schema))
        except Exception as error:
            self._agent.refuse(f"transitions: {error}")

    def _changed(self, training: bool, signature: Any, described: Callable[[], Schema]) -> None:
        mode, before = "train" if training else "eval", self._last_training
        self._last_training, self._last_signature = training, signature
        if before is not None and before != training:
            now, then = mode, "train" if before else "eval"
            self._report(mode, "train_eval", "root", then, now)
        seen = self._seen[mode]
        if signature in seen:
            return
        if len(seen) < SCHEMAS_MAX:
            seen.append(signature)
        schema = described()
        known = self._schemas.get(mode)
        self._schemas[mode] = schema
        if known is None:
            text = ", ".join(f"{path}: {what}" for path, what in schema.items())
            self._report(mode, "first", "inputs", "absent", text[:_TEXT_MAX] or "no inputs")
            return
        for path, then, now in schema_changes(known, schema):
            self._report(mode, "input_schema", path, then, now)

    # --- each step

    def step_ended(self) -> None:
        """Compares modules and parameters with their last known state, in large models only in some steps."""
        if self._agent.closed:
            return
        try:
            self._steps += 1
            if self._steps % self._modules_every == 0:
                self._check_modules()
            if self._steps % self._parameters_every == 0:
                self._check_gradients()
            self._check_graphs()
        except Exception as error:
            self._agent.refuse(f"transitions: {error}")

    def _learn(self, modules: list[Named]) -> None:
        self._modules = [(named.name, named.class_name) for named in modules]
        # The live dictionaries of children, and copies of their contents. Modules compare by identity.
        dictionaries = [parts.live_children(named.value) for named in modules]
        self._live = [children for children in dictionaries if children]
        self._leaves = [children for children in dictionaries if not children]
        self._known = [dict(children) for children in self._live]
        named_parameters: dict[int, tuple[str, Any]] = {}
        for named in modules:
            for key, parameter in parts.parameters(named.value):
                named_parameters.setdefault(id(parameter), (f"{named.name}.{key}", parameter))
        self._names = [name for name, _ in named_parameters.values()]
        self._parameters = [parameter for _, parameter in named_parameters.values()]
        self._gradients = list(map(_requires_grad, self._parameters))
        self._modules_every = 1 + len(modules) // MODULES_CHECKED_MAX
        self._parameters_every = 1 + len(self._parameters) // PARAMETERS_CHECKED_MAX

    def _check_modules(self) -> None:
        if self._live == self._known and not any(self._leaves):
            return
        before, others = dict(self._modules), self._replaced()
        gradients = dict(zip(self._names, self._gradients))
        modules = name_modules(self._model)
        self._learn(modules)
        changes = list(schema_changes(before, dict(self._modules)))
        changed = {name for name, _, _ in changes}
        alike = [named for named in modules if id(named.value) in others and named.name not in changed]
        for name, then, now in [*changes, *((named.name, named.class_name, f"another {named.class_name}") for named in alike)]:
            self._report(self._mode(), "modules", name, then, now)
        self._gradients = [gradients.get(name, now) for name, now in zip(self._names, self._gradients)]

    def _replaced(self) -> set[int]:
        """The modules that have taken the place of others."""
        pairs = zip(self._live, self._known)
        return {id(unwrap(child)) for now, then in pairs for key, child in now.items() if then.get(key) not in (None, child)}

    def _check_gradients(self) -> None:
        now = list(map(_requires_grad, self._parameters))
        if now == self._gradients:
            return
        before, self._gradients = self._gradients, now
        changed = [i for i, needed in enumerate(now) if needed != before[i]]
        first = self._names[changed[0]]
        element = first if len(changed) == 1 else f"{first} and {len(changed) - 1} more"
        self._report(self._mode(), "requires_grad", element, str(before[changed[0]]), str(now[changed[0]]))

    def _check_graphs(self) -> None:
        """Compares the number of graphs that torch.compile has made in this process. Those of the first step are not a transition."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            graphs = 0
        else:
            graphs = utils.counters["stats"]["unique_graphs"]
        if graphs == self._graphs:
            return
        before, self._graphs = self._graphs, graphs
        if before > 0:
            self._report(self._mode(), "recompilation", _why(utils), f"{before} graphs", f"{graphs} graphs")

    def _mode(self) -> str:
        return "eval" if self._last_training is False else "train"

    def _report(self, mode: str, reason: str, element: str, before: str, after: str) -> None:
        count = self._events[reason] = self._events.get(reason, 0) + 1
        if count > EVENTS_MAX + 1:
            return
        if count > EVENTS_MAX:
            self._agent.log_event(
                "graph_transition",
                f"further transitions ({reason}) are not reported; {EVENTS_MAX} were",
                {"mode": mode, "reason": reason, "element": "further ones are not reported"},
            )
            return
        text = f"{mode}, {reason}: {element} was {before}, is {after}" if reason != "first" else f"{mode}, first inputs: {after}"
        fields = {"mode": mode, "reason": reason, "element": element, "from": before[:_TEXT_MAX], "to": after[:_TEXT_MAX]}
        self._agent.log_event("graph_transition", text[: 2 * _TEXT_MAX], fields)


def _why(utils: Any) -> str:
    """Why torch compiled again, if it reports that (2.4 and later)."""
    try:
        reasons = [metrics.recompile_reason for metrics in utils.get_compilation_metrics() if metrics.recompile_reason]
        return str(reasons[-1]).replace("\n", " ")[:_TEXT_MAX] if reasons else "a graph"
    except Exception:
        return "a graph"


class _Attend:
    """The root's hook. Does nothing in copies and pickles of the module. Traced into a graph, it leaves an operator there."""

    def __init__(self, transitions: Transitions) -> None:
        self._attend, self._compiling = transitions.attend, transitions._compiling
        self._key = transitions._key.tensor

    def __call__(self, root: Any, args: Any, kwargs: Any) -> None:
        if tracing.active():
            tracing.compiled.trace_schema(self._key, root.training, args, kwargs)
        elif self._compiling is None or not self._compiling():
            self._attend(root, args, kwargs)

    def __reduce__(self) -> Any:
        return INERT_COPY
