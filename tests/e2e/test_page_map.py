"""The heat map of a comparison: names beside its rows, modules that are folded, and what is under the pointer."""

from __future__ import annotations

import re
from typing import Any

import test_page
from conftest import Collector
from test_page import COMPARE, Open, painted, until

pytestmark = test_page.pytestmark
browser, recorded, open_page = test_page.browser, test_page.recorded, test_page.open_page


def rows(page: Any) -> int:
    label = page.get_attribute(".heat-canvas", "aria-label")
    found = re.search(r"of (\d+) tensors", label)
    assert found, label
    return int(found[1])


def names(page: Any) -> list[str]:
    return [re.sub(r"\s+", " ", text).strip() for text in page.locator(".heat-name").all_inner_texts()]


def test_rows_have_names_by_module_and_the_weights_are_a_thin_strip(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, COMPARE)
    painted(page)
    heat = test_page.recorded_heat(recorded)
    shown = names(page)
    assert len(shown) == rows(page) < len(heat["rows"]), "each row has its name"
    weights = sum(row["stage"] == "weights" for row in heat["rows"])
    assert shown[0] == f"▸ weights {weights}", "one row for all of a stage that has one column"
    assert any(re.fullmatch(r"▸ blocks\.0 \d+", name) for name in shown)
    assert "ln2" in shown and "▸ blocks.1" not in " ".join(shown[: shown.index("ln2")]), "the origin's module is unfolded"
    page.focus(".heat-canvas")
    page.keyboard.press("Home")
    assert page.inner_text(".heat-at").startswith("step 2, blocks.1.ln2 output: diverged")


def test_modules_are_unfolded_and_folded_and_the_link_says_which(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, COMPARE)
    painted(page)
    before = rows(page)
    fold = page.locator(".heat-name .fold", has_text="blocks.0").first
    tensors = int(names(page)[next(i for i, name in enumerate(names(page)) if "blocks.0" in name)].split()[-1])
    fold.click()
    until(page, "location.search.includes('open=')")
    assert rows(page) == before + tensors - 1
    other = open_page(recorded, page.url.split(recorded.http)[1])
    painted(other)
    assert names(other) == names(page)
    page.locator(".heat-name .fold[aria-expanded=true]", has_text="blocks.0").first.click()
    until(page, f"document.querySelector('.heat-canvas').ariaLabel.includes('of {before} tensors')")
    page.get_by_role("button", name="Unfold all").click()
    whole = len(test_page.recorded_heat(recorded)["rows"])
    until(page, f"document.querySelector('.heat-canvas').ariaLabel.includes('of {whole} tensors')")
    page.get_by_role("button", name="Fold all").click()
    until(page, "location.search.includes('open=none')")
    # A click on a folded module shows the tensor in it that is farthest apart.
    page.get_by_role("button", name="Show the origin").click()
    page.wait_for_selector(".cell table")
    assert "blocks.1" in page.inner_text(".cell h2") and "step=2" in page.url


def test_a_tip_beside_the_pointer_says_what_is_under_it(recorded: Collector, open_page: Open) -> None:
    for width in (1280, 390):
        page = open_page(recorded, COMPARE, width=width)
        painted(page)
        page.locator(".heat-canvas").scroll_into_view_if_needed()
        box = page.locator(".heat-canvas").bounding_box()
        for part in (0.1, 0.9):
            page.mouse.move(box["x"] + part * box["width"], box["y"] + 0.4 * box["height"])
            page.wait_for_selector(".heat-tip")
            tip = page.locator(".heat-tip").bounding_box()
            assert tip["x"] >= 0 and tip["x"] + tip["width"] <= width
            assert abs(tip["y"] - (box["y"] + 0.4 * box["height"])) < 40, "near the pointer"
            said = page.inner_text(".heat-tip").split("\n")
            assert page.inner_text(".heat-at").startswith(said[1].split(":")[0]) and said[0] in page.inner_text(".heat-at")
        page.mouse.move(0, 0)
        page.wait_for_selector(".heat-tip", state="detached")
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
