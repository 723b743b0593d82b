"""`watch`: records what a torch model computes, the gradients of that, its weights and its optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._compile import tracing
from ._layouts import experts, megatron
from ._layouts.experts import Experts
from ._layouts.layouts import layouts_of
from ._layouts.sharded import Shards, Wrapper
from ._layouts.slices import name_originals
from ._runtime import by_hand, process
from ._runtime.agent import Agent
from ._runtime.current import current_agent
from ._runtime.log import warn_once
from ._runtime.messages import Model as ModelInWords
from ._settings.environment import text
from ._settings.recordings import report_recording
from ._torch.modules import (
    Named,
    Selection,
    class_name,
    has_forward,
    name_buffers,
    name_modules,
    name_parameters,
    sharding,
    unwrap,
)
from ._torch.parts import children
from ._watch.arguments import (
    FORWARD_KINDS,
    KINDS,
    Kind,
    MemoryChoice,
    check_kinds,
    check_model,
    check_name,
    check_optimizers,
    check_routers,
    check_tokens,
    check_updates,
)
from ._watch.density import check_density
from ._watch.initial import record_initial
from ._watch.memory import check_memory
from ._watch.steps import Steps
from ._watch.training_scalars import check_scaler
from ._watch.watch import Attachment, Watch
from ._watch.zoom_spec import find_zooms
from .errors import StatagentError

if TYPE_CHECKING:
    import torch

    from ._watch.arguments import Model, OptimizerLike

__all__ = ["KINDS", "Kind", "MemoryChoice", "Watch", "watch"]


def watch(
    model: Model,
    optimizer: OptimizerLike | Sequence[OptimizerLike] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    kinds: Kind | Iterable[Kind] | None = None,
    steps: str | None = None,
    eval: bool = False,  # noqa: A002 (the name that users know)
    name: str = "",
    memory: bool | MemoryChoice | Iterable[MemoryChoice] = True,
    density: bool | Mapping[str, int] = True,
    fingerprints: bool = True,
    parameter_steps: str | None = None,
    scaler: torch.amp.GradScaler | None = None,
    input_sizes: bool = False,
    updates: str | None = None,
    random_states: bool = True,
    between: bool = False,
    layouts: Mapping[str, Any] | None = None,
    tokens: bool | str = False,
    routers: Mapping[str, int] | None = None,
) -> Watch:
    """Records what a torch module computes, from now on. Returns a Watch, whose `remove()` ends that.

    Also records the composition of the model and optimizers (configuration), changes of inputs, modules and modes (events
    `graph_transition`, `setting_changed`), and learning rates (scalars). The cost is one pass over each tensor that is recorded.

    optimizer: one or several. Their update ends the step; with several, the last one's.
    include, exclude: patterns of module names, such as "blocks.*.ln1".
    kinds: output, input, grad_output, grad_input, weight, buffer, and with an optimizer weight_grad and optimizer_state. Default:
    output, grad_output, buffer and the initial weights; with an optimizer also the updated weights, weight_grad and optimizer_state.
    steps: the steps to record, as "0-9,20,100-" or "0-99,every=10"; default: all.
    parameter_steps: of those, the steps in which weights, their gradients and the optimizer's state are recorded.
    eval: True also records passes in evaluation mode or without gradients.
    name: a prefix that distinguishes two models.
    memory: memory in bytes at each phase of the step; "modules" adds what each module allocates, "peaks" the maximum within each step.
    density: the fraction of each input that is not padding, if the model or loss defines a padding index; or {"input_ids": 0}.
    fingerprints: record the model's inputs as kind `batch`, unless log_batch does.
    scaler: a GradScaler whose scale and skipped updates become scalars.
    input_sizes: a changed size of an input counts as a graph transition.
    updates: steps in which the change of each weight by the update is recorded exactly (kind optimizer_state, path "update"). Needs a
    copy of the weights during such an update.
    random_states: fingerprints of the random generators, as scalars of each step.
    between: also record inputs that no watched module has returned, such as residual sums, as kind input.
    layouts: how tensors are cut over the ranks, where the model's own objects do not say so: {"*.qkv": statagent.shard(-1, group)}.
    Patterns are of modules, for their outputs, and of parameters; with statagent.batch and statagent.sequence also of the model's
    inputs. Several for one pattern are a tuple.
    tokens: True, or positions such as "0-63" or "0-1023,every=16": rows of a language model's layers under keys of their tokens, for a
    comparison with an engine that computes the same ones; also in evaluation mode and without gradients. Needs NumPy; docs/engines.md.
    With them the experts that routers choose for each token.
    routers: those that are not found by their structure, with how many experts they choose: {"*.gate": 2}.

    Raises InvalidArgumentError for an argument that cannot be used, and StatagentError if no agent is running."""
    by_hand.note()
    if process.disabled():
        return Watch()
    agent = _expect_running_agent()
    if agent.idle:
        return Watch()
    agent.setup_failed = True  # until nothing can raise any more
    check_model(model)
    check_name(name)
    (optimizers, wrappers), scaler = check_optimizers(optimizer, model), check_scaler(scaler)
    chosen = check_kinds(kinds, bool(optimizers))
    memory_choices, padding = check_memory(memory), check_density(density)
    selection = Selection(include, exclude)
    recorded_steps, recorded_parameters = Steps(steps, "steps"), Steps(parameter_steps, "parameter_steps")
    recorded_updates, zooms, chosen_tokens = check_updates(updates, bool(optimizers)), find_zooms(), check_tokens(tokens)
    between, given_routers = bool(between) and "input" not in chosen, check_routers(routers, chosen_tokens)
    tracing.prepare()
    attachment = Attachment(agent, unwrap(model))
    parts = attachment.attempt("its parts", _select, model, name, selection, chosen)
    if parts is None:
        agent.setup_failed = False
        return Watch()
    attempt = attachment.attempt
    shards = attempt("its shards", Shards, model, parts.all_parameters, wrappers, name) or Shards(model, [], [], name)
    places = attempt("its layouts", layouts_of, model, parts.all_modules, parts.all_parameters, layouts, parts.experts, shards)
    try:
        _claim(attachment, parts, chosen)
        attempt("layouts", attachment.place, places)
        attempt("noise", attachment.perturb, parts.all_modules, parts.all_parameters, places, shards, wrappers)
        attempt("passes of its parts", attachment.hook_parts, parts.all_modules)
        attempt("modules", attachment.hook_modules, parts.modules, chosen, between)
        attempt("buffers", attachment.observe_buffers, parts.buffers)
        attempt("the optimizer", attachment.hook_optimizers, optimizers, wrappers, parts.parameters, shards, chosen)
        attempt("memory", attachment.observe_memory, parts.modules, optimizers, memory_choices)
        attempt("inputs", attachment.observe_inputs, parts.all_parameters, padding, fingerprints)
        attachment.begin(eval, recorded_steps, recorded_parameters)
        attachment.accompany(model, optimizers, name, scaler, input_sizes)
        attachment.record_updates(recorded_updates)
        if random_states:
            attachment.log_random_states()
        if zooms:
            attempt("zooms", attachment.zoom, parts.all_modules, parts.all_parameters, zooms)
        if chosen_tokens is not None:
            attempt("tokens", attachment.record_tokens, parts.all_modules, chosen_tokens, recorded_steps, given_routers)
    except BaseException:
        attachment.hooks.remove()
        raise
    agent.setup_failed = False
    agent.add_config(attempt("how it is sharded", _sharding, model, parts.experts, wrappers) or {})
    requested = {
        "kinds": ", ".join(sorted(chosen)), "include": ", ".join(selection.include), "exclude": ", ".join(selection.exclude),
        "steps": steps or "", "parameter_steps": parameter_steps or "", "updates": updates or "", "eval": text(bool(eval)),
        "between": text(between), "optimizer": text(bool(optimizers)), "tokens": "" if tokens is False else text(tokens),
    }  # fmt: skip
    agent.messages.add(_in_words(name, model, parts, optimizers))
    report_recording(agent, name, {option: value for option, value in requested.items() if value})
    attempt("weights at the start", _record_initial_values, agent, parts, shards, chosen)
    attempt("parameters", _report_foreign_parameters, agent, optimizers, parts.all_parameters, shards)
    attempt("graphs", tracing.compiled.forget_graphs, parts.all_modules)
    return Watch(attachment.hooks)


def _in_words(name: str, model: Any, parts: _Parts, optimizers: list[Any]) -> ModelInWords:
    layers = sum(not children(named.value) for named in parts.all_modules)
    elements = sum(getattr(named.value, "ds_numel", None) or _elements(named.value) for named in parts.all_parameters)
    return ModelInWords(name, class_name(unwrap(model)), layers, elements, tuple(type(each).__name__ for each in optimizers))


def _elements(parameter: Any) -> int:
    try:
        return int(parameter.numel())
    except Exception:  # of a lazy module, not initialised yet
        return 0


def _sharding(model: Any, of_tokens: Experts, wrappers: list[Wrapper]) -> dict[str, str]:
    found = sharding(model) | of_tokens.settings() | (megatron.settings() if megatron.has_megatron(model) else {})
    for wrapper in wrappers:
        found |= wrapper.settings()
    return found


@dataclass(frozen=True)
class _Parts:
    """Parts of a model: all of them, and those that are selected."""

    experts: Experts
    all_modules: list[Named]
    all_parameters: list[Named]
    modules: list[Named]
    parameters: list[Named]
    buffers: list[Named]


def _select(model: Any, prefix: str, selection: Selection, kinds: frozenset[str]) -> _Parts:
    found = experts.find(model)
    all_modules = name_modules(model, prefix, found.keys)
    all_parameters = name_originals(model, all_modules, name_parameters(all_modules, prefix), prefix)
    all_buffers = name_buffers(all_modules, prefix)
    selection.check([named.name for named in [*all_modules, *all_parameters, *all_buffers]])
    ends = megatron.ends_of_stages(model)
    return _Parts(
        found,
        all_modules,
        all_parameters,
        [named for named in all_modules if selection.module(named) and has_forward(named.value) and id(named.value) not in ends],
        [named for named in all_parameters if selection.parameter(named)],
        [named for named in all_buffers if "buffer" in kinds and selection.parameter(named)],
    )


def _claim(attachment: Attachment, parts: _Parts, kinds: frozenset[str]) -> None:
    for named in parts.modules:
        attachment.claim(named, kinds.intersection(FORWARD_KINDS))
    for named in parts.parameters:
        attachment.claim(named, kinds.difference(FORWARD_KINDS, ("buffer",)))
    for named in parts.buffers:
        attachment.claim(named, ["buffer"])


def _expect_running_agent() -> Agent:
    agent = current_agent()
    if agent is None or not agent.running:
        found = "none" if agent is None else "one that is closed"
        raise StatagentError(f"watch: found {found} as this process's agent; expected a running one; call statagent.init() first")
    return agent


def _record_initial_values(agent: Agent, parts: _Parts, shards: Shards, kinds: frozenset[str]) -> None:
    if "weight" in kinds:
        record_initial(agent, [(named, shards.weight(named)) for named in parts.parameters], "weight")
    record_initial(agent, [(named, named.value) for named in parts.buffers], "buffer")


def _report_foreign_parameters(agent: Agent, optimizers: list[Any], parameters: list[Named], shards: Shards) -> None:
    known = {id(named.value) for named in parameters}
    updated = [parameter for each in optimizers for group in each.param_groups for parameter in group["params"]]
    known |= agent.known_elsewhere
    foreign = sum(id(parameter) not in known and not shards.in_tensor(parameter) for parameter in updated)
    if foreign:
        reason = f"the optimizer has {len(updated)} parameters, {foreign} of them outside of the model"
        warn_once("foreign parameters", f"watch: {reason}; those are not recorded")
        agent.report_not_recorded("", "weight", reason)
