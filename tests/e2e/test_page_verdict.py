"""The card with the verdict: what one reads first, and what can be done with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import test_page
from conftest import Collector
from test_page import COMPARE, Open, painted

pytestmark = test_page.pytestmark
browser, recorded, open_page = test_page.browser, test_page.recorded, test_page.open_page


def chips(page: Any) -> list[str]:
    page.wait_for_selector(".chips li")
    found: list[str] = page.locator(".chips li").all_inner_texts()
    return found


def test_the_card_names_step_and_tensor_then_the_setting_then_why(recorded: Collector, open_page: Open) -> None:
    root = recorded.diff("base", "ort")["root"]
    for theme, width in (("light", 1280), ("dark", 390)):
        page = open_page(recorded, COMPARE, theme, width)
        page.wait_for_selector(".headline")
        assert page.inner_text(".headline") == f"Step {root['step']} · {root['activation']}" == "Step 2 · blocks.1.ln2"
        cause = root["causes"][0]
        assert page.inner_text(".setting").replace(" in the second run", "") == f"{cause['key']}: {cause['a']} → {cause['b']}"
        times = root["distance"] / root["tolerance"]
        assert times > 100, "so that a whole number tells it"
        assert chips(page) == ["forward", f"rank {root['rank']}", f"{round(times):,} \u00d7 tolerance", root["confidence"]]
        assert page.locator(".verdict .because li").all_inner_texts() == root["because"]
        tops = [
            page.locator(part).first.bounding_box()["y"] for part in (".headline", ".setting", ".chips", ".because", ".sentence")
        ]
        assert tops == sorted(tops), "what matters most comes first"


def test_the_card_says_whether_the_runs_are_comparable(recorded: Collector, open_page: Open) -> None:
    for a, b in (("base", "ort"), ("base", "base2")):
        page = open_page(recorded, f"/?view=compare&a={a}&b={b}")
        page.wait_for_selector(".premises")
        checks = recorded.diff(a, b)["comparable"]
        broken = [f"{each['check']} {each['detail']}" for each in checks if not each["ok"]]
        assert page.locator(".premises > ul li").all_inner_texts() == broken
        assert bool(broken) == (b == "ort"), "its eps is another one"
        held = [each for each in checks if each["ok"]]
        assert page.inner_text(".premises summary") == "Comparable in " + ", ".join(each["check"] for each in held)
        page.locator(".premises summary").click()
        assert page.locator(".premises details li").all_inner_texts() == [f"{each['check']} {each['detail']}" for each in held]


def test_the_losses_and_their_difference_have_the_runs_names_and_a_line_at_the_origin(
    recorded: Collector, open_page: Open
) -> None:
    page = open_page(recorded, COMPARE)
    painted(page)
    charts = page.locator(".picture > .chart")
    page.wait_for_selector(".picture > .chart >> nth=1")
    assert [chart.get_attribute("aria-label") for chart in charts.all()] == ["Loss", "|A \u2212 B| / |A| of the loss"]
    assert charts.first.locator(".key").all_inner_texts() == ["base", "ort", "step 2, the origin"]
    assert page.locator(".heat-origin").count() == 1
    # At each step it is what the losses of both runs give; before the origin they are equal, and a logarithmic axis shows nothing.
    losses = [mean_losses(recorded, run) for run in ("base", "ort")]
    box = charts.nth(1).locator(".u-over").bounding_box()
    steps = len(losses[0])
    for step in range(steps):
        page.mouse.move(box["x"] + (step + 0.5) / steps * box["width"], box["y"] + 20)
        page.wait_for_selector(f".chart >> nth=1 >> text=/^step {step}$/")
        told = charts.nth(1).locator("figcaption .value").inner_text().strip()
        expected = abs(losses[0][step] - losses[1][step]) / abs(losses[0][step])
        assert (float(told) if told else 0) == pytest.approx(expected, rel=1e-3)
    page.get_by_role("button", name="Show the origin").click()
    page.wait_for_selector(".cell .chart canvas")
    assert page.locator(".cell .chart .key").all_inner_texts() == ["base", "ort", "step 2, the origin"]


def mean_losses(collector: Collector, run: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for record in collector.json("scalars", run)["records"]:
        if record["name"] == "loss":
            found.setdefault(record["step"], []).append(record["value"])
    return {step: sum(values) / len(values) for step, values in found.items()}


def test_runs_that_agree_have_a_sentence_and_no_place(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=compare&a=base&b=base2")
    page.wait_for_selector("h2.sentence")
    assert page.locator(".headline, .chips, .setting").count() == 0


def choose(page: Any, menu: str, item: str) -> None:
    page.locator(".verdict .menu summary", has_text=menu).click()
    page.get_by_role("button", name=item, exact=True).click()


def test_one_menu_copies_and_one_shares(recorded: Collector, open_page: Open, tmp_path: Path, browser: Any) -> None:
    page = open_page(recorded, COMPARE)
    painted(page)
    assert page.locator(".menu summary").all_inner_texts() == ["Copy", "Share"]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def copied(menu: str, item: str) -> str:
        choose(page, menu, item)
        page.wait_for_selector(".menu summary >> text=Copied")
        text: str = page.evaluate("navigator.clipboard.readText()")
        page.wait_for_selector(f".menu summary >> text={menu}")
        return text

    text = recorded.diff("base", "ort")["text"]
    assert copied("Copy", "Verdict").splitlines() == [f"{text['verdict']} {text['sentence']}", "statctl diff base ort", page.url]
    assert copied("Copy", "statctl command") == "statctl diff base ort"
    assert copied("Copy", "curl command").startswith(f"curl 'http://{recorded.http}/api/v1/diff?")
    assert copied("Share", "Copy the link") == page.url
    with page.expect_download() as download:
        choose(page, "Share", "Picture (PNG)")
    picture = Path(download.value.path()).read_bytes()
    assert picture.startswith(b"\x89PNG") and download.value.suggested_filename == "base-ort.png"
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert width > 1200 and height > 800, "the card, the losses and the map"
    with page.expect_download() as download:
        choose(page, "Share", "Report file (HTML)")
    # The file of the page is that of statctl: it opens without a collector and tells the same.
    files = {"page": tmp_path / "page.html", "statctl": tmp_path / "statctl.html"}
    download.value.save_as(files["page"])
    assert recorded.statctl("report", "base", "ort", "--out", str(files["statctl"])).code == 1
    told: dict[str, tuple[Any, ...]] = {}
    for name, file in files.items():
        context = browser.new_context(offline=True)
        other = context.new_page()
        other.goto(file.as_uri())
        painted(other)
        told[name] = (other.inner_text(".headline"), chips(other), other.inner_text(".sentence"))
        data = json.loads(re.split('id="data">|</script>', file.read_text())[1])
        told[name] += (len(data["report"]["diverged"]), len(data["scalars_a"]), data["command"])
        context.close()
    assert told["page"] == told["statctl"]


def test_a_menu_closes_with_escape_and_with_a_click_elsewhere(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, COMPARE)
    painted(page)
    summary = page.locator(".verdict .menu summary", has_text="Copy")
    for leave in (lambda: page.keyboard.press("Escape"), lambda: page.locator(".headline").click()):
        summary.click()
        page.wait_for_selector(".menu[open]")
        leave()
        page.wait_for_selector(".menu[open]", state="detached")


# The mask of an input differs in one run; another run has another model.
INPUTS = """
import statagent, torch
from torch import nn
class Net(nn.Module):
    def __init__(self, wide, name):
        super().__init__()
        setattr(self, name + "_embed", nn.Embedding(50, wide)); setattr(self, name + "_head", nn.Linear(wide, 50)); self.n = name
    def forward(self, ids, mask):
        return getattr(self, self.n + "_head")(getattr(self, self.n + "_embed")(ids) * mask.unsqueeze(-1))
