"""The card with the verdict unfolds to the operators of a zoom. Real trainings, collector and browser."""

from __future__ import annotations

from typing import Any

import pytest
import test_page
from conftest import Collector
from test_page import Open, painted

pytestmark = test_page.pytestmark
browser, open_page = test_page.browser, test_page.open_page

# Two runs of each kind: an argument differs; attention is computed in another way. Then the runs that zoom.
TRAIN = """
import os, statagent, torch
from torch import nn
from torch.nn import functional as F
class Norm(nn.Module):
    def __init__(self, eps):
        super().__init__(); self.eps = eps
    def forward(self, x):
        return F.layer_norm(x, (8,), eps=self.eps)
class Attention(nn.Module):
    def __init__(self, manual):
        super().__init__(); self.manual = manual
    def forward(self, x):
        if self.manual:
            return (x @ x.transpose(-2, -1) / 2.5).softmax(-1) @ x
        return F.scaled_dot_product_attention(x, x, x)
def train(run, eps=1e-5, manual=False, zoom=""):
    os.environ["STATAGENT_ZOOM"] = zoom
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Norm(eps), Attention(manual), nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    statagent.init(run=run); watch = statagent.watch(model, optimizer=opt)
    for step in range(3):
        loss = model(torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(step))).square().mean()
        statagent.log_scalar("loss", loss); loss.backward(); opt.step(); opt.zero_grad()
    watch.remove(); statagent.close()
train("base"); train("eps", eps=0.1); train("manual", manual=True); train("plain", eps=0.1)
train("base.zoom", zoom="1@0; 2@0"); train("eps.zoom", eps=0.1, zoom="1@0"); train("manual.zoom", manual=True, zoom="2@0")
"""


@pytest.fixture(scope="module")
def zoomed(shared_collector: Collector) -> Collector:
    shared_collector.python(TRAIN)
    return shared_collector


def forward(collector: Collector, *runs: str) -> Any:
    """The one zoomed forward pass that both runs have."""
    (call,) = [call for call in collector.json("zoom", *runs, codes=(1,))["calls"] if call["pass"] == "forward"]
    return call


def unfold(page: Any) -> Any:
    painted(page)
    page.locator(".verdict .zoom > summary").click()
    return page.locator(".verdict .zoom")


def test_the_card_unfolds_to_the_operator_and_its_statistics(zoomed: Collector, open_page: Open) -> None:
    call = forward(zoomed, "base.zoom", "eps.zoom")
    for theme, width in (("light", 1280), ("dark", 390)):
        page = open_page(zoomed, "/?view=compare&a=base&b=eps", theme, width)
        part = unfold(page)
        assert part.locator("summary").inner_text() == "Operators in it: one differs"
        assert part.locator("p").first.inner_text() == call["text"][0]
        assert part.locator(".setting").inner_text().replace(" in the second run", "") == "eps: 1e-05 → 0.1"
        (row,) = part.locator(".operator").all()
        assert row.inner_text().split() == ["aten.native_layer_norm", *f"{call['a'][0]['place']} in Norm.forward".split()]
        row.click()
        page.wait_for_selector(".zoom table.stats")
        told = part.locator("tr").evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.textContent.trim()))")
        sides = [
            point["stats"]
            for run in ("base.zoom", "eps.zoom")
            for point in zoomed.json("tensor", run, f"1/#{call['a'][0]['number']} {call['a'][0]['name']}")["records"]
            if point["output_path"] == "0"
        ]
        assert told[0][1:3] == ["base.zoom", "eps.zoom"] and sides[0]["l2"] != sides[1]["l2"]
        numbers = next(line[1:3] for line in told if line[0] == "L2 norm")
        assert [float(text) for text in numbers] == pytest.approx([side["l2"] for side in sides], rel=1e-4)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        row.click()
        page.wait_for_selector(".zoom table.stats", state="detached")


def test_a_block_lists_what_each_run_has(zoomed: Collector, open_page: Open) -> None:
    call = forward(zoomed, "base.zoom", "manual.zoom")
    page = open_page(zoomed, "/?view=compare&a=base&b=manual")
    part = unfold(page)
    assert part.locator("summary").inner_text() == "Operators in it: the runs have different ones"
    rows = [row.inner_text() for row in part.locator(".operator").all()]
    assert len(rows) == len(call["a"]) + len(call["b"]) > 2
    assert any("base.zoom: " in row and "scaled_dot_product" in row for row in rows)
    assert any("manual.zoom: " in row and "softmax" in row for row in rows)
    part.locator(".operator").last.click()
    page.wait_for_selector(".zoom table.stats")
    assert "\u2013" in part.locator("table.stats").inner_text(), "the other run has no such operator"


def test_without_a_zoom_in_both_runs_the_card_has_no_operators(zoomed: Collector, open_page: Open) -> None:
    page = open_page(zoomed, "/?view=compare&a=base&b=plain")
    painted(page)
    page.wait_for_selector(".picture > .chart >> nth=1")
    assert page.locator(".zoom").count() == 0
