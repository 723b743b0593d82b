"""The configuration checklist: settings of a run that are recorded automatically.

`init` sends the process's part (environment.py), `watch` the settings of model and optimizers. Settings of modules are read from their
attributes, so that a norm's eps, an attention's scale or a replaced forward() is recorded no matter who set it. Modules whose paths differ
only in numbers share an entry ("module.blocks.*.ln1.eps"). The model is checked again from time to time: a changed setting emits an event
`setting_changed`, and the run's configuration gets the new value.

Nothing here raises into training, keeps a tensor or waits for a device."""

from __future__ import annotations

import hashlib
import inspect
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._runtime.agent import Agent
from .._runtime.callbacks import WeakList
from .._runtime.failures import redact
from .._torch import parts
from .._torch.modules import Named, name_modules
from .configuration import SETTINGS_MAX
from .environment import gpus, library_versions, random_state, read_each, text, torch_state

ENTRIES_MAX = 2000  # of one watch
HF_ENTRIES_MAX = 300
DISTINCT_SHOWN = 4  # values that one pattern's entry lists
GROUPS_SHOWN = 8  # parameter groups with entries of their own
PLACES_SHOWN = 16  # of a value
USUAL_PLACES = 2  # of the most frequent one: if it has more, they are the modules that no other value names
TIED_MAX = 50
CHANGES_MAX = 20  # events of changed settings a run
CHECK_EVERY = 1024  # steps, after the powers of two below
_TEXT_MAX = 120
_ITEMS_MAX = 8
_NO_SETTINGS = frozenset(("training", "call_super_init", "dump_patches", "T_destination"))
# Attributes that follow from how a module is cut over ranks, which runs of other layouts may do differently: that is recorded as parallel.*.
_OF_LAYOUT = re.compile(
    r".+_per_partition|(world|tp|cp|ep|dp|pp)_(size|rank)|vocab_(start|end)_index|allreduce_dgrad|expert_parallel|explicit_expert_comm"
    r"|num_local_experts|local_expert_indices"
)
_ACTIVATIONS = re.compile(r"(GELU|ReLU|SiLU|Swish|Mish|Tanh|Sigmoid|Softplus|ELU|SELU|CELU|GLU|Hardswish|Softmax|Activation)\w*$")
_KEY = re.compile(r"\w{1,40}$")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def pattern_of(name: str) -> str:
    """ "blocks.*.ln1" for "blocks.3.ln1"."""
    return _NUMBER.sub("*", name)


