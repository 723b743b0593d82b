"""Which modules hold the parameters of the program's optimizers, and what the program calls them."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

from .._layouts.sharded import wrapper_in
from .._torch import parts
from .._torch.modules import unwrap

_FRAMES_MAX = 40
_ITEMS_MAX = 64  # of a list or dictionary in which a model is looked for
_FOREIGN = ("torch.", "statagent.", "accelerate.", "lightning.", "transformers.", "deepspeed.")


@dataclass
class Root:
    """A module to watch, and the optimizers that have some of its parameters."""

    model: Any
    optimizers: list[Any] = field(default_factory=list)
    name: str = ""


def parameters_of(optimizer: Any) -> dict[int, Any]:
    """By id; none of an optimizer that is not complete yet, or of another kind."""
    try:
        return {id(each): each for group in optimizer.param_groups for each in group["params"]}
    except Exception:
        return {}


def holds(module: Any, optimizer: Any, own: set[int]) -> bool:
    """Whether the optimizer updates parameters of the module, whose ids are `own`; also where DeepSpeed has replaced them by its own."""
    return not own.isdisjoint(parameters_of(optimizer)) or wrapper_in(module, optimizer) is not None


def updates_made(optimizer: Any) -> int:
    """How many updates its state has seen, which a checkpoint brings back; 0 if the state does not count them."""
    with contextlib.suppress(Exception):
        counted = (state["step"] for state in optimizer.state.values() if "step" in state)
        return max(0, int(next(counted, 0)))
    return 0


def own_parameters(module: Any) -> set[int]:
    return {id(each) for each in parts.all_parameters(module)}


def outermost(optimizers: Iterable[Any]) -> list[Any]:
    """Without those that are inside of others, as in ZeroRedundancyOptimizer; but instead of one that passes everything on to one inside, as
    Accelerate's and Lookahead, that one: the outer one calls no hooks."""
    found = [each for each in optimizers if parameters_of(each)]
    inside: set[int] = set()
    for each in found:
        inner = [value for value in _values(_attributes(each)) if value is not each and any(value is other for other in found)]
        same = any(each.param_groups is value.param_groups for value in inner)
        passes_on = same or "_optimizer_step_pre_hooks" not in vars(each)
        inside.update([id(each)] if passes_on else map(id, inner))
    return [each for each in found if id(each) not in inside]


def find_roots(called: Any, optimizers: list[Any], frame: FrameType | None) -> list[Root]:
    """The modules to watch when `called` begins a training pass (None: another kind of pass has begun), in the order of their optimizers.
    `frame`: where it is called. Normally that is `called` alone: then nothing else is looked at."""
    called = None if called is None else _whole(called, {key for each in optimizers for key in parameters_of(each)}, frame)
    own = set() if called is None else own_parameters(called)
    mine = [each for each in optimizers if called is not None and holds(called, each, own)]
    if len(mine) == len(optimizers) and all(own.issuperset(parameters_of(each)) or wrapper_in(called, each) for each in mine):
        return [Root(called, mine)]
    known = _Modules()
    chosen: list[Any] = []
    if called is not None:
        needed = {key for each in mine if wrapper_in(called, each) is None for key in parameters_of(each)}
        whole = None if needed <= own else known.smallest_with(needed | own)  # the program calls parts of it
        chosen.append(called if whole is None else whole)
    for each in optimizers:
        chosen += known.cover(set(parameters_of(each)), chosen)
    roots = [Root(module) for module in chosen]
    for root in roots:
        ids = own_parameters(root.model)
        root.optimizers = [each for each in optimizers if holds(root.model, each, ids)]
    order = {id(each): place for place, each in enumerate(optimizers)}
    return sorted(roots, key=lambda root: min([order[id(each)] for each in root.optimizers], default=len(order)))


def _whole(called: Any, updated: set[int], frame: FrameType | None) -> Any:
    """The outermost module of the program's variables of which the one that is called is a part, if the optimizers update all that it trains:
    a program may call model.model and then model.lm_head. Else the one that is called."""
    own, found = own_parameters(called), called
    for value in {id(value): value for value in _values(list(_variables(frame))) if _is_module(value)}.values():
        if value is called or _count(value) <= _count(found) or all(part is not called for part in parts.all_modules(value)):
            continue
        if all(id(each) in updated or id(each) in own or not each.requires_grad for each in parts.all_parameters(value)):
            found = value
    return found


