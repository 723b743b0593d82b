"""A run recorded by the agent against a dump of ONNX Runtime's subscriber of the same model: other names, aligned by order, class and shape."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from conftest import Collector

RECORD = """
import torch, statagent
from torch import nn

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.mlp = nn.LayerNorm(16), Mlp()
    def forward(self, x):
        return x + self.mlp(self.ln(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks, self.head = nn.Embedding(50, 16), nn.Sequential(Block(), Block()), nn.Linear(16, 50)
    def forward(self, x):
        return self.head(self.blocks(self.emb(x)))

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
statagent.init(run="ours")
statagent.watch(model, optimizer=optimizer, kinds={"output", "grad_output"})
for _ in range(3):
    x = torch.randint(0, 50, (4, 8))
    nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
statagent.close()
"""

# As the subscriber numbers modules: depth first, the root 0.
PREORDER = ["Net", "emb", "blocks"]
for block in ("blocks.0", "blocks.1"):
    PREORDER += [block, *(f"{block}.{part}" for part in ("ln", "mlp", "mlp.fc1", "mlp.act", "mlp.fc2"))]
PREORDER.append("head")


def renamed(dump: Path, names: dict[str, str], to: Path) -> None:
    """The dump as the subscriber would have named its tensors."""
    for step in dump.iterdir():
        (to / step.name).mkdir(parents=True)
        for file in step.iterdir():
            text = file.read_text()
            if file.name == "order.txt":
                text = re.sub(r"^(.*)\[0\]_", lambda found: names[found[1]] + "_", text, flags=re.M)
                (to / step.name / file.name).write_text(text)
                continue
            name, direction = re.fullmatch(r"(.*)\[0\]_(forward|backward)", file.name).groups()  # type: ignore[union-attr]
            text = re.sub(r"^(>*)\S+ ", rf"\1{names[name]} ", text, count=1)
            (to / step.name / f"{names[name]}_{direction}").write_text(text)


@pytest.fixture(scope="module")
def both(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> tuple[Collector, dict[str, str]]:
    folder = tmp_path_factory.mktemp("dump")
    shared_collector.python(RECORD)
    for arguments in (["export", "ort", "ours", str(folder / "plain")], ["export", "csv", "ours", str(folder / "ours.csv")]):
        done = shared_collector.statctl(*arguments)
        assert done.code == 0, done.err
    with (folder / "ours.csv").open() as lines:
        classes = {row["activation"]: row["class"] for row in csv.DictReader(lines)}
    names = {name: f"{classes[name]}_{index}_0th_output" for index, name in enumerate(PREORDER)}
    renamed(folder / "plain", names, folder / "same")
    renamed(folder / "plain", names, folder / "off")
    wrong = folder / "off" / "step_1" / f"{names['blocks.1.ln']}_forward"
    wrong.write_text(re.sub(r"max: (\S+),", lambda found: f"max: {float(found[1]) * 1.01},", wrong.read_text(), count=1))
    for run in ("same", "off"):
        done = shared_collector.statctl("import", "ort", str(folder / run), "--run", run, "--trust-std")
        assert done.code == 0, done.err
    return shared_collector, names


def test_names_are_aligned_by_order_class_and_shape(both: tuple[Collector, dict[str, str]]) -> None:
    collector, names = both
    report = collector.diff("ours", "same")
    assert report["verdict"] in ("identical", "within_tolerance")
    assert report["compared"]["records"] == 96 and report["unmatched"] == {"only_a": ["batch x call 0"], "only_b": []}
    assert {pair["a"]: pair["b"] for pair in report["aligned"]} == names
    assert all(pair["method"] == "order" and pair["confidence"] == 1 for pair in report["aligned"])


def test_what_differs_is_named_in_both_languages(both: tuple[Collector, dict[str, str]]) -> None:
    collector, names = both
    report = collector.diff("ours", "off")
    first = report["first"]
    assert (first["step"], first["stage"], first["activation"], first["reason"]) == (1, "forward", "blocks.1.ln", "numeric")
    assert first["activation_b"] == names["blocks.1.ln"] and first["origin"]
    assert report["compared"]["diverged"] == 1


def test_a_map_of_the_user_goes_before(both: tuple[Collector, dict[str, str]], tmp_path: Path) -> None:
    collector, names = both
    rules = tmp_path / "names.txt"
    rules.write_text("# ours -> theirs\n" + "".join(f"{ours} -> {theirs}\n" for ours, theirs in names.items()))
    report = collector.diff("ours", "off", "--map", str(rules), "--no-alignment")
    assert report["first"]["activation"] == "blocks.1.ln"
    assert {pair["method"] for pair in report["aligned"]} == {"map"} and len(report["aligned"]) == 16
    missing = collector.diff("ours", "off", "--no-alignment")
    assert missing["verdict"] == "incomparable" and len(missing["unmatched"]["only_a"]) == 32 + 1