def train(run, model, mask_wrong=False):
    torch.manual_seed(0)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.init(run=run); w = statagent.watch(model, optimizer=opt)
    g = torch.Generator().manual_seed(3)
    for step in range(6):
        ids = torch.randint(0, 50, (4, 8), generator=g); mask = torch.ones(4, 8)
        if mask_wrong and step >= 2: mask[:, 5:] = 0
        statagent.log_batch(input_ids=ids, attention_mask=mask)
        loss = nn.functional.cross_entropy(model(ids, mask).flatten(0, 1), ids.flatten())
        statagent.log_scalar("loss", loss); loss.backward(); opt.step(); opt.zero_grad()
    w.remove(); statagent.close()
torch.manual_seed(1); train("one", Net(8, "a"))
torch.manual_seed(1); train("mask", Net(8, "a"), True)
torch.manual_seed(2); train("other", Net(16, "b"))
"""


def test_what_is_said_of_an_input_and_of_unrelated_models_fits_together(collector: Collector, open_page: Open) -> None:
    collector.python(INPUTS)
    page = open_page(collector, "/?view=compare&a=one&b=mask")
    painted(page)
    root = collector.diff("one", "mask")["root"]
    assert page.inner_text(".headline") == "Step 2 \u00b7 attention_mask"
    times = f"{round(root['distance'] / root['tolerance']):,}"
    assert chips(page) == ["batch", "rank 0", f"{times} \u00d7 tolerance", root["confidence"]]
    page.get_by_role("button", name="Show the origin").click()
    page.wait_for_selector(".cell table")
    said = page.inner_text("main")
    assert "about 5e3 times the tolerance" in page.inner_text(".cell .lead") and "measur" not in said
    assert (
        root["agreeing"] > 0
        and "origin: everything observed before it agrees" in said
        and "nothing observed comes before it" not in said
    )
    # Of models that have other weights from the first on, nothing is said to agree.
    page = open_page(collector, "/?view=compare&a=one&b=other")
    painted(page)
    said = page.inner_text(".verdict")
    assert "missing in" in said and "agrees" not in said
