"""Scripts written for ONNX Runtime's hooks, with the import changed: what arrives, and the folders that come of it.

The reference's own test cases are among them: sizes 8, 16 and 32, batches of 4, 5 steps.
"""

from __future__ import annotations

import csv
import re
import textwrap
from pathlib import Path

import pytest
from conftest import Collector, run_command, torchrun

THEIRS = "from onnxruntime.training.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber, _InspectActivation"
OURS = THEIRS.replace("onnxruntime.training.utils.hooks", "statagent.compat.ort")

MODELS = textwrap.dedent("""
    class Single(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.relu, self.fc2 = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 32)

        def forward(self, input1, input2):
            return self.fc2(self.relu(self.fc1(input1 + input2)))

    class Multiple(Single):
        def forward(self, input1, input2):
            both = input1 + input2
            return self.fc2(self.relu(self.fc1(both))), both

    class Annotated(Single):
        def forward(self, input1, input2):
            out = self.fc1(input1 + input2)
            out = _InspectActivation.apply("fc1_out", None, GlobalSubscriberManager.get_run_context(), out)
            out = self.relu(out)
            out = _InspectActivation.apply("relu_out", None, GlobalSubscriberManager.get_run_context(), out)
            return self.fc2(out)

    def train(model, steps=5):
        model.train()
        input1, input2 = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
        for _ in range(steps):
            output = model(input1, input2)
            loss = output[0].sum() + output[1].sum() if isinstance(output, tuple) else output.sum()
            loss.backward()
""")

REPLAY = f"""
import torch
{OURS}
{MODELS}
for name, model in (("single", Single()), ("multiple", Multiple()), ("annotated", Annotated())):
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("dumps/" + name)])
    train(model)
"""

PLANTED = f"""
import collections, sys, torch
{OURS}
torch.manual_seed(1)

def block():
    parts = dict(ln=torch.nn.LayerNorm(8, eps=1e-5), fc=torch.nn.Linear(8, 8), act=torch.nn.ReLU())
    return torch.nn.Sequential(collections.OrderedDict(parts))

model = torch.nn.Sequential(*[block() for _ in range(4)])
if sys.argv[2] == "eps":
    model[2].ln.eps = 0.05
if sys.argv[2] == "weights":
    model[1].fc.weight.data[0, 0] += 0.5
GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(sys.argv[1])])
for _ in range(2):
    model(torch.randn(4, 8)).square().sum().backward()
"""

SINGLE = {"Linear_1_0th_output", "ReLU_2_0th_output", "Linear_3_0th_output"}
EXPECTED = {
    "single": SINGLE | {"Single_0_0th_output"},
    "multiple": SINGLE | {"Multiple_0_0th_output", "Multiple_0_1th_output"},
    "annotated": SINGLE | {"Annotated_0_0th_output", "fc1_out", "relu_out"},
}

# The grammar of a tensor's file.
HEADER = (
    r"(>*)(.+) (forward|backward) run shape: torch\.Size\(\[([\d, ]*)\]\) dtype: (torch\.\w+) size: torch\.Size\(\[(\d+)\]\) \n"
)
RECORD = re.compile(
    HEADER + r"min: (\S+) max: (\S+), mean: (\S+), std: (\S+) \nnan: (\d+), inf: (\d+)\n"
    r"samples\(top 128\): (tensor\([^()]*\))\nneg: (\d+), pos: (\d+), zero: (\d+),\n=+\n"
)


