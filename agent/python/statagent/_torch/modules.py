"""Names of a model's modules, parameters and buffers, and which of them are selected."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import InvalidArgumentError
from . import parts

# Attribute under which a wrapper keeps the module that it wraps.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_MODULE_WRAPPERS = frozenset(
    ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "DDP", "Float16Module")
)
_SHOWN_NAMES = 12

# What a hook becomes in a copy or pickle: a function of the standard library that accepts any arguments and returns None. So a model that
# was saved while it was watched can be loaded where this package is not installed.
INERT_COPY = (getattr, (contextlib.nullcontext(), "__exit__"))


@dataclass(frozen=True)
class Named:
    """A module, parameter or buffer under its name without wrapper prefixes."""

    name: str
    value: Any
    parent: str
    class_name: str
    depth: int  # the root is 1
    # The module that owns the parameter or buffer, and its name there.
    owner: Any = None
    key: Any = ""

    def current(self) -> Any:
        """The parameter that the module has now; `value` if it has none now (a wrapper may keep it elsewhere for a while)."""
        try:
            found = self.owner._parameters[self.key]
        except (KeyError, AttributeError):
            return self.value
        return self.value if found is None else found


def _wrapped_attribute(module: Any) -> str | None:
    children = dict(parts.children(module))
    for attribute in _WRAPPED:
        if attribute in children:
            return attribute
    return "module" if "module" in children and type(module).__name__ in _MODULE_WRAPPERS else None


def unwrap(module: Any) -> Any:
    """The module inside torch.compile, DistributedDataParallel, FSDP and checkpoint wrappers."""
    attribute = _wrapped_attribute(module)
    while attribute is not None:
        module = module._modules[attribute]
        attribute = _wrapped_attribute(module)
    return module


def has_forward(module: Any) -> bool:
    """Whether it may be called. Not a ModuleList or ModuleDict, which only hold others."""
    from torch.nn import Module

    defined = {name: next(base for base in type(module).__mro__ if name in vars(base)) for name in ("forward", "__call__")}
    return any(base is not Module for base in defined.values()) or "forward" in vars(module)


def class_name(module: Any) -> str:
    """The class as the user wrote it: `fully_shard` and similar functions replace it with a class derived from their own and the module's."""
    made = type(module)
    bases = made.__bases__
    if len(bases) == 2 and bases[0].__module__.startswith("torch.distributed") and made.__name__.endswith(bases[1].__name__):
        made = bases[1]
    return str(made.__name__)


def sharding(model: Any) -> dict[str, str]:
    """Settings that describe how parameters are sharded over ranks; {} if each rank has whole parameters. This rank's shards are
    recorded. `statctl ranks` does not compare the weights of a run with a setting `fsdp`."""
    found: dict[str, str] = {}
    for module in parts.all_modules(model):
        classes = {base.__name__ for base in type(module).__mro__ if base.__module__.startswith("torch.distributed")}
        if "FullyShardedDataParallel" in classes:
            found["parallel.fsdp"] = "FullyShardedDataParallel"
        elif "FSDPModule" in classes:
            found["parallel.fsdp"] = "fully_shard"
        elif type(module).__name__ == "DeepSpeedEngine" and callable(getattr(module, "zero_optimization_stage", None)):
            found["parallel.zero_stage"] = f"{module.zero_optimization_stage()}"
    parameters = parts.all_parameters(model)
    shards = sum(hasattr(parameter, "to_local") for parameter in parameters)
    if shards:
        found["parallel.sharded_parameters"] = f"{shards} of {len(parameters)}"
    return found


