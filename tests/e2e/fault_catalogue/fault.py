"""A fault: a change to the baseline, and where a tester expects `statctl diff` to find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fault_catalogue.training import Recipe, Training

LAST = -1  # the highest rank, whatever the number of ranks
ALL: tuple[int, ...] = ()

_KINDS = {
    "weights": "weight", "batch": "batch", "forward": "output", "backward": "grad_output", "grad": "weight_grad",
    "optimizer": "weight", "loss": None,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The expected place of the first divergence, and what else the report must say about it."""

    step: int
    stage: str
    activation: str
    reason: str = "numeric"
    kind: str | None = None  # None: the stage's usual kind
    path: str | None = None  # None: "0" in forward and backward, else ""
    micro_batch: int = 0
    call: int = 0
    mode: str = "train"
    rank: int = 0
    ranks: tuple[int, ...] = ALL  # which ranks diverge at this place in this step
    further: tuple[str, ...] = ()  # other origins, in order: "stage activation"; ("*",): any
    bitwise: str = ""  # "stage activation" of the first difference of any size; empty: this place

    def usual_kind(self) -> str | None:
        return self.kind if self.kind is not None else _KINDS[self.stage]

    def usual_path(self) -> str:
        if self.path is not None:
            return self.path
        return "0" if self.stage in ("forward", "backward") and self.kind != "inspect" else ""

    def text(self, world: int) -> str:
        """ "step 3, rank 0, forward, blocks.1.ln2: numeric", as people read it."""
        path = self.usual_path()
        kind = f" {self.kind}" if self.kind is not None else ""
        micro = f", micro-batch {self.micro_batch}" if self.micro_batch else ""
        place = self.activation + (f"[{path}]" if path not in ("", "0") else "") + kind
        evaluating = " (eval)" if self.mode == "eval" else ""
        return f"step {self.step}{micro}, rank {self.rank_in(world)}, {self.stage}, {place}{evaluating}: {self.reason}"

    def rank_in(self, world: int) -> int:
        return world - 1 if self.rank == LAST else self.rank

    def ranks_in(self, world: int) -> list[int]:
        return sorted({world - 1 if r == LAST else r for r in self.ranks}) if self.ranks else list(range(world))


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue."""

    name: str
    change: str  # what was changed, for a reader
    plant: Callable[[Training], None]
    expected: Place
    base: str = "plain"
    worlds: tuple[int, ...] = (1, 2)
    why: str = ""  # why the right answer is this place, where the changed thing itself is not recorded


BASES: dict[str, Recipe] = {}
FAULTS: dict[str, Fault] = {}


def fault(
    change: str, expected: Place, base: str = "plain", worlds: tuple[int, ...] = (1, 2), why: str = ""
) -> Callable[[Callable[[Training], None]], Callable[[Training], None]]:
    """Enters the function into the catalogue under its own name."""

    def enter(plant: Callable[[Training], None]) -> Callable[[Training], None]:
        name = plant.__name__
        assert name not in FAULTS and base in BASES
        FAULTS[name] = Fault(name, change, plant, expected, base, worlds, why)
        return plant

    return enter
