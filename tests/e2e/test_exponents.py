"""Histograms of exponents of real training: the layer whose gradients float16 cannot hold is named, since when, and only where asked for."""

from __future__ import annotations

import ast
import textwrap

import pytest
from conftest import Collector

# The gradients of `weak` shrink by 2^-12 from step 3 on; those of the others stay.
SCRIPT = textwrap.dedent("""
    import torch, statagent
    from torch import nn

    torch.manual_seed(3)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.strong, self.weak = nn.Linear(16, 16), nn.Linear(16, 16)
            self.scale = 1.0

        def forward(self, x):
            return self.strong(x).square().mean() + self.scale * self.weak(x).mean()

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    statagent.init(run=RUN, exponents=EXPONENTS)
    statagent.watch(net, optimizer=optimizer)
    for step in range(6):
        net.scale = 2.0**-22 if step >= 3 else 1.0
        x = torch.randn(64, 16)
        net(x).backward()
        if step == 4:
            bits = net.weak.weight.grad.numpy().copy()
        optimizer.step()
        optimizer.zero_grad()
    statagent.close(timeout=30)
    import numpy
    exponents = numpy.frexp(bits[bits != 0])[1] - 1
    print("exponents", {int(e): int(n) for e, n in zip(*numpy.unique(exponents, return_counts=True))})
    print("counters", statagent.counters())
""")


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> tuple[Collector, dict[int, int]]:
    done = shared_collector.python(
        SCRIPT.replace("RUN", "'shrinking'").replace("EXPONENTS", "['*@0-:kind=weight_grad', 'strong']")
    )
    lines = {name: ast.literal_eval(rest) for name, rest in (line.split(" ", 1) for line in done.out.splitlines())}
    assert lines["counters"]["produced"] == lines["counters"]["acked"] > 0, done.out
    return shared_collector, lines["exponents"]


def test_the_layer_whose_gradients_underflow_is_named_since_when(recorded: tuple[Collector, dict[int, int]]) -> None:
    collector, _ = recorded
    rows = collector.json("exponents", "shrinking", "--kinds", "weight_grad")["records"]
    assert {row["activation"] for row in rows} == {"strong.weight", "strong.bias", "weak.weight", "weak.bias"}
    assert {row["activation"] for row in rows[:2]} == {"weak.weight", "weak.bias"}, "most lost first"
    worst = next(row for row in rows if row["activation"] == "weak.weight")
    assert worst["since_step"] == 3 and worst["steps"] == 6 and worst["step"] >= 3
    assert worst["formats"][0]["dtype"] == "f16" and worst["formats"][0]["lost"] > 0.9
    lost = {row["activation"]: row["since_step"] for row in rows}
    assert lost["strong.weight"] is None and lost["strong.bias"] is None
    bf16 = collector.json("exponents", "shrinking", "--dtype", "bf16")["records"]
    assert all(row["since_step"] is None for row in bf16), "bfloat16 reaches as far as float32"
    page = collector.statctl("exponents", "shrinking").out
    assert "f16 would lose 1 % or more" in page and "weak.weight" in page


def test_the_histogram_is_the_trainings_own(recorded: tuple[Collector, dict[int, int]]) -> None:
    collector, expected = recorded
    (row,) = collector.json("exponents", "shrinking", "weak.weight", "--step", "4", "--kind", "weight_grad")["records"]
    assert {row["lowest"] + i: n for i, n in enumerate(row["counts"]) if n} == expected
    assert row["components"] == sum(expected.values())
    losses = {loss["dtype"]: loss for loss in row["formats"]}
    assert losses["f16"]["to_zero"] == sum(n for e, n in expected.items() if e < -25)
    assert losses["f16"]["subnormal"] == sum(n for e, n in expected.items() if -25 <= e < -14)
    page = collector.statctl("exponents", "shrinking", "weak.weight", "--step", "4").out
    assert "weak.weight (weight_grad), rank 0, step 4: f32 16x16" in page and f"2^{max(expected)} |" in page


def test_only_what_was_asked_for_is_there(recorded: tuple[Collector, dict[int, int]]) -> None:
    collector, _ = recorded
    rows = collector.json("exponents", "shrinking")["records"]
    assert {(row["activation"], row["kind"]) for row in rows if row["kind"] != "weight_grad"} >= {("strong", "output")}
    assert not [row for row in rows if row["activation"] == "weak"]
    wrong = collector.statctl("exponents", "shrinking", "weak")
    assert wrong.code == 2 and "closest" not in wrong.err and "the run has those of" in wrong.err
    for elsewhere in (["--step", "300"], ["--rank", "7"], ["--kind", "batch"]):
        missing = collector.statctl("exponents", "shrinking", "weak.weight", *elsewhere)
        assert missing.code == 2 and "none were recorded" not in missing.err, missing.err
        assert "there are some at steps 0-5, of rank 0, kind " in missing.err, missing.err
        assert "it has some at steps 0-5, of rank 0." in collector.statctl("exponents", "shrinking", *elsewhere).out
    wrong = collector.statctl("exponents", "shrinking", "--dtype", "f32")
    assert wrong.code == 2 and "expected f16, bf16, e4m3 or e5m2" in wrong.err
    collector.python(SCRIPT.replace("RUN", "'plain'").replace("EXPONENTS", "None"))
    assert collector.json("exponents", "plain")["records"] == []
    assert "STATAGENT_EXPONENTS" in collector.statctl("exponents", "plain").out


def test_they_go_with_their_run(recorded: tuple[Collector, dict[int, int]]) -> None:
    collector, _ = recorded
    collector.python(SCRIPT.replace("RUN", "'gone'").replace("EXPONENTS", "'*'"))
    assert collector.json("exponents", "gone")["records"]
    assert collector.statctl("rm", "gone", "--yes").code == 0
    assert collector.statctl("exponents", "gone").code == 2
