"""Pictures of a scored benchmark as SVG: roots by the size of the bug, and what each answer was worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from verdict_bench.report import BUCKETS, bucket, bucket_name, effect_of, is_clean
from verdict_bench.score import Result

BINS = range(1, len(BUCKETS))  # without the bugs that change no bit
GOALS = ((3.0, 10.0, 0.70), (10.0, math.inf, 0.95))  # from and to, in multiples of rounding; the share wanted
SMALL = 3.0  # times rounding: a smaller bug is expected to be missed

STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 } .muted { fill: #59636e } .small { font-size: 12px } .bold { font-weight: 600 }
.page { fill: #ffffff } .grid { stroke: #e4e8ec } .axis { stroke: #8c959f } .goal { stroke: #1a7f37; stroke-width: 2; stroke-dasharray: 5 4 }
polyline { fill: none; stroke-width: 2.5; stroke-linejoin: round }
polyline.fitted { stroke: #8c6bc8 } circle.fitted, text.fitted { fill: #7a55bd }
polyline.reported { stroke: #0969da } circle.reported, text.reported, .right { fill: #0969da }
polyline.before { stroke: #8c959f } circle.before { fill: #8c959f } text.before { fill: #59636e }
text.goal { fill: #1a7f37; stroke: none } .faint { fill: #c4ccd4 } .wrong { fill: #d4691e }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .muted, text.before { fill: #9198a1 } .page { fill: #0d1117 } .grid { stroke: #262c34 } .axis { stroke: #656c76 }
.goal { stroke: #3fb950 } text.goal { fill: #3fb950 } polyline.fitted { stroke: #ab8ae6 } circle.fitted, text.fitted { fill: #b79bea }
polyline.reported { stroke: #4493f8 } circle.reported, text.reported, .right { fill: #4493f8 } .faint { fill: #4a525c } .wrong { fill: #db7a35 }
}
"""

WIDTH, LEFT, RIGHT = 760.0, 64.0, 740.0
TOP, BOTTOM = 84.0, 324.0  # of the curves: 100 % and 0 %

Test = Callable[[Result], bool]