class Entries:
    """A bounded number of entries, most important first. Those that do not fit are counted and hashed."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self.found: dict[str, str] = {}
        self._max, self._left_out, self._digest = entries_max - 2, 0, hashlib.sha256()

    def add(self, key: str, value: Any) -> None:
        if key in self.found or len(self.found) < self._max:
            self.found[key] = value if isinstance(value, str) else text(value)
        else:
            self._left_out += 1
            self._digest.update(f"{key}={text(value)}\n".encode("utf-8", "replace"))

    def update(self, entries: Mapping[str, Any]) -> None:
        for key, value in entries.items():
            self.add(key, value)

    def result(self) -> dict[str, str]:
        if self._left_out:
            self.found["checklist.left_out"] = str(self._left_out)
            self.found["checklist.left_out.hash"] = self._digest.hexdigest()[:16]
        return self.found


# --- model -----------------------------------------------------------------------------------------------------------------


def model_checklist(model: Any) -> dict[str, str]:
    """Structure and settings of a torch module, which may be wrapped (DistributedDataParallel, FSDP, torch.compile)."""
    entries = Entries()
    modules = name_modules(model)
    for part in (_structure, _sizes, _tied, _frozen):
        _guarded(entries, part, modules)
    _guarded(entries, module_settings, modules)
    _guarded(entries, _hf_config, modules)
    return entries.result()


def _guarded(entries: Entries, part: Callable[[Any], Mapping[str, Any]], argument: Any) -> None:
    try:
        entries.update(part(argument))
    except Exception as error:
        entries.add(f"checklist.{part.__name__.strip('_')}", f"unknown: {type(error).__name__}")


def _structure(modules: list[Named]) -> dict[str, Any]:
    classes = Counter(named.class_name for named in modules)
    found: dict[str, Any] = {"model.class": modules[0].class_name, "model.modules": len(modules)}
    found["model.training"] = _training(modules[0].value)
    activations = {name: count for name, count in classes.items() if _ACTIVATIONS.search(name)}
    if activations:
        found["model.activations"] = _counted(activations)
    lengths: dict[str, list[tuple[str, str]]] = {}
    for named in modules:
        if _length(named):
            lengths.setdefault(pattern_of(named.name), []).append((named.name, text(_length(named))))
    found.update((f"model.layers.{pattern}", _summary(values)) for pattern, values in lengths.items())
    structure = "\n".join(f"{named.name} {named.class_name}" for named in modules)
    found["model.structure"] = hashlib.sha256(structure.encode("utf-8", "replace")).hexdigest()[:16]
    return found


def _length(named: Named) -> int | None:
    """The number of layers of a list of modules; None for other modules."""
    keys = [f"{key}" for key, _ in parts.children(named.value)]
    return len(keys) if len(keys) > 1 and all(key.isdecimal() for key in keys) else None


def _sizes(modules: list[Named]) -> dict[str, Any]:
    """Numbers of elements. Lazy parameters count as 0."""
    parameters = _distinct(modules, parts.parameters)
    elements: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    for parameter in parameters:
        elements[_dtype_text(parameter)] += _numel(parameter)
        devices[parameter.device.type] += 1
    buffers = _distinct(modules, parts.buffers)
    trainable = sum(_numel(parameter) for parameter in parameters if parameter.requires_grad)
    found: dict[str, Any] = {
        "model.parameters": sum(elements.values()),
        "model.parameters.tensors": len(parameters),
        "model.parameters.trainable": trainable,
        "model.parameters.frozen": sum(elements.values()) - trainable,
        "model.buffers": sum(map(_numel, buffers)),
    }
    if parameters:
        found["model.dtypes"] = _counted(elements)
        found["model.device"] = _counted(devices)
    return found


def _distinct(modules: Iterable[Named], tensors_of: Callable[[Any], list[tuple[Any, Any]]]) -> list[Any]:
    found: dict[int, Any] = {}
    for named in modules:
        for _, value in tensors_of(named.value):
            found.setdefault(id(value), value)
    return list(found.values())


def _numel(tensor: Any) -> int:
    try:
        return int(tensor.numel())
    except Exception:
        return 0


def _dtype_text(tensor: Any) -> str:
    return str(tensor.dtype).replace("torch.", "")


def _tied(modules: list[Named]) -> dict[str, str]:
    """Parameters that several modules share, as {"model.tied.tok.weight": "head.weight"}."""
    names: dict[int, list[str]] = {}
    for named in modules:
        for key, parameter in parts.parameters(named.value):
            names.setdefault(id(parameter), []).append(f"{named.name}.{key}")
    tied = [same for same in names.values() if len(same) > 1]
    found = {f"model.tied.{same[0]}": ", ".join(same[1:])[:_TEXT_MAX] for same in tied[:TIED_MAX]}
    if tied:
        found["model.tied"] = str(len(tied))
    return found


def _frozen(modules: list[Named]) -> dict[str, str]:
    """Patterns of parameters that include frozen ones."""
    found: dict[str, list[tuple[str, str]]] = {}
    for named in modules:
        for key, parameter in parts.parameters(named.value):
            name = f"{named.name}.{key}"
            found.setdefault(pattern_of(name), []).append((name, text(parameter.requires_grad)))
    frozen = {pattern: values for pattern, values in found.items() if any(value == "false" for _, value in values)}
    return {f"module.{pattern}.requires_grad": _summary(values) for pattern, values in frozen.items()}


# --- settings of modules ---------------------------------------------------------------------------------------------------


def module_settings(modules: list[Named]) -> dict[str, str]:
    """Class and simple attributes of each module, by pattern: {"module.blocks.*.ln1.eps": "1e-05"}. If modules of a pattern differ, the
    value is "1e-05 x 3; 0.001 (blocks.1.ln1)"; in parts of a Sequential it is "tanh (*.2); not set x 9"."""
    values: dict[tuple[str, str], list[tuple[str, str]]] = {}
    alike: dict[str, list[str]] = {}
    mixed = _mixed_patterns(modules)
    for named in modules:
        pattern = pattern_of(named.name)
        if pattern in mixed:
            pattern = named.name
        alike.setdefault(pattern, []).append(named.name)
        for name, value in _settings_of(named):
            values.setdefault((pattern, name), []).append((named.name, value))
    mode = text(_training(modules[0].value))  # said of modules only where some are in another mode
    values = {key: found for key, found in values.items() if key[1] != "training" or any(value != mode for _, value in found)}
    return {f"module.{pattern}.{name}": _summary(found, alike[pattern]) for (pattern, name), found in values.items()}


def _mixed_patterns(modules: list[Named]) -> set[str]:
    """Patterns whose modules have little in common: parts of a Sequential rather than repeated layers."""
    classes: dict[str, list[str]] = {}
    for named in modules:
        classes.setdefault(pattern_of(named.name), []).append(named.class_name)
    return {pattern for pattern, found in classes.items() if len(found) > 2 and 3 * len(set(found)) > 2 * len(found)}


def _settings_of(named: Named) -> Iterator[tuple[str, str]]:
    module = named.value
    yield "class", named.class_name
    yield "training", text(_training(module))
    dtypes = {_dtype_text(parameter) for _, parameter in parts.parameters(module)}
    if dtypes:
        yield "dtype", ", ".join(sorted(dtypes))
    numbers = {int(part) for part in named.name.split(".") if part.isdecimal()}
    for name, value in list(vars(module).items()):
        if not isinstance(name, str):
            continue
        own_number = type(value) is int and name.endswith(("idx", "index", "id")) and value in numbers
        if name.startswith("_") or name in _NO_SETTINGS or own_number or _OF_LAYOUT.fullmatch(name):
            continue
        if _is_of_class(module, name, value):
            continue
        if type(value) is dict:
            yield from ((f"{name}[{key}]", found) for key, found in _numbers_by_name(value))
        elif (found := _setting(value)) is not None:
            yield name, found


def _is_of_class(module: Any, name: str, value: Any) -> bool:
    """Whether a function is the one that the class has under this name, as a trainer puts it back, or torch.compile replaces it."""
    if not isinstance(value, (types.FunctionType, types.MethodType)):
        return False
    original = inspect.unwrap(value) if hasattr(value, "_torchdynamo_orig_callable") else value
    return getattr(original, "__func__", original) is getattr(type(module), name, None)


def _numbers_by_name(value: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    """Numbers and switches that a module has for each part of it, such as PEFT's for each adapter: scaling = {"default": 2.0}."""
    for key, item in list(value.items())[:_ITEMS_MAX]:
        if isinstance(key, str) and _KEY.match(key) and isinstance(item, (bool, int, float)):
            yield key, text(item)


