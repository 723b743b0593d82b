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

Real training runs of a small GPT (AdamW, six steps, seeds fixed), alone and on two ranks of torchrun with DistributedDataParallel, recorded
by the Python agent with its default settings and compared by `statctl diff --run-a BASELINE --run-b FAULT` with its default tolerances.
A fault counts as found if step, micro-batch, rank, stage, kind, activation, output path, mode and reason of `first` are those expected, it is
an origin, it diverges there on the expected ranks and no others, no bit differs before it, further origins are the expected ones, and the
first printed line says so.

    python tests/e2e/fault_catalogue                  # all of it; exit code 1 if anything is not as expected
    python tests/e2e/fault_catalogue layernorm_eps --ranks 2 --tables
    python tests/e2e/fault_catalogue --write-docs     # writes this page

`tests/e2e/test_fault_catalogue.py` runs the same in every test run. Places are those of the run on two ranks; "last" ranks are rank 1 there
and rank 0 in a run of one rank. A dash: the fault needs two ranks.
"""

WHY = """
## Where the changed thing is not what is named

Only tensors that are recorded can be named: outputs of modules and their gradients, weights after their update and their gradients, the
optimizer's state, the batch, losses, and what the script hands to `inspect`. The right answer then is the first recorded tensor that the change
reaches.
"""

CLEAN_INTRODUCTION = """
## No false alarms

The same training without a fault. Verdicts of the default report; the largest distance of any record in six steps of Adam to the
baseline's stands beside the tolerance of float32, 1e-4. Rounding grows with training: over 150 steps of the plain model, measured once, the
largest distance of any output, gradient or weight was 6.4e-5, still no alarm; where it grows faster, see the last section.
"""


NOISE_INTRODUCTION = """
## Noise learned from repeats

A model in which attention's keys have a bias. It has no influence on the result, so its gradient is rounding noise, and Adam makes updates of
full size from it: repeats that only sum in another order part at the first update. `--noise` is given two such repeats. The planted errors
begin at step 7, in runs that sum in yet another order.
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
