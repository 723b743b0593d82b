"""Where each recorded tensor of a rank lies in the model's logical tensor: what the user says first, then what the objects of torch,
Megatron-Core and DeepSpeed know.

What is not known is None; the collector takes tensors of unknown place that are the same bits on all ranks as replicas."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .._torch.modules import Named
from ..errors import InvalidArgumentError
from . import dtensor, megatron
from .cuts import Span, cut_along, equal_part
from .data_parallel import Replicas, all_ranks, cuts_sequences, data_parallel, ulysses
from .experts import Experts
from .fsdp1 import FlatShards
from .pipeline import stages_here
from .placement import Placement, whole
from .reports import LogEvent, Reports
from .rows import Rows
from .rules import Rules
from .samples import Batch
from .sequences import Sequence
from .sharded import Shards

_OF_PARAMETERS = frozenset(("weight", "weight_grad", "optimizer_state"))
_OF_OUTPUTS = frozenset(("output", "grad_output"))
_OF_INPUTS = frozenset(("input", "grad_input"))
PACKINGS_MAX = 4096
_GRADIENTS = frozenset(("grad_output", "grad_input", "inspect_grad"))  # of activations


class ModelLayouts:
    """Layouts of one watched model's tensors, asked by name, kind and path. Threads: any, after construction."""

    def __init__(
        self,
        model: Any,
        modules: Iterable[Named],
        parameters: Iterable[Named],
        rules: Rules,
        experts: Experts,
        shards: Shards | None = None,
    ) -> None:
        self._rules = rules
        self.by_micro_batch = rules.by_micro_batch()
        self._modules = {named.name: named.value for named in modules}
        self._fused = experts.fused
        self._experts = {name for name, module in self._modules.items() if id(module) in experts.inside}
        self._parameters = {named.name: named for named in parameters}
        self._megatron = megatron.Activations(model, experts.inside) if megatron.has_megatron(model) else None
        self._piece = data_parallel(model) if self._megatron is None else megatron.data_parallel()
        # The same of tokens of experts.
        self._with_tokens = self._piece if self._megatron is None else megatron.token_parallel()
        self._replicas = Replicas(model)
        self._flat = FlatShards(model)
        self._shards = shards
        self._samples: int | None = None  # of the micro-batch on this rank, as its first input shows
        self._first_input = ""
        self._tokens: int | None = None  # likewise, in each sequence
        self._sequences: tuple[int, tuple[Span, ...]] = (0, ())  # of all ranks, and where these are
        self._packings: set[int] = set()
        self.moves = 0  # how often other tokens came, so that earlier answers no longer hold
        self._guessed: tuple[int, int] | None = None  # the ranks of a batch of which nobody says them
        self._guess_made = False
        # Whether ranks hold parts of the same samples, so that a plain activation may be a part: parameters are cut over other ranks than
        # those of the batch, or sequences are cut.
        sizes = {named.value.device_mesh.size() for named in self._parameters.values() if hasattr(named.value, "device_mesh")}
        self._cut_by_tensors = any(self._piece is not None and n != self._piece[1] for n in sizes) or self._replicas.cuts_any()
        self._cuts_sequences = cuts_sequences(model)
        sharing = ulysses(model)
        self._sequence = None if sharing is None else Sequence(1, "blocks", sharing)  # as long as the user says nothing else

    @property
    def knows_experts(self) -> bool:
        return bool(self._experts)

    def names(self) -> Iterable[str]:
        return self._modules.keys() | self._parameters.keys()

    def place(self, name: str, kind: str, path: str, micro_batch: int, tensor: Any) -> Placement | None:
        """None: not known. Raises InvalidArgumentError if the user's layout does not fit the tensor."""
        if kind == "operator":  # compared between runs only
            return None
        shape = tuple(getattr(tensor, "_local_tensor", tensor).shape)
        if kind in _OF_PARAMETERS:
            return self._of_parameter(name, shape, tensor)
        if kind == "buffer":
            rule = self._rules.find(name)
            return None if rule is None else rule.place(shape)
        placed = self._of_activation(name, kind, path, shape, tensor)
        rows = self._rows(name, kind)
        if rows is not None:
            return self._in_any_order(rows, placed, shape)
        return self._among_samples(name, kind, path, micro_batch, shape, placed)

    # --- parameters

    def _of_parameter(self, name: str, shape: tuple[int, ...], tensor: Any) -> Placement | None:
        part = None if self._shards is None else self._shards.of_name(name)
        if part is not None and shape == (part.stop - part.start,) and shape != part.shape:
            uncut = self._uncut(name, part.shape, self._parameters[name].value)
            return None if uncut is None else part.place(uncut)
        return self._uncut(name, shape, tensor)

    def _uncut(self, name: str, shape: tuple[int, ...], tensor: Any) -> Placement | None:
        """The place of a parameter that no optimizer splits, or before it does."""
        rule = self._rules.find(name)
        if rule is not None:
            return rule.place(shape)
        if hasattr(tensor, "device_mesh"):
            return dtensor.placement_of(tensor)
        named = self._parameters.get(name)
        if named is None:
            return None
        if hasattr(named.value, "device_mesh"):  # an update computed from its local parts
            mine = dtensor.placement_of(named.value)
            return mine if mine is not None and mine.boxes[0][1] == shape else None
        if self._megatron is not None:
            return self._megatron.parameter(named.value, named.owner, shape)
        if id(named.value) in self._fused:
            return cut_along(shape, {0: equal_part(shape[0], *self._fused[id(named.value)])}) if shape else None
        if self._replicas.has(named.value):
            return self._replicas.place(named.value, shape)
        part = None if self._shards is None else self._shards.of_name(name)
        if part is not None and shape == part.shape:
            return whole(shape)
        return self._flat.place(named.value, shape)

    # --- activations

    def _of_activation(self, name: str, kind: str, path: str, shape: tuple[int, ...], tensor: Any) -> Placement | None:
        rule = self._rules.find(name) if kind in _OF_OUTPUTS else None
        if rule is not None:
            return rule.place(shape)
        if hasattr(tensor, "device_mesh"):
            return dtensor.placement_of(tensor)
        if kind == "batch" and self._megatron is not None:
            return self._megatron.batch(shape)
        module = self._modules.get(name)
        if module is None or (kind in _OF_INPUTS and path != "0"):
            return None
        if kind in _OF_OUTPUTS:
            if self._megatron is not None:
                return self._megatron.output(module, shape)
            style = dtensor.output_layout(module)
            return None if style is None else dtensor.placement_under(*style, shape, _features(module))
        if kind not in _OF_INPUTS:
            return None
        if self._megatron is not None:
            return self._megatron.input(module, shape)
        style = dtensor.input_layout(module)
        return None if style is None else dtensor.placement_under(*style, shape, None)

    def _rows(self, name: str, kind: str) -> Rows | None:
        """Whether the tensor's rows are a set of tokens."""
        if kind not in _OF_OUTPUTS | _OF_INPUTS:
            return None
        return self._rules.rows(name) or (Rows() if name in self._experts else None)

    def _in_any_order(self, rows: Rows, placed: Placement | None, shape: tuple[int, ...]) -> Placement | None:
        if placed is None and (self._megatron is not None or self._cut_by_tensors):
            return None
        return rows.place(placed or whole(shape), rows.ranks or self._with_tokens or all_ranks() or (0, 1))

    def _among_samples(
        self, name: str, kind: str, path: str, micro_batch: int, shape: tuple[int, ...], placed: Placement | None
    ) -> Placement | None:
        """The place in the global batch of an activation whose place in this rank's part of the batch is `placed`."""
        rule, cut = self._rules.batch(name), self._rules.sequence(name) or self._sequence
        ranks = self._ranks_of_batch(rule, cut)
        accumulates = rule is not None and rule.micro_batches > 1
        if cut is None and (ranks is None or ranks[1] == 1) and not accumulates:
            return placed
        if kind == "batch":
            self._count(name + path, rule, cut, shape)
        ranks, said = ranks or (0, 1), placed is not None
        if placed is None and self._holds_whole_samples(ranks, cut):
            placed = whole(shape)  # all of what there is of these tokens
        if placed is None or (self._megatron is not None and kind == "output" and len(shape) == 1):
            return placed  # the latter: a bias beside the output
        sharing = (0, 1)  # this rank among those that share sequences, if the tensor has no place along them
        if cut is not None:
            compared = cut.gradients or kind not in _GRADIENTS
            within = cut.place(placed, self._sequences, self._tokens) if compared and self._tokens is not None else None
            sharing = sharing if within is not None or (said and compared) else cut.ranks
            placed = within or placed
        if rule is not None and rule.dim is None and kind not in _GRADIENTS:
            return placed
        # Gradients depend on how each rank's loss is averaged, so those of other numbers of ranks never add up.
        if rule is not None and kind not in _GRADIENTS and self._samples is not None and sharing[1] == 1:
            found = rule.place(placed, ranks, self._samples, micro_batch)
            if found is not None:
                return found
        return replace(placed, piece=ranks[0] * sharing[1] + sharing[0], pieces=ranks[1] * sharing[1])

    def _holds_whole_samples(self, ranks: tuple[int, int], cut: Sequence | None) -> bool:
        """Whether what a rank has of its samples, or of its part of their sequences, is all there is: no other ranks share it."""
        if self._megatron is not None or self._cut_by_tensors or (self._cuts_sequences and cut is None):
            return False
        everyone = all_ranks() or (0, 1)
        sharing = 1 if cut is None else cut.ranks[1]
        return everyone[1] == 1 or ranks[1] * sharing == everyone[1] or (cut is None and self._piece is not None)

    def _ranks_of_batch(self, rule: Batch | None, cut: Sequence | None) -> tuple[int, int] | None:
        """This rank's number among those that have a part of the batch each, and how many they are. None: not known. Raises InvalidArgumentError
        if they would have parts of the same sequences."""
        if rule is not None and rule.dim is not None and rule.ranks is not None:
            return rule.ranks
        found = self._piece if rule is None or rule.dim is None else self._piece or self._guess()
        if cut is None or found is None or found[1] == 1:
            return found
        if found == cut.ranks:
            return 0, 1
        raise InvalidArgumentError(
            f"sequence: found {found[1]} ranks with parts of the batch, of which {cut.ranks[1]} share each sequence; expected "
            "batch(group=...) with the ranks that have other samples: a process group, a one-dimensional mesh or (rank, size)"
        )

    def _guess(self) -> tuple[int, int] | None:
        """All ranks, unless they are the stages of a pipeline; looked at once, in the first forward pass. Raises InvalidArgumentError if
        they are more than its stages."""
        if not self._guess_made:
            ranks, stages = all_ranks(), stages_here()
            if ranks is not None and stages is not None:
                if stages != ranks[1]:
                    raise InvalidArgumentError(
                        f"batch: found the model in a pipeline over {stages} of {ranks[1]} ranks, so it is not known which ranks share a batch; "
                        "expected group=, the data-parallel ranks of this stage: a process group, a one-dimensional mesh or (rank, size)"
                    )
                ranks = (0, 1)
            self._guessed, self._guess_made = ranks, True
        return self._guessed

    def _count(self, name: str, rule: Batch | None, cut: Sequence | None, shape: tuple[int, ...]) -> None:
        """Samples and tokens of the micro-batch on this rank, as its first input shows them."""
        if self._first_input not in ("", name):
            return
        samples = None if rule is None else rule.count(shape)
        tokens = None if cut is None else cut.count(shape)
        if samples is not None:
            self._first_input, self._samples = name, samples
        if cut is not None and tokens is not None:
            before = self._tokens, self._sequences
            self._first_input, self._tokens = name, None
            try:
                self._sequences = cut.here(tokens)
                if cut.lengths is not None:
                    self._note_packing()
                self._tokens = tokens
            finally:
                self.moves += before != (self._tokens, self._sequences)

    def _note_packing(self) -> None:
        """Each one has layouts of its own, which both sides keep: their number has to end."""
        self._packings.add(hash(self._sequences))
        if len(self._packings) > PACKINGS_MAX:
            raise InvalidArgumentError(
                f"sequence: found more than {PACKINGS_MAX} ways in which sequences were packed; expected no more in a run; activations are "
                "compared by extremes, mean and deviation from now on"
            )


