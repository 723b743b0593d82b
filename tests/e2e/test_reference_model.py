"""A frozen model beside the trained one, as in preference learning: its passes belong to no micro-batch, and are compared all the same."""

from __future__ import annotations

import pytest
from conftest import Collector

PROGRAM = """
import sys, torch, statagent
from torch import nn

run, parts, factor = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)
policy, reference = (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(2))
reference.eval().requires_grad_(False)
optimizer = torch.optim.SGD(policy.parameters(), 0.1)
statagent.init(run=run)
statagent.watch(policy, optimizer=optimizer)
statagent.watch(reference, name="reference", eval=True)
data = torch.Generator().manual_seed(1)
for step in range(3):
    if step == 1:
        reference[2].weight.mul_(factor)
    for chosen, rejected in zip(*(torch.randn(8, 8, generator=data).chunk(parts) for _ in range(2))):
        margin = 0
        for sign, x in ((1, chosen), (-1, rejected)):
            with torch.no_grad():
                known = reference(x)
            margin = margin + sign * (policy(x) - known)
        (-nn.functional.logsigmoid(margin).mean() / parts).backward()
    optimizer.step()
    optimizer.zero_grad()
statagent.close(timeout=60)
"""


@pytest.fixture(scope="module")
def runs(shared_collector: Collector) -> Collector:
    for run, parts, factor in (("whole", "1", "1"), ("parts", "2", "1"), ("other", "2", "1.5")):
        shared_collector.python(PROGRAM, run, parts, factor)
    return shared_collector


def test_its_passes_over_parts_of_a_batch_are_those_over_the_whole(runs: Collector) -> None:
    report = runs.diff("whole", "parts")
    assert report["verdict"] != "diverged" and report["root"] is None, report["root"]
    assert any("in 1 part in whole and in 2 parts in parts" in note for note in report["notes"]), report["notes"]
    compared = [name for name in report["unmatched"]["only_b"] if "reference" in name]
    assert not compared, compared


def test_its_bug_is_found(runs: Collector) -> None:
    root = runs.diff("whole", "other")["root"]
    assert (root["step"], root["activation"]) == (1, "reference.2"), root
