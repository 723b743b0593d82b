"""Checks `statctl diff`'s answer for a recorded fault against the expected one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from conftest import Collector

from fault_catalogue.fault import Fault, Place


@dataclass
class Answer:
    """One fault on one number of ranks: what was found, and everything that is wrong with it."""

    fault: Fault
    world: int
    first: dict[str, Any] | None
    table: str
    wrong: list[str] = field(default_factory=list)

    def found(self) -> str:
        return "nothing" if self.first is None else found_text(self.first)


def found_text(first: dict[str, Any]) -> str:
    """As Place.text, of a row of the report."""
    path = first["output_path"]
    usual = Place(0, first["stage"], "").usual_kind()
    kind = f" {first['kind']}" if first["kind"] != usual and first["stage"] != "loss" else ""
    micro = f", micro-batch {first['micro_batch']}" if first["micro_batch"] else ""
    place = first["activation"] + (f"[{path}]" if path not in ("", "0") else "") + kind
    evaluating = " (eval)" if first["mode"] == "eval" else ""
    return f"step {first['step']}{micro}, rank {first['rank']}, {first['stage']}, {place}{evaluating}: {first['reason']}"


def ask(collector: Collector, fault: Fault, world: int) -> Answer:
    """Compares the fault's run with its baseline."""
    runs = ("--run-a", f"base-{fault.base}.{world}", "--run-b", f"{fault.name}.{world}")
    report = collector.json("diff", *runs, codes=(0, 1, 2))
    table = collector.statctl("--format", "table", "diff", *runs)
    answer = Answer(fault, world, report["first"], table.out)
    answer.wrong = [*judge(fault.expected, report, world), *judge_table(fault.expected, table.out, table.code, world)]
    if report["first"] is not None:
        at = str(fault.expected.step)
        everything = collector.json("diff", *runs, "--steps", at, "--all", codes=(0, 1))["diverged"]
        answer.wrong += judge_ranks(fault.expected, report["first"], everything, world)
    return answer


def judge(expected: Place, report: dict[str, Any], world: int) -> list[str]:
    if report["verdict"] != "diverged":
        return [f"verdict is {report['verdict']}"]
    first = report["first"]
    wanted = {
        "step": expected.step, "stage": expected.stage, "activation": expected.activation, "reason": expected.reason,
        "output_path": expected.usual_path(), "micro_batch": expected.micro_batch, "call": expected.call,
        "rank": expected.rank_in(world), "origin": True, "mode": expected.mode if expected.stage != "weights" else "init",
    }  # fmt: skip
    if expected.usual_kind() is not None:
        wanted["kind"] = expected.usual_kind()
    wrong = [f"{key} is {first[key]!r}, not {value!r}" for key, value in wanted.items() if first[key] != value]
    if first["reason"] == "numeric" and not first["distance"] > first["tolerance"]:
        wrong.append(f"distance {first['distance']} is not above the tolerance {first['tolerance']}")
    bitwise = report["first_bitwise"]
    earliest = expected.bitwise or f"{first['stage']} {first['activation']}"
    if first["reason"] in ("numeric", "nonfinite") and (
        bitwise["step"] != first["step"] or f"{bitwise['stage']} {bitwise['activation']}" != earliest
    ):
        wrong.append(f"what differs first by a bit is at {found_text(bitwise)}")
    others = [f"{row['stage']} {row['activation']}" for row in report["origins"][1:]]
    if expected.further != ("*",) and others != list(expected.further):
        wrong.append(f"further origins are {others}, not {list(expected.further)}")
    return wrong


def judge_ranks(expected: Place, first: dict[str, Any], rows: list[dict[str, Any]], world: int) -> list[str]:
    keys = ("step", "stage", "kind", "activation", "output_path", "micro_batch", "call")
    ranks = sorted({row["rank"] for row in rows if all(row[key] == first[key] for key in keys)})
    wanted = expected.ranks_in(world)
    return [] if ranks == wanted else [f"diverged there on ranks {ranks}, not {wanted}"]


def judge_table(expected: Place, table: str, code: int, world: int) -> list[str]:
    """The first line names the place; the exit code is diff's."""
    line = next((line for line in table.splitlines() if line.strip()), "")
    # The run that lacks something goes by its name; A is always a baseline.
    reason = {"missing_in_a": "missing in base-", "missing_in_b": "missing in "}.get(expected.reason, expected.reason)
    words = ("DIVERGED", f"step {expected.step}", f"rank {expected.rank_in(world)}", expected.stage, expected.activation, reason)
    wrong = [f"the first line does not say '{word}': {line}" for word in words if word not in line]
    if expected.reason == "missing_in_b" and "missing in base-" in line:
        wrong.append(f"the first line names the baseline as lacking it: {line}")
    return wrong if code == 1 else [*wrong, f"exit code {code}"]
