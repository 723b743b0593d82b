"""Outputs that a module returns in one run only, beside others that it returns in both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from naive.naive_origin import Identity


class Recorded(Protocol):
    identity: Identity


def is_returned_beside(seen: Recorded, of_a: Iterable[Recorded], of_b: Iterable[Recorded]) -> bool:
    """Whether `seen` is such an output, or such a gradient of one. `of_a`, `of_b`: what both runs have in its step on its rank."""
    if seen.identity[1] not in ("output", "grad_output"):
        return False
    both = {record.identity for record in of_a} & {record.identity for record in of_b}
    return any((*one[:2], *one[3:]) == (*seen.identity[:2], *seen.identity[3:]) for one in both)
