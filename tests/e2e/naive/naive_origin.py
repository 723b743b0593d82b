"""Finds the origins among one step's divergences, by the table in docs/divergence.md ("Origin or propagated")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Identity = tuple[str, str, str, int, int, str]  # name, kind, output path, micro-batch, call, mode
# The tensors that a rank compared in its forward passes, in A's order, and whether their values diverged.
Trace = Sequence[tuple[Identity, bool]]


@dataclass(frozen=True)
class Diverged:
    """The properties of a row that the table uses. `structural`: missing, or moved with the same values."""

    rank: int
    stage: str
    identity: Identity
    structural: bool
    segment: int


def is_below(name: str, path: str) -> bool:
    return name.startswith(path + ".") if path else name != ""


def inherits(of: Identity, trace: Trace) -> bool:
    """Whether something that a forward tensor was computed from, in its own pass, diverged."""
    name, kind, _, micro_batch, call, mode = of
    end = [identity for identity, _ in trace].index(of)
    before = [(i[0], i[1], i[4], bad) for i, bad in trace[:end] if (i[3], i[5]) == (micro_batch, mode)]
    if kind != "input":
        if any(bad and (is_below(n, name) or (n == name and k != "input")) for n, k, _, bad in before):
            return True
        inputs = [bad for n, k, c, bad in before if (n, k, c) == (name, "input", call)]
        if inputs:
            return any(inputs)
    path = name
    while path:
        parent = path.rpartition(".")[0]
        beside = [bad for n, _, _, bad in before if is_below(n, parent) and n != path and not is_below(n, path)]
        beside += [bad for n, k, _, bad in before if n == parent and k == "input"]
        if beside:
            return any(beside)
        path = parent
    return False


def is_origin(row: Diverged, before: Sequence[Diverged], traces: Mapping[int, Trace]) -> bool:
    """`before`: what stands before it in the report of the step; `traces`: by rank, of all that compared anything."""
    values = [other for other in before if not other.structural]
    if any(other.segment < row.segment for other in values):
        return False
    here = {other.stage for other in values}
    of_rank = {other.stage for other in values if other.rank == row.rank}
    # A training pass that only one run made: it explains what depends on it.
    lonely = {
        other.rank
        for other in before
        if other.structural and other.stage == "forward" and other.identity[5] == "train" and not was_made(other, traces)
    }
    if row.stage == "weights":
        return True
    if row.stage == "batch":
        return not of_rank & {"forward", "loss"} and row.rank not in lonely
    if here & {"weights", "batch"}:
        return False
    if row.stage == "forward":
        trained = [o for o in values if o.stage in ("forward", "loss", "backward") and o.identity[5] != "eval"]
        after_training = row.identity[5] == "eval" and (trained or lonely)
        return not after_training and not inherits(row.identity, traces[row.rank])
    if row.stage in ("loss", "backward"):
        return not of_rank & {"forward", "loss", row.stage} and row.rank not in lonely
    if here & {"forward", "loss", "backward"} or lonely or row.stage in of_rank:
        return False
    if row.stage == "grad":
        return True
    gradient_missing = any(
        o.structural and o.stage == "grad" and o.rank == row.rank and o.identity[0] == row.identity[0] for o in before
    )
    return "grad" not in here and not gradient_missing


def was_made(missing: Diverged, traces: Mapping[int, Trace]) -> bool:
    """Whether both runs made the training pass of that rank and micro-batch."""
    return any((i[3], i[5]) == (missing.identity[3], "train") for i, _ in traces.get(missing.rank, ()))


def origins_of(rows: Sequence[Diverged], traces: Mapping[int, Trace]) -> set[int]:
    """Places in `rows`, those of the first step whose values differ, in the order of the report."""
    return {i for i, row in enumerate(rows) if not row.structural and is_origin(row, rows[:i], traces)}
