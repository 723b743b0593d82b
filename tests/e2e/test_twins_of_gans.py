"""Twins of models that feed each other: what a discriminator is given may have been computed by a generator, with the twin's noise. It is no
other batch, and data of another seed still is one."""

from __future__ import annotations

import pytest
from conftest import Collector

PROGRAM = """
import contextlib, sys, torch, statagent
from statagent._runtime.current import set_current_agent
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

HANDS_ON, WIDTH, HALF = sys.argv[1], 32, 16

class InHalves(nn.Linear):
    def forward(self, x):
        weight = self.weight.T
        return x[:, ::2] @ weight[::2] + x[:, 1::2] @ weight[1::2] + self.bias

def judge(said, value):
    return binary_cross_entropy_with_logits(said, torch.full_like(said, value))

def train(run, fault="", perturb=None, seed=0):
    torch.manual_seed(0)
    linear = InHalves if fault == "rounds otherwise" else nn.Linear
    deep = [layer for _ in range(4) for layer in (linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))]
    gen = nn.Sequential(linear(HALF, WIDTH), nn.LayerNorm(WIDTH, 1e-3 if fault == "gen" else 1e-5), nn.ReLU(), *deep, linear(WIDTH, WIDTH))
    dis = nn.Sequential(linear(WIDTH, WIDTH), nn.LeakyReLU(0.3 if fault == "dis" else 0.2), linear(WIDTH, 1))
    of_gen, of_dis = (torch.optim.Adam(model.parameters(), 1e-3, (0.5, 0.999)) for model in (gen, dis))
    statagent.init(required=True, run=run, perturb=perturb)
    statagent.watch(gen, optimizer=of_gen, name="gen")
    statagent.watch(dis, optimizer=of_dis, name="dis")
    data, pool = torch.Generator().manual_seed(seed), []
    for step in range(4):
        real, noise = torch.rand(HALF, WIDTH, generator=data), torch.randn(HALF, HALF, generator=data)
        with torch.no_grad() if HANDS_ON == "no_grad" else contextlib.nullcontext():
            fake = gen(noise)
        if HANDS_ON == "blended":
            real = 0.5 * real + 0.5 * fake.detach().clamp(-1, 1)
        if HANDS_ON == "pool":  # of earlier steps, too
            pool.append(fake.detach().clone())
            loss = judge(dis(torch.cat([pool[0][:8], pool[-1][8:], real])), 0.0)
        else:
            loss = judge(dis(fake.detach()), 0.0) + judge(dis(real), 1.0)
        of_dis.zero_grad()
        loss.backward()
        of_dis.step()
        of_gen.zero_grad()
        judge(dis(gen(noise)), 1.0).backward()
        of_gen.step()
    statagent.close(timeout=60)
    set_current_agent(None)

train("base")
for perturb in ("1,1", "1,2", "32,1"):
    train("base", perturb=perturb)
train("base", perturb="1024,1", seed=1)
for fault in ("rounds otherwise", "gen", "dis"):
    train(fault.replace(" ", "-"), fault)
"""


@pytest.fixture(scope="module", params=["detached", "no_grad", "blended", "pool"])
def handed_on(request: pytest.FixtureRequest, shared_collector: Collector) -> str:
    """How the discriminator gets what the generator has computed. All runs of it have been recorded."""
    for run in ("base", "rounds-otherwise", "gen", "dis"):
        shared_collector.statctl("rm", run, "--yes", "--twins")
    shared_collector.python(PROGRAM, request.param)
    return str(request.param)


@pytest.mark.usefixtures("handed_on")
def test_twins_measure_rounding_and_one_of_other_data_is_refused(shared_collector: Collector) -> None:
    report = shared_collector.diff("base", "rounds-otherwise")
    assert (report["noise"] or {}).get("runs") == ["base.twin-1-1", "base.twin-1-2", "base.twin-32-1"], report["notes"]
    assert report["notes"] == ["the twin base.twin-1024-1 was given another batch (input), so it was not used"]
    assert report["explained"] == "rounding" and report["root"] is None, report["message"]


@pytest.mark.parametrize("fault", ["gen", "dis"])
def test_a_bug_is_named(shared_collector: Collector, handed_on: str, fault: str) -> None:
    report = shared_collector.diff("base", fault)
    assert report["verdict"] == "diverged" and report["noise"], report["notes"]
    # A pass of the generator without gradients is not recorded; what comes out of it is.
    named = "input" if (handed_on, fault) == ("no_grad", "gen") else f"{fault}.1"
    assert report["root"]["activation"] == named, report["message"]
    causes = {cause["rule"]: cause["text"] for cause in report["root"]["causes"]}
    assert ("not_observed" in causes) == (named == "input"), causes
    if named == "input":
        assert "has the shape of the output of gen," in causes["not_observed"], causes
        assert "same_samples" not in causes, "another call is given another batch"
