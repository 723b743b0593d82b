"""Compares `statctl diff` with the naive model on pairs of runs made from seeds. As a program: the long form.

python tests/e2e/naive/check.py --pairs 5000 --seed 1
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import BUILD, Collector

from naive.generator import as_line, begun_by, make_pair, make_repeats
from naive.naive_diff import Answer, Losses, Model, Run
from naive.naive_records import read_records
from naive.naive_root import RootSearch, Settings, is_hard, is_known, is_loaded_later, pass_over_noise, root_of

MAKE_RUNS = BUILD / "tests" / "make_runs"
NOISE = ["--noise", "RUNS"]
QUESTIONS: list[list[str]] = [
    [], [], ["--tolerance", "1e-2"], ["--tolerance", "1e-6"], ["--kinds", "output,weight_grad"], ["--exact"],
    NOISE, NOISE, ["--tolerance", "1e-6", *NOISE], ["--tolerance", "1e-2", *NOISE],
]  # fmt: skip


def question_of(seed: int) -> list[str]:
    return random.Random(f"question {seed}").choice(QUESTIONS)


def repeats_of(seed: int) -> list[str]:
    """Runs that repeat run A, where the question is about noise."""
    return [f"{name}{seed}" for name in "cd"] if "--noise" in question_of(seed) else []


def launches_of(seed: int) -> dict[str, list[dict[str, Any]]]:
    """By run, in order."""
    launches: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for launch in [*make_pair(seed, f"a{seed}", f"b{seed}"), *make_repeats(seed, repeats_of(seed))]:
        launches[launch["run"]].append(launch)
    return launches


def write_runs(store: str, seeds: Iterable[int]) -> None:
    """Run a<seed> and b<seed> for each seed, and its repeats, into a data folder that no daemon has open, or a ClickHouse."""
    lines = []
    for seed in seeds:
        lines += [as_line(launch) for launches in launches_of(seed).values() for launch in launches]
    subprocess.run([str(MAKE_RUNS), store], input="\n".join(lines) + "\n", text=True, check=True, timeout=600)


def is_loss(name: str) -> bool:
    """Losses by their names, as docs/divergence.md says."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    other = {
        "scale",
        "weight",
        "coef",
        "coeff",
        "factor",
        "lr",
        "mask",
        "count",
        "time",
        "ms",
        "us",
        "sec",
        "seconds",
        "duration",
    }
    return not words & other and any(word.endswith("loss") or word == "losses" for word in words)


def read_losses(path: Path) -> Losses:
    losses: Losses = defaultdict(list)
    with path.open(newline="") as lines:
        for line in csv.DictReader(lines):
            if is_loss(line["name"]):
                losses[int(line["step"]), int(line["rank"])].append(
                    (line["name"], int(line["micro_batch"]), float(line["value"]))
                )
    return losses


def places_of_scalars(path: Path) -> set[tuple[int, int]]:
    with path.open(newline="") as lines:
        return {(int(line["step"]), int(line["rank"])) for line in csv.DictReader(lines)}


def read_settings(path: Path) -> Settings:
    settings: Settings = defaultdict(list)
    with path.open(newline="") as lines:
        for line in csv.DictReader(lines):
            settings[int(line["step"]), int(line["rank"])].append((line["name"], float(line["value"])))
    return settings


def export(collector: Collector, run: str, folder: Path) -> tuple[Path, Path]:
    observations, scalars = folder / f"{run}.csv", folder / f"{run}.scalars.csv"
    done = collector.statctl("export", "csv", run, str(observations), "--sketch")
    assert done.code == 0, done.err
    done = collector.statctl("scalars", run, "--format", "csv")
    assert done.code == 0, done.err
    scalars.write_text(done.out)
    return observations, scalars


def run_of(exported: tuple[Path, Path], launches: list[dict[str, Any]]) -> Run:
    observations, scalars = exported
    return Run(read_records(observations), read_losses(scalars), places_of_scalars(scalars), begun_by(launches))


def model_of(a: Run, b: Run, repeats: list[Run], question: list[str], noise_allows: bool) -> Answer:
    tolerance = float(question[1]) if "--tolerance" in question else None
    kinds = set(question[1].split(",")) if "--kinds" in question else None
    return Model(a, b, tolerance, kinds, "--exact" in question, repeats, noise_allows).run()


