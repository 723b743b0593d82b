"""Parameters of a sampling engine under the names and in the shape of its checkpoint. Engines merge the matrices of a layer, pad the vocabulary and
cut over tensor-parallel ranks. What is here follows from attributes by which the layers of vLLM and SGLang describe themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._torch.modules import Named
from .cuts import Span, cut_along, equal_part, joined
from .placement import Placement

Cuts = dict[int, tuple[int, tuple[Span, ...]]]  # by dimension: the whole's length and the part that is here


@dataclass(frozen=True)
class Part:
    """A parameter of the checkpoint in one of the engine: rows start to stop of it. placement: None if it is whole here, or not known."""

    name: str
    parent: str
    start: int
    stop: int
    placement: Placement | None = None


def is_packed(named: Named) -> bool:
    """Whether a layer of an engine has given its parameter to a kernel, and keeps it empty."""
    return hasattr(named.owner, "quant_method") and named.value.numel() == 0


class Merged:
    """Of one model. Threads: any."""

    def __init__(self, modules: Iterable[Named]) -> None:
        found = [(named.name if named.depth > 1 else "", _merged_names(named.value)) for named in modules]
        self._names = [(path, names) for path, names in reversed(found) if names]  # inner ones first

    def parts(self, named: Named, parameter: Any) -> list[Part] | None:
        """None: not a layer of an engine, or repacked for a kernel: it is recorded unchanged."""
        shape, owner = tuple(parameter.shape), named.owner
        if hasattr(owner, "local_num_experts") and hasattr(owner, "moe_config"):
            return [self._experts(named, shape)]
        if not shape or getattr(parameter, "output_dim", None) != 0:
            return None
        if hasattr(owner, "shard_indices"):
            return _vocabulary(named, shape)
        sizes = getattr(owner, "output_partition_sizes", None)
        if not sizes or shape[0] != sum(sizes):
            return None
        return self._linear(named, shape, [int(size) for size in sizes])

    def _linear(self, named: Named, shape: tuple[int, ...], sizes: list[int]) -> list[Part]:
        owner = named.owner
        wholes = [_share(owner, number, size) for number, size in enumerate(sizes)]
        across: Cuts = {}
        if len(shape) == 2 and shape[1] != getattr(owner, "input_size", shape[1]):
            across[1] = equal_part(shape[1], owner.tp_rank, owner.tp_size)
        path, _, key = named.name.rpartition(".")
        above, _, leaf = path.rpartition(".")
        names = self._merged_in(path).get(leaf, ())
        if len(names) != len(sizes):
            rows, before = [], 0
            for whole, here in wholes:
                rows += [(before + start, before + stop) for start, stop in here]
                before += whole
            return [_part(named.name, named.parent, 0, shape, {0: (before, joined(rows)), **across})]
        found, at = [], 0
        for name, size, rows_of in zip(names, sizes, wholes):
            parent = f"{above}.{name}" if above else f"{name}"
            found.append(_part(f"{parent}.{key}", parent, at, (size, *shape[1:]), {0: rows_of, **across}))
            at += size
        return found

    def _merged_in(self, path: str) -> Mapping[str, Any]:
        """The names of what each merged module of this part of the model consists of."""
        return next((names for inside, names in self._names if not inside or path.startswith(f"{inside}.")), {})

    def _experts(self, named: Named, shape: tuple[int, ...]) -> Part:
        """All experts of a layer: [experts, gate and up, size of the model], [experts, size of the model, size of an expert]."""
        parallel = named.owner.moe_config.moe_parallel_config
        cuts: Cuts = {}
        if parallel.ep_size > 1 and getattr(named.owner, "expert_placement_strategy", "") != "linear":
            return Part(named.name, named.parent, 0, shape[0])
        if parallel.ep_size > 1:
            cuts[0] = equal_part(shape[0], parallel.ep_rank, parallel.ep_size)
        if parallel.tp_size > 1 and named.key == "w13_weight":
            cuts[1] = equal_part(shape[1], parallel.tp_rank, parallel.tp_size, 2 if named.owner.moe_config.is_act_and_mul else 1)
        elif parallel.tp_size > 1 and named.key == "w2_weight":
            cuts[2] = equal_part(shape[2], parallel.tp_rank, parallel.tp_size)
        return _part(named.name, named.parent, 0, shape, cuts)


def _merged_names(model: Any) -> dict[str, list[str]]:
    """Of each merged module what it consists of, in order."""
    names = getattr(model, "packed_modules_mapping", None)
    if isinstance(names, Mapping) and names:
        return {merged: list(parts) for merged, parts in names.items()}
    found: dict[str, dict[int, str]] = {}
    stacked = getattr(model, "bitsandbytes_stacked_params_mapping", None)
    for part, (merged, number) in stacked.items() if isinstance(stacked, Mapping) else ():
        found.setdefault(merged.strip("."), {})[number] = part.strip(".")
    return {merged: [parts[number] for number in sorted(parts)] for merged, parts in found.items()}


def _share(owner: Any, number: int, size: int) -> tuple[int, tuple[Span, ...]]:
    """What this rank has of the number-th matrix of a layer. Heads of keys and values are on several ranks if there are fewer of them."""
    if getattr(owner, "output_size_per_partition", owner.output_size) == owner.output_size:
        return size, ((0, size),)
    replicas = getattr(owner, "num_kv_head_replicas", 1) if number > 0 else 1
    return equal_part(size, owner.tp_rank // replicas, owner.tp_size // replicas)


def _vocabulary(named: Named, shape: tuple[int, ...]) -> list[Part] | None:
    """Without the rows that pad it. None: with rows for adapters."""
    owner, held = named.owner, named.owner.shard_indices
    if owner.num_embeddings != owner.org_vocab_size:
        return None
    start, stop = int(held.org_vocab_start_index), int(held.org_vocab_end_index)
    rows: Cuts = {0: (int(owner.org_vocab_size), ((start, stop),))}
    return [_part(named.name, named.parent, 0, (stop - start, *shape[1:]), rows)]


def _part(name: str, parent: str, start: int, shape: tuple[int, ...], cuts: Cuts) -> Part:
    placement = cut_along(shape, cuts)
    if placement is not None and placement.global_shape == shape:
        placement = None
    return Part(name, parent, start, start + shape[0], placement)
