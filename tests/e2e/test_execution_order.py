"""Several models and optimizers: what is stored lies in the order in which it happened, across watches."""

from __future__ import annotations

import csv
import io

from conftest import Collector

GAN = """
import statagent, torch
from torch import nn
torch.manual_seed(0)
statagent.init(run="gan", required=True)
gen, dis = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)), nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
opt_g, opt_d = torch.optim.Adam(gen.parameters()), torch.optim.Adam(dis.parameters(), betas=(0.5, 0.9))
statagent.watch(gen, optimizer=opt_g, name="gen")
statagent.watch(dis, optimizer=opt_d, name="dis")
for step in range(3):
    real, noise = torch.randn(5, 6), torch.randn(5, 4)
    fake = gen(noise)
    (dis(fake.detach()).mean() - dis(real).mean()).backward()
    opt_d.step()
    opt_d.zero_grad()
    (-dis(fake).mean()).backward()
    opt_g.step()
    opt_g.zero_grad()
    opt_d.zero_grad()
statagent.close(timeout=30)
"""


def stages(rows: list[dict[str, str]]) -> list[str]:
    """The events, model by model, with repetitions merged."""
    found: list[str] = []
    for row in rows:
        what = f"{row['activation'].split('.')[0]} {row['kind']}"
        if not found or found[-1] != what:
            found.append(what)
    return found


def test_records_of_two_models_and_optimizers_are_in_the_order_of_execution(collector: Collector) -> None:
    collector.python(GAN)
    done = collector.statctl("export", "csv", "gan", "-")
    assert done.code == 0, done.err
    rows = [row for row in csv.DictReader(io.StringIO(done.out)) if row["kind"] in (
        "output", "grad_output", "weight_grad", "weight", "buffer", "optimizer_state")]  # fmt: skip
    assert {int(row["step"]) for row in rows} == {0, 1, 2}, "both updates make one step"
    for step in (1, 2):
        found = stages([row for row in rows if int(row["step"]) == step and row["kind"] != "optimizer_state"])
        assert found == [
            "gen output", "gen buffer", "gen output",  # the pass of the generator, with BatchNorm's statistics in it
            "dis output", "dis grad_output", "dis weight_grad", "dis weight",  # the discriminator's update
            "dis output", "dis grad_output", "gen grad_output", "gen weight_grad", "gen weight",  # the generator's
        ], found  # fmt: skip
