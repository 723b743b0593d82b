"""Records every operator that torch dispatches in one call of a module, or another part of a step: its results as observations, everything else as lines of a document."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._native.tensors import capturing
from .._runtime.agent import Agent
from .._torch.modules import Named
from .._torch.passing import passes_on, passing_on
from ..flatten import flatten
from .random_states import state_of_generator
from .zoom_lines import escaped, line, tensor_text, value_text

WRITTEN = "memory written before"  # the label of a tensor of which no more is known
OPERATORS_MAX = 10_000  # of a step
BYTES_MAX = 4 << 20  # of a step's documents
KIND = "operator"

_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "bool": "bool", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """An operator that has been recorded."""

    sequence: int  # number of the node of the graph that it has, or of the last node before it
    name: str
    place: str
    function: str


class Budget:
    """What a step may still record, over all zoomed calls."""

    def __init__(self) -> None:
        self.operators, self.bytes, self.left_out = OPERATORS_MAX, BYTES_MAX, 0

    def take(self, size: int) -> None:
        self.operators -= 1
        self.bytes -= size

    def spent(self) -> bool:
        return self.operators <= 0 or self.bytes <= 0


class Operators:
    """One call of a module, or another part of a step: the operators so far. Used within that call, by the thread that runs it.

    A tensor is identified by its storage, its place in it, and how often operators of this call have written to that storage. So views,
    in-place results and tensors that are used again keep their identity. Storages are not kept alive, but their addresses are not reused."""

    def __init__(
        self, agent: Agent, named: Named, phase: str, micro_batch: int, call: int, budget: Budget, before: Operators | None = None
    ) -> None:  # fmt: skip
        """`before`: the forward pass whose backward pass this is."""
        torch: Any = sys.modules["torch"]
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self.agent, self.named, self.budget = agent, named, budget
        self.phase, self.micro_batch, self.call = phase, micro_batch, call
        self._prefix = f"{named.name}/" if phase == "forward" else f"{named.name}/{phase} "
        self.lines: list[str] = []
        self.count, self.left_out = 0, 0
        self.origins: list[Origin] = []  # by number
        self.made: list[Any] = []  # weak references to results of a forward pass
        self._inputs = 0
        self._dtypes = {getattr(torch, name): short for name, short in _SHORT.items() if hasattr(torch, name)}
        self._torch_folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
        # Of what torch wraps around functions, a dispatch mode's among them.
        self._wrappers = tuple(os.path.join(self._torch_folder, each) for each in ("_dynamo", "_compile", "utils"))
        self._working_folder = os.path.join(os.getcwd(), "")
        self._before = before
        # By address of a storage: a weak reference that keeps the address from being used again, and writes by operators of this call.
        self._memories: dict[int, Any] = {} if before is None else before._memories
        self._writes: dict[int, int] = {} if before is None else before._writes
        self._labels: dict[int, str] = {} if before is None else before._labels  # what the module calls it
        self._known: dict[tuple[Any, ...], str] = {}  # identity of a tensor -> reference
        self._called: dict[tuple[Any, ...], str] = {}  # identity of a tensor from outside -> label
        self._labelled: dict[str, int] = {}  # how often a label has been given to a tensor from outside
        self._handed_on: dict[str, int] = {}  # and to one that is handed on
        self._files: dict[str, str | None] = {}  # name of a source -> as shown; None: of torch or the agent
        # Parts of storages, by address; only operators that use one of them are recorded.
        self._focus: dict[int, list[tuple[int, int]]] | None = None

    # --- what is around the call

    def is_outermost(self, frame: Any) -> bool:
        """Whether this frame, and those that called it, say nothing about where the operator is."""
        return False

    def is_repeated(self, source: str) -> bool:
        """Whether a function of this source repeats what has been recorded."""
        return False

    def place_of_torch(self, function: str) -> tuple[str, str]:
        """File and line, and function, where only torch's own functions are on the stack. `function`: the innermost one."""
        return "", ""

    def label(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Says what the module's inputs, parameters and buffers are called."""
        module = self.named.value
        given = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
        named = [(f"input {path}", tensor) for path, tensor in flatten(given)]
        named += [(key, value) for key, value in module.named_buffers()]
        named += [(key, value) for key, value in module.named_parameters()]
        self.name(named)

    def name(self, named: Iterable[tuple[str, Any]]) -> None:
        """Says what the memory of these tensors is called."""
        for name, tensor in named:
            try:
                self._labels[self._memory(tensor)] = name
            except Exception:  # tensors without memory of their own
                continue

    def concentrate(self, tensors: Iterable[Any]) -> None:
        """From now on only operators that use one of these, or what was computed of them, are recorded; of lists only their items."""
        self._focus = {}
        for tensor in tensors:
            self._add_to_focus(self._focus, tensor)

    def _add_to_focus(self, focus: dict[int, list[tuple[int, int]]], tensor: Any) -> None:
        with contextlib.suppress(Exception):  # sparse: what is computed of it is not followed
            focus.setdefault(self._memory(tensor), []).append(_extent(tensor))

    def _matters(self, tensor: Any) -> bool:
        try:
            parts = (self._focus or {}).get(self._memory(tensor), ())
            begin, end = _extent(tensor) if parts else (0, 0)
        except Exception:
            return False
        return any(begin < other_end and other_begin < end for other_begin, other_end in parts)

    def computed(self, tensor: Any) -> bool:
        """Whether an operator of the call has computed it."""
        return not self._known.get(self.identity(tensor), "&in").startswith("&in")

    def hand_on(self, label: str, tensor: Any) -> None:
        """The call hands this tensor on."""
        if not self.budget.spent():
            self._add(line("out", escaped(self._distinct(label, self._handed_on)), self._reference(tensor)))

    def come_in(self, label: str, tensor: Any, written: bool) -> None:
        """A tensor is handed to the call. `written`: into its memory, by nobody of this call, since the call computed it."""
        if written:
            self.count_write(tensor)
        identity = self.identity(tensor)
        if identity not in self._known:
            self._called.setdefault(identity, label)  # nodes that only pass it on have called it nothing else

    def count_write(self, tensor: Any) -> None:
        memory = self._memory(tensor)
        self._writes[memory] = self._writes.get(memory, 0) + 1

    # --- one operator

    @passes_on
    def run(self, function: Any, args: Any, kwargs: Mapping[str, Any], frame: Any) -> Any:
        """Calls the operator and records it. `frame`: of what calls it. Raises only what the operator raises."""
        chosen = None
        try:
            place = self._place(frame)
            chosen = _Chosen(args, kwargs) if place is None or self._focus is None else self._concerned(args, kwargs)
        except Exception as error:
            self._refuse(function, error)
            place = None
        if place is None or chosen is None:
            return function(*args, **kwargs)
        if self.budget.spent():
            self.left_out += 1
            self.budget.left_out += 1
            return function(*args, **kwargs)
        try:
            arguments, written = self._arguments(function, chosen.args, chosen.kwargs)
            before = self._random_state(function, args, kwargs)
        except Exception as error:
            self._refuse(function, error)
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        try:
            after = self._random_state(function, args, kwargs)
            for tensor in written:
                self.count_write(tensor)
            drawn = "" if before is None or before == after else f"{before:016x}-{after:016x}"
            if chosen.size:
                place = place[0], f"{place[1]}, of {chosen.size} at once".removeprefix(", ")
            self._note(_name(function), place, arguments, drawn, chosen.of(result), written, _is_view(function))
        except Exception as error:
            self._refuse(function, error)
        return result

    def _note(
        self, name: str, place: tuple[str, str], arguments: list[str], drawn: str, result: Any, written: list[Any], view: bool
    ) -> None:  # fmt: skip
        number = self.count
        self.count += 1
        self.origins.append(Origin(sequence_number() - 1, name, *place))
        results = [result] if not isinstance(result, (tuple, list)) else list(result)
        seen = {id(each) for each in results}
        results += [tensor for tensor in written if id(tensor) not in seen]
        if len(results) > 1:
            results = [each for each in results if each is not None]
        texts = []
        for index, each in enumerate(results):
            if isinstance(each, self._torch.Tensor):
                texts.append(tensor_text(each, self._dtypes))
                self._known[self.identity(each)] = f"&{number}.{index}"
                if not _is_uninitialised(name):
                    self._observe(f"#{number} {name}", str(index), each)
                if self._focus is not None:
                    self._add_to_focus(self._focus, each)
                if self.phase == "forward":
                    self.made.append(weakref.ref(each))
            else:
                texts.append(f"={value_text(each)}")
        flags = ("i" if written else "") + ("v" if view else "")
        self._add(line("op", str(number), escaped(name), flags, *place, drawn, ";".join(texts), *arguments))

    def _concerned(self, args: Any, kwargs: Mapping[str, Any]) -> _Chosen | None:
        """What of the arguments belongs to the tensors that matter; None: nothing."""
        torch = self._torch
        positions: set[int] = set()
        concerned, size = False, 0
        for value in (*args, *kwargs.values()):
            is_list = isinstance(value, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in value)
            for index, each in enumerate(value if is_list else (value,)):
                if isinstance(each, torch.Tensor) and self._matters(each):
                    concerned = True
                    if is_list:
                        positions.add(index)
                        size = len(value)
        return _Chosen(args, kwargs, sorted(positions), size) if concerned else None

    def _arguments(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
        """Texts of the arguments, and the tensors that the operator writes into."""
        texts: list[str] = []
        written: list[Any] = []
        schema = getattr(getattr(function, "_schema", None), "arguments", ())
        names = [each.name for each in schema]
        writes = {each.name for each in schema if each.alias_info is not None and each.alias_info.is_write}
        given = [(names[index] if index < len(names) else str(index), value) for index, value in enumerate(args)]
        for name, value in [*given, *kwargs.items()]:
            texts.append(f"{escaped(str(name))}^{self.text_of(value)}")
            if name in writes:
                written += [tensor for tensor in _items(value) if isinstance(tensor, self._torch.Tensor)]
        return texts, written

    def text_of(self, value: Any) -> str:
        """Of an argument: tensors by what they are known as."""
        if isinstance(value, self._torch.Tensor):
            return f"{self._reference(value)}:{tensor_text(value, self._dtypes)}"
        if isinstance(value, (list, tuple)) and any(isinstance(each, self._torch.Tensor) for each in value):
            return f"[{', '.join(self.text_of(each) for each in value)}]"
        return value_text(value)

    # --- tensors

    def _reference(self, tensor: Any) -> str:
        identity = self.identity(tensor)
        found = self._known.get(identity)
        if found is None:
            found = self._known[identity] = f"&in{self._inputs}"
            self._observe(f"in{self._inputs}", "0", tensor)
            label = self._distinct(self._label_of(identity), self._labelled)
            self._add(line("in", str(self._inputs), escaped(label), tensor_text(tensor, self._dtypes)))
            self._inputs += 1
        return found

    def _label_of(self, identity: tuple[Any, ...]) -> str:
        before = None if self._before is None else self._before._known.get(identity)
        if identity in self._called:
            return self._called[identity]
        if before is not None and self._before is not None and not before.startswith("&in"):
            number, _, index = before[1:].partition(".")
            of = self._before.origins[int(number)]
            return f"saved: {'' if index == '0' else f'result {index} of '}{of.name} {of.place}".rstrip()
        return self._labels.get(identity[0], "") if self._writes.get(identity[0], 0) == 0 else WRITTEN

    @staticmethod
    def _distinct(label: str, given: dict[str, int]) -> str:
        """Labels stand for one tensor each, but for those that say no more than that its memory was written."""
        if not label or label == WRITTEN:
            return label
        count = given[label] = given.get(label, 0) + 1
        return label if count == 1 else f"{label} ({count})"

    def identity(self, tensor: Any) -> tuple[Any, ...]:
        try:
            memory = self._memory(tensor)
            tensor = _local(tensor)
            turned = bool(tensor.is_conj()), bool(tensor.is_neg())
            return (
                memory, self._writes.get(memory, 0), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, turned
            )  # fmt: skip
        except Exception:  # sparse, nested, or without memory of its own: told by the object, which is kept
            self._memories[id(tensor)] = tensor
            return (id(tensor), self._writes.get(id(tensor), 0))

    def _memory(self, tensor: Any) -> int:
        reference = self._weak(_local(tensor).untyped_storage())
        memory = int(reference.cdata)
        self._memories.setdefault(memory, reference)
        return memory

    def _observe(self, name: str, path: str, tensor: Any) -> None:
        named = self.named
        handle = self.agent.intern(
            f"{self._prefix}{name}",
            KIND,
            path,
            self.micro_batch,
            self.call,
            "train",
            named.name,
            named.class_name,
            named.depth + 1,
        )
        self.agent.observe_handle(handle, tensor)

    # --- what is around an operator

    def _place(self, frame: Any) -> tuple[str, str] | None:
        """File and line, and function, of the innermost frame that is of neither torch nor the agent; None if the operator is not to be
        recorded, because the agent calls it, or because it repeats what has been recorded."""
        found: tuple[str, str] | None = None
        innermost = ""
        while frame is not None and not self.is_outermost(frame):
            code = frame.f_code
            source = code.co_filename
            if source not in self._files:
                self._files[source] = self._shown(source)
            shown = self._files[source]
            if self.is_repeated(source):
                return None
            if found is None and shown is not None:
                found = f"{shown}:{frame.f_lineno or 0}", escaped(getattr(code, "co_qualname", code.co_name))
                if self.phase == "forward":
                    return found
            if found is None and source.startswith(_OWN_FOLDER) and code not in passing_on:
                return None
            if not innermost and not source.startswith(self._wrappers):
                innermost = code.co_name
            frame = frame.f_back
        return found or self.place_of_torch(innermost)

    def _shown(self, source: str) -> str | None:
        path = os.path.abspath(source) if not source.startswith("<") else source
        if path.startswith((_OWN_FOLDER, self._torch_folder)):
            return None
        if source.startswith("<") and ("torch" in source or "frozen" in source):
            return None
        if path.startswith(self._working_folder):
            path = path[len(self._working_folder) :]
        return escaped(path.replace(os.sep, "/"), 400)

    def _random_state(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> int | None:
        """The state of the generator from which the operator draws; None if it draws nothing, or nobody can tell."""
        torch = self._torch
        if torch.Tag.nondeterministic_seeded not in getattr(function, "tags", ()):
            return None
        generator = kwargs.get("generator")
        tensors = [tensor for value in (*args, *kwargs.values()) for tensor in _items(value) if isinstance(tensor, torch.Tensor)]
        device = torch.device(kwargs.get("device") or "cpu") if not tensors else tensors[0].device
        if device.type == "cuda" and capturing():
            return None
        return state_of_generator(torch, device, generator)

    def _add(self, text: str) -> None:
        self.budget.take(len(text) + 1)
        self.lines.append(text)

    def refuse_node(self, error: Exception) -> None:
        """What is around a node of the graph could not be recorded."""
        self.agent.refuse(f"backward pass in a zoom: {type(error).__name__}: {error}", self.named.name, KIND)

    def _refuse(self, function: Any, error: Exception) -> None:
        self.agent.refuse(f"operator {_name(function)} in a zoom: {type(error).__name__}: {error}", self.named.name, KIND)


def make_mode(operators: Operators) -> Any:
    """A dispatch mode that hands each operator over. In a process that was forked meanwhile it does nothing."""
    from torch.utils._python_dispatch import TorchDispatchMode

    process = os.getpid()

    class ZoomMode(TorchDispatchMode):
        @passes_on
        def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if os.getpid() != process:
                return function(*args, **(kwargs or {}))
            return operators.run(function, args, kwargs or {}, sys._getframe(1))

    return ZoomMode()


def push(mode: Any) -> None:
    """Enters a mode that need not be the last one to be left."""
    from torch.utils import _python_dispatch

    _python_dispatch._push_mode(mode)


def pop(mode: Any) -> None:
    """Leaves it, if this thread has it. Others that were entered since then stay."""
    from torch.utils import _python_dispatch

    if not any(each is mode for each in _python_dispatch._get_current_dispatch_mode_stack()):
        return
    above = []
    while (top := _python_dispatch._pop_mode()) is not mode:
        above.append(top)
    for each in reversed(above):
        _python_dispatch._push_mode(each)


def sequence_number() -> int:
    """That the next node of this thread's graph gets; 0 if torch does not say."""
    autograd = getattr(sys.modules["torch"]._C, "_autograd", None)
    ask = getattr(autograd, "_get_sequence_nr", None)
    return 0 if ask is None else int(ask())


def _local(tensor: Any) -> Any:
    """The part of a DTensor that this rank has, or the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def _extent(tensor: Any) -> tuple[int, int]:
    """Begin and end of the tensor in its storage, in bytes."""
    local = _local(tensor)
    size = local.element_size()
    begin = local.storage_offset() * size
    last = sum((length - 1) * stride for length, stride in zip(local.shape, local.stride()))
    return begin, begin + (last + 1) * size if local.numel() else begin


class _Chosen:
    """The arguments of an operator, or the items that matter of those that are lists of one size."""

    def __init__(self, args: Any, kwargs: Mapping[str, Any], positions: list[int] | None = None, size: int = 0) -> None:
        """`size`: 0 for all."""
        self._positions, self.size = positions or [], size
        self.args = [self.of(value) for value in args]
        self.kwargs = {name: self.of(value) for name, value in kwargs.items()}

    def of(self, value: Any) -> Any:
        if self.size and isinstance(value, (list, tuple)) and len(value) == self.size:
            return [value[position] for position in self._positions]
        return value


def _name(function: Any) -> str:
    return str(function).removesuffix(".default")


def _is_view(function: Any) -> bool:
    return bool(getattr(function, "is_view", False))


def _is_uninitialised(name: str) -> bool:
    """Whether the result has no values yet: aten.empty_like, aten.new_empty_strided."""
    return "empty" in name.split(".")[1 if "." in name else 0]


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)