def _features(module: Any) -> int | None:
    """The number of features of a linear layer's whole output."""
    weight = getattr(module, "weight", None)
    if weight is None or type(module).__name__ != "Linear" or not hasattr(weight, "device_mesh"):
        return None
    return int(weight.shape[0])


class Layouts:
    """Layouts of all watched models of an agent. `place` never raises."""

    def __init__(self, log_event: LogEvent) -> None:
        # Each lives as long as its watch.
        self._models: weakref.WeakValueDictionary[int, ModelLayouts] = weakref.WeakValueDictionary()
        self.by_micro_batch = False  # whether tensors of micro-batches have places of their own
        self._by_name: weakref.WeakValueDictionary[str, ModelLayouts] = weakref.WeakValueDictionary()
        self._reports = Reports(log_event)
        self.changes = 0  # how often models were added and removed

    def add(self, key: int, model: ModelLayouts) -> None:
        self._models[key] = model
        self.changes += 1
        self.by_micro_batch = self.by_micro_batch or model.by_micro_batch
        self._by_name.update(dict.fromkeys(model.names(), model))

    def remove(self, key: int) -> None:
        gone = self._models.pop(key, None)
        self.changes += 1
        for name in [name for name, model in self._by_name.items() if model is gone]:
            del self._by_name[name]

    def end_step(self) -> None:
        """Reports layouts of the user that did not fit in this step."""
        self._reports.end_step()

    def place(self, name: str, kind: str, path: str, micro_batch: int, tensor: Any) -> Placement | None:
        """None: not known, or the user's layout did not fit."""
        model = self._by_name.get(name)
        if model is None and kind == "batch" and len(self._models) == 1:
            model = next(iter(self._models.values()), None)
        if model is None:
            return None
        moves = model.moves
        try:
            return model.place(name, kind, path, micro_batch, tensor)
        except Exception as error:
            self._reports.refuse(name, kind, str(error))
            return None
        finally:
            self.changes += model.moves - moves


def layouts_of(
    model: Any, modules: list[Named], parameters: list[Named], layouts: Any, experts: Experts, shards: Shards | None = None
) -> ModelLayouts | None:
    """None for a process without others: each tensor is whole. Raises InvalidArgumentError."""
    rules = Rules(layouts)
    found = ModelLayouts(model, modules, parameters, rules, experts, shards)
    unused = rules.unused(list(found.names()))
    if unused:
        raise InvalidArgumentError(
            f"watch: the pattern {unused[0]!r} of layouts matches nothing; expected one that matches some of: "
            + ", ".join(sorted(found.names())[:12])
        )
    return None if all_ranks() is None and not layouts and not found.knows_experts else found