def write(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes verdict-sizes.svg and verdict-answers.svg; creates the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in (("verdict-sizes.svg", sizes(results)), ("verdict-answers.svg", answers(results))):
        written.append(folder / name)
        written[-1].write_text(picture, encoding="utf-8")
    return written


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def page(height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" height="{height:g}" role="img">'
    background = f'<rect class="page" width="{WIDTH:g}" height="{height:g}" rx="6"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", background, *parts, "</svg>\n"])


# --- roots by the size of the bug


def counted(results: Sequence[Result], half: str, test: Test) -> dict[int, tuple[int, int]]:
    """For each bin that has bugs: how many pass the test, of how many."""
    found: dict[int, tuple[int, int]] = {}
    for each in results:
        at = bucket(effect_of(each))
        if not is_clean(each) and each.pair["half"] == half and at in BINS:
            passed, whole = found.get(at, (0, 0))
            found[at] = passed + test(each), whole + 1
    return dict(sorted(found.items()))


def edge(times: float) -> float:
    """The x position of a multiple of rounding; the lowest and the highest bin end 0.5 and 1 decade beyond their inner edge."""
    low, high = math.log10(BUCKETS[2]) - 0.5, math.log10(BUCKETS[-1]) + 1
    at = min(max(math.log10(times) if 0 < times < math.inf else times, low), high) if times else low
    return LEFT + (RIGHT - LEFT) * (at - low) / (high - low)


def middle(index: int) -> float:
    return (edge(BUCKETS[index] if index > 1 else 0.0) + edge(BUCKETS[index + 1] if index + 1 < len(BUCKETS) else math.inf)) / 2


def level(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share


def curve(points: dict[int, tuple[int, int]], style: str) -> list[str]:
    places = [(middle(at), level(passed / whole), at) for at, (passed, whole) in points.items()]
    drawn = [f'<polyline class="{style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)}"/>']
    for x, y, at in places:
        passed, whole = points[at]
        said = f"{style}, {bucket_name(at)} times rounding: {passed} of {whole}"
        drawn.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{said}</title></circle>')
    return drawn


def frame() -> list[str]:
    drawn = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawn.append(line(LEFT, level(share), RIGHT, level(share), "axis" if share == 0 else "grid"))
        drawn.append(text(LEFT - 8, level(share) + 4, f"{100 * share:g} %", "muted", "end"))
    for times in BUCKETS[2:]:
        drawn += [line(edge(times), TOP, edge(times), BOTTOM, "grid"), line(edge(times), BOTTOM, edge(times), BOTTOM + 5, "axis")]
        drawn.append(text(edge(times), BOTTOM + 20, f"{times:,g}", "", "middle"))
    for low, high, share in GOALS:
        drawn.append(line(edge(low), level(share), edge(high), level(share), "goal"))
        words = f"goal {100 * share:g} %"
        last = high == math.inf
        drawn.append(
            text(RIGHT, level(share) + 17, words, "goal small", "end")
            if last
            else text(edge(high) + 6, level(share) + 4, words, "goal small")
        )
    drawn += [text(middle(at), BOTTOM + 20, words, "muted", "middle") for at, words in ((BINS[0], "less"), (BINS[-1], "more"))]
    return drawn


def sizes(results: Sequence[Result]) -> str:
    fitted, reported = (counted(results, half, lambda r: r.exact) for half in ("fitted", "reported"))
    before = counted(results, "reported", lambda r: r.first_exact)
    drawn = [text(24, 34, "How often the planted bug is named exactly", "title")]
    drawn += [
        text(24, 56, "Share of planted bugs whose step, stage and tensor are all right, by the size of the bug", "muted"),
        *frame(),
    ]
    drawn += [*curve(before, "before"), *curve(fitted, "fitted"), *curve(reported, "reported")]
    for points, style, words, wanted, dx, dy, anchor in (
        (fitted, "fitted", "fitted families", 2, -10.0, -8.0, "end"),
        (reported, "reported", "reported families", 2, 12.0, 14.0, "start"),
        (before, "before", "without roots: first difference above the tolerance", 4, 0.0, -14.0, "middle"),
    ):
        if wanted in points:
            passed, whole = points[wanted]
            drawn.append(text(middle(wanted) + dx, level(passed / whole) + dy, words, f"{style} bold", anchor))
    drawn.append(
        text((LEFT + RIGHT) / 2, BOTTOM + 42, "size of the bug, in multiples of the rounding at its place", "", "middle")
    )
    for row, (style, points) in enumerate((("fitted", fitted), ("reported", reported))):
        drawn.append(text(LEFT - 8, BOTTOM + 70 + 18 * row, "bugs" if row == 0 else "", "small muted", "end"))
        drawn += [text(middle(at), BOTTOM + 70 + 18 * row, str(points[at][1]), f"{style} small", "middle") for at in points]
    return page(BOTTOM + 106, "Share of bugs named exactly, by size", drawn)


# --- what each answer was worth


def answered(results: Sequence[Result], half: str) -> list[tuple[str, list[tuple[str, int, str]]]]:
    """For each answer: what was true, how often, and how it is drawn."""
    mine = [each for each in results if each.pair["half"] == half]
    rows: list[tuple[str, list[tuple[str, int, str]]]] = []
    for name in ("certain", "likely", "possible"):
        roots = [each for each in mine if each.confidence == name]
        exact, clean = sum(each.exact for each in roots), sum(map(is_clean, roots))
        elsewhere = len(roots) - exact - clean
        rows.append((name, [("exact", exact, "right"), ("another place", elsewhere, "wrong"), ("no bug", clean, "wrong")]))
    quiet = [each for each in mine if not each.alarm]
    clean, small = sum(map(is_clean, quiet)), sum(not is_clean(each) and effect_of(each) < SMALL for each in quiet)
    missed = [
        ("no bug", clean, "right"),
        (f"a bug below {SMALL:g} times rounding", small, "faint"),
        ("a larger bug", len(quiet) - clean - small, "wrong"),
    ]
    return [*rows, ("only rounding", missed)]


def answers(results: Sequence[Result]) -> str:
    drawn = [
        text(24, 34, "What each answer was worth", "title"),
        text(24, 56, "Pairs of the reported families, by what diff answered and what was true", "muted"),
    ]
    left, right, y = 132.0, 626.0, 84.0
    for name, parts in answered(results, "reported"):
        whole = sum(count for _, count, _ in parts)
        drawn.append(text(left - 12, y + 19, name, "bold", "end"))
        x = left
        for what, count, style in parts:
            if count:
                width = (right - left) * count / whole
                said = f"{name}, {what}: {count} of {whole}"
                drawn.append(
                    f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{max(width - 1.5, 1):.1f}" height="28"><title>{said}</title></rect>'
                )
                x += width
        if whole:
            drawn.append(text(right + 10, y + 19, f"{100 * parts[0][1] / whole:.1f} % {parts[0][0]}", "bold"))
            drawn.append(text(left, y + 45, "  ·  ".join(f"{what} {count}" for what, count, _ in parts if count), "small muted"))
        y += 66
    return page(y + 6, "What each answer was worth", drawn)
