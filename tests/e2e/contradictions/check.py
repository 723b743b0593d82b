"""Reads one answer of `statctl diff`, as text and as JSON, for statements that contradict each other.

`contradictions` is told nothing about how the runs were made: it only compares the parts of an answer with each other. Each check is one
statement that must hold for every pair of runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
CODES = {"identical": 0, "within_tolerance": 0, "diverged": 1, "incomparable": 2}
WORDS = {
    "identical": ("IDENTICAL", "EQUAL"),
    "within_tolerance": ("WITHIN TOLERANCE", "SAME UP TO ROUNDING"),
    "diverged": ("DIVERGED",),
    "incomparable": ("INCOMPARABLE",),
}
GIVEN = ("weights", "batch")  # nothing that was recorded computes them
SAME = ("step", "micro_batch", "rank", "stage", "kind", "activation", "output_path", "call", "mode")
# Of values alone; other rows differ in more than size.
BY_SIZE = ("numeric", "bitwise", "order", "nonfinite", "dtype")
STAGES = ("weights", "batch", "forward", "loss", "backward", "grad", "optimizer")
MISSING, BEYOND_SCALE = 127, 255  # levels of a heat map: only one run has it; at least 1e8 times the tolerance


@dataclass(frozen=True)
class Answer:
    """`text`: what statctl prints; `heat_map`: of the same question, as the page asks it; `sources`: by run, if not recorded by an agent."""

    text: str
    report: Mapping[str, Any]
    code: int
    heat_map: Mapping[str, Any] | None = None
    sources: Mapping[str, str] | None = None

    @property
    def root(self) -> Row | None:
        found: Row | None = self.report["root"]
        return found

    @property
    def focus(self) -> Row | None:
        found: Row | None = self.root or self.report["first"]
        return found

    @property
    def headline(self) -> str:
        return next((line for line in self.text.splitlines() if line.strip()), "")

    def sentences(self) -> Iterator[str]:
        """Every line of the text, and every string of the JSON that is a sentence for people."""
        yield from self.text.splitlines()
        report = self.report
        yield from (str(value) for value in (report.get("text") or {}).values())
        yield from (*report["notes"], report["message"] or "", *(each["detail"] for each in report["comparable"]))
        if self.root is not None:
            yield from self.root["because"]
            yield from ([] if self.root["cause"] is None else [self.root["cause"]["text"]])

    def says(self, words: str) -> bool:
        return any(words in sentence for sentence in self.sentences())

    def cells(self) -> list[str]:
        """The column `cause` of the table of diverged records, row by row. A column of one value is said above the table."""
        _, found, table = self.text.partition("\nDiverged, in order of execution")
        lines = table.partition("\n\n")[0].splitlines()[1:] if found else []
        every = lines.pop(0) if lines and lines[0].startswith("  Every row: ") else ""
        if said := re.search(r"[:,] cause (\w+)", every):
            return [said[1]] * len(lines[1:])
        return [line.split()[-1] for line in lines[1:]]


CHECKS: dict[str, Callable[[Answer], Iterator[str]]] = {}


def check(of: Callable[[Answer], Iterator[str]]) -> Callable[[Answer], Iterator[str]]:
    CHECKS[of.__name__] = of
    return of


def number(value: Any) -> float | None:
    """A number of the JSON, in which infinities are texts."""
    return None if value is None else float(value)


def contradictions(answer: Answer) -> list[str]:
    """One sentence for each contradiction: what is said, and what it contradicts."""
    return [f"{name}: {text}" for name, of in CHECKS.items() for text in of(answer)]


def name_of(row: Row) -> str:
    return f"step {row['step']} {row['stage']} {row['activation']} ({row['reason']})"


def same_place(x: Row, y: Row) -> bool:
    return all(x[key] == y[key] for key in SAME)


def is_value(row: Row) -> bool:
    return row["reason"] in BY_SIZE and number(row["distance"]) != 0


def differs_before(answer: Answer, row: Row) -> Row | None:
    """A record that differs in its bits and certainly comes before the row; None if there is none, as far as the report shows."""
    bitwise: Row | None = answer.report["first_bitwise"]
    if bitwise is not None and not same_place(bitwise, row):
        earlier = bitwise["step"] < row["step"]
        same_step = bitwise["step"] == row["step"] and bitwise["micro_batch"] <= row["micro_batch"]
        if earlier or (same_step and STAGES.index(bitwise["stage"]) < STAGES.index(row["stage"])):
            return bitwise
    for other in answer.report["diverged"]:
        if same_place(other, row):
            return None
        if is_value(other):
            return other if other["step"] <= row["step"] else None
    return None


# --- the verdict


@check
def verdict_and_exit_code(answer: Answer) -> Iterator[str]:
    verdict = answer.report["verdict"]
    if answer.code != CODES[verdict]:
        yield f"{verdict} exits with {answer.code}"
    if not answer.headline.startswith(WORDS[verdict]):
        yield f"{verdict} begins with: {answer.headline[:60]}"


@check
def verdict_and_counts(answer: Answer) -> Iterator[str]:
    report, counts = answer.report, answer.report["compared"]
    if counts["records"] != counts["identical"] + counts["within_tolerance"] + counts["diverged"]:
        yield f"{counts} do not add up"
    if report["verdict"] == "identical" and (
        counts["identical"] != counts["records"] or report["diverged"] or report["first"] or report["root"]
    ):
        yield f"identical, but {counts}, {len(report['diverged'])} rows, root {report['root'] is not None}"
    if report["verdict"] == "diverged" and not (counts["diverged"] or report["root"]):
        yield "diverged, but no record did and there is no root"
    if report["verdict"] == "incomparable" and (report["first"] or report["root"] or report["diverged"]):
        yield "incomparable, but a difference is named"
    if (report["explained"] == "rounding") and report["root"] is not None:
        yield "rounding explains everything, but there is a root"


@check
def runs_with_nothing_in_common(answer: Answer) -> Iterator[str]:
    """What only one run has is a difference of two models; if no module of theirs has a counterpart, they are two models."""
    report = answer.report
    of_models = [row for row in report["diverged"] if row["stage"] not in ("batch", "loss")]
    only = {side: {name.split()[1] for name in report["unmatched"][side]} for side in ("only_a", "only_b")}
    complete = report["compared"]["diverged"] == len(report["diverged"])
    alone = complete and of_models and all(row["reason"].startswith("missing") for row in of_models)
    compared = report["spread"]["activations_total"] - report["spread"]["activations"]
    if report["verdict"] == "diverged" and alone and only["only_a"] and only["only_b"] and compared <= 1:
        yield f"diverged at {answer.headline[:80]}, but no module of one run is in the other"


# --- bits


@check
def bits_are_known(answer: Answer) -> Iterator[str]:
    if not answer.report["without_hash"]:
        return
    if answer.headline.startswith("IDENTICAL"):
        yield f"IDENTICAL, but {answer.report['without_hash']} records have no content hash"
    for sentence in answer.sentences():
        if re.search(r"(agrees?|equals? .*|equal) bit for bit", sentence) and not re.search(
            r"[\d,]+ of them bit for bit", sentence
        ):
            yield f"'{sentence[:120]}', but {answer.report['without_hash']} records have no content hash"


# --- the root, and what is before it


@check
def what_comes_before_the_root(answer: Answer) -> Iterator[str]:
    row = answer.focus
    if row is None:
        return
    agreeing = row.get("agreeing")
    everything = [s for s in answer.sentences() if re.search(r"every(thing|.*activation)( observed)? before it agrees", s)]
    nothing = [s for s in answer.sentences() if re.search(r"[Nn]othing .*comes before it", s)]
    before = differs_before(answer, row)
    if everything and before is not None:
        yield f"'{everything[0][:160]}', but {name_of(before)} differs before it"
    if everything and agreeing == 0:
        yield f"'{everything[0][:160]}', but no record is before it"
    if everything and nothing:
        yield f"'{everything[0][:160]}' beside '{nothing[0]}'"
    if nothing and agreeing:
        yield f"'{nothing[0]}', but {agreeing} records were compared before it"
    if nothing and answer.says("before it, agrees"):
        yield f"'{nothing[0]}' beside '{(answer.report.get('text') or {}).get('next', '')[-80:]}'"
    if answer.says("Rounding explains everything before it") and everything:
        yield "rounding explains what is before it, and everything before it agrees"


@check
def what_the_advice_says_agrees(answer: Answer) -> Iterator[str]:
    """'forward pass and loss agree' and its like: only 'up to rounding' or 'within tolerance' if something before it differs."""
    row = answer.focus
    if row is None:
        return
    before = differs_before(answer, row)
    advice = str((answer.report.get("text") or {}).get("next", ""))
    found = re.search(r"(forward[\w ]*agree|before it agrees|gradient of \S+ agrees)(?! (up to|within))", advice)
    if found and before is not None and before["step"] == row["step"]:
        yield f"'{found[0]}', but {name_of(before)} differs before it"


@check
def root_is_one_of_the_rows(answer: Answer) -> Iterator[str]:
    root = answer.root
    if root is None:
        return
    complete = answer.report["compared"]["diverged"] == len(answer.report["diverged"])
    above = _times_tolerance(root) > 1
    rows = [row for row in answer.report["diverged"] if same_place(row, root)]
    if complete and above and root["reason"] == "numeric" and not rows and answer.report["explained"] is None:
        yield f"the root {name_of(root)} is above its tolerance, but no row"
    for row in rows:
        for key in ("reason", "distance", "tolerance", "times_noise"):
            if not _same(row[key], root[key]):
                yield f"{key} of the root is {root[key]}, of its row {row[key]}"


@check
def origins_and_root(answer: Answer) -> Iterator[str]:
    root, rows = answer.root, answer.report["diverged"]
    if root is None:
        return
    at = next((i for i, row in enumerate(rows) if same_place(row, root)), None)
    if at is not None and not rows[at]["origin"]:
        yield f"the root's row {name_of(rows[at])} is no origin"
    for row in rows[:at] if at is not None else [row for row in rows if row["step"] < root["step"]]:
        if row["origin"]:
            yield f"{name_of(row)} is an origin, but the root {name_of(root)} comes after it"


@check
def propagated_from_something(answer: Answer) -> Iterator[str]:
    """A row is 'propagated' only if a row before it can carry the difference to it: a logged loss carries nothing, nor does what one run lacks."""
    rows, root = answer.report["diverged"], answer.root
    # A root below its tolerance is no row.
    unlisted = root is not None and rows and root["step"] <= rows[0]["step"] and not any(same_place(row, root) for row in rows)
    carrier = bool(unlisted and root is not None and root["stage"] != "loss" and is_value(root))
    computing = carrier and root is not None and root["stage"] not in GIVEN  # then a batch may be what a model computed
    cells = answer.cells()
    for row, cell in zip(rows, cells):
        given = row["stage"] == "weights" or (row["stage"] == "batch" and not computing)
        if cell == "propagated" and (not carrier or given):
            yield f"{name_of(row)} is propagated, but no row before it can have caused it"
        if (cell == "origin") != row["origin"]:
            yield f"{name_of(row)} has the cell '{cell}', and origin is {row['origin']}"
        carries = row["stage"] != "loss" and is_value(row)
        carrier, computing = carrier or carries, computing or (carries and row["stage"] not in GIVEN)
    if cells and len(cells) != len(rows):
        yield f"{len(cells)} rows are printed of {len(rows)}"


@check
def root_obeys_the_noise(answer: Answer) -> Iterator[str]:
    root, noise = answer.root, answer.report["noise"]
    if noise is None or root is None:
        return
    times = number(root["times_noise"])
    if times is not None and times <= 10 and answer.report["verdict"] == "within_tolerance":
        yield f"repeats differ by as much as the root ({times} times noise), but it is {root['confidence']}"
    if (
        answer.report["verdict"] == "within_tolerance"
        and times is None
        and root["stage"] not in GIVEN
        and root["confidence"] == "certain"
    ):
        yield "with noise, within tolerance and beside it a certain root whose noise is not said"


# --- numbers


@check
def distances_are_said_alike(answer: Answer) -> Iterator[str]:
    row = answer.focus
    if row is None or answer.report["verdict"] == "identical":
        return
    said = re.search(r"distance ([\d.e-]+|inf)", answer.headline)
    distance = number(row["distance"])
    if said and distance is not None and not math.isclose(float(said[1]), distance, rel_tol=0.06):
        yield f"the first line says {said[1]}, the report {row['distance']}"
    low, high = number(row["distance_low"]), number(row["distance_high"])
    if low is not None and high is not None and distance is not None and not low <= distance <= high:
        yield f"the distance {row['distance']} is outside {low} to {high}"


@check
def no_negative_nan(answer: Answer) -> Iterator[str]:
    if re.search(r"-nan\b", answer.text + json.dumps(answer.report)):
        yield "says -nan"


@check
def heat_map_and_rows(answer: Answer) -> Iterator[str]:
    heat = answer.heat_map
    if heat is None:
        return
    rows_of: dict[tuple[int, int], list[Row]] = {}
    for row in answer.report["diverged"]:
        place = next((i for i, of in enumerate(heat["rows"]) if of["tensors"] == 1 and _in_row(row, of)), None)
        ends = zip(heat["first_steps"], heat["last_steps"])
        column = next((i for i, (first, last) in enumerate(ends) if first == last == row["step"]), None)
        if place is not None and column is not None:
            rows_of.setdefault((place, column), []).append(row)
    for (place, column), rows in rows_of.items():
        level = heat["cells"][place * len(heat["first_steps"]) + column]
        worst = max((_times_tolerance(row) for row in rows), default=0.0)
        if answer.report["explained"] == "rounding":  # shown as within tolerance, whatever the distance
            wrong = level > MISSING
        elif all(row["reason"].startswith("missing") for row in rows):
            wrong = level < MISSING
        elif all(is_value(row) for row in rows):
            wrong = level <= MISSING or (level == BEYOND_SCALE and worst < 1e7)
        else:
            wrong = level < MISSING
        if wrong:
            yield f"{name_of(rows[0])} is {worst} times its tolerance and has the cell {level}"
    root = answer.root
    if root is not None and heat["origin_row"] is not None and not _in_row(root, heat["rows"][heat["origin_row"]]):
        yield f"the mark of the root is on {heat['rows'][heat['origin_row']]['activation']}"


def _times_tolerance(row: Row) -> float:
    distance, tolerance = number(row["distance"]), number(row["tolerance"])
    return distance / tolerance if distance is not None and tolerance else math.inf


def _in_row(row: Row, of: Row) -> bool:
    return all(of[key] == row[key] for key in ("stage", "kind", "activation", "output_path", "mode"))


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, (int, float)) and isinstance(y, (int, float)) and not isinstance(x, bool):
        return math.isclose(x, y, rel_tol=1e-3)
    return bool(x == y)


# --- steps


@check
def steps_are_in_the_window(answer: Answer) -> Iterator[str]:
    window, root = answer.report["steps"], answer.root
    if window is None:
        return
    for row in [r for r in (answer.focus, *answer.report["diverged"]) if r is not None]:
        if not window["first"] <= row["step"] <= window["last"]:
            yield f"{name_of(row)} is outside of {window['first']}..{window['last']}"
    if root is not None and root["above_tolerance"] not in (None, (answer.report["first"] or {}).get("step")):
        yield f"above_tolerance is {root['above_tolerance']}, first is at {answer.report['first']['step']}"
    cause = root and root["cause"]
    if root is None or not cause:
        return
    for begin, end in re.findall(r"between steps? (\d+) and (?:step )?(\d+)", cause["text"]):
        if not int(begin) <= root["step"] <= int(end):
            yield f"it changed between {begin} and {end}, but the root is at step {root['step']}"
    for seen in re.findall(r"as seen at step (\d+)", cause["text"]):
        if int(seen) > root["step"]:
            yield f"it changed as seen at step {seen}, but has its effect at step {root['step']}"


# --- runs and sources


@check
def names_of_the_runs(answer: Answer) -> Iterator[str]:
    a, b, row = answer.report["run_a"], answer.report["run_b"], answer.focus
    if row is None:
        return
    if row["reason"] in ("missing_in_a", "missing_in_b"):
        lacking, having = (a, b) if row["reason"] == "missing_in_a" else (b, a)
        advice = str((answer.report.get("text") or {}).get("next", ""))
        if re.search(rf"(?<![\w.-]){re.escape(having)} (has no|did not run|got no)", advice):
            yield f"missing in {lacking}, but: {advice}"
    cause = answer.root and answer.root["cause"]
    if cause and cause["a"] and cause["b"] and " in " in cause["text"] and not (a in cause["text"] or b in cause["text"]):
        yield f"the cause names no run: {cause['text']}"


@check
def settings_have_values(answer: Answer) -> Iterator[str]:
    """A module's mode always has a value: the one that it is recorded as different from is the model's."""
    for sentence in answer.sentences():
        if re.search(r"\btraining is not set in\b", sentence) or re.search(
            r"\btraining is \w+ in \S+ and not set in\b", sentence
        ):
            yield f"'{sentence.strip()[:120]}'"


@check
def advice_fits_the_source(answer: Answer) -> Iterator[str]:
    sources = answer.sources or {}
    for sentence in answer.sentences():
        for run, source in sources.items():
            if re.search(rf"STATAGENT_RUN='?{re.escape(run)}", sentence):
                yield f"advises to launch {run} again, which is a {source}"
        if "STATAGENT_CAPTURES" in sentence and "import" in sources.values():
            yield "advises to set STATAGENT_CAPTURES, but an import has no agent"
