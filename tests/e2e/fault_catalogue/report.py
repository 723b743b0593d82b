"""The catalogue's results, for a terminal and for docs/fault-catalogue.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fault_catalogue.catalogue import Calibrated, Repeat
from fault_catalogue.check import Answer, found_text

HEAD = ("fault", "what was changed", "expected place", "found place", "distance", "tolerance", "1 rank", "2 ranks")
NOISE_HEAD = ("run", "what differs from the baseline", "by default", "with --noise", "times noise", "ok")
CLEAN_HEAD = ("run", "what differs from the baseline", "1 rank", "2 ranks", "largest distance")

INTRODUCTION = """# Planted faults, and where they are found

Each fault is planted in a real training of a small GPT (AdamW, six steps, fixed seeds), on one rank and on two ranks under torchrun with DistributedDataParallel.
The Python agent records it with its default settings, and `statctl diff --run-a BASELINE --run-b FAULT` compares it with its default tolerances.

A fault counts as found if

- step, micro-batch, rank, stage, kind, activation, output path, mode and reason of `first` are as expected,
- `first` is an origin and diverges on exactly the expected ranks,
- no bit differs before it,
- further origins are as expected, and
- the first printed line names it.

    python tests/e2e/fault_catalogue                  # all of it; exit code 1 if anything is not as expected
    python tests/e2e/fault_catalogue layernorm_eps --ranks 2 --tables
    python tests/e2e/fault_catalogue --write-docs     # writes this page

Every test run (`tests/e2e/test_fault_catalogue.py`) checks all of them on one rank and a selection on two.
Places are those of the run on two ranks.
A dash means that the fault needs two ranks.
Bugs of layouts (tensor and sequence parallelism, pipelines, gradient accumulation) have a table of their own: [layouts.md](layouts.md#how-well-it-works).
"""

WHY = """
## Where the named tensor is not the changed one

`diff` can only name recorded tensors: outputs of modules and their gradients, weights after their update and their gradients, optimizer state, the batch, losses, and what the script passes to `inspect`.
If the changed tensor is not recorded, the right answer is the first recorded tensor that the change reaches.
"""

CLEAN_INTRODUCTION = """
## No false alarms

These runs train without a fault.
The table has the verdict of the default report and the largest distance of any record from the baseline in six steps of Adam; the tolerance of float32 is 1e-4.
Rounding grows with training: over 150 steps of the plain model, measured once, the largest distance was 6.4e-5, still without an alarm.
The last section shows a model in which it grows faster.
"""


NOISE_INTRODUCTION = """
## Noise learned from repeats

In this model, attention's keys have a bias.
The bias has no influence on the result, so its gradient is rounding noise, from which Adam makes updates of full size: repeats that only sum in a different order diverge at the first update.
`--noise` gets two such repeats.
The planted errors begin at step 7, in runs that sum in a third order.
"""


def _ok(answers: Sequence[Answer], name: str, world: int) -> str:
    found = [a for a in answers if a.fault.name == name and a.world == world]
    return "-" if not found else "wrong" if found[0].wrong else "ok"


def rows(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """One a fault, of its answer with the most ranks."""
    latest = {answer.fault.name: answer for answer in answers}
    return [
        (name, a.fault.change, a.fault.expected.text(a.world), a.found(), number(a.first, "distance"), number(a.first, "tolerance"),
         _ok(answers, name, 1), _ok(answers, name, 2))
        for name, a in latest.items()
    ]  # fmt: skip


def number(first: dict[str, object] | None, key: str) -> str:
    value = None if first is None else first[key]
    return "-" if value is None else f"{float(str(value)):.2g}"


def clean_rows(repeats: Sequence[Repeat]) -> list[tuple[str, ...]]:
    found = []
    for name in dict.fromkeys(repeat.clean.name for repeat in repeats):
        mine = {repeat.world: repeat for repeat in repeats if repeat.clean.name == name}
        verdicts = [mine[world].verdict.replace("_", " ") if world in mine else "-" for world in (1, 2)]
        largest = max(repeat.largest for repeat in mine.values())
        found.append((name, next(iter(mine.values())).clean.change, *verdicts, f"{largest:.1e}" if largest else "0"))
    return found


def noise_rows(calibrated: Sequence[Calibrated]) -> list[tuple[str, ...]]:
    def found(first: dict[str, Any] | None) -> str:
        return "no alarm" if first is None else found_text(first)

    return [
        (c.clean.name, c.clean.change, found(c.default), found(c.calibrated), number(c.calibrated, "times_noise"),
         "ok" if c.ok() else "wrong")
        for c in calibrated
    ]  # fmt: skip


def text(answers: Sequence[Answer], repeats: Sequence[Repeat], calibrated: Sequence[Calibrated]) -> str:
    """Aligned columns, then what is wrong, then one line."""
    parts = [_aligned([HEAD, *rows(answers)])]
    if repeats:
        parts.append(_aligned([CLEAN_HEAD, *clean_rows(repeats)]))
    if calibrated:
        parts.append(_aligned([NOISE_HEAD, *noise_rows(calibrated)]))
    wrong = [f"{a.fault.name} on {a.world} rank(s): {text}" for a in answers for text in a.wrong]
    wrong += [f"{r.clean.name} on {r.world} rank(s): a false alarm" for r in repeats if r.verdict == "diverged"]
    good = sum(not answer.wrong for answer in answers)
    parts.append("\n".join([*wrong, f"{good} of {len(answers)} faults found at the right place, {len(repeats)} clean runs"]))
    return "\n\n".join(parts)


def _aligned(table: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table)


def markdown(answers: Sequence[Answer], repeats: Sequence[Repeat], calibrated: Sequence[Calibrated]) -> str:
    latest = {answer.fault.name: answer.fault for answer in answers}
    why = [(fault.name, fault.why) for fault in latest.values() if fault.why]
    return "\n".join(
        [INTRODUCTION, *markdown_table([HEAD, *rows(answers)]), WHY, *markdown_table([("fault", "why this place is right"), *why]),
         CLEAN_INTRODUCTION, *markdown_table([CLEAN_HEAD, *clean_rows(repeats)]),
         NOISE_INTRODUCTION, *markdown_table([NOISE_HEAD, *noise_rows(calibrated)]), ""]
    )  # fmt: skip


def markdown_table(table: Sequence[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:]]
