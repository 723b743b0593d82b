"""The configuration checklist, graph transitions and automatic scalars, from real training to statctl."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Collector

TRAINING = """
import math, sys, torch, statagent
from torch import nn

run, change = sys.argv[1:3]
torch.manual_seed(1)
torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(32), "fc": nn.Linear(32, 32), "act": nn.GELU()})
                                    for _ in range(4))
        self.head = nn.Linear(32, 3)
    def forward(self, x, mask=None):
        for layer in self.layers:
            x = x + layer["act"](layer["fc"](layer["norm"](x)))
        return self.head(x)

net = Net()
if change == "eps":
    net.layers[2]["norm"].eps = 1e-3
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
if change == "tf32":
    torch.backends.cuda.matmul.allow_tf32 = True
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
statagent.init(run=run)
statagent.watch(net, optimizer=optimizer, scaler=scaler, updates="0-")
for step in range(6):
    if step == 3 and change == "late":
        net.layers[1]["act"].approximate = "tanh"
    if step == 4 and change == "events":
        net.head.requires_grad_(False)
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(step))
    mask = {"mask": torch.ones(4)} if step == 2 and change == "events" else {}
    loss = net(x, **mask).square().mean() * (math.inf if step == 5 and change == "events" else 1.0)
    statagent.log_scalar("loss", loss)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
statagent.close(timeout=20)
counts = statagent.counters()
assert counts["acked"] == counts["produced"], counts
"""


@pytest.fixture(scope="module")
def base(shared_collector: Collector) -> Collector:
    shared_collector.python(TRAINING, "base", "none")
    return shared_collector


def differences(collector: Collector, a: str, b: str) -> list[dict[str, Any]]:
    """Settings that differ, except the command line, in the order of the report."""
    report = collector.json("config", a, b, codes=(0, 1))
    return [item for item in report["items"] if item["key"] != "command_line"]


def test_same_training_has_the_same_configuration(base: Collector) -> None:
    base.python(TRAINING, "base2", "none")
    assert differences(base, "base", "base2") == []


@pytest.mark.parametrize(
    ("change", "category", "key", "value"),
    [
        ("eps", "model", "module.layers.*.norm.eps", "1e-05 x 3; 0.001 (layers.2.norm)"),
        ("late", "model", "module.layers.*.act.approximate", "none x 3; tanh (layers.1.act)"),
        ("tf32", "precision", "torch.cuda.matmul.allow_tf32", "true"),
    ],
)
def test_changed_setting_is_the_first_line_of_config(base: Collector, change: str, category: str, key: str, value: str) -> None:
    base.python(TRAINING, change, change)
    first = differences(base, "base", change)[0]
    assert (first["category"], first["key"], first["b"]) == (category, key, value)
    done = base.statctl("config", "base", change)
    assert done.code == 1 and key in done.out


@pytest.mark.parametrize("bug", ["ln_eps", "lr"])
def test_mistakes_of_the_demo_are_named_by_config(shared_collector: Collector, bug: str) -> None:
    """As scripts/demo.sh plants them, without a word about it in the user's configuration."""
    if bug == "ln_eps":
        shared_collector.train("demo_base")
    shared_collector.train(f"demo_{bug}", "--bug", bug, "--bug-step", "0" if bug == "lr" else "2")
    expected = {
        "ln_eps": ("module.blocks.*.ln2.eps", "0.001 (blocks.1.ln2)"),
        "lr": ("optimizer.group0.lr", "0.00303"),
    }
    key, value = expected[bug]
    found = differences(shared_collector, "demo_base", f"demo_{bug}")
    assert [item["key"] for item in found] == [key], found
    assert value in found[0]["b"]


@pytest.fixture(scope="module")
def events(base: Collector) -> Collector:
    """Another input in step 2, frozen parameters from step 4 on, an overflow in step 5."""
    base.python(TRAINING, "events", "events")
    return base


