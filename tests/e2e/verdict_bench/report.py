"""Tables of a scored benchmark: each family with and without twins, false alarms, roots by size of the bug, causes, times.

No constant of the rule that measures rounding from twins was fitted on a family, so its figures of each family are those of a family left out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from verdict_bench.pairs import twins_of
from verdict_bench.score import Result

BUCKETS = (0.0, 1e-9, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3)
HALVES = ("fitted", "reported", "unseen", "set-up", "case")
Table = list[tuple[str, ...]]


def bucket(effect: float) -> int:
    return max(index for index, low in enumerate(BUCKETS) if effect >= low)


def bucket_name(index: int) -> str:
    if index == 0:
        return "no effect"
    low = "0" if index == 1 else f"{BUCKETS[index]:g}"
    return f"{low} to {BUCKETS[index + 1]:g}" if index + 1 < len(BUCKETS) else f"{low} and more"


def percent(part: int, whole: int) -> str:
    return "-" if whole == 0 else f"{100 * part / whole:.1f} % ({part}/{whole})"


def share(results: Iterable[Result], test: Callable[[Result], bool]) -> str:
    found = list(results)
    return percent(sum(map(test, found)), len(found))


def is_clean(result: Result) -> bool:
    return not result.pair["bug"]


def on_top(result: Result) -> bool:
    return bool(result.pair["legal"])


def effect_of(result: Result) -> float:
    return float(result.pair["effect"] or 0.0)


def typical_of(result: Result) -> float:
    return float(result.pair["typical"] or 0.0)


def headline(runs: Mapping[str, Sequence[Result]]) -> Table:
    """Each family, by each way of asking: clean pairs called a bug, roots that are exact by the bug's size in multiples of rounding, causes.
    Of pairs whose baseline has twins; the others have a row of their own."""
    figures: dict[str, tuple[Callable[[Result], bool], Callable[[Result], bool]]] = {
        "clean = bug": (is_clean, lambda r: r.alarm),
        "exact >= 10x": (lambda r: _large(r, 10), lambda r: r.exact),
        "exact 3-10x": (lambda r: _large(r, 3) and not _large(r, 10), lambda r: r.exact),
        "cause right": (lambda r: _has_rule(r) and _large(r, 10), _cause_right),
    }
    named = {asked: f", {asked}" if len(runs) > 1 else "" for asked in runs}
    rows: Table = [("family", *(f"{figure}{named[asked]}" for figure in figures for asked in runs))]
    groups = {asked: grouped(results) for asked, results in runs.items()}
    for name in dict.fromkeys(name for mine in groups.values() for name in mine):
        shares = [share(filter(chosen, groups[a].get(name, [])), test) for chosen, test in figures.values() for a in runs]
        rows.append((name, *shares))
    return rows


def grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    """All, by half and by family; and what was not compared with a baseline."""
    mine = [each for each in results if _has_baseline(each)]
    found = {"all": mine}
    for half in halves_of(mine):
        found[half] = [each for each in mine if each.pair["half"] == half]
    for family in families_of(mine):
        found[family] = [each for each in mine if each.pair["family"] == family]
    others = [each for each in results if not _has_baseline(each)]
    return {**found, **({"between two legal changes": others} if others else {})}


def _has_baseline(result: Result) -> bool:
    return "~" not in result.pair["legal"]


def measured(runs: Mapping[str, Sequence[Result]]) -> str:
    """How many answers say that they come from twins: none of a build or of a recording without."""
    lines = []
    for asked, results in runs.items():
        mine = [each for each in results if _has_baseline(each)]
        lines.append(f"{asked}: rounding was measured from twins in {share(mine, lambda r: r.twins > 0)}")
    return "\n".join(lines)


def cost(results: Sequence[Result], seconds: Mapping[str, float]) -> Table:
    """What recording a twin takes, beside the baseline's repeat: the baseline itself is the first run of its process and also starts torch."""
    rows: Table = [("family", "seconds of a baseline", "of a twin", "a twin takes")]
    pairs = [each.pair for each in results if _has_baseline(each)]
    bases = {pair["run_a"]: pair["family"] for pair in pairs if set(twins_of(pair["run_a"])) <= seconds.keys()}
    for name in ("all", *dict.fromkeys(bases.values())):
        mine = [base for base, family in bases.items() if name in ("all", family)]
        alone = sum(seconds.get(f"{base}-again", seconds[base]) for base in mine)
        twin = sum(statistics.mean(seconds[run] for run in twins_of(base)) for base in mine)
        if alone:
            rows.append((name, f"{alone / len(mine):.2f}", f"{twin / len(mine):.2f}", f"{twin / alone:.2f} times"))
    return rows


def false_alarms(results: Sequence[Result]) -> Table:
    rows: Table = [("clean pairs", "today", "with roots")]
    clean = [each for each in results if is_clean(each)]
    groups = [(half, [each for each in clean if each.pair["half"] == half]) for half in halves_of(clean)]
    groups += [(family, [each for each in clean if each.pair["family"] == family]) for family in families_of(clean)]
    groups += [(change or "repeat", [each for each in clean if each.pair["legal"] == change]) for change in changes_of(clean)]
    for name, mine in [("all", clean), *groups]:
        rows.append((name, share(mine, lambda r: r.first_alarm), share(mine, lambda r: r.alarm)))
    return rows


def families_of(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(each.pair["family"] for each in results))


def halves_of(results: Iterable[Result]) -> list[str]:
    found = {each.pair["half"] for each in results}
    return [half for half in HALVES if half in found]


def changes_of(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(each.pair["legal"] for each in results))


