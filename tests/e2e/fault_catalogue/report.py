"""The catalogue's results, for a terminal and for docs/fault-catalogue.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fault_catalogue.catalogue import Calibrated, Repeat
from fault_catalogue.check import Answer, found_text

HEAD = ("fault", "what was changed", "expected place", "found place", "distance", "tolerance", "1 rank", "2 ranks")
NOISE_HEAD = ("run", "what differs from the baseline", "by default", "with --noise", "times noise", "ok")
CLEAN_HEAD = ("run", "what differs from the baseline", "1 rank", "2 ranks", "largest distance")

PAGE_HEAD = ("fault", "what was changed", "found at")
PAGE_CLEAN_HEAD = ("1 rank", "2 ranks", "runs", "largest distance")

INTRODUCTION = """# Planted faults, and where they are found

Each fault is planted in a training of a small GPT (AdamW, six steps), on one rank and on two with DistributedDataParallel, and compared with `statctl diff` at its default settings.

A fault counts as found if every part of `first` is as expected, `first` is an origin on exactly the expected ranks, no bit differs before it, and the first printed line names it; otherwise it is marked **wrong**.
Places are those of step 3 and rank 0 of two, with the reason `numeric`, unless they say otherwise. Where another tensor than the changed one is named, the reason follows.

    python tests/e2e/fault_catalogue                  # all of it; exit code 1 if anything is not as expected
    python tests/e2e/fault_catalogue layernorm_eps --ranks 2 --tables
    python tests/e2e/fault_catalogue --write-docs     # writes this page

Every test run checks all faults on one rank and a selection on two. Bugs of layouts are in [layouts.md](layouts.md#how-well-it-works).
"""

CLEAN_INTRODUCTION = """
## No false alarms

These runs train without a fault ([clean.py](../tests/e2e/fault_catalogue/clean.py)). The largest distance is that of any record; the tolerance of float32 is 1e-4.
"""


NOISE_INTRODUCTION = """
## Noise learned from repeats

Attention's keys have a bias here whose gradient is rounding noise, from which Adam makes updates of full size: repeats diverge at the first update. `--noise` gets two of them; the planted errors begin at step 7.

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


def page_rows(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """As rows(), shorter: the expected place only where another was found, step and ranks only where something is said of them."""
    whys = {answer.fault.name: answer.fault.why for answer in answers}
    return [page_row(row, whys[row[0]]) for row in rows(answers)]


def page_row(row: tuple[str, ...], why: str) -> tuple[str, ...]:
    name, change, expected, found, _, _, one, two = row
    said = [f"**wrong**, expected {expected}"] if found != expected else []
    said += [f"**wrong** on {ranks}" for ranks, ok in (("1 rank", one), ("2 ranks", two)) if ok == "wrong"]
    said += ["on 2 ranks only"] if one == "-" else []
    place = found.replace(", rank 0,", ",").removeprefix("step 3, ").removesuffix(": numeric")
    return name, change, "; ".join([place, *said, *([why] if why else [])])


def page_clean_rows(repeats: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Of clean_rows(): a row for each pair of verdicts, with its runs and their largest distance."""
    found: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for name, _, *verdicts, largest in repeats:
        found.setdefault(tuple(verdicts), []).append((name, float(largest)))
    return [
        (*verdicts, ", ".join(name for name, _ in runs), f"{max(largest for _, largest in runs):.1e}".replace("0.0e+00", "0"))
        for verdicts, runs in found.items()
    ]


def markdown(answers: Sequence[Answer], repeats: Sequence[Repeat], calibrated: Sequence[Calibrated]) -> str:
    return page(page_rows(answers), page_clean_rows(clean_rows(repeats)), noise_rows(calibrated))


def page(faults: list[tuple[str, ...]], clean: list[tuple[str, ...]], noise: list[tuple[str, ...]]) -> str:
    repeats = [f"- {name}: {found}{'' if ok == 'ok' else ' (**wrong**)'}" for name, _, _, found, _, ok in noise]
    return "\n".join(
        [INTRODUCTION, *markdown_table([PAGE_HEAD, *faults]), CLEAN_INTRODUCTION, *markdown_table([PAGE_CLEAN_HEAD, *clean]),
         NOISE_INTRODUCTION + "\n".join(repeats), ""]
    )  # fmt: skip


def markdown_table(table: Sequence[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:]]
