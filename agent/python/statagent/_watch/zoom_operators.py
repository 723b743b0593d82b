"""Records every operator that torch dispatches in one call of a module: its results as observations, everything else as lines of a document."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .._native.tensors import capturing
from .._runtime.agent import Agent
from .._torch.modules import Named
from ..flatten import flatten
from .random_states import state_of_generator
from .zoom_lines import escaped, line, tensor_text, value_text

OPERATORS_MAX = 10_000  # of a step
BYTES_MAX = 4 << 20  # of a step's documents
KIND = "operator"

_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "bool": "bool", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


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
    """One call of a module: the operators so far. Used within that call, by the thread that runs it.

    A tensor is identified by its storage, its place in it, and how often operators of this call have written to that storage. So views,
    in-place results and tensors that are used again keep their identity. Storages are not kept alive, but their addresses are not reused."""

    def __init__(self, agent: Agent, named: Named, micro_batch: int, call: int, budget: Budget) -> None:
        torch: Any = sys.modules["torch"]
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self._agent, self._named, self._budget = agent, named, budget
        self.micro_batch, self.call = micro_batch, call
        self.lines: list[str] = []
        self.count, self.left_out = 0, 0
        self._inputs = 0
        self._dtypes = {getattr(torch, name): short for name, short in _SHORT.items() if hasattr(torch, name)}
        self._torch_folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
        self._working_folder = os.path.join(os.getcwd(), "")
        self._memories: dict[int, Any] = {}  # address of a storage -> weak reference that keeps the address from being used again
        self._writes: dict[int, int] = {}  # address of a storage -> writes into it by operators of this call
        self._labels: dict[int, str] = {}  # address of a storage -> what the module calls it
        self._known: dict[tuple[Any, ...], str] = {}  # identity of a tensor -> reference
        self._files: dict[str, str | None] = {}  # name of a source -> as shown; None: of torch or the agent

    def label(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Says what the module's inputs, parameters and buffers are called."""
        module = self._named.value
        given = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
        named = [(f"input {path}", tensor) for path, tensor in flatten(given)]
        named += [(key, value) for key, value in module.named_buffers()]
        named += [(key, value) for key, value in module.named_parameters()]
        for name, tensor in named:
            try:
                self._labels[self._memory(tensor)] = name
            except Exception:  # tensors without memory of their own
                continue

    # --- one operator

    def run(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Calls the operator and records it. Raises only what the operator raises."""
        place = self._place()
        if place is None or self._budget.spent():
            if place is not None:
                self.left_out += 1
                self._budget.left_out += 1
            return function(*args, **kwargs)
        try:
            arguments, written = self._arguments(function, args, kwargs)
            before = self._random_state(function, args, kwargs)
        except Exception as error:
            self._refuse(function, error)
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        try:
            after = self._random_state(function, args, kwargs)
            for tensor in written:
                memory = self._memory(tensor)
                self._writes[memory] = self._writes.get(memory, 0) + 1
            drawn = "" if before is None or before == after else f"{before:016x}-{after:016x}"
            self._note(function, place, arguments, drawn, result, bool(written))
        except Exception as error:
            self._refuse(function, error)
        return result

    def _note(self, function: Any, place: tuple[str, str], arguments: list[str], drawn: str, result: Any, in_place: bool) -> None:
        number, name = self.count, _name(function)
        self.count += 1
        results = [result] if not isinstance(result, (tuple, list)) else list(result)
        texts = []
        for index, each in enumerate(results):
            if isinstance(each, self._torch.Tensor):
                texts.append(tensor_text(each, self._dtypes))
                self._known[self._identity(each)] = f"&{number}.{index}"
                if not _is_uninitialised(name):
                    self._observe(f"#{number} {name}", str(index), each)
            else:
                texts.append(f"={value_text(each)}")
        flags = ("i" if in_place else "") + ("v" if _is_view(function) else "")
        self._add(line("op", str(number), escaped(name), flags, *place, drawn, ";".join(texts), *arguments))

    def _arguments(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
        """Texts of the arguments, and the tensors that the operator writes into."""
        texts: list[str] = []
        written: list[Any] = []
        schema = getattr(getattr(function, "_schema", None), "arguments", ())
        names = [each.name for each in schema]
        writes = {each.name for each in schema if each.alias_info is not None and each.alias_info.is_write}
        given = [(names[index] if index < len(names) else str(index), value) for index, value in enumerate(args)]
        for name, value in [*given, *kwargs.items()]:
            texts.append(f"{escaped(str(name))}^{self._value(value)}")
            if name in writes:
                written += [tensor for tensor in _items(value) if isinstance(tensor, self._torch.Tensor)]
        return texts, written

    def _value(self, value: Any) -> str:
        if isinstance(value, self._torch.Tensor):
            return f"{self._reference(value)}:{tensor_text(value, self._dtypes)}"
        if isinstance(value, (list, tuple)) and any(isinstance(each, self._torch.Tensor) for each in value):
            return f"[{', '.join(self._value(each) for each in value)}]"
        return value_text(value)

    # --- tensors

    def _reference(self, tensor: Any) -> str:
        identity = self._identity(tensor)
        found = self._known.get(identity)
        if found is None:
            found = self._known[identity] = f"&in{self._inputs}"
            label = self._labels.get(identity[0], "") if self._writes.get(identity[0], 0) == 0 else "memory written before"
            self._observe(f"in{self._inputs}", "0", tensor)
            self._add(line("in", str(self._inputs), escaped(label), tensor_text(tensor, self._dtypes)))
            self._inputs += 1
        return found

    def _identity(self, tensor: Any) -> tuple[Any, ...]:
        try:
            memory = self._memory(tensor)
            turned = bool(tensor.is_conj()), bool(tensor.is_neg())
            return (
                memory, self._writes.get(memory, 0), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, turned
            )  # fmt: skip
        except Exception:  # sparse, nested, or without memory of its own: told by the object, which is kept
            self._memories[id(tensor)] = tensor
            return (id(tensor), self._writes.get(id(tensor), 0))

    def _memory(self, tensor: Any) -> int:
        reference = self._weak(tensor.untyped_storage())
        memory = int(reference.cdata)
        self._memories.setdefault(memory, reference)
        return memory

    def _observe(self, name: str, path: str, tensor: Any) -> None:
        named = self._named
        handle = self._agent.intern(
            f"{named.name}/{name}",
            KIND,
            path,
            self.micro_batch,
            self.call,
            "train",
            named.name,
            named.class_name,
            named.depth + 1,
        )
        self._agent.observe_handle(handle, tensor)

    # --- what is around an operator

    def _place(self) -> tuple[str, str] | None:
        """File and line, and function, of the innermost frame that is of neither torch nor the agent; None if the agent calls the operator."""
        frame: Any = sys._getframe(2)
        skipped = frame.f_code  # of the dispatch mode
        while frame is not None and frame.f_code is skipped:
            frame = frame.f_back
        while frame is not None:
            source = frame.f_code.co_filename
            if source not in self._files:
                self._files[source] = self._shown(source)
            shown = self._files[source]
            if shown is not None:
                code = frame.f_code
                return f"{shown}:{frame.f_lineno or 0}", escaped(getattr(code, "co_qualname", code.co_name))
            if source.startswith(_OWN_FOLDER):
                return None
            frame = frame.f_back
        return "", ""

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
        self._budget.take(len(text) + 1)
        self.lines.append(text)

    def _refuse(self, function: Any, error: Exception) -> None:
        self._agent.refuse(f"operator {_name(function)} in a zoom: {type(error).__name__}: {error}", self._named.name, KIND)


def make_mode(operators: Operators) -> Any:
    """A dispatch mode that hands each operator over."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class ZoomMode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            return operators.run(function, args, kwargs or {})

    return ZoomMode()


def _name(function: Any) -> str:
    return str(function).removesuffix(".default")


def _is_view(function: Any) -> bool:
    return bool(getattr(function, "is_view", False))


def _is_uninitialised(name: str) -> bool:
    """Whether the result has no values yet: aten.empty_like, aten.new_empty_strided."""
    return "empty" in name.split(".")[1 if "." in name else 0]


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)