def _training(module: Any) -> Any:
    try:
        return module.training
    except Exception:  # a property of the module's own
        return None


def _setting(value: Any) -> str | None:
    """A simple value or a function as text; None for other values."""
    try:
        return _simple(value)
    except Exception:  # an object that does not say what it is
        return None


def _simple(value: Any) -> str | None:
    if isinstance(value, (bool, int, float, str)) or value is None:
        return text(value)[:_TEXT_MAX]
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return f"function {getattr(value, '__qualname__', '?')}"[:_TEXT_MAX]
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value)
    short = isinstance(value, (tuple, list)) and len(value) <= _ITEMS_MAX
    if short and all(isinstance(item, (bool, int, float, str)) for item in value):
        return text(tuple(value))[:_TEXT_MAX]
    return None


def _summary(values: list[tuple[str, str]], group: Sequence[str] = ()) -> str:
    """The value if all agree. Otherwise each value with its places, but the most frequent one with its number of occurrences, so that
    it is known which module has which. Rare values beyond a limit are a hash. `group`: the names of all modules, also of those without."""
    places: dict[str, list[str]] = {}
    for name, value in values:
        places.setdefault(value, []).append(name)
    absent = max(0, len(group) - len(values))
    if len(places) == 1 and not absent:
        return next(iter(places))
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    usual = len(ordered[0][1]) > absent
    shown = []
    for index, (value, names) in enumerate(ordered[:DISTINCT_SHOWN]):
        found = _places(names, group, USUAL_PLACES if usual and index == 0 else PLACES_SHOWN)
        shown.append(f"{value} ({', '.join(found)})" if found else f"{value} x {len(names)}")
    if len(ordered) > DISTINCT_SHOWN:
        rest = hashlib.sha256(repr(values).encode("utf-8", "replace")).hexdigest()[:8]
        shown.append(f"{len(ordered) - DISTINCT_SHOWN} more values, hash {rest}")
    if absent:
        shown.append(f"not set x {absent}")
    return "; ".join(shown)