def name_modules(model: Any, prefix: str = "", keys: Mapping[int, str] | None = None) -> list[Named]:
    """All modules except wrappers, each once, parents first. The root's name is `prefix`, which then also prefixes its children's names;
    without a prefix it is the root's class. `keys`: of modules, by id, that are not called as their parent calls them."""
    known = keys or {}
    root = unwrap(model)
    found: list[Named] = []
    seen: set[int] = set()
    taken: set[str] = set()

    def visit(module: Any, path: str, raw: str, parent: str, depth: int) -> None:
        module = unwrap(module)
        if id(module) in seen:
            return
        seen.add(id(module))
        name = path or class_name(module)
        if name in taken:
            name = raw
        taken.add(name)
        found.append(Named(name, module, parent, class_name(module), depth))
        for key, child in parts.children(module):
            shown = known.get(id(child), f"{key}")
            visit(child, f"{path}.{shown}" if path else shown, f"{raw}.{shown}", name, depth + 1)

    visit(root, prefix, prefix or class_name(root), "", 1)
    return found


def name_parameters(modules: Iterable[Named], prefix: str = "") -> list[Named]:
    """All parameters, under the name of the first module that has them. Tied ones appear once."""
    found: list[Named] = []
    seen: set[int] = set()
    for module in modules:
        base = "" if module.depth == 1 and not prefix else module.name
        for key, parameter in parts.parameters(module.value):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                name = f"{base}.{key}" if base else f"{key}"
                at = module.depth + 1
                found.append(Named(name, parameter, module.name, type(parameter).__name__, at, module.value, key))
    return found


def name_buffers(modules: Iterable[Named], prefix: str = "") -> list[Named]:
    """All buffers except counters, under the name of the first module that has them. Shared ones appear once."""
    found: list[Named] = []
    seen: set[int] = set()
    for module in modules:
        base = "" if module.depth == 1 and not prefix else module.name
        if is_script(module.value):  # its tensors are new objects at each access
            continue
        for key, buffer in parts.buffers(module.value):
            if id(buffer) in seen or is_counter(buffer):
                continue
            seen.add(id(buffer))
            name = f"{base}.{key}" if base else f"{key}"
            found.append(Named(name, buffer, module.name, type(buffer).__name__, module.depth + 1, module.value, key))
    return found


def is_counter(buffer: Any) -> bool:
    """Whether a buffer is a single whole number, such as num_batches_tracked."""
    try:
        return buffer is not None and buffer.dim() == 0 and not buffer.is_floating_point() and not buffer.is_complex()
    except Exception:  # of a lazy module, not initialised yet, or of a class of its own
        return False


def is_script(module: Any) -> bool:
    """Whether the module is TorchScript, scripted or traced."""
    return isinstance(module, sys.modules["torch"].jit.ScriptModule)


class Selection:
    """Include and exclude patterns, as in the shell ("blocks.*.ln1"). A pattern for a module also applies to its parameters."""

    def __init__(self, include: Iterable[str] | None, exclude: Iterable[str] | None) -> None:
        self._include, self._exclude = _patterns("include", include), _patterns("exclude", exclude)

    @property
    def include(self) -> list[str]:
        return self._include or []

    @property
    def exclude(self) -> list[str]:
        return self._exclude or []

    def check(self, names: list[str]) -> None:
        """Raises InvalidArgumentError for an include pattern that matches none of the names."""
        for pattern in self._include or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = ", ".join(names[:_SHOWN_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN_NAMES else "")
                raise InvalidArgumentError(
                    f"watch: include pattern '{pattern}' matches nothing; expected one that matches some of: {shown}"
                )

    def module(self, named: Named) -> bool:
        return self._wanted(named.name)

    def parameter(self, named: Named) -> bool:
        return self._wanted(named.name, named.parent)

    def _wanted(self, *names: str) -> bool:
        def matches(patterns: list[str]) -> bool:
            return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

        return (self._include is None or matches(self._include)) and not matches(self._exclude or [])


def _patterns(what: str, patterns: Iterable[str] | None) -> list[str] | None:
    if patterns is None:
        return None
    found = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Iterable) else list(patterns)
    for pattern in found:
        if not isinstance(pattern, str) or not pattern:
            raise InvalidArgumentError(f"watch: {what} holds {pattern!r}; expected patterns of module names, as 'blocks.*.ln1'")
    return found
