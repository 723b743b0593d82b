"""The way to a run: the first one, the list, and the tabs of a run and of a comparison."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import test_page
from conftest import Collector, wait_until
from test_page import COMPARE, Open, painted, table_of, until

pytestmark = test_page.pytestmark
browser, recorded, open_page = test_page.browser, test_page.recorded, test_page.open_page


def links(page: Any, region: str) -> dict[str, bool]:
    """The links of a navigation, and which of them is the present one."""
    found = page.get_by_role("navigation", name=region).get_by_role("link").all()
    return {
        link.inner_text(): link.get_attribute("aria-current") == "page" for link in found if link.inner_text() != "statcollect"
    }


def test_an_empty_collector_says_the_command_that_records_a_run_and_waits(collector: Collector, open_page: Open) -> None:
    page = open_page(collector, "/")
    page.wait_for_selector("text=Waiting for the first run")
    command = page.inner_text(".state code")
    assert command == f"statctl run base --collector {collector.address} -- python train.py", "it is not at the usual address"
    collector.python("import statagent\nstatagent.init(run='base')\nstatagent.log_scalar('loss', 1.0)\nstatagent.close()")
    page.wait_for_selector("table >> text=base")


def test_three_places_and_the_tabs_of_a_run_and_of_a_comparison(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/")
    page.wait_for_selector("table >> text=base2")
    assert links(page, "Views") == {"Runs": True, "Compare": False, "Collector": False}
    page.get_by_role("link", name="base", exact=True).click()
    for tab, view in (("Configuration", "config"), ("Ranks", "ranks"), ("Memory", "memory"), ("Statistics", "run")):
        page.locator(".tabs").get_by_role("link", name=tab).click()
        until(page, f"new URLSearchParams(location.search).get('view') === '{view}'")
        assert parse_qs(urlsplit(page.url).query)["a"] == ["base"]
        assert links(page, "Of this run") == {one: one == tab for one in ("Statistics", "Configuration", "Ranks", "Memory")}
        assert links(page, "Views") == {"Runs": True, "Compare": False, "Collector": False}
        assert page.inner_text("h1").strip() == "base"
    page = open_page(recorded, COMPARE)
    painted(page)
    assert links(page, "Views") == {"Runs": False, "Compare": True, "Collector": False}
    page.locator(".tabs").get_by_role("link", name="Configuration").click()
    page.wait_for_selector("[aria-label='Settings'] tbody tr")
    assert links(page, "Of this comparison") == {"Verdict": False, "Tokens": False, "Configuration": True}


# Addresses of earlier releases, and what they show.
BOOKMARKS = {
    "/?view=config&a=base": "[aria-label='Settings'] tbody tr",
    "/?view=config": "text=Pick a run",
    "/?view=ranks&a=base": ".sentence",
    "/?view=memory&a=tagger&rank=0": "section[aria-label=Padding] .chart canvas",
    "/?view=run&a=base&stat=rms&rank=1": "canvas[data-painted]",
    COMPARE + "&window=1-2:3-40": "text=Show all",
    COMPARE + "&tensor=blocks.1.ln2&kind=output&path=0&mode=train&step=2&place=1/0/0": ".cell .chart canvas",
    "/?view=tensor&a=base&b=ort&tensor=blocks.1.ln2&kind=output&mode=train&rank=1": ".grid .chart canvas",
}


@pytest.mark.parametrize("path", BOOKMARKS)
def test_bookmarks_of_earlier_releases_still_lead_there(recorded: Collector, open_page: Open, path: str) -> None:
    page = open_page(recorded, path)
    page.wait_for_selector(BOOKMARKS[path], state="attached")
    assert page.url.endswith(path)


def test_settings_are_grouped_folded_and_filtered(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=config&a=base")
    page.wait_for_selector("tr.group")
    items = recorded.json("config", "base", "--all")["items"]
    sizes: dict[str, int] = {}
    for item in items:
        sizes[item["category"]] = sizes.get(item["category"], 0) + 1
    texts = [re.sub(r"\s+", " ", text).strip() for text in page.locator("tr.group").all_inner_texts()]
    assert [text[2:].lower() for text in texts] == [f"{category} {size}" for category, size in sizes.items()]
    large = next(category for category, size in sizes.items() if size > 12)
    group = page.locator("tr.group button").filter(has_text=re.compile(large, re.I))
    assert group.get_attribute("aria-expanded") == "false"
    before = page.locator("tbody tr").count()
    group.click()
    until(page, f"document.querySelectorAll('tbody tr').length === {before + sizes[large]}")
    page.get_by_role("searchbox").fill("ln2 eps")
    matching = [item["key"] for item in items if "ln2" in item["key"] and "eps" in item["key"]]
    until(page, f"document.querySelectorAll('tbody tr:not(.group)').length === {len(matching)}")
    assert [row[0] for row in table_of(page, "Settings")][1:] == matching
    assert "filter=ln2%20eps" in page.url


def test_a_golden_that_a_comparison_has_loaded_is_not_among_the_runs(
    collector: Collector, open_page: Open, tmp_path: Path
) -> None:
    for run in ("base", "pr-17"):
        collector.python(CONSTANT.replace("constant", run))
    golden = tmp_path / "base.scg"
    assert collector.statctl("golden", "save", "base", str(golden)).code == 0
    collector.statctl("diff", "--golden", str(golden), "--run-b", "pr-17")
    assert len(collector.json("runs")["runs"]) == 3, "the collector has it"
    page = open_page(collector, "/")
    page.wait_for_selector("text=A golden that a comparison has loaded is not listed.")
    assert page.locator("tbody tr").count() == 2
    page.get_by_role("link", name="Show", exact=True).click()
    until(page, "document.querySelectorAll('tbody tr').length === 3")


# Two tensors of very different sizes that never change, and one that grows by a factor of 100 in the last step.
CONSTANT = """
import statagent, torch
agent = statagent.init(run="constant")
for step in range(6):
    agent.set_step(step)
    agent.observe("large", torch.full((4,), 1e6))
    agent.observe("small", torch.full((4,), 1e-6))
    agent.observe("grows", torch.full((4,), 1.0 if step < 5 else 100.0))
statagent.close()
"""


def test_on_the_map_of_a_run_a_change_shows_and_a_constant_does_not(collector: Collector, open_page: Open) -> None:
    collector.python(CONSTANT)
    page = open_page(collector, "/?view=run&a=constant")
    painted(page)

    def colours() -> list[list[tuple[int, ...]]]:
        return [[tuple(test_page.colour_at(page, row, column, 3, 6)) for column in range(6)] for row in range(3)]

    large, small, grows = colours()
    assert len({*large, *small, *grows[:5]}) == 1 and grows[5] != grows[4]
    box = page.locator(".heat-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] - 5)
    page.wait_for_selector(".heat-tip")
    assert "grows" in page.inner_text(".heat-tip b") and "100 times its median" in page.inner_text(".heat-tip")
    page.get_by_role("combobox", name="Scale").select_option("absolute")
    until(page, "location.search.includes('scale=absolute')")
    wait_until(lambda: len({row[0] for row in colours()}) == 3, what="one scale for all tensors")