def roots(results: Sequence[Result]) -> Table:
    rows: Table = [("bug", "times rounding", "half", "exact today", "exact", "exact or alternative", "another place", "not seen")]
    planted = [each for each in results if not is_clean(each)]
    for name, on_legal in (("alone", False), ("on a legal change", True)):
        for index in range(len(BUCKETS)):
            for half in HALVES:
                mine = [r for r in planted if on_top(r) == on_legal and bucket(effect_of(r)) == index and r.pair["half"] == half]
                if mine:
                    rows.append((name, bucket_name(index), half, *_shares(mine)))
    return rows


def _shares(mine: Sequence[Result]) -> tuple[str, ...]:
    return (
        share(mine, lambda r: r.first_exact), share(mine, lambda r: r.exact), share(mine, lambda r: r.exact or r.alternative),
        share(mine, lambda r: r.alarm and not r.exact), share(mine, lambda r: not r.alarm),
    )  # fmt: skip


def goals(results: Sequence[Result]) -> Table:
    """The figures that the benchmark is about, by half."""
    halves = halves_of(results)
    rows: Table = [("goal", "wanted", *halves)]

    def row(name: str, wanted: str, chosen: Callable[[Result], bool], test: Callable[[Result], bool]) -> None:
        found = [[r for r in results if chosen(r) and r.pair["half"] == half] for half in halves]
        rows.append((name, wanted, *(share(each, test) for each in found)))

    row("false alarms", "<= 1 %", is_clean, lambda r: r.alarm)
    row("false alarms today", "", is_clean, lambda r: r.first_alarm)
    row("root exact at 10 times rounding or more", ">= 95 %", lambda r: _large(r, 10), lambda r: r.exact)
    row("root exact at 10 times rounding or more, today", "", lambda r: _large(r, 10), lambda r: r.first_exact)
    row("root exact at 3 to 10 times rounding", ">= 70 %", lambda r: _large(r, 3) and not _large(r, 10), lambda r: r.exact)
    row("root exact at 10 times typical rounding or more", "", lambda r: typical_of(r) >= 10, lambda r: r.exact)
    row("root exact at 3 to 10 times typical rounding", "", lambda r: 3 <= typical_of(r) < 10, lambda r: r.exact)
    row("root names another place", "", lambda r: _large(r, 3), lambda r: r.alarm and not r.exact)
    row("root exact, bug alone, any size", "", lambda r: _large(r, 1e-9) and not on_top(r), lambda r: r.exact)
    row("cause right, where the root is exact and a rule expected", ">= 90 %", _has_rule, _cause_right)
    row("the same at 100 times rounding or more", "", lambda r: _has_rule(r) and _large(r, 100), _cause_right)
    return rows


def _large(result: Result, at_least: float) -> bool:
    return not is_clean(result) and effect_of(result) >= at_least


def _has_rule(result: Result) -> bool:
    return result.exact and result.cause_right is not None


def _cause_right(result: Result) -> bool:
    return bool(result.cause_right)


def by_bug(results: Sequence[Result], at_least: float = 10.0) -> Table:
    """Kinds of bugs at a size that should be found."""
    rows: Table = [
        (f"bug, at {at_least:g} times rounding or more", "exact today", "exact", "another place", "not seen", "cause right")
    ]
    planted = [each for each in results if _large(each, at_least)]
    for kind in sorted({kind_of(each) for each in planted}):
        mine = [each for each in planted if kind_of(each) == kind]
        ruled = [each for each in mine if each.cause_right is not None and each.exact]
        exact_today, exact, _, elsewhere, unseen = _shares(mine)
        rows.append((kind, exact_today, exact, elsewhere, unseen, share(ruled, _cause_right)))
    return rows


def kind_of(result: Result) -> str:
    """`eps_of_b.2.ln2` is of kind eps."""
    name = str(result.pair["bug"])
    for word in ("activation", "permuted", "cast", "betas", "learning_rate", "optimizer_eps"):
        if name.startswith(word):
            return word
    if name.startswith("batch_"):
        return name if name == "batch_order" else "batch_value"
    kind, _, rest = name.partition("_of_")
    return f"{kind}_late" if rest.endswith("_late") else kind


def times(results: Sequence[Result]) -> Table:
    seconds = sorted(each.seconds for each in results)
    last = seconds[int(0.95 * (len(seconds) - 1))]
    return [("pairs", "median", "95th percentile", "sum"),
            (str(len(seconds)), f"{statistics.median(seconds):.3f} s", f"{last:.3f} s", f"{sum(seconds):.0f} s")]  # fmt: skip


def aligned(table: Table) -> str:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table)


def markdown(table: Table) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def text(
    runs: Mapping[str, Sequence[Result]], seconds: Mapping[str, float] | None = None, form: Callable[[Table], str] = aligned
) -> str:
    """`runs`: results by how they were asked for; `seconds`: of each recorded run."""
    costs = cost(next(iter(runs.values())), seconds or {})
    parts = [form(headline(runs)), measured(runs), *([form(costs)] if len(costs) > 1 else [])]
    for asked, results in runs.items():
        tables = (goals(results), false_alarms(results), roots(results), by_bug(results), times(results))
        parts += [*([f"== {asked}"] if len(runs) > 1 else []), *map(form, tables)]
    return "\n\n".join(parts)


def wrong(results: Sequence[Result], at_least: float = 10.0) -> str:
    """A line for each false alarm, and for each bug of that size that was not named."""
    lines = []
    for each in results:
        pair = each.pair
        if is_clean(each) and each.alarm:
            lines.append(f"false alarm  {pair['run_b']}: {each.found}")
        elif _large(each, at_least) and not each.exact:
            lines.append(
                f"{effect_of(each):9.3g} x  {pair['run_b']}: expected {pair['step']} {pair['expected']['names'][0]}, found {each.found or 'nothing'}"
            )
    return "\n".join(lines)