def test_transitions_are_events(events: Collector) -> None:
    def told(run: str) -> list[tuple[Any, ...]]:
        found = [e for e in events.json("events", run)["records"] if e["kind"] == "graph_transition"]
        return [(e["step"], e["fields"]["reason"], e["fields"]["element"], e["fields"]["to"]) for e in found]

    first = (0, "first", "inputs", "0: float32 rank 2")
    assert told("base") == [first]
    assert told("events") == [
        first, (2, "input_schema", "mask", "float32 rank 1"), (5, "requires_grad", "head.weight and 1 more", "False"),
    ]  # fmt: skip


def test_scalars_of_the_optimizer_are_there_without_asking(events: Collector) -> None:
    def values(run: str, name: str) -> list[tuple[int, float]]:
        return [(r["step"], r["value"]) for r in events.json("scalars", run)["records"] if r["name"] == name]

    assert values("base", "lr/group0") == [(step, 0.01) for step in range(6)]
    assert values("base", "weight_decay/group0") == [(0, 0.01)]
    assert values("base", "loss_scale") == [(step, 256.0) for step in range(6)]
    assert values("base", "found_inf") == [(step, 0.0) for step in range(6)]
    assert values("events", "found_inf") == [(step, float(step == 5)) for step in range(6)]


def test_update_ratio_from_sketches_is_near_the_exact_one(base: Collector) -> None:
    def l2(kind: str, path: str = "") -> dict[int, float]:
        arguments = ["--kind", kind, *(["--path", path] if path else [])]
        points = base.json("series", "base", "layers.1.fc.weight", *arguments)["records"]
        return {p["step"]: p["stats"]["l2"] for p in points if p["mode"] == "train"}

    rows = base.json("series", "base", "layers.1.fc.weight", "--stat", "update_ratio")["records"]
    found = {name: {r["step"]: r["value"] for r in rows if r["name"].endswith(name)} for name in ("ratio", "_low", "_high")}
    assert list(found["ratio"]) == list(range(6)), "the first one against the weight as loaded"
    moved, size = l2("optimizer_state", "update"), l2("weight")
    exact = {step: moved[step] / size[step - 1] for step in range(1, 6)}
    assert all(exact[step] / 2 < found["ratio"][step] < exact[step] * 2 for step in exact), (exact, found)
    assert sum(found["_low"][step] <= exact[step] <= found["_high"][step] for step in exact) >= 4, (exact, found)
    later = base.json("series", "base", "layers.1.fc.weight", "--stat", "update_ratio", "--steps", "4-")["records"]
    assert {r["step"] for r in later} == {4, 5}
    done = base.statctl("series", "base", "layers.1.fc.weight", "--stat", "update_ratio")
    assert done.code == 0 and "estimated from sketches" in done.out
    wrong = base.statctl("series", "base", "layers.1.fc", "--stat", "update_ratio")
    assert wrong.code == 2 and "no record of a weight 'layers.1.fc'" in wrong.err


def test_gradient_norm_is_that_of_all_weight_gradients(base: Collector) -> None:
    norms = {r["step"]: r["value"] for r in base.json("scalars", "base")["records"] if r["name"] == "grad_norm"}
    squares = dict.fromkeys(range(6), 0.0)
    for name in ("head.weight", "head.bias", *[f"layers.{i}.{n}" for i in range(4)
                 for n in ("norm.weight", "norm.bias", "fc.weight", "fc.bias")]):  # fmt: skip
        for point in base.json("series", "base", name, "--kind", "weight_grad")["records"]:
            squares[point["step"]] += point["stats"]["l2"] ** 2
    assert norms == pytest.approx({step: value**0.5 for step, value in squares.items()}, rel=1e-9)


