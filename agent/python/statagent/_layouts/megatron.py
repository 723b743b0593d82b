"""Layouts of Megatron-Core: tensor, sequence, context and expert parallelism, pipeline stages.

Reads attributes of modules and parameters, and sizes of process groups: no collective, no synchronisation."""

from __future__ import annotations

import math
import sys
from collections.abc import Set
from typing import Any

from .._torch import parts
from .cuts import Span, cut_along, equal_part, within, zigzag_part
from .placement import Placement, whole

_COLUMN = frozenset(("ColumnParallelLinear", "TEColumnParallelLinear", "TELayerNormColumnParallelLinear"))
_ROW = frozenset(("RowParallelLinear", "TERowParallelLinear"))
_CORE = frozenset(("DotProductAttention", "TEDotProductAttention"))
_SEQUENCE_FIRST = frozenset(("TransformerBlock", "TransformerLayer", "SelfAttention", "CrossAttention", "MLP", "BaseMoELayer"))

Cut = tuple[int, tuple[Span, ...]]


def state() -> Any | None:
    """megatron.core.parallel_state, if its groups exist."""
    module = sys.modules.get("megatron.core.parallel_state")
    try:
        return module if module is not None and module.model_parallel_is_initialized() else None
    except Exception:
        return None


def data_parallel() -> tuple[int, int] | None:
    """This rank's number among those that have a part of the batch each, and how many they are."""
    groups = state()
    return None if groups is None else (groups.get_data_parallel_rank(), groups.get_data_parallel_world_size())


def token_parallel() -> tuple[int, int] | None:
    """The same of those whose experts see other tokens, or are others."""
    groups = state()
    if groups is None:
        return None
    rank, size = groups.get_expert_data_parallel_rank(), groups.get_expert_data_parallel_world_size()
    return _expert_rank(groups) * size + rank, _expert_ranks(groups) * size


def settings() -> dict[str, str]:
    """Sizes of the groups, and this rank's place in them, as the collector reads them (docs/ranks.md)."""
    groups = state()
    if groups is None:
        return {}
    found = {
        "parallel.tp": groups.get_tensor_model_parallel_world_size(),
        "parallel.pp": groups.get_pipeline_model_parallel_world_size(),
        "parallel.cp": groups.get_context_parallel_world_size(),
        "parallel.dp": groups.get_data_parallel_world_size(),
        "parallel.tp_rank": groups.get_tensor_model_parallel_rank(),
        "parallel.pp_rank": groups.get_pipeline_model_parallel_rank(),
        "parallel.dp_rank": groups.get_data_parallel_rank(),
    }
    experts = groups.get_expert_model_parallel_world_size()
    if experts > 1:
        found["parallel.ep"] = experts
    return {name: str(value) for name, value in found.items()}


def has_megatron(model: Any) -> bool:
    """Whether parts of the model are Megatron's, so that what this module says holds for all of it."""
    return state() is not None and any(is_megatron(module) for module in parts.all_modules(model))


def _is_a(name: str, module: Any) -> bool:
    return any(base.__name__ == name for base in type(module).__mro__)


def is_megatron(module: Any) -> bool:
    return any(base.__module__.startswith("megatron.") for base in type(module).__mro__)


# --- parameters


def of_parameter(parameter: Any, owner: Any, shape: tuple[int, ...], blocks: int = 1) -> Placement | None:
    """The place of a parameter, its gradient or its optimizer's state, of this shape. `owner`: the module that has it. `blocks`: at least so many are
    cut each, if any. None: not known."""
    groups = state()
    if groups is None or shape != tuple(parameter.shape) or hasattr(parameter, "device_mesh"):
        return None
    if _holds_several_experts(owner) and _expert_ranks(groups) > 1:  # other ranks have other experts under the same name
        return _of_grouped(groups, parameter, owner, shape)
    if not getattr(parameter, "tensor_model_parallel", False):
        return whole(shape)
    dim, blocks = getattr(parameter, "partition_dim", -1), max(blocks, getattr(parameter, "partition_stride", 1))
    part, parts = _tensor_ranks(groups, owner, parameter)
    if parts == 1:
        return whole(shape)
    if not 0 <= dim < len(shape) or blocks < 1 or shape[dim] % blocks:
        return None
    return cut_along(shape, {dim: equal_part(shape[dim], part, parts, blocks)})


def _of_grouped(groups: Any, parameter: Any, owner: Any, shape: tuple[int, ...]) -> Placement | None:
    """The experts' weights follow each other in memory; shapes are those of one matrix with the experts beside each other. None: not a GroupedMLP."""
    matrices = [getattr(owner, "weight1", None), getattr(owner, "weight2", None)]
    along = next((1 - number for number, matrix in enumerate(matrices) if matrix is parameter), None)
    if along is None or groups.get_expert_tensor_parallel_world_size() > 1:
        return None
    each, rank = math.prod(shape), _expert_rank(groups)
    total = tuple(n * _expert_ranks(groups) if d == along else n for d, n in enumerate(shape))
    return Placement(total, ranges=((rank * each, (rank + 1) * each),))