def _places(names: list[str], group: Sequence[str], limit: int) -> list[str]:
    """The names, or patterns such as "*.2" if these are all names of the group that match; empty if there are more than `limit`."""
    if len(names) <= USUAL_PLACES:
        return names
    all_parts = [name.split(".") for name in group]
    for at in range(len(names[0].split("."))):
        numbers = {name.split(".")[at] for name in names}
        if len(numbers) <= USUAL_PLACES and sum(parts[at] in numbers for parts in all_parts) == len(names):
            patterns = {pattern_of(".".join([*parts[:at], "=", *parts[at + 1 :]])).replace("=", parts[at]) for parts in all_parts}
            return sorted(pattern for pattern in patterns if pattern.split(".")[at] in numbers)
    return names if len(names) <= limit else []


def _counted(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(f"{name} x {count}" for name, count in counts.items()))
    return ", ".join(f"{name} x {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _hf_config(modules: list[Named]) -> dict[str, str]:
    """The root's `config`, an attribute of Hugging Face's models, as {"model.config.hidden_size": "768"}."""
    config: Any = getattr(modules[0].value, "config", None)
    content = config.to_dict() if callable(getattr(config, "to_dict", None)) else None
    if not isinstance(content, dict):
        return {}
    found: dict[str, str] = {}

    def visit(key: str, value: Any, depth: int) -> None:
        if len(found) >= HF_ENTRIES_MAX or depth > 4:
            return
        if isinstance(value, dict) and value:
            for name, child in value.items():
                if not str(name).startswith(("base_model_", "label2id", "id2label", "_commit_hash", "transformers_version")):
                    visit(f"{key}.{name}", child, depth + 1)
        else:
            found[key] = text(value)[:_TEXT_MAX]

    attention = getattr(config, "_attn_implementation", None)  # not in to_dict()
    if attention is not None:
        found["model.config._attn_implementation"] = text(attention)
    visit("model.config", content, 0)
    return found


# --- optimizers ------------------------------------------------------------------------------------------------------------


def optimizer_checklist(optimizers: list[Any]) -> dict[str, str]:
    """Class and settings of every parameter group: {"optimizer.group0.lr": "0.001"}. With several optimizers: "optimizer.1.group0.lr"."""
    entries = Entries()
    for index, optimizer in enumerate(optimizers):
        prefix = "optimizer" if len(optimizers) == 1 else f"optimizer.{index}"
        try:
            entries.update(_optimizer(prefix, optimizer))
        except Exception as error:
            entries.add(f"checklist.{prefix}", f"unknown: {type(error).__name__}")
    return entries.result()


def _optimizer(prefix: str, optimizer: Any) -> dict[str, str]:
    groups = optimizer.param_groups
    found = {
        f"{prefix}.class": type(optimizer).__name__,
        f"{prefix}.groups": str(len(groups)),
        f"{prefix}.parameters": str(sum(_numel(p) for group in groups for p in group["params"])),
    }
    settings: dict[str, list[tuple[str, str]]] = {}
    for index, group in enumerate(groups):
        name = f"group{index}" if len(groups) <= GROUPS_SHOWN else "group*"
        for key, value in group_settings(group):
            settings.setdefault(f"{prefix}.{name}.{key}", []).append((f"group{index}", value))
    found.update((key, _summary(values)) for key, values in settings.items())
    return found


def group_settings(group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings of a parameter group as text. Tensors are included only if they are on the CPU."""
    for key, value in group.items():
        if key == "params":
            yield "tensors", str(len(value))
            yield "elements", str(sum(map(_numel, value)))
            continue
        if getattr(value, "is_cpu", False) and _numel(value) == 1:
            value = value.item()
        found = _setting(value)
        if found is not None:
            yield str(key), found


# --- parallel layout -------------------------------------------------------------------------------------------------------


def _is_compiled(module: Any) -> bool:
    """By torch.compile(module), or module.compile()."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def parallel_checklist(model: Any) -> dict[str, str]:
    """The process group, and the wrapper of a model."""
    import torch

    found: dict[str, str] = {}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        found.update(
            read_each((("parallel.backend", distributed.get_backend), ("parallel.world_size", distributed.get_world_size)))
        )
    wrapper = type(model).__name__
    if compiled := sum(map(_is_compiled, parts.all_modules(model))):
        found["parallel.compiled"] = "true" if _is_compiled(model) else f"{compiled} {'module' if compiled == 1 else 'modules'}"
    if wrapper == "OptimizedModule":
        model = model._modules.get("_orig_mod", model)
        wrapper = type(model).__name__
    if wrapper in ("DistributedDataParallel", "DDP"):
        found["parallel.wrapper"] = wrapper
        found.update(_ddp(model))
    elif wrapper == "FullyShardedDataParallel":
        found["parallel.wrapper"] = wrapper
        found.update(_fsdp1(model))
    elif any(base.__name__ == "FSDPModule" for base in type(model).__mro__):
        found["parallel.wrapper"] = "fully_shard"
        found["parallel.fsdp"] = "true"
        found.update(_fsdp2(model))
    return found


def _ddp(model: Any) -> dict[str, str]:
    return read_each(
        (
            ("parallel.ddp.bucket_bytes", lambda: model.bucket_bytes_cap),
            ("parallel.ddp.find_unused_parameters", lambda: model.find_unused_parameters),
            ("parallel.ddp.static_graph", lambda: model.static_graph),
            ("parallel.ddp.gradient_as_bucket_view", lambda: model.gradient_as_bucket_view),
            ("parallel.ddp.broadcast_buffers", lambda: model.broadcast_buffers),
            ("parallel.ddp.mixed_precision", lambda: model.mixed_precision),
        )
    )


def _fsdp1(model: Any) -> dict[str, str]:
    return read_each(
        (
            ("parallel.sharding_strategy", lambda: model.sharding_strategy.name),
            ("parallel.fsdp1.mixed_precision", lambda: model.mixed_precision),
            ("parallel.fsdp1.cpu_offload", lambda: model.cpu_offload.offload_params),
            ("parallel.fsdp1.use_orig_params", lambda: model._use_orig_params),
            ("parallel.fsdp1.backward_prefetch", lambda: model.backward_prefetch.name),
            ("parallel.fsdp1.limit_all_gathers", lambda: model.limit_all_gathers),
        )
    )


def _fsdp2(model: Any) -> dict[str, str]:
    state = model._get_fsdp_state()
    group = state._fsdp_param_group
    return read_each(
        (
            ("parallel.fsdp2.mesh", lambda: f"{group.mesh_info.mesh.mesh_dim_names}: {tuple(group.mesh_info.mesh.shape)}"),
            ("parallel.fsdp2.mixed_precision", lambda: group.mp_policy),
            ("parallel.fsdp2.reshard_after_forward", lambda: group._reshard_after_forward),
            ("parallel.fsdp2.offload", lambda: type(group.offload_policy).__name__),
        )
    )


# --- sending ---------------------------------------------------------------------------------------------------------------


def send(agent: Agent, entries: Mapping[str, str]) -> None:
    """Sends new and changed entries, except those that the user has set."""
    settings = agent.settings
    new = {key: value for key, value in entries.items() if settings.get(key) != value and key not in agent.user_settings}
    room = max(0, SETTINGS_MAX - len(settings))
    sent = {key: value for index, (key, value) in enumerate(new.items()) if key in settings or index < room}
    settings.update(sent)
    if sent:
        agent.add_config(sent)


def send_model(agent: Agent, model: Any) -> None:
    """The checklist of a model as it is now. Never raises."""
    send(agent, {**model_checklist(model), **_safely(parallel_checklist, model), **_now(agent)})


def send_seeds(agent: Agent) -> None:
    """How the generators are seeded now. Call it before the first step draws from them. Never raises."""
    send(agent, _seeds(agent.settings))


class Checklist:
    """The checklist of one watch, and its changes. Threads: the training thread."""

    def __init__(self, agent: Agent, model: Any, optimizers: list[Any], name: str = "") -> None:
        self._agent, self._optimizers = agent, WeakList(optimizers)
        self._modules = name_modules(model)
        known = agent.settings if "model.class" not in agent.user_settings else {}
        self._name = name or self._name_beside(known.get("model.class"))
        self._steps = self._changes = 0
        self._restless: set[str] = set()  # settings that have changed once; further changes are not reported
        self._updated = False
        self._optimizer = optimizer_checklist(optimizers)
        found = {**model_checklist(model), **self._optimizer, **_safely(parallel_checklist, model)}
        self._settings = {key: value for key, value in found.items() if key.startswith("module.")}
        self._mode = text(_training(self._modules[0].value))  # of modules about which nothing else is said
        self._send({**{self._key(key): value for key, value in found.items()}, **_now(agent)})
        agent.clock.step_listeners.append(self.step_ended)
        agent.clock.flush_listeners.append(self.look_again)

    def remove(self) -> None:
        self._agent.clock.step_listeners.remove(self.step_ended)
        self._agent.clock.flush_listeners.remove(self.look_again)

    def before_update(self, _: Any = None) -> None:
        """An optimizer is about to make an update. Before the first one its settings are read again."""
        if self._updated:
            return
        self._updated = True
        found = optimizer_checklist(list(self._optimizers))
        self._send({self._key(key): value for key, value in found.items() if self._optimizer.get(key) != value})

    def step_ended(self) -> None:
        """Checks the modules after 1, 2, 4, ... steps, and every CHECK_EVERY."""
        self._steps += 1
        if self._steps & (self._steps - 1) == 0 or self._steps % CHECK_EVERY == 0:
            self.look_again()

    def look_again(self) -> None:
        """Reports changed settings. A setting without an event is not sent either: `diff` would assume that the run had it from its start.
        Cost: one pass over the attributes of all modules. Never raises."""
        if self._changes >= CHANGES_MAX or self._agent.closed:
            return
        found = _safely(module_settings, self._modules)
        changed = {key: value for key, value in found.items() if self._settings.get(key) != value and key not in self._restless}
        changed = dict(list(changed.items())[: CHANGES_MAX - self._changes])
        self._restless.update(changed)
        for key in changed:
            self._changes += 1
            before = self._settings.get(key, self._mode if key.endswith(".training") else "not set")
            before, now = redact(key, before), redact(key, changed[key])
            self._agent.log_event(
                "setting_changed",
                f"{self._key(key)} was {before} and is {now}, as found at step {self._agent.current_step()}",
                {"key": self._key(key), "from": before, "to": now},
            )
        self._settings.update(found)
        self._mode = text(_training(self._modules[0].value))
        self._send({self._key(key): value for key, value in changed.items()})

    def _name_beside(self, other: str | None) -> str:
        """The class that a second model's keys contain; "" if the model has the first one's class, so that it replaces its entries."""
        own = self._modules[0].class_name
        return "" if other in (None, own) else own

    def _key(self, key: str) -> str:
        section, _, rest = key.partition(".")
        return f"{section}.{self._name}.{rest}" if self._name else key

    def _send(self, entries: Mapping[str, str]) -> None:
        send(self._agent, entries)


def _now(agent: Agent) -> dict[str, str]:
    """The part of the process's checklist that may have changed since init: switches, seeds, devices in use."""
    found: dict[str, str] = {}
    for part in (torch_state, library_versions, gpus):
        found.update(_safely(part))
    return {**found, **_seeds(agent.settings)}


def _seeds(known: Mapping[str, str]) -> dict[str, str]:
    """Seeds, and whether the program has set them. What was `known` before the generators drew numbers stands."""
    found = _safely(random_state)
    seeds = {key: value for key, value in found.items() if key.endswith(".seed") and value not in ("unknown", "none")}
    seeded = {key: value for key, value in found.items() if key.endswith(".seeded")}
    return {**seeds, **{key: value for key, value in seeded.items() if value != "unknown" or known.get(key) != "true"}}


def _safely(part: Callable[..., dict[str, str]], *arguments: Any) -> dict[str, str]:
    try:
        return part(*arguments)
    except Exception as error:
        return {f"checklist.{part.__name__}": f"unknown: {type(error).__name__}"}