# Evaluates in step 2, gets a module in step 3 and longer inputs in step 4. Arguments: run, "eager" or a backend, seed of the data.
TAGGER = """
import math, sys, torch, statagent
from torch import nn

run, how, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(1)
torch.set_num_threads(1)

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 8, padding_idx=0), nn.Linear(8, 4)
    def forward(self, input_ids):
        return self.head(torch.tanh(self.tokens(input_ids)))

net = Tagger()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
statagent.init(run=run, required=True)
statagent.watch(net, optimizer=optimizer, parameter_steps="0-9,every=2")
called = net if how == "eager" else torch.compile(net, backend=how)
for step in range(5):
    ids = torch.randint(1, 16, (2, 6 if step < 4 else 9), generator=torch.Generator().manual_seed(seed + step))
    ids[0, 3 + step % 2 :] = 0
    labels = torch.where(ids == 0, -100, ids % 4)
    if step == 2:
        net.eval()
        with torch.no_grad():
            called(ids)
        net.train()
    if step == 3:
        net.add_module("spare", nn.Identity())
    loss = nn.functional.cross_entropy(called(ids).flatten(0, 1), labels.flatten())
    statagent.log_scalar("odd", [1.5, math.nan, -math.inf][step % 3])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
statagent.close(timeout=20)
"""


@pytest.fixture(scope="module")
def taggers(shared_collector: Collector) -> Collector:
    shared_collector.python(TAGGER, "tagged", "eager", "0")
    shared_collector.python(TAGGER, "tagged_compiled", "aot_eager", "0")
    shared_collector.python(TAGGER, "tagged_other", "eager", "100")
    return shared_collector


def test_changed_modules_evaluation_and_recompilation_are_transitions(taggers: Collector) -> None:
    def told(run: str) -> list[tuple[int, str]]:
        found = [e for e in taggers.json("events", run)["records"] if e["kind"] == "graph_transition"]
        return [(e["step"], e["fields"]["reason"]) for e in found]

    # Changes of the model are found when the step ends.
    eager = [(0, "first"), (2, "train_eval"), (2, "first"), (2, "train_eval"), (4, "modules")]
    assert told("tagged") == eager
    compiled = told("tagged_compiled")
    assert [each for each in compiled if each[1] != "recompilation"] == eager
    assert {(3, "recompilation"), (5, "recompilation")} <= set(compiled), "for the evaluation, and for the longer inputs"


def test_densities_are_the_same_eager_and_compiled(taggers: Collector) -> None:
    def densities(run: str) -> list[tuple[Any, ...]]:
        found = taggers.json("density", run)["records"]
        return sorted((r["step"], r["input"], r["type"], r["pad_index"], r["valid"], r["total"]) for r in found)

    expected = []
    for step in range(5):
        total = 12 if step < 4 else 18
        valid = 3 + step % 2 + total // 2
        expected += [(step, "input_ids", "embed", 0, valid, total), (step, "labels", "label", -100, valid, total)]
    assert densities("tagged") == densities("tagged_compiled") == expected


def test_fingerprints_of_inputs_tell_whether_both_runs_had_the_same_data(taggers: Collector) -> None:
    assert taggers.diff("tagged", "tagged_compiled")["inputs"]["batches"] == "identical"
    assert taggers.diff("tagged", "tagged_other")["inputs"]["batches"] == "differ"


def test_parameters_are_recorded_on_their_schedule(taggers: Collector) -> None:
    for kind in ("weight", "weight_grad"):
        points = taggers.json("series", "tagged", "head.weight", "--kind", kind)["records"]
        assert [p["step"] for p in points if p["mode"] == "train"] == [0, 2, 4], kind
    points = taggers.json("series", "tagged", "head", "--kind", "output")["records"]
    assert [p["step"] for p in points if p["mode"] == "train"] == list(range(5))


def test_scalars_that_are_no_numbers_are_kept(taggers: Collector) -> None:
    found = taggers.json("scalars", "tagged", "--name", "odd")["records"]
    assert [(r["step"], r["value"]) for r in found] == [(0, 1.5), (1, "NaN"), (2, "-Infinity"), (3, 1.5), (4, "NaN")]
