"""What `statctl diff` says about runs of different layouts, as tables in Markdown."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from conftest import Collector


@dataclass(frozen=True)
class Answer:
    """One diff, with the seconds that it took."""

    report: dict[str, Any]
    seconds: float

    @property
    def verdict(self) -> str:
        if self.report["verdict"] == "within_tolerance" and self.report.get("explained") == "rounding":
            return "rounding"
        return str(self.report["verdict"])

    @property
    def largest(self) -> float:
        """The largest distance of a pair of tensors."""
        points = (self.report.get("growth") or {}).get("points") or []
        return max((float(point.get("distance_max") or 0) for point in points), default=0.0)

    @property
    def root(self) -> dict[str, Any] | None:
        return self.report.get("root") or self.report.get("first")


def ask(collector: Collector, a: str, b: str) -> Answer:
    begun = time.monotonic()
    report = collector.diff(a, b)
    return Answer(report, time.monotonic() - begun)


@dataclass(frozen=True)
class Bug:
    """A mistake in `layout`, and where it acts first: step 0, and any of these (kind, name)."""

    name: str
    layout: str
    tensors: tuple[tuple[str, str], ...]
    size: tuple[tuple[str, Any], ...] = ()
    text: str = ""

    @property
    def run(self) -> str:
        return f"{self.layout}-{self.name}"

    @property
    def reference(self) -> str:
        """The clean run of one rank with which it is compared."""
        return "-".join(["plain", *(key for key, _ in self.size)])

    def found(self, answer: Answer) -> bool:
        root = answer.root
        return root is not None and root["step"] == 0 and (root["kind"], root["activation"]) in self.tensors


BUGS = [
    Bug(
        "norm_gradient", "megatron2_sp",
        tuple(("weight_grad", f"{norm}.{p}") for norm in ("blocks.0.ln1", "blocks.0.ln2", "norm") for p in ("weight", "bias")),
        text="the gradient of a LayerNorm is not summed over the parts of the sequence",
    ),
    Bug("bias_on_every_rank", "megatron2", (("output", "blocks.0.attn.wo"),), text="a bias is added on every rank, before the sum"),
    Bug(
        "qkv_interleaved", "megatron2", tuple(("weight", f"blocks.0.attn.qkv.{p}") for p in ("weight", "bias")),
        text="the rows of q, k and v are taken in another order when the weights are cut",
    ),
    Bug("vocabulary_offset", "megatron2", (("output", "tokens"),), text="a rank's first row of the vocabulary is one too low"),
    Bug(
        "dropout_seed", "megatron2", (("output", "blocks.0.mlp.drop"),), size=(("dropout", 0.1),),
        text="all ranks draw the same mask for different features",
    ),
    Bug(
        "divided_twice", "ddp2", (("weight_grad", "tokens.weight"),),
        text="gradients that are means over the ranks already are divided by their number again",
    ),
    Bug(
        "tied_on_one_stage", "pp2", (("weight_grad", "tokens.weight"), ("weight_grad", "head.weight")), size=(("tied", True),),
        text="the first and the last stage share a table and do not sum its gradients",
    ),
    Bug(
        "samples_swapped", "ddp4_order", (("batch", "x"),),
        text="two ranks have each other's samples: without `batch()`, nothing differs",
    ),
    Bug(
        "not_averaged", "ddp2_accumulate_order", (("weight_grad", "tokens.weight"),),
        text="the gradients of micro-batches are summed, and not divided by their number",
    ),
    Bug(
        "samples_repeated", "accumulate_order", (("batch", "x"),),
        text="the last micro-batch has the samples of the first",
    ),
]  # fmt: skip


def pairs_table(answers: dict[tuple[str, str], Answer], names: list[str]) -> str:
    """A line for each layout against the first one, and a sentence about all other pairs."""
    lines = [f"| layout | verdict against `{names[0]}` | largest distance | seconds |", "|---|---|---|---|"]
    for name in names[1:]:
        answer = answers[names[0], name]
        lines.append(f"| {name} | {answer.verdict} | {answer.largest:.0e} | {answer.seconds:.2f} |")
    others = [answer for (a, _), answer in answers.items() if a != names[0]]
    if not others:
        return "\n".join(lines)
    verdicts = Counter(answer.verdict for answer in others).most_common()
    told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts)
    largest, slowest = max(answer.largest for answer in others), max(answer.seconds for answer in others)
    lines += [
        "",
        f"The other {len(others)} pairs: {told}; the largest distance is {largest:.0e}, the slowest diff took {slowest:.2f} s.",
    ]
    return "\n".join(lines)


def bugs_table(answers: dict[str, Answer]) -> str:
    lines = ["| bug | layout | what it is | verdict | root | |", "|---|---|---|---|---|---|"]
    for bug in (bug for bug in BUGS if bug.name in answers):
        answer = answers[bug.name]
        root = answer.root
        where = "" if root is None else f"step {root['step']}, {root['kind']} `{root['activation']}`"
        told = "found" if bug.found(answer) else "**not found**"
        lines.append(f"| {bug.name} | {bug.layout} | {bug.text} | {answer.verdict} | {where} | {told} |")
    return "\n".join(lines)