@pytest.fixture(scope="module")
def replayed(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> tuple[Collector, Path]:
    """The reference's three cases as runs, and what is exported of them."""
    folder = tmp_path_factory.mktemp("folders")
    shared_collector.python(REPLAY)
    for run in EXPECTED:
        done = shared_collector.statctl("export", "ort", run, str(folder / run))
        assert done.code == 0, done.err
    return shared_collector, folder


@pytest.mark.parametrize("run", EXPECTED)
def test_the_cases_of_the_reference(replayed: tuple[Collector, Path], run: str) -> None:
    _, folder = replayed
    files = {f"{name}_{direction}" for name in EXPECTED[run] for direction in ("forward", "backward")} | {"order.txt"}
    assert len(files) == {"single": 9, "multiple": 11, "annotated": 13}[run]
    assert {step.name for step in (folder / run).iterdir()} == {f"step_{step}" for step in range(5)}
    for step in (folder / run).iterdir():
        assert {file.name for file in step.iterdir()} == files
        order = (step / "order.txt").read_text().splitlines()
        assert sorted([*order, "order.txt"]) == sorted(files)


def test_order_is_that_of_execution(replayed: tuple[Collector, Path]) -> None:
    _, folder = replayed
    assert (folder / "annotated" / "step_4" / "order.txt").read_text().splitlines() == [
        "Linear_1_0th_output_forward", "fc1_out_forward", "ReLU_2_0th_output_forward", "relu_out_forward",
        "Linear_3_0th_output_forward", "Annotated_0_0th_output_forward",
        "Annotated_0_0th_output_backward", "Linear_3_0th_output_backward", "relu_out_backward",
        "ReLU_2_0th_output_backward", "fc1_out_backward", "Linear_1_0th_output_backward",
    ]  # fmt: skip


def test_files_follow_the_grammar(replayed: tuple[Collector, Path]) -> None:
    _, folder = replayed
    depths = {"Annotated": 1, "Linear": 2, "ReLU": 2, "fc1": 0, "relu": 0}
    files = [file for file in (folder / "annotated").rglob("*_*ward") if file.is_file()]
    assert len(files) == 5 * 12
    for file in files:
        match = RECORD.fullmatch(file.read_text())
        assert match, file.read_text()
        marks, name, direction, shape, dtype, size = match.groups()[:6]
        assert f"{name}_{direction}" == file.name
        assert len(marks) == depths[name.split("_")[0]]
        columns = 32 if name.startswith(("Linear_3", "Annotated")) else 16
        assert (shape, dtype, size) == (f"4, {columns}", "torch.float32", str(4 * columns))
        assert match[13].count(",") >= min(128, 4 * columns) - 1  # the first elements
        assert sum(int(match[group]) for group in (14, 15, 16)) == 4 * columns


def test_a_summary_is_the_files_in_order(replayed: tuple[Collector, Path]) -> None:
    collector, folder = replayed
    done = collector.statctl("summary", "multiple", "--step", "3")
    step = folder / "multiple" / "step_3"
    names = (step / "order.txt").read_text().split()
    assert done.out == "".join((step / name).read_text() + "\n" for name in names)


def test_an_imported_folder_matches_by_name_and_step(replayed: tuple[Collector, Path], tmp_path: Path) -> None:
    """As a folder that the reference itself wrote would."""
    collector, folder = replayed
    for run in EXPECTED:
        done = collector.statctl("import", "ort", str(folder / run), "--run", f"{run}.imported", "--trust-std")
        assert done.code == 0, done.err
        report = collector.diff(run, f"{run}.imported", "--no-alignment")
        assert report["verdict"] in ("identical", "within_tolerance")
        assert report["compared"]["records"] == 5 * 2 * len(EXPECTED[run])
        loaded = [f"weight fc{i}.{part} call 0 (init)" for i in (1, 2) for part in ("weight", "bias")]
        assert report["unmatched"] == {"only_a": loaded, "only_b": []}, "the folder has no weights"
    # Tensors that cannot match are reported.
    report = collector.diff("single", "annotated.imported", "--no-alignment")
    assert report["verdict"] == "diverged"


def test_a_planted_setting_is_named_as_the_cause(collector: Collector) -> None:
    for run, plant in (("plain", ""), ("again", ""), ("other_eps", "eps"), ("other_weights", "weights")):
        collector.python(PLANTED, run, plant)
    assert collector.diff("plain", "again")["verdict"] == "identical"
    report = collector.diff("plain", "other_eps")
    assert (report["first"]["activation"], report["first"]["stage"]) == ("LayerNorm_10_0th_output", "forward")
    cause = report["root"]["cause"]
    assert (cause["rule"], cause["confidence"]) == ("module_setting", "certain"), cause
    assert "eps is 1e-05 in plain and 0.05 in other_eps (2.ln)" in cause["text"]
    assert collector.json("config", "plain", "again")["same"]
    weights = collector.diff("plain", "other_weights")["first"]
    assert (weights["activation"], weights["stage"]) == ("1.fc.weight", "weights")


def test_a_folder_that_is_there_is_refused_or_replaced(collector: Collector) -> None:
    script = f"""
import os, sys, warnings, torch, statagent
{OURS}
warnings.simplefilter("error")
{MODELS}
GlobalSubscriberManager.subscribe(model := Single(), [StatisticsSubscriber(sys.argv[1], *map(eval, sys.argv[2:]))])
train(model)
"""
    collector.python(script, "first/out")
    refused = collector.python(script, "second/out", code=1)
    assert "FileExistsError" not in refused.out and "OutputExistsError: Output directory second/out already exists" in refused.err
    warned = collector.python(script, "first/out", "2", "4", "True", code=1)
    assert "UserWarning: Output directory first/out already exists, as run 'out'; overriding it." in warned.err
    collector.python(script.replace('"error"', '"ignore"'), "first/out", "2", "4", "True")
    (run,) = collector.json("runs")["runs"]
    assert run["run"] == "out"
    rows = exported(collector, "out")
    assert {row["step"] for row in rows} == {"2", "3"}


def exported(collector: Collector, run: str) -> list[dict[str, str]]:
    """Everything but the weights as loaded."""
    done = collector.statctl("export", "csv", run, "-")
    assert done.code == 0, done.err
    return [row for row in csv.DictReader(done.out.splitlines()) if row["mode"] != "init"]


RANKS = f"""
import os
import torch
IMPORT
{MODELS}
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
net = Single()
GlobalSubscriberManager.subscribe(net, [StatisticsSubscriber(output_dir="pt_out", override_output_dir=True)])
model = torch.nn.parallel.DistributedDataParallel(net)
torch.manual_seed(rank)
train(model)
torch.distributed.destroy_process_group()
"""


def test_only_the_import_differs_and_no_rank_overwrites_another(collector: Collector, tmp_path: Path) -> None:
    scripts = {}
    for name, line in (("theirs", THEIRS), ("ours", OURS)):
        scripts[name] = tmp_path / f"{name}.py"
        scripts[name].write_text(RANKS.replace("IMPORT", line))
    changed = [pair for pair in zip(*(scripts[n].read_text().splitlines() for n in ("theirs", "ours"))) if pair[0] != pair[1]]
    assert changed == [(THEIRS, OURS)]

    done = run_command(torchrun(2, str(scripts["ours"])), env=collector.environment(), timeout=240)
    assert done.code == 0, done.err
    rows = exported(collector, "pt_out")
    assert {row["activation"] for row in rows} == EXPECTED["single"]
    for rank in ("0", "1"):
        own = [row for row in rows if row["rank"] == rank]
        assert len(own) == 5 * 8 and {row["call"] for row in own} == {"0"}
    values = {(row["rank"], row["hash"]) for row in rows if (row["activation"], row["kind"]) == ("Linear_1_0th_output", "output")}
    assert len({rank for rank, _ in values}) == 2 == len({content for _, content in values})  # each rank its own data
    folder = tmp_path / "out"
    assert collector.statctl("export", "ort", "pt_out", str(folder)).code == 0
    assert {path.name for path in folder.iterdir()} == {"rank_0", "rank_1"}
    assert len(list(folder.glob("rank_*/step_*/*_*ward"))) == 2 * 5 * 8
    # Once more, over what is there: one launch replaces it, not one rank the other.
    again = run_command(torchrun(2, str(scripts["ours"])), env=collector.environment(), timeout=240)
    assert again.code == 0, again.err
    assert "already exists, as run 'pt_out'; overriding it" in again.err
    assert len(exported(collector, "pt_out")) == 2 * 5 * 8


# What the reference's inspector of memory and density is tried with: 32 steps; a batch of 12 tokens, half of them padding, and labels of
# which 5 are ignored.
INSPECTOR = f"""
import torch, statagent
{OURS}

class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(10, 8, padding_idx=1), torch.nn.Linear(8, 4)

    def forward(self, input_ids, labels):
        logits = self.head(self.embedding(input_ids))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

model = Classifier()
statagent.init(run="inspector")
statagent.watch(model, kinds={{"weight"}})
GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("unused", start_step=30)])
input_ids = torch.tensor([[0, 2, 3, 1, 1, 1], [4, 5, 6, 1, 1, 1]])
labels = torch.tensor([[0, 1, 2, 3, -100, -100], [1, 2, 3, -100, -100, -100]])
for _ in range(32):
    model(input_ids, labels).backward()
"""


@pytest.fixture(scope="module")
def inspected(shared_collector: Collector) -> Collector:
    shared_collector.python(INSPECTOR)
    return shared_collector


def test_the_memory_case_of_the_reference(inspected: Collector) -> None:
    """32 steps of 4 phases, and a line of its form for each."""
    records = inspected.json("memory", "inspector")["records"]
    phases = ["pre_forward", "post_forward", "pre_backward", "post_backward"]
    assert [(r["step"], r["phase"]) for r in records] == [(step, phase) for step in range(32) for phase in phases]
    assert {r["parameter"] for r in records} == {4 * (10 * 8 + 8 * 4 + 4)}
    lines = inspected.statctl("memory", "inspector", "--format", "ort").out.splitlines()
    assert len(lines) == 32 * 4
    form = re.compile(r"rank-0 step (\d+) memory \(MiB\) \| phase: (\w+)( \| [a-z]+( [a-z]+)*: \d+)+")
    found = [form.fullmatch(line) for line in lines]
    assert [(int(m[1]), m[2]) for m in found if m] == [(step, phase) for step in range(32) for phase in phases]
    assert {row["step"] for row in exported(inspected, "inspector") if row["kind"] == "output"} == {"30", "31"}


def test_the_density_cases_of_the_reference(inspected: Collector) -> None:
    """Embedding: 6 of 12 (padding 1); label: 7 of 12 (-100)."""
    records = inspected.json("density", "inspector")["records"]
    assert len(records) == 2 * 32
    found = {(r["input"], r["type"], r["pad_index"], r["valid"], r["total"], tuple(r["valid_per_sample"])) for r in records}
    assert found == {("input_ids", "embed", 1, 6, 12, (3, 3)), ("labels", "label", -100, 7, 12, ())}
    table = inspected.statctl("density", "inspector", "--format", "ort").out.splitlines()
    assert (table[0], table[-1]) == (">>>Valid token/label density (e.g. valid/total) in passing 64 steps:", "<<<")
    cells = [[cell.strip() for cell in line.strip("\t |").split("|")] for line in table[2:-1]]
    assert cells[-2:] == [
        ["31", "EMBED", "input_ids", "1", "50.00    %", "6", "12", "[3, 3]"],
        ["31", "LABEL", "labels", "-100", "58.33    %", "7", "12", "N/A"],
    ]