def row_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["step"], row["rank"], row["stage"], row["activation"], row["kind"] or "", row["output_path"], row["micro_batch"],
            row["call"], row["mode"], row["reason"])  # fmt: skip


def number(value: Any) -> float | None:
    return None if value is None else float(value)


def is_hard_question(question: list[str]) -> bool:
    """Whether it sets limits of its own, or leaves out what tensors are computed from."""
    return any(option in question for option in ("--tolerance", "--exact", "--kinds"))


def may_be_explained(naive: Answer, question: list[str]) -> bool:
    """Whether rounding may explain the answer: something differs, in size only, and the question sets no limit of its own."""
    return (
        not is_hard_question(question)
        and naive.first_bitwise is not None
        and all((row.reason == "numeric" and not is_hard(row)) or naive.is_idle(row) for row in naive.rows)
    )


def begin_at_root(report: dict[str, Any], naive: Answer) -> None:
    """As the page on divergence says of a root: no row before it is an origin, and none at all if it is no row itself."""
    if report["root"] is None:
        return
    root = row_of(report["root"])[:-1]
    keys = [row.key()[:-1] for row in naive.rows]
    at = keys.index(root) if root in keys else len(keys)
    for row in naive.rows[:at]:
        row.origin = False
    naive.origins = [row for row in naive.origins if keys.index(row.key()[:-1]) >= at]
    if at < len(keys):
        naive.rows[at].origin = True
        naive.origins = [naive.rows[at], *(row for row in naive.origins if row is not naive.rows[at])]


def disagreements(report: dict[str, Any], naive: Answer, question: list[str]) -> list[str]:
    """One line each; empty if both say the same."""
    found: list[str] = []

    def expect(what: str, of_diff: Any, of_model: Any) -> None:
        if of_diff != of_model:
            found.append(f"{what}: diff says {of_diff}, the model {of_model}")

    if report["explained"]:
        expect("root of what is explained", report["root"], None)
        expect("verdict", report["verdict"], "within_tolerance")
        if not may_be_explained(naive, question):
            expect("explained", report["explained"], None)
    else:
        # The model does not judge what rounding explains, so that it knows of no root.
        expect("verdict", report["verdict"], "diverged" if naive.rows and report["root"] is not None else naive.verdict)
    if "incomparable" in (report["verdict"], naive.verdict):
        return found
    compared = report["compared"]
    expect("records", compared["records"], naive.records)
    expect("identical", compared["identical"], naive.identical)
    expect("within_tolerance", compared["within_tolerance"], naive.within)
    expect("diverged", compared["diverged"], len(naive.rows))
    expect("ranks", report["ranks"], naive.ranks)
    expect("steps", report["steps"] and (report["steps"]["first"], report["steps"]["last"]), naive.steps)
    expect("only_a", sorted(report["unmatched"]["only_a"]), sorted(naive.only_a))
    expect("only_b", sorted(report["unmatched"]["only_b"]), sorted(naive.only_b))
    expect("weights", report["inputs"]["weights"], naive.weights)
    expect("batches", report["inputs"]["batches"], naive.batches)
    rows = [row_of(row) for row in report["diverged"]]
    expected = [row.key() for row in naive.rows]
    if rows != expected:
        at = next((i for i, (x, y) in enumerate(zip(rows, expected, strict=False)) if x != y), min(len(rows), len(expected)))
        expect(f"diverged[{at}]", rows[at : at + 1], expected[at : at + 1])
    else:
        begin_at_root(report, naive)
        for shown, row in zip(report["diverged"], naive.rows, strict=True):
            if row.reason in ("numeric", "dtype") and not close(number(shown["distance"]), row.distance):
                expect(f"distance of {row.key()}", shown["distance"], row.distance)
            if not close(number(shown["times_noise"]), row.times_noise):
                expect(f"times_noise of {row.key()}", shown["times_noise"], row.times_noise)
            expect(f"origin of {row.key()}", shown["origin"], row.origin)
        shown_origins = [row_of(row) for row in report["origins"]]
        if report["root"] is not None and row_of(report["root"])[:-1] not in [row.key()[:-1] for row in naive.rows]:
            shown_origins = shown_origins[1:]  # the root, below its tolerance
        expect("origins", shown_origins, [row.key() for row in naive.origins[:20]])
        expect("spread", (report["spread"]["steps"], report["spread"]["ranks"]), (naive.spread_steps, sorted(naive.spread_ranks)))
    expect("first", report["first"] and row_of(report["first"]), naive.first and naive.first.key())
    bitwise, of_model = report["first_bitwise"], naive.first_bitwise
    expect("first_bitwise", bitwise and row_of(bitwise)[:-1], of_model and of_model.key()[:-1])
    return found