class _Modules:
    """All modules that are alive. Built only where the module that is called does not hold everything; then nothing keeps them."""

    def __init__(self) -> None:
        module = sys.modules["torch"].nn.Module
        self._all = [each for each in gc.get_objects() if issubclass(type(each), module)]
        self._own: dict[int, set[int]] = {}

    def _parameters(self, module: Any) -> set[int]:
        found = self._own.get(id(module))
        if found is None:
            try:
                found = own_parameters(module)
            except Exception:  # of a module that is not complete
                found = set()
            self._own[id(module)] = found
        return found

    def smallest_with(self, needed: set[int]) -> Any | None:
        """The outermost of the modules with the fewest parameters that have all of these."""
        found = [each for each in self._all if needed <= self._parameters(each)]
        return min(found, key=self._size) if found else None

    def cover(self, needed: set[int], taken: list[Any]) -> list[Any]:
        """Modules that share no parameters with those that are taken, and that have as many as possible of the needed ones."""
        used = {key for module in taken for key in self._parameters(module)}
        needed, found = needed - used, []
        while needed:
            fitting = [each for each in self._all if needed & self._parameters(each) and not used & self._parameters(each)]
            if not fitting:
                break
            best = min(fitting, key=lambda each: (-len(needed & self._parameters(each)), *self._size(each)))
            found.append(best)
            used |= self._parameters(best)
            needed -= used
        return found

    def _size(self, module: Any) -> tuple[int, int]:
        return len(self._parameters(module)), -_count(module)


def _count(module: Any) -> int:
    return sum(1 for _ in parts.all_modules(module))


# --- names -----------------------------------------------------------------------------------------------------------------


def name_roots(roots: list[Root], taken: Iterable[str], frame: FrameType | None) -> None:
    """Gives each root the name of the variable or attribute of one that holds it, as seen from the frame outwards; else model, model_2, ..."""
    used = set(taken)
    for root in roots:
        wanted = _variable_of(root.model, frame) or "model"
        name, number = wanted, 2
        while name in used:
            name, number = f"{wanted}_{number}", number + 1
        used.add(name)
        root.name = name


def variable_of(value: Any, frame: FrameType | None) -> str:
    """The local variable of the innermost frame of the program that holds the object; "" if none does."""
    for each in _frames(frame):
        for name, found in list(each.f_locals.items()):
            if found is value and name != "self":
                return name
    return ""


def _variable_of(model: Any, frame: FrameType | None) -> str:
    inner = unwrap(model)
    for each in _frames(frame):
        names = list(each.f_locals.items())
        if each.f_locals is not each.f_globals:
            names += [item for item in each.f_globals.items() if _is_module(item[1])]
        for name, value in names:
            if name != "self" and _is(value, inner):
                return name
        owners = [value for _, value in names if value is not inner and not isinstance(value, (type, ModuleType))]
        for owner in sorted(owners, key=lambda value: value is not each.f_locals.get("self")):
            for name, value in _attributes(owner):
                if _is(value, inner):
                    return name.lstrip("_")
        for name, value in names:
            for key, item in _items(value):
                if _is(item, inner):
                    return key if isinstance(key, str) else f"{name}_{key}"
    return ""


def reachable_modules(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Modules in variables of the program and in attributes and short lists of those, as seen from the frame outwards, with their names."""
    for each in _frames(frame):
        variables = list(each.f_locals.items())
        if each.f_locals is not each.f_globals:
            variables += each.f_globals.items()
        for name, value in variables:
            if _is_module(value):
                yield ("" if name == "self" else name), value
            elif not isinstance(value, (type, ModuleType)):
                inside = [(f"{name}_{key}", item) for key, item in _items(value)]
                for key, item in _attributes(value):
                    place = key.lstrip("_") if name == "self" else f"{name}.{key.lstrip('_')}"
                    inside += [(place, item), *((f"{place}_{index}", part) for index, part in _items(item))]
                yield from (found for found in inside if _is_module(found[1]))


def _variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Those of the frame and the ones around it, and the attributes of what their methods belong to."""
    for each in _frames(frame):
        yield from list(each.f_locals.items())
        yield from _attributes(each.f_locals.get("self"))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Frames of the program itself, innermost first."""
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        module = str(frame.f_globals.get("__name__", ""))
        if not f"{module}.".startswith(_FOREIGN):
            yield frame
        frame = frame.f_back


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    with contextlib.suppress(Exception):
        found = list(vars(owner).items())
        found += list(vars(owner).get("_modules", {}).items())
    return found


def _items(value: Any) -> list[tuple[Any, Any]]:
    if type(value) is dict and len(value) <= _ITEMS_MAX:
        return list(value.items())
    return list(enumerate(value)) if type(value) in (list, tuple) and len(value) <= _ITEMS_MAX else []


def _values(attributes: list[tuple[str, Any]]) -> Iterator[Any]:
    for _, value in attributes:
        yield value
        yield from (item for _, item in _items(value))


def _is_module(value: Any) -> bool:
    return issubclass(type(value), sys.modules["torch"].nn.Module)


def _is(value: Any, inner: Any) -> bool:
    return _is_module(value) and unwrap(value) is inner
