"""The page's Tokens: one sequence of a trainer and an engine, taps over positions, in a real browser."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import test_page
from conftest import Collector
from test_page import AXE, SHOTS, Open, painted, until

pytestmark = test_page.pytestmark
browser, open_page = test_page.browser, test_page.open_page

# A stack of causal means, as a trainer and as engines: one with a layer that is wrong from position 20 on, and log-probabilities that follow.
# "long" and "long2" have one sequence of thousands of tokens.
SCRIPT = textwrap.dedent("""
    import statagent, torch

    torch.manual_seed(5)
    LAYERS = 8
    embedding, layers = torch.nn.Embedding(50, 32), [torch.nn.Linear(32, 32) for _ in range(LAYERS)]
    sequences = [torch.randint(0, 50, (length,)) for length in (48, 30, 12)]
    sequences[1][:5] = sequences[0][:5]  # a common prefix

    def record(agent, ids, fault):
        keys, positions = statagent.token_keys(ids), torch.arange(len(ids))
        for first in range(0, len(ids), 4000):
            part = slice(first, first + 4000)
            def tapped(tap, rows):
                rows = fault(tap, rows)
                agent.record_rows(tap, rows[part], keys[part], positions[part])
                return rows
            x = tapped("embed", embedding(ids))
            for number, layer in enumerate(layers):
                mean = x.cumsum(-2) / torch.arange(1, len(ids) + 1)[:, None]
                x = tapped(f"layers.{number}.mlp", x + torch.tanh(layer(mean)))
            logits = x @ embedding.weight.T / 32
            tapped("logprob", torch.log_softmax(logits, -1).gather(-1, ids[:, None]))

    def late(tap, rows):
        return torch.cat([rows[:20], rows[20:] * 1.05]) if tap == "layers.3.mlp" else rows

    with torch.no_grad():
        long = torch.randint(0, 50, (3000,))
        for run, given, fault in (
            ("trainer", sequences, lambda tap, rows: rows), ("engine", sequences[::-1], late), ("clean", sequences, lambda tap, rows: rows),
            ("long", [long], lambda tap, rows: rows), ("long2", [long], late),
        ):
            agent = statagent.init(run=run, required=True)
            for ids in given:
                record(agent, ids, fault)
            agent.step()
            assert agent.close(timeout=30), agent.counters()
""")
TOKENS = "/?view=tokens&a=trainer&b=engine"


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> Collector:
    done = shared_collector.python(SCRIPT)
    assert done.code == 0, done.err
    return shared_collector


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"tokens-{name}.png"), full_page=True)


def test_the_sequence_that_parts_is_shown_with_its_first_tap_outlined(recorded: Collector, open_page: Open) -> None:
    found = recorded.json("diff", "trainer", "engine", "--tokens", codes=(1,))
    assert found["taps"][found["first"]]["tap"] == "layers.3.mlp"
    for theme, width in (("light", 1280), ("dark", 390)):
        page = open_page(recorded, TOKENS, theme, width)
        painted(page)
        page.wait_for_selector(".chart canvas")
        assert page.inner_text(".verdict .sentence") == found["text"]["sentence"]
        assert page.inner_text(".premises summary").startswith("Comparable in tokens, taps")
        assert page.get_attribute(".heat-canvas", "aria-label").startswith("Heat map of 10 taps over 48 positions.")
        outlined, cell = (page.locator(f".mark.{kind}").bounding_box() for kind in ("span", "origin"))
        canvas = page.locator(".heat-canvas").bounding_box()
        assert outlined["width"] == pytest.approx(canvas["width"], abs=6)
        assert abs((cell["y"] - canvas["y"]) / canvas["height"] * 10 - 4) < 0.5, "the fifth of ten taps"
        assert abs((cell["x"] - canvas["x"]) / canvas["width"] * 48 - 20) < 1
        assert page.locator(".chart .key").all_inner_texts()[:2] == ["trainer", "engine"]
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
        if AXE.exists():
            page.evaluate(AXE.read_text())
            assert [(each["id"], each["nodes"][0]["html"][:200]) for each in page.evaluate("axe.run()")["violations"]] == []
        shot(page, f"{theme}-{width}")


def test_a_cell_and_the_table_say_what_the_picture_shows(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, TOKENS)
    painted(page)
    page.get_by_role("button", name="Show where they part").click()
    page.wait_for_selector("section[aria-label='The chosen cell']")
    said = page.inner_text("section[aria-label='The chosen cell']")
    assert "layers.3.mlp" in said and "Position 20, token id " in said and "diverged" in said
    assert "tensor=layers.3.mlp" in page.url and "step=20" in page.url
    page.locator(".behind summary").click()
    rows = [row.split("\t") for row in page.locator(".behind tbody tr").all_inner_texts()]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert cells["embed"][:4] == ["identical", "", "85", "85"]
    assert cells["layers.3.mlp"][:2] == ["28 of 48 diverged", "position 20"]
    shot(page, "cell")


def test_another_sequence_can_be_chosen_and_linked(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, TOKENS)
    painted(page)
    options = page.locator(".choice option").all_inner_texts()
    assert [option.split(",")[0] for option in options] == ["1: 48 tokens", "2: 30 tokens", "3: 12 tokens"]
    assert options[2].endswith("within rounding")
    page.locator(".choice select").select_option(index=2)
    until(page, "document.querySelector('.heat-canvas')?.ariaLabel?.includes('over 12 positions')")
    assert page.locator(".mark.origin").count() == 0
    other = open_page(recorded, page.url.split(recorded.http)[1])
    painted(other)
    assert other.locator(".choice select").input_value() == page.locator(".choice select").input_value()


def test_thousands_of_tokens_can_be_looked_at_closely(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=tokens&a=long&b=long2")
    painted(page)
    assert "over 3000 positions" in page.get_attribute(".heat-canvas", "aria-label")
    page.locator(".heat-canvas").focus()
    page.keyboard.press("Home")
    assert page.inner_text(".heat-at").startswith("position 20, layers.3.mlp")
    shot(page, "long")
    for _ in range(4):
        page.keyboard.press("+")
    until(page, "location.search.includes('window=')")
    page.get_by_role("button", name="Show all").click()
    until(page, "!location.search.includes('window=')")


def test_equal_runs_and_runs_without_tokens_say_so(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=tokens&a=trainer&b=clean")
    painted(page)
    assert "identical" in page.inner_text(".badge") and page.locator(".mark.origin").count() == 0
    recorded.python("import statagent; statagent.init(run='plain'); statagent.log_scalar('loss', 1); statagent.close()")
    page = open_page(recorded, "/?view=tokens&a=trainer&b=plain")
    page.wait_for_selector(".verdict.warn")
    assert "run 'plain' has no token records" in page.inner_text(".sentence")
    assert page.locator(".premises li").first.inner_text().startswith("tokens")
    shot(page, "incomparable")