def _tensor_ranks(groups: Any, owner: Any, parameter: Any) -> tuple[int, int]:
    """This rank's number among those over which the module is split, and how many they are."""
    group = getattr(owner, "tp_group", None) or getattr(owner, "_tp_group", None)
    if group is not None and hasattr(group, "rank"):
        return int(group.rank()), int(group.size())
    if getattr(owner, "is_expert", False) or not getattr(parameter, "allreduce", True):
        return groups.get_expert_tensor_parallel_rank(), groups.get_expert_tensor_parallel_world_size()
    return groups.get_tensor_model_parallel_rank(), groups.get_tensor_model_parallel_world_size()


def _holds_several_experts(module: Any) -> bool:
    return getattr(module, "num_local_experts", getattr(module, "num_gemms", 1)) != 1 and not hasattr(module, "local_experts")


def _cuts_activations(groups: Any) -> bool:
    return int(groups.get_tensor_model_parallel_world_size()) > 1 or int(groups.get_context_parallel_world_size()) > 1


def _expert_ranks(groups: Any) -> int:
    return int(groups.get_expert_model_parallel_world_size())


def _expert_rank(groups: Any) -> int:
    return int(groups.get_expert_model_parallel_rank())


# --- activations


class Activations:
    """Placements of the modules' inputs and outputs, and of their gradients. Sequences are dimension 0 (sequence, batch, features).
    `of_tokens`: ids of modules whose rows are a set of tokens."""

    def __init__(self, model: Any, of_tokens: Set[int] = frozenset()) -> None:
        self._of_tokens = of_tokens
        self._gated: set[int] = set()  # modules whose features are those of a gate and those of an input, each of which is cut
        self._positions: set[int] = set()  # embeddings (batch, sequence, features)
        self._embedding: Any = None
        for module in parts.all_modules(model):
            if getattr(getattr(module, "config", None), "gated_linear_unit", False) and hasattr(module, "linear_fc1"):
                self._gated.add(id(module.linear_fc1))
            if _is_a("LanguageModelEmbedding", module):
                self._embedding = module
                self._positions.update(id(getattr(module, key, None)) for key in ("position_embeddings", "tokentype_embeddings"))
        self._parallel_sequence = any(
            bool(getattr(getattr(module, "config", None), "sequence_parallel", False)) for module in parts.all_modules(model)
        )

    def parameter(self, parameter: Any, owner: Any, shape: tuple[int, ...]) -> Placement | None:
        """As of_parameter, for a module of this model."""
        return of_parameter(parameter, owner, shape, self._blocks(owner))

    def _blocks(self, module: Any) -> int:
        """The blocks of its features. Linears of gated layers that do not have a stride of 2 hold their parts of the gate and of the input, too."""
        return max(2 if id(module) in self._gated else 1, getattr(getattr(module, "weight", None), "partition_stride", 1))

    def output(self, module: Any, shape: tuple[int, ...]) -> Placement | None:
        """None: not known."""
        names = {base.__name__ for base in type(module).__mro__}
        groups = state()
        if groups is None or id(module) in self._of_tokens:
            return _of_rows(groups, shape)
        if not _cuts_activations(groups):
            return whole(shape)
        if len(shape) == 1:
            return self._bias(names, module, shape)
        if names & _COLUMN:
            return self._column(groups, module, shape)
        if "VocabParallelEmbedding" in names:
            first = getattr(module, "reduce_scatter_embeddings", False)
            return self._place(groups, module, shape, 0 if first else 1, bool(first))
        if names & _ROW:
            return self._place(groups, module, shape, 0, bool(getattr(module, "sequence_parallel", False)))
        if id(module) in self._positions and len(shape) == 3:
            return self._place(groups, module, shape, 1, False)
        if self._embedding is not None and module in (self._embedding, getattr(self._embedding, "embedding_dropout", None)):
            scattered = self._parallel_sequence and getattr(self._embedding, "scatter_to_sequence_parallel", True)
            return self._place(groups, module, shape, 0, scattered)
        if names & _SEQUENCE_FIRST and is_megatron(module):
            return self._place(groups, module, shape, 0, self._parallel_sequence)
        if names & _CORE and len(shape) == 3:
            return self._place(groups, module, shape, 0, False, features=1)
        if self._is_norm(names, module) and len(shape) == 3:
            return self._place(groups, module, shape, 0, self._parallel_sequence)
        if "Router" in names and is_megatron(module):
            return self._routed(groups, shape)
        return self._of_model(groups, module, shape) if "GPTModel" in names else None

    def _bias(self, names: set[str], module: Any, shape: tuple[int, ...]) -> Placement | None:
        """Returned beside the output, to be added later."""
        last = next((getattr(module, key) for key in ("linear_proj", "linear_fc2") if hasattr(module, key)), module)
        bias = getattr(last, "bias", None)
        if bias is None or tuple(bias.shape) != shape or not names & (_COLUMN | _ROW | _SEQUENCE_FIRST):
            return None
        return self.parameter(bias, last, shape)

    def _routed(self, groups: Any, shape: tuple[int, ...]) -> Placement | None:
        """The place of a router's choices: (sequence and batch, experts)."""
        if len(shape) != 2 or groups.get_context_parallel_world_size() > 1:
            return None
        part, parts = groups.get_tensor_model_parallel_rank(), groups.get_tensor_model_parallel_world_size()
        return cut_along(shape, {0: equal_part(shape[0], part, parts)} if self._parallel_sequence else {})

    def _of_model(self, groups: Any, module: Any, shape: tuple[int, ...]) -> Placement | None:
        """The place of losses (batch, sequence) or logits (batch, sequence, vocabulary)."""
        if len(shape) == 3:
            return self._place(groups, module, shape, 1, False, features=1 if getattr(module, "parallel_output", True) else 0)
        return self.batch(shape) if len(shape) == 2 else None

    def input(self, module: Any, shape: tuple[int, ...]) -> Placement | None:
        """The place of the first argument. None: not known."""
        names = {base.__name__ for base in type(module).__mro__}
        groups = state()
        if groups is None or id(module) in self._of_tokens:
            return _of_rows(groups, shape)
        if names & _COLUMN:
            return self._place(groups, module, shape, 0, bool(getattr(module, "sequence_parallel", False)))
        if names & _ROW and getattr(module, "input_is_parallel", True):
            return self._place(groups, module, shape, 0, False, features=1)
        if self._is_norm(names, module) and len(shape) == 3:
            return self._place(groups, module, shape, 0, self._parallel_sequence)
        return None

    def batch(self, shape: tuple[int, ...]) -> Placement | None:
        """The place of an argument of the model: (batch, sequence). None: not known."""
        groups = state()
        if groups is None:
            return None
        if groups.get_context_parallel_world_size() == 1:
            return whole(shape)
        return self._place(groups, None, shape, 1, False) if len(shape) == 2 else None

    def _column(self, groups: Any, module: Any, shape: tuple[int, ...]) -> Placement | None:
        if getattr(module, "gather_output", False):
            return self._place(groups, module, shape, 0, False)
        return self._place(groups, module, shape, 0, False, features=self._blocks(module))

    def _place(
        self, groups: Any, module: Any, shape: tuple[int, ...], sequence: int, scattered: bool, features: int = 0
    ) -> Placement | None:
        """`sequence`: its dimension; `scattered`: it is cut over the tensor parallel ranks; `features`: blocks of the last dimension, which
        is cut over them, or 0."""
        if len(shape) < 2 or sequence >= len(shape) or (features and shape[-1] % features):
            return None
        part, parts = _tensor_ranks(groups, module, None)
        cuts: dict[int, Cut] = {}
        context = groups.get_context_parallel_rank(), groups.get_context_parallel_world_size()
        length = shape[sequence] * (parts if scattered else 1)  # before sequence parallelism
        if context[1] > 1:
            if length % 2:
                return None
            cuts[sequence] = zigzag_part(length, *context)
        elif scattered and parts > 1:
            cuts[sequence] = length, ((0, length),)
        if scattered and parts > 1:
            total, here = cuts[sequence]
            cuts[sequence] = total, within(here, shape[sequence] * part, shape[sequence] * (part + 1))
        if features and parts > 1:
            cuts[len(shape) - 1] = equal_part(shape[-1], part, parts, features)
        return cut_along(shape, cuts)

    def _is_norm(self, names: set[str], module: Any) -> bool:
        """A norm whose output goes into layers that are cut as its parameters say."""
        weight = getattr(module, "weight", None)
        known = hasattr(weight, "sequence_parallel") or not self._parallel_sequence
        return weight is not None and known and any(name.endswith("Norm") for name in names)