def disagreements_on_root(report: dict[str, Any], search: RootSearch, naive: Answer, question: list[str]) -> list[str]:
    if report["verdict"] == "incomparable" or "--kinds" in question:
        return []
    # Diff does not judge weights that only one run loaded in a later launch.
    if any(is_loaded_later(row, search.a, search.b) for row in (*naive.rows, naive.first_bitwise) if row):
        return []
    found: list[str] = []
    shown, root = report["root"] and row_of(report["root"])[:-1], root_of(search, naive)
    if shown != root:
        found.append(f"root: diff says {shown}, the model {root}")
    explains = root is None and may_be_explained(naive, question) and is_known(search.a, search.b, naive)
    if (report["explained"] == "rounding") != explains:
        found.append(f"explained: diff says {report['explained']}, the model {explains}")
    return found


def close(a: float | None, b: float | None) -> bool:
    if a is None or b is None or not math.isfinite(a) or not math.isfinite(b):
        return a == b
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)


def check_seed(collector: Collector, seed: int, folder: Path, root: bool = False) -> list[str]:
    question, repeats = question_of(seed), repeats_of(seed)
    asked = [",".join(repeats) if word == "RUNS" else word for word in question]
    runs = [f"a{seed}", f"b{seed}", *repeats]
    exported = [export(collector, run, folder) for run in runs]
    # The model knows identity only.
    done = collector.statctl("--format", "json", "diff", f"a{seed}", f"b{seed}", "--all", "--no-alignment", "--by-rank", *asked)
    if done.err or done.code not in (0, 1, 2):
        return [f"seed {seed}, diff a{seed} b{seed} {' '.join(asked)}: exit code {done.code}: {done.err}"]
    report = done.json()
    launches = launches_of(seed)
    a, b, *others = [run_of(paths, launches[run]) for run, paths in zip(runs, exported, strict=True)]
    measured = (report["noise"] or {"twins": 0})["twins"] > 0
    naive = model_of(a, b, others, question, noise_allows=is_hard_question(question) or not measured)
    search = RootSearch(a, b, *(read_settings(scalars) for _, scalars in exported[:2]))
    if "--kinds" not in question:
        pass_over_noise(search, naive)
    found = disagreements(report, naive, question)
    if root:
        found += disagreements_on_root(report, search, naive, question)
    for paths in exported:
        for path in paths:
            path.unlink()
    return [f"seed {seed}, diff a{seed} b{seed} {' '.join(asked)}: {line}" for line in found]


def check_seeds(folder: Path, seeds: Sequence[int], root: bool = False, store: str = "") -> list[str]:
    """All disagreements; the store is made in `folder`, unless it is a ClickHouse ("clickhouse://...")."""
    write_runs(store or str(folder / "data"), seeds)
    collector = Collector(folder / "data", extra=["--store", store] if store else []).start()
    try:
        with ThreadPoolExecutor(4) as pool:  # most of the time goes into starting statctl
            return [line for found in pool.map(lambda seed: check_seed(collector, seed, folder, root), seeds) for line in found]
    finally:
        collector.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="diff against a naive model, long form")
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of runs")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first pair; the others follow")
    parser.add_argument("--chunk", type=int, default=200, help="pairs in one store")
    parser.add_argument("--root", action="store_true", help="compare the root, too, judged by naive_root.py")
    arguments = parser.parse_args()
    disagreements_found = 0
    for first in range(arguments.seed, arguments.seed + arguments.pairs, arguments.chunk):
        seeds = range(first, min(first + arguments.chunk, arguments.seed + arguments.pairs))
        with tempfile.TemporaryDirectory() as folder:
            found = check_seeds(Path(folder), seeds, arguments.root)
        disagreements_found += len(found)
        print(*found, f"seeds {seeds.start}..{seeds.stop - 1}: {len(found)} disagreements", sep="\n", flush=True)
    return 1 if disagreements_found else 0


if __name__ == "__main__":
    sys.exit(main())
