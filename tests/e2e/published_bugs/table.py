"""The tables of docs/layouts.md."""

from __future__ import annotations

from pathlib import Path

from .cases import NOT_SHOWN
from .check import Answer, verdict_of

BEGIN, END = "<!-- published bugs: written by tests/e2e/published_bugs --write-docs -->", "<!-- end of published bugs -->"


def tables(answers: list[Answer]) -> str:
    found, quiet = sum(answer.found for answer in answers), len({a.case.clean for a in answers if a.quiet})
    pairs = len({answer.case.clean for answer in answers})
    lines = [
        f"{found} of {len(answers)} are named at their tensor and step; {quiet} of {pairs} layouts without a bug are quiet.",
        "",
        "reported in | layout | bug | named in step 0",
        "---|---|---|---",
    ]
    for answer in answers:
        root, case = answer.root, answer.case
        where = f"{root['kind'] or 'scalar'} `{root['activation']}`" if root else verdict_of(answer.faulty)
        at = f", step {root['step']}" if root and root["step"] else ""
        clean = "" if answer.quiet else f"; **without the bug {verdict_of(answer.clean)}**"
        lines.append(
            f"{case.source} | {case.layout} | {case.text} | {'' if answer.found else '**elsewhere**: '}{where}{at}{clean}"
        )
    lines += ["", "Not shown:", ""]
    lines += [f"- {where}{': ' if what else ''}{what}: {why}." for where, what, why in NOT_SHOWN]
    return "\n".join(lines)


def between_markers(page: Path, text: str) -> None:
    whole = page.read_text(encoding="utf-8")
    before, _, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{page} has no markers {BEGIN} and {END}"
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