def _of_rows(groups: Any, shape: tuple[int, ...]) -> Placement | None:
    """The place of a set of tokens' rows, but for their order. None: not known, or a rank has some of the features."""
    return None if groups is None or groups.get_expert_tensor_parallel_world_size() > 1 else whole(shape)


# --- names, experts


def keys_in(module: Any) -> dict[int, str]:
    """By id, the keys of the modules in one of Megatron's among all ranks' modules, where their parent has others: pipeline stages and ranks with
    other experts number theirs from 0 each."""
    found: dict[int, str] = {}
    for _, container in parts.children(module):
        for key, child in parts.children(container):
            number = getattr(child, "layer_number", None)
            if f"{key}".isdigit() and is_megatron(child) and type(number) is int and number > 0:
                found[id(child)] = str(number - 1)
    groups = state()
    first = _expert_rank(groups) * int(getattr(module, "num_local_experts", 0)) if groups is not None else 0
    for key, child in parts.children(getattr(module, "local_experts", None)) if first else ():
        found[id(child)] = str(first + int(key))
    return found


def holds_experts(module: Any) -> bool:
    """Whether it consists of this rank's experts, which see a set of tokens: not the layer that has their router, too."""
    return hasattr(module, "num_local_experts") and not hasattr(module, "router")


def ends_of_stages(model: Any) -> set[int]:
    """Ids of modules that return what a stage hands to the next one: no tensor of the whole model, and a rank with interleaved stages has
    several under one name."""
    return {
        id(module)
        for module in parts.all_modules(model)
        if is_megatron(module) and getattr(module, "post_process", True) is False
    }
