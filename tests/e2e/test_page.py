"""The page in a real browser against a real collector with recorded training runs. Needs Chromium and Python's playwright, which
scripts/setup.sh installs for tests; without them these tests are skipped."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, MISSING, launch
from conftest import ROOT, STATCOLLECTORD, Collector, run_command, start_python, wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="needs Python's playwright: scripts/setup.sh --for test")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
# Seconds that a page may take for what it does at some time. Of a live run it asks again after 50 times what the last answer took, at most
# after 60 s: on a slow machine that is not yet an error.
PATIENCE = 90
SHOTS = os.environ.get("STATCOLLECT_PAGE_SHOTS", "")  # a folder that gets a picture of each view

# Runs and tensors as an enemy would name them.
HOSTILE_RUNS = ["a" * 128, "b.-_x" * 20]
HOSTILE_NAMES = [
    "<script>alert(1)</script>",
    "zero\u200bwidth",
    "n" * 1024,
    "a&b=c,d#e?f",
    "</title><img src=x onerror=alert(2)>",
    "$(rm -rf ~)'\"",
    "\u0639\u0631\u0628\u064a",
]
HOSTILE = """
import statagent, torch
for run in RUNS:
    agent = statagent.init(run=run)
    for step in range(3):
        agent.set_step(step)
        for name in NAMES:
            agent.observe(name, torch.ones(4) + (0.5 if run == RUNS[-1] and step > 0 else 0))
        statagent.log_scalar("<b>loss", 1.0)
    statagent.close()
"""

# A run on one rank that breaks down: NaN from step 3 on, and alarms about it.
BROKEN = """
import statagent, torch
agent = statagent.init(run="broken")
for step in range(6):
    agent.set_step(step)
    for layer in range(4):
        values = torch.full((8,), 10.0 ** (step - layer))
        agent.observe(f"net.{layer}", values * (float("nan") if step >= 3 and layer >= 1 else 1.0))
    statagent.log_scalar("loss", 2.0 / (step + 1) if step < 3 else float("nan"))
statagent.close()
"""

# A run that recovers: an alarm, and the message that it is over.
HEALED = """
import statagent, torch
agent = statagent.init(run="healed")
for step in range(4):
    agent.set_step(step)
    agent.observe("net", torch.ones(4))
    statagent.log_scalar("loss", float("nan") if step == 1 else 2.0 / (step + 1))
statagent.close()
"""

# A model with padding in its inputs, which records memory by module.
TAGGER = """
import statagent, torch
from torch import nn
torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(32, 64, padding_idx=0), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
statagent.init(run="tagger")
statagent.watch(model, optimizer=optimizer, memory="modules", density={"input_ids": 0, "targets": -100})
for step in range(6):
    ids = torch.randint(1, 32, (4, 10))
    ids[:, 4 + step % 3:] = 0
    statagent.log_batch(input_ids=ids, targets=ids % 8)
    nn.functional.cross_entropy(model(ids).flatten(0, 1), (ids % 8).flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
statagent.close()
"""


# Values of which some are too small for float16, captured and counted in two runs that differ in one element.
VALUES = """
import statagent, torch
for run, wrong in (("base", 0.0), ("ort", 0.25)):
    agent = statagent.init(run=run, captures=["net@1"], exponents=["net@0-"])
    for step in range(3):
        agent.set_step(step)
        values = torch.tensor([[1.0, 2.0, 1e-9], [4.0, 1e-9, 6.0]])
        values[1, 2] += wrong
        agent.observe("net", values)
    statagent.close()
"""


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    wrong = ["--bug", "ln_eps", "--bug-step", "2"]
    shared_collector.train_all({"base": [], "base2": [], "ort": wrong}, tmp_path_factory.mktemp("runs"))
    shared_collector.python(BROKEN)
    shared_collector.python(HEALED)
    shared_collector.python(TAGGER)
    shared_collector.python(VALUES.replace('"base"', '"values"').replace('"ort"', '"values2"'))
    # The rules come after the records: what pages and statctl say of them is compared.
    for run, expected in (("broken", {"nan_first_seen", "loss_not_finite"}), ("healed", {"loss_not_finite", "alarm_cleared"})):
        wait_until(
            lambda run=run, expected=expected: {e["kind"] for e in told_of(shared_collector, run)} == expected,
            what=f"{run}'s alarms",
        )
    return shared_collector


def told_of(collector: Collector, run: str) -> list[dict[str, Any]]:
    """What the collector's rules say of a run: alarms, that one is over, and notes."""
    return [event for event in collector.json("events", run)["records"] if "severity" in event["fields"]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        started = launch(running)
        yield started
        started.close()


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a path of a collector; afterwards no page may have written an error or broken its security policy."""
    contexts: list[Any] = []
    problems: list[str] = []

    def opened(collector: Collector, path: str, theme: str = "light", width: int = 1280, quiet: bool = True) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        if quiet:
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            page.on("dialog", lambda dialog: problems.append("dialog: " + dialog.message))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"http://{collector.http}{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


COMPARE = "/?view=compare&a=base&b=ort"
CELL = COMPARE + "&tensor=blocks.1.ln2&kind=output&path=0&mode=train&step=2"
VIEWS = {
    "runs": "/",
    "compare": COMPARE,
    "cell": CELL,
    "options": COMPARE + "&tolerance=0.5&steps=0-2&kinds=output,weight&noise=base2",
    "identical": "/?view=compare&a=base&b=base2",
    "run": "/?view=run&a=base&stat=rms",
    "broken": "/?view=run&a=broken&tensor=net.1&kind=inspect&mode=train&step=3",
    "tensor": "/?view=tensor&a=base&b=ort&tensor=blocks.1.ln2&kind=output&path=0&mode=train",
    "config": "/?view=config&a=base&b=ort",
    "ranks": "/?view=ranks&a=base",
    "values": "/?view=tensor&a=values&b=values2&tensor=net&kind=inspect&mode=train&stat=exponents,captures",
    "memory": "/?view=memory&a=tagger",
    "collector": "/?view=collector",
    "empty": "/?view=compare",
    "unknown": "/?view=compare&a=base&b=nobody",
}


def painted(page: Any) -> None:
    page.wait_for_selector("canvas[data-painted]", state="attached")


def until(page: Any, condition: str) -> None:
    """Waits for an expression; the browser's own way is forbidden by the page's policy."""
    wait_until(lambda: page.evaluate(condition), PATIENCE, condition)


def settled(page: Any, view: str) -> None:
    if view in ("compare", "cell", "identical", "options", "run", "broken"):
        painted(page)
        page.wait_for_selector(".chart canvas")
    if view in ("cell", "tensor"):
        page.wait_for_selector(".cell .chart canvas" if view == "cell" else ".grid .chart canvas")
    if view == "values":
        page.wait_for_selector("text=elements differ")
        page.wait_for_selector("section[aria-label=Exponents] svg")
    if view == "memory":
        page.wait_for_selector("section[aria-label=Padding] .chart canvas")
    page.wait_for_selector("main h1, main h2")


def sentence(page: Any) -> str:
    parts = [page.inner_text(".sentence"), *page.locator(".cause").all_inner_texts()]
    return " ".join(parts)


def test_the_verdict_is_what_statctl_says(recorded: Collector, open_page: Open) -> None:
    for a, b in (("base", "ort"), ("base", "base2"), ("ort", "base")):
        page = open_page(recorded, f"/?view=compare&a={a}&b={b}")
        page.wait_for_selector(".sentence")
        text = recorded.diff(a, b)["text"]
        assert sentence(page).lower() == text["sentence"].lower()
        assert text["verdict"].lower() in page.inner_text(".badge")
        printed = recorded.statctl("--quiet", "diff", a, b)
        assert re.sub(r"\s+", " ", printed.out).strip() == f"{text['verdict']} {text['sentence']}"


def link_of(recorded: Collector, *arguments: str) -> str:
    """The path of the link that ends a diff's answer."""
    last = recorded.statctl("diff", *arguments).out.rstrip("\n").split("\n")[-1]
    origin = f"In a browser: http://{recorded.http}"
    assert last.startswith(origin), last
    return last.removeprefix(origin)


def test_statctl_links_to_the_same_question(recorded: Collector, open_page: Open) -> None:
    assert link_of(recorded, "base", "ort") == COMPARE
    asked = ["base", "ort", "--tolerance", "0.5", "--steps", "0-2", "--kinds", "output,weight", "--rank", "1", "--no-alignment"]
    page = open_page(recorded, link_of(recorded, *asked))
    page.wait_for_selector(".sentence")
    text = recorded.diff(*asked)["text"]
    assert text != recorded.diff("base", "ort")["text"]  # otherwise the options would not matter
    assert sentence(page).lower() == text["sentence"].lower()
    options = page.locator(".option").all_inner_texts()
    assert options == ["tolerance 0.5", "rank 1", "steps 0-2", "only output, weight", "names are not matched"]
    printed = shlex.split(page.inner_text(".commands code"))
    assert printed[:2] == ["statctl", "diff"]
    assert recorded.diff(*printed[2:])["text"] == text
    page.get_by_role("link", name="Without options").click()
    page.wait_for_selector(".options", state="detached")
    assert page.url.endswith(COMPARE)


def test_only_an_answer_for_people_has_the_link(recorded: Collector) -> None:
    for form in (["--quiet"], ["--format", "json"], ["--format", "csv"], ["--format", "markdown"]):
        done = recorded.statctl(*form, "diff", "base", "ort")
        assert done.code == 1 and "http://" not in done.out + done.err, form
    lines = (line.split() for line in recorded.statctl("status").out.splitlines())
    assert ["page", f"http://{recorded.http}/"] in lines


def test_an_option_that_the_collector_refuses_says_why(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, COMPARE + "&tolerance=lots", quiet=False)
    page.wait_for_selector("text=The collector cannot answer this")
    assert "lots" in page.inner_text("main")


def test_picking_two_runs_leads_to_the_comparison_and_back(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/")
    page.get_by_role("checkbox", name="Pick base", exact=True).check()
    page.get_by_role("checkbox", name="Pick ort", exact=True).check()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_selector(".sentence")
    assert page.url.endswith(COMPARE)
    assert "blocks.1.ln2" in sentence(page)
    page.get_by_role("button", name="Show the origin").click()
    page.wait_for_selector(".cell table")
    assert "tensor=blocks.1.ln2" in page.url and "step=2" in page.url
    page.go_back()
    page.wait_for_selector(".cell", state="detached")
    page.go_back()
    page.wait_for_selector("table >> text=base2")
    page.go_forward()
    page.wait_for_selector(".sentence")


def row_of(page: Any, name: str) -> list[str]:
    """The cells of the table behind the map of a run, for one tensor."""
    page.locator(".behind summary").click()
    text = page.locator(".behind tbody tr").filter(has=page.get_by_text(name, exact=True)).inner_text()
    return [cell.strip() for cell in text.split("\t")]


def test_a_run_shows_its_statistic_by_step_and_tensor(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/")
    page.get_by_role("link", name="base", exact=True).click()
    painted(page)
    assert page.url.endswith("/?view=run&a=base")
    page.locator(".choice select").first.select_option("absmax")
    until(page, "location.search.includes('stat=absmax')")
    page.locator(".behind summary").click()
    page.wait_for_selector("th >> text=Smallest largest magnitude")
    page.locator(".behind summary").click()
    painted(page)
    recorded_points = recorded.json("series", "base", "blocks.1.ln2", "--kind", "output")["records"]
    by_step: dict[int, float] = {}  # of all ranks the greatest
    for p in recorded_points:
        if p["mode"] == "train":
            by_step[p["step"]] = max(by_step.get(p["step"], 0), abs(p["stats"]["min"]), abs(p["stats"]["max"]))
    row = row_of(page, "blocks.1.ln2 output")
    assert float(row[2]) == pytest.approx(min(by_step.values()), rel=0.01)
    assert float(row[3]) == pytest.approx(max(by_step.values()), rel=0.01)
    assert "stat=absmax" in page.url
    page.get_by_role("button", name="blocks.1.ln2 output").click()
    page.get_by_role("link", name="All statistics of this tensor").click()
    page.wait_for_selector(".grid .chart canvas")


def test_a_run_that_breaks_down_shows_where_and_its_alarms(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=run&a=broken")
    painted(page)
    row = row_of(page, "net.1 inspect")
    assert row[4] == "step 3"
    colours = {name: tuple(colour_at(page, i, 4, 4, 6)) for i, name in enumerate(("net.0", "net.1", "net.2", "net.3"))}
    assert colours["net.1"] == colours["net.2"] == (217, 72, 15, 255) != colours["net.0"]
    page.wait_for_selector(".alarms tbody tr")
    assert page.locator(".mark.alarm").count() >= 1
    assert page.locator(".alarms tbody tr").count() == len(told_of(recorded, "broken")) == 2
    page.locator(".alarms a").first.click()
    page.wait_for_selector(".cell >> text=NaN or infinite")


def test_an_alarm_that_is_over_is_listed_and_counted_once(recorded: Collector, open_page: Open) -> None:
    assert [event["fields"]["severity"] for event in told_of(recorded, "healed")] == ["alarm", "cleared"]
    page = open_page(recorded, "/")
    healed = page.locator("tbody tr").filter(has=page.get_by_role("link", name="healed", exact=True))
    healed.locator("td.c-alarms a").click()
    page.wait_for_selector(".alarms tbody tr")
    assert page.locator(".alarms td.word").all_inner_texts() == ["loss not finite (over)", "loss not finite"], "newest first"
    assert page.inner_text("[aria-label='Alarms'] h2") == "1 alarm"
    assert page.inner_text("[aria-label='First alarm'] .badge") == "! 1 alarm"
    page.go_back()
    assert healed.locator("td.c-alarms a").inner_text() == "1"


def test_a_run_with_nothing_to_show_says_so(collector: Collector, open_page: Open) -> None:
    collector.python("import statagent\nstatagent.init(run='few')\nstatagent.log_scalar('loss', 1.0)\nstatagent.close()")
    collector.python(HOSTILE.replace("RUNS", repr(HOSTILE_RUNS[:1])).replace("NAMES", repr(HOSTILE_NAMES)))
    open_page(collector, "/?view=run").wait_for_selector("text=Pick a run")
    open_page(collector, "/?view=run&a=nobody").wait_for_selector("text=There is no such run")
    page = open_page(collector, "/?view=run&a=few")
    page.wait_for_selector("text=No tensor of this run has this statistic yet.")
    assert collector.statctl("rm", "few", "--yes").code == 0
    page.wait_for_selector("text=This run was removed")
    page = open_page(collector, f"/?view=run&a={HOSTILE_RUNS[0]}")
    painted(page)
    page.locator(".behind summary").click()
    assert "<script>alert(1)</script>" in page.inner_text(".behind table")
    assert "zero\\u200bwidth" in page.inner_text(".behind table")


def table_of(page: Any, region: str) -> list[list[str]]:
    rows = page.locator(f"[role=region][aria-label='{region}'] tbody tr").all_inner_texts()
    return [[cell.strip() for cell in row.split("\t")] for row in rows]


def mebibytes(size: int) -> str:
    """As toFixed rounds: of two nearest numbers the larger, where Python takes the even one. One page of 128 ends in such a tie."""
    return f"{Decimal(size / 2**20).quantize(Decimal('0.1'), ROUND_HALF_UP)} MiB"


def test_memory_and_padding_are_those_of_statctl(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=run&a=tagger")
    page.locator(".tabs").get_by_role("link", name="Memory").click()
    page.wait_for_selector("section[aria-label=Padding] .chart canvas")
    records = recorded.json("memory", "tagger")["records"]
    peak = max(records, key=lambda record: record["host_rss"])
    section = page.locator("section[aria-label='Memory by phase']")
    assert f"{mebibytes(peak['host_rss'])} of resident memory" in section.inner_text()
    section.locator("summary").click()
    rows = table_of(page, "Memory by step and phase")
    assert [(row[0], row[1]) for row in rows] == [(str(r["step"]), r["phase"].replace("_", " ")) for r in records]
    assert [row[2] for row in rows] == [mebibytes(r["host_rss"]) for r in records]
    raised: dict[str, int] = {}
    for record in recorded.json("memory", "tagger", "--modules")["records"]:
        raised[record["module"]] = max(raised.get(record["module"], 0), record["peak_delta"])
    modules = table_of(page, "Modules by peak")
    assert {row[0] for row in modules} == set(raised) and len(raised) == 3
    density = [record for record in recorded.json("density", "tagger")["records"] if record["input"] == "input_ids"]
    share = sum(record["valid"] for record in density) / sum(record["total"] for record in density)
    inputs = {row[0]: row[1:] for row in table_of(page, "Density of the inputs")}
    assert inputs["input_ids (embed)"] == ["0", f"{100 * share:.1f} %", "step 0: 60.0 %"]
    (full,) = (row for name, row in inputs.items() if name.startswith("targets"))
    assert full == ["-100", "100 %", "none"], "neither a share of padding nor 100 % of it"
    page.get_by_role("combobox", name="Phase").select_option("post_backward")
    until(page, "location.search.includes('stage=post_backward')")
    assert {row[1] for row in table_of(page, "Memory by step and phase")} == {"post backward"}
    page.get_by_role("link", name="Statistics", exact=True).click()
    painted(page)


def test_a_run_without_memory_says_how_to_record_it(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=memory&a=broken")
    page.wait_for_selector("text=No memory was recorded here")
    assert page.get_by_text("Not recorded.").count() == 2
    open_page(recorded, "/?view=memory").wait_for_selector("text=Pick a run")
    open_page(recorded, "/?view=memory&a=nobody").wait_for_selector("text=There is no such run")


def test_filter_and_sort_are_in_the_url(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/")
    page.get_by_role("searchbox").fill("base")
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    page.get_by_role("button", name="Run", exact=True).click()
    assert page.locator("tbody tr").first.inner_text().split()[0] == "base2"
    page.reload()
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    assert page.locator("tbody tr").first.inner_text().split()[0] == "base2"


def colour_at(page: Any, row: int, column: int, rows: int, columns: int) -> list[int]:
    return page.evaluate(
        """([row, column, rows, columns]) => { const c = document.querySelector('.heat-canvas canvas');
        return [...c.getContext('2d').getImageData((column + .5) / columns * c.width, (row + .5) / rows * c.height, 1, 1).data] }""",
        [row, column, rows, columns],
    )


def test_the_picture_shows_what_the_diff_found(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, COMPARE + "&open=all")
    painted(page)
    heat = recorded_heat(recorded)
    rows, columns = len(heat["rows"]), len(heat["first_steps"])
    cells = bytes.fromhex(heat["cells"])
    listed = recorded.diff("base", "ort", "--all")["diverged"]
    diverged = {(d["kind"], d["activation"], d["step"]) for d in listed if d["stage"] != "loss"}
    shown = set()
    colours: dict[int, set[tuple[int, ...]]] = {}
    for row in range(rows):
        for column in range(columns):
            level = cells[row * columns + column]
            colours.setdefault(level, set()).add(tuple(colour_at(page, row, column, rows, columns)) if row % 9 == 0 else ())
            if level >= 128:
                shown.add((heat["rows"][row]["kind"], heat["rows"][row]["activation"], heat["first_steps"][column]))
    assert shown == diverged
    assert all(len(found - {()}) <= 1 for found in colours.values())  # one colour for each level
    origin = heat["rows"][heat["origin_row"]]
    assert (origin["activation"], heat["first_steps"][heat["origin_column"]]) == ("blocks.1.ln2", 2)


def recorded_heat(collector: Collector) -> dict[str, Any]:
    answer = json.loads(collector.get("/api/v1/diff?run_a=base&run_b=ort&heat_map_columns=2048"))
    return answer["heat_map"]


def tab_to(page: Any, found: str, key: str = "Tab") -> None:
    """Presses Tab until the focus is on an element `e` for which the expression is true."""
    for _ in range(120):
        page.keyboard.press(key)
        if page.evaluate(f"(e => !!e && ({found}))(document.activeElement)"):
            return
    pytest.fail(f"{key} never reached an element with {found}")


def test_keyboard_alone_goes_from_the_runs_to_the_statistics_of_the_origin(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?sort=run", quiet=False)  # there are no exponents, which is a 404
    page.wait_for_selector("table >> text=base2")
    for run in ("base", "ort"):
        tab_to(page, f"e.ariaLabel === 'Pick {run}'")
        page.keyboard.press("Space")
    tab_to(page, "e.textContent === 'Compare' && e.matches('button')", "Shift+Tab")
    page.keyboard.press("Enter")
    painted(page)
    assert page.url.endswith(COMPARE)
    tab_to(page, "e.getAttribute('role') === 'application'")
    page.keyboard.press("Home")
    assert "the origin" in page.inner_text(".heat-at")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".heat-at").startswith("step 3")
    page.keyboard.press("+")
    until(page, "location.search.includes('window=')")
    page.keyboard.press("0")
    until(page, "!location.search.includes('window=')")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell table")
    assert "step=2" in page.url and "tensor=blocks.1.ln2" in page.url
    tab_to(page, "e.textContent === 'All statistics of this tensor'")
    page.keyboard.press("Enter")
    page.wait_for_selector(".grid .chart canvas")
    tab_to(page, "e.matches('summary') && e.textContent.startsWith('Exponents')")
    page.keyboard.press("Enter")
    until(page, "location.search.includes('stat=exponents')")


def test_keyboard_alone_opens_and_leaves_the_removal_dialog(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?sort=run")
    page.wait_for_selector("table >> text=base2")
    assert page.locator("button:has-text('Remove…')").is_disabled(), "nothing is picked"
    tab_to(page, "e.ariaLabel === 'Pick base2'")
    page.keyboard.press("Space")
    tab_to(page, "e.textContent === 'Remove…'", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.activeElement.textContent") == "Cancel", "Enter alone removes nothing"
    for _ in range(6):  # the focus stays in the dialog, or goes to the browser's own controls
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("document.activeElement.textContent") == "Remove…", "the focus returns"


def test_a_drag_looks_closer_and_the_link_shows_the_same(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, COMPARE)
    painted(page)
    page.locator(".heat-canvas").scroll_into_view_if_needed()
    box = page.locator(".heat-canvas").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 300, steps=4)
    page.mouse.up()
    until(page, "location.search.includes('window=')")
    other = open_page(recorded, page.url.split(recorded.http)[1])
    painted(other)
    steps = page.inner_text(".heat-steps")
    assert other.inner_text(".heat-steps") == steps
    page.get_by_role("button", name="Show all").click()
    until(page, "!location.search.includes('window=')")


def test_commands_give_the_same_answer(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, COMPARE + "&rank=1")
    page.wait_for_selector(".sentence")
    command = page.locator(".commands code").last.inner_text()
    assert command == "statctl diff base ort --rank 1"
    printed = recorded.statctl("--quiet", *command.split()[1:])
    assert sentence(page).lower() in re.sub(r"\s+", " ", printed.out).lower()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".menu summary", has_text="Copy").click()
    page.get_by_role("button", name="curl command").click()
    page.wait_for_selector("text=Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    url = re.fullmatch(r"curl '?(http[^']+)'?", copied)
    assert url, copied
    with urllib.request.urlopen(url[1], timeout=60) as answer:
        assert json.loads(answer.read())["ranks"] == [1]


@pytest.mark.parametrize("view", VIEWS)
def test_accessibility(recorded: Collector, open_page: Open, view: str) -> None:
    if not AXE.exists():
        pytest.skip("needs axe-core: scripts/web.sh check installs it")
    for theme, width in (("light", 1280), ("dark", 390)):
        page = open_page(recorded, VIEWS[view], theme, width, quiet=view != "unknown")
        settled(page, view)
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run()")["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{view} at {width} pixels scrolls sideways"


NO_TOKEN = {"error": "the call needs a token", "code": "unauthenticated"}


def violations(page: Any) -> list[Any]:
    page.evaluate(AXE.read_text())
    return [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in page.evaluate("axe.run()")["violations"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessibility_of_what_appears_later(recorded: Collector, open_page: Open, theme: str) -> None:
    """The bar and the dialog of administration, a question for a token, and a collector that is away."""
    if not AXE.exists():
        pytest.skip("needs axe-core: scripts/web.sh check installs it")
    for width in (1280, 390):
        page = open_page(recorded, "/", theme, width, quiet=False)
        pick(page, "base", "ort")
        page.wait_for_selector("td.c-loss path")
        assert violations(page) == []
        page.get_by_role("button", name="Remove…").click()
        page.wait_for_selector("dialog[open]")
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Collector", exact=True).click()
        page.wait_for_selector(".facts")
        page.route("**/api/v1/**", lambda route: route.abort())
        page.route("**/healthz", lambda route: route.abort())
        page.wait_for_selector(".offline")
        assert violations(page) == []
        page = open_page(recorded, "/", theme, width, quiet=False)
        page.route("**/api/v1/**", lambda route: route.fulfill(status=401, json=NO_TOKEN))
        page.reload()
        page.wait_for_selector("form.token")
        assert violations(page) == []
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]


def test_the_list_shows_losses_and_alarms(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/")
    row = page.locator("tbody tr").filter(has=page.get_by_role("link", name="base", exact=True))
    row.locator("td.c-loss path").wait_for(state="attached")
    losses = [one for one in recorded.json("scalars", "base", "--rank", "0")["records"] if one["name"] == "loss"]
    assert row.locator(".spark").inner_text() == f"{losses[-1]['value']:.3g}"
    title = row.locator(".spark").get_attribute("title")
    assert title == f"loss: {losses[0]['value']:.3g} at step 0, {losses[-1]['value']:.3g} at step {losses[-1]['step']}"
    assert row.locator("td.c-alarms").inner_text() == "0"
    broken = page.locator("tbody tr").filter(has=page.get_by_role("link", name="broken", exact=True))
    assert broken.locator("td.c-alarms").inner_text() == str(len(told_of(recorded, "broken"))) == "2"
    assert broken.locator(".spark .broken").inner_text() == "NaN"
    asked = [url for url in requests_of(page) if "/api/v1/losses" in url]
    assert len(asked) == 1, "one question for all rows"
    broken.locator("td.c-alarms a").click()
    page.wait_for_selector(".alarms tbody tr")


@pytest.mark.skipif(not SHOTS, reason="STATCOLLECT_PAGE_SHOTS names no folder for pictures")
@pytest.mark.parametrize("view", VIEWS)
def test_pictures(recorded: Collector, open_page: Open, view: str) -> None:
    for theme in ("light", "dark"):
        for width in (1280, 390):
            page = open_page(recorded, VIEWS[view], theme, width, quiet=view != "unknown")
            settled(page, view)
            page.wait_for_timeout(300)
            page.screenshot(path=str(Path(SHOTS) / f"{view}-{theme}-{width}.png"), full_page=True)


def test_hostile_names_stay_text(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", repr(HOSTILE_RUNS)).replace("NAMES", repr(HOSTILE_NAMES)))
    page = open_page(collector, "/")
    page.get_by_role("checkbox").first.wait_for()
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.wait_for_selector("button.main:not([disabled])")
    page.click("button.main")
    page.wait_for_selector(".sentence")
    painted(page)
    page.click("summary >> text=The same as a table")
    shown = page.inner_text(".behind table")
    assert "<script>alert(1)</script>" in shown
    assert "zero\\u200bwidth" in shown and "\u200b" not in page.inner_text("main")
    for row in page.locator(".behind tbody button").all():
        row.click()
        page.wait_for_selector(".cell table")
    assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
    commands = page.locator(".cell .commands code").all_inner_texts()
    assert any(shlex.split(command)[3] in HOSTILE_NAMES for command in commands), commands
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_stopped_collector_is_said_and_forgotten(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base', 'ort']").replace("NAMES", "['x']"))
    page = open_page(collector, "/", quiet=False)
    page.wait_for_selector("table >> text=base")
    collector.kill()
    page.wait_for_selector(".offline")
    assert page.locator("table >> text=base").count() == 1  # what was there stays
    page.get_by_role("link", name="Compare").click()
    collector.start()
    page.wait_for_selector(".offline", state="detached")
    page.goto(f"http://{collector.http}/?view=compare&a=base&b=ort")
    page.wait_for_selector(".sentence")
    painted(page)
    collector.kill()
    page.wait_for_selector(".offline")
    assert page.locator(".sentence").count() == 1
    collector.start()
    page.wait_for_selector(".offline", state="detached")


def reload_for_a_token(collector: Collector, page: Any) -> None:
    """The page asks for a token, now that the collector has one."""

    def is_refused() -> bool:
        try:
            collector.get("/api/v1/runs")
        except urllib.error.HTTPError as refused:
            return refused.code == 401
        return False

    wait_until(is_refused, PATIENCE, "the collector to know its token")
    page.reload()
    page.wait_for_selector("form.token")


def test_a_collector_with_tokens_is_asked_with_one(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base']").replace("NAMES", "['x']"))
    made = run_command([str(STATCOLLECTORD), "token", "create", "--data-dir", str(collector.data_dir), "--scope", "read"])
    assert made.code == 0, made.err
    page = open_page(collector, "/", quiet=False)
    reload_for_a_token(collector, page)
    page.fill("form.token input", "stc_0123456789ab_wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert] >> text=token")
    page.fill("form.token input", f" {made.out.strip()}\n")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("table >> text=base")
    assert "stc_" not in page.url


def test_a_running_training_is_followed(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base']").replace("NAMES", "['x']"))
    live = """
import statagent, torch, sys
agent = statagent.init(run="live")
for step in range(3):
    agent.set_step(step)
    agent.observe("x", torch.ones(4) + (0.5 if step == 2 else 0))
    statagent.flush()
    print(step, flush=True)
    sys.stdin.readline()
statagent.close()
"""
    training = start_python(["-c", live], env=collector.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert training.stdin and training.stdout
    try:
        training.stdout.readline()
        training.stdin.write("\n")
        training.stdin.flush()
        wait_until(lambda: "live" in collector.get("/api/v1/runs"), PATIENCE, "the run to appear")
        page = open_page(collector, "/?view=compare&a=base&b=live", quiet=False)
        page.wait_for_selector(".live")
        alone = open_page(collector, "/?view=run&a=live", quiet=False)
        alone.wait_for_selector(".live")
        painted(alone)
        for _ in range(2):
            training.stdin.write("\n")
            training.stdin.flush()
        training.wait(timeout=PATIENCE)
        page.wait_for_selector(".badge >> text=diverged")
        page.wait_for_selector(".live", state="detached")
        alone.wait_for_selector("text=1 tensor in the order of execution, 3 steps")
        alone.wait_for_selector(".pair >> text=finished")
    finally:
        training.kill()
        training.wait()


def test_the_sources_know_the_api_as_it_is(collector: Collector) -> None:
    served = json.loads(collector.get("/api/v1/openapi.json"))
    known = json.loads((ROOT / "web" / "openapi.json").read_text())
    assert served == known, (
        "run scripts/web.sh openapi http://HOST:PORT with a collector of this build, then scripts/web.sh build"
    )


def test_headers_are_strict(collector: Collector) -> None:
    with urllib.request.urlopen(f"http://{collector.http}/", timeout=60) as answer:
        policy = answer.headers["Content-Security-Policy"]
        etag = answer.headers["ETag"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    again = urllib.request.Request(f"http://{collector.http}/", headers={"If-None-Match": etag})
    with pytest.raises(urllib.error.HTTPError) as unchanged:
        urllib.request.urlopen(again, timeout=60)
    assert unchanged.value.code == 304


def test_a_report_is_one_file_that_needs_nothing(recorded: Collector, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    done = recorded.statctl("report", "base", "ort", "--out", str(file))
    assert done.code == 1 and "DIVERGED" in done.out
    again = recorded.statctl("report", "base", "ort", "--out", str(file))
    assert again.code == 2 and "exists" in again.err
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(file.as_uri())
    painted(page)
    assert sentence(page).lower() == recorded.diff("base", "ort")["text"]["sentence"].lower()
    page.get_by_role("button", name="Show the origin").click()
    page.wait_for_selector(".cell table")
    assert "blocks.1.ln2" in page.inner_text(".cell h2")
    assert page.locator(".chart canvas").count() == 2, "the losses, and their difference"
    if AXE.exists():
        # Through the browser's own interface: the file's policy runs no other script.
        page.evaluate(AXE.read_text())
        assert [v["id"] for v in page.evaluate("axe.run()")["violations"]] == []
    context.close()
    assert problems == []


def test_a_report_with_hostile_names_runs_none_of_them(collector: Collector, browser: Any, tmp_path: Path) -> None:
    names = [*HOSTILE_NAMES, "</script><script>document.title='taken'</script>", "<!--<script>"]
    collector.python(HOSTILE.replace("RUNS", "['a', 'b']").replace("NAMES", repr(names)))
    file = tmp_path / "report.html"
    assert collector.statctl("report", "a", "b", "--out", str(file)).code == 1
    data = file.read_text().split('id="data">')[1].split("</script>")[0]
    assert "<" not in data and json.loads(data)["report"]["verdict"] == "diverged"
    page = browser.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(file.as_uri())
    painted(page)
    assert page.title().startswith("a / b ")
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    page.close()


# A training that goes on step by step, as lines are read; `x` differs from step 2 on.
STEPWISE = """
import statagent, torch, sys
agent = statagent.init(run=RUN)
for step in range(STEPS):
    agent.set_step(step)
    agent.observe("x", torch.ones(4) + (0.5 if step >= 2 else 0))
    statagent.log_scalar("loss", 1.0 / (step + 1))
    statagent.flush()
    print(step, flush=True)
    sys.stdin.readline()
statagent.close()
"""


class Stepwise:
    """A training in another process that takes one step per request."""

    def __init__(self, collector: Collector, run: str, steps: int) -> None:
        code = STEPWISE.replace("RUN", repr(run)).replace("STEPS", str(steps))
        self._process = start_python(
            ["-c", code], env=collector.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout and self._process.stdin
        self._process.stdout.readline()

    def step(self) -> None:
        assert self._process.stdout and self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def __enter__(self) -> Stepwise:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def events_of(collector: Collector, query: str = "") -> Iterator[dict[str, Any]]:
    """The server-sent events, as they come."""
    with urllib.request.urlopen(f"http://{collector.http}/api/v1/live{query}", timeout=60) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        since = time.monotonic()
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
                since = time.monotonic()
            assert time.monotonic() < since + PATIENCE, "only signs of life, no event"


def test_events_say_what_changes_and_continue_from_a_cursor(collector: Collector) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base']").replace("NAMES", "['x']"))
    events = events_of(collector)
    first = next(events)
    assert first["whole"] and first["caught_up"] and [change["run"]["run"] for change in first["runs"]] == ["base"]
    assert first["runs"][0]["run"]["state"] == "finished"
    with Stepwise(collector, "live", 2) as training:
        started = next(event for event in events if event["runs"] and event["runs"][0]["run"]["last_step"] == 0)
        assert [change["run"]["run"] for change in started["runs"]] == ["live"] and not started["whole"]
        assert started["runs"][0]["run"]["state"] == "running"
        training.step()
        grown = next(event for event in events if event["runs"] and event["runs"][0]["run"]["last_step"] != 0)
        assert grown["runs"][0]["run"]["last_step"] == 1, "a step may come in parts, none is skipped"
        training.step()
    ended = next(event for event in events if event["runs"] and event["runs"][0]["run"]["state"] == "finished")
    assert [change["run"]["run"] for change in ended["runs"]] == ["live"]
    assert collector.statctl("rm", "live", "--yes").code == 0
    assert next(event for event in events if event["removed"])["removed"] == ["live"]
    again = next(events_of(collector, f"?cursor={grown['cursor']}"))
    assert not again["whole"] and again["removed"] == ["live"] and again["runs"] == []
    assert next(events_of(collector, "?runs=nobody"))["runs"] == []


def requests_of(page: Any) -> list[str]:
    return page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")


def quiet(page: Any, seconds: float) -> list[str]:
    """What the page has asked for, when it has asked for nothing more for so long: nothing is asked for while nothing happens. What follows from
    the last change may take its time."""
    until = time.monotonic() + PATIENCE
    asked, since = requests_of(page), time.monotonic()
    while time.monotonic() < since + seconds:
        page.wait_for_timeout(100)
        if requests_of(page) != asked:
            asked, since = requests_of(page), time.monotonic()
            assert since < until, f"the page asks again and again: {asked[-5:]}"
    return asked


def test_a_live_run_grows_without_polling(collector: Collector, open_page: Open) -> None:
    with Stepwise(collector, "live", 5) as training:
        page = open_page(collector, "/?view=run&a=live&stat=l2")
        page.wait_for_selector(".live")
        for steps in (2, 3):
            training.step()
            page.wait_for_selector(f"text=1 tensor in the order of execution, {steps} steps")
        asked = quiet(page, 4)
        assert not [url for url in asked if "/api/v1/runs" in url], "the list of runs is not asked for"
        assert [url for url in asked if "stat_map" in url and "steps=" in url], "only the newest steps"
        assert [url for url in asked if "scalars" in url and "steps=" in url], "of the loss, too"


def test_without_events_the_page_asks_now_and_then(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base']").replace("NAMES", "['x']"))
    page = open_page(collector, "/?view=collector", quiet=False)
    refusal = {"error": "follow runs: 256 pages or programs do already", "code": "resource_exhausted"}
    page.route(
        "**/api/v1/live*", lambda route: route.fulfill(status=429, content_type="application/json", body=json.dumps(refusal))
    )
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("table >> text=base")
    collector.python(HOSTILE.replace("RUNS", "['later']").replace("NAMES", "['x']"))
    page.wait_for_selector("table >> text=later")
    assert [url for url in requests_of(page) if url.endswith("/api/v1/runs")]


def test_a_collector_that_is_gone_and_back_is_noticed_while_nothing_is_asked(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base', 'ort']").replace("NAMES", "['x']"))
    for path in ("/", "/?view=run&a=base&stat=l2", "/?view=compare&a=base&b=ort"):
        page = open_page(collector, path, quiet=False)
        page.wait_for_selector("table >> text=base" if path == "/" else "canvas[data-painted]", state="attached")
        collector.kill()
        page.wait_for_selector(".offline")
        assert page.locator("table" if path == "/" else "canvas[data-painted]").count() >= 1, "what was there stays"
        collector.start()
        page.wait_for_selector(".offline", state="detached")
    page = open_page(collector, "/")
    page.wait_for_selector("table >> text=base")
    collector.python(HOSTILE.replace("RUNS", "['after']").replace("NAMES", "['x']"))
    page.wait_for_selector("table >> text=after")


def test_a_comparison_that_is_opened_before_its_run_appears_with_it(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base']").replace("NAMES", "['x']"))
    page = open_page(collector, "/?view=compare&a=base&b=later", quiet=False)
    page.wait_for_selector("text=There is no such run")
    assert "later is not in the list of runs" in page.inner_text("main")
    collector.python(HOSTILE.replace("RUNS", "['later']").replace("NAMES", "['x']"))
    painted(page)


def test_a_run_that_is_removed_while_it_is_looked_at(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base', 'ort']").replace("NAMES", "['x']"))
    pages = {
        path: open_page(collector, path, quiet=False) for path in ("/", "/?view=run&a=ort&stat=l2", "/?view=compare&a=base&b=ort")
    }
    for path, page in pages.items():
        page.wait_for_selector("table >> text=ort" if path == "/" else "canvas[data-painted]", state="attached")
    assert collector.statctl("rm", "ort", "--yes").code == 0
    runs, run, compare = pages.values()
    runs.wait_for_selector("table >> text=ort", state="detached")
    run.wait_for_selector("text=This run was removed")
    compare.wait_for_selector("text=This run was removed")


def token_for(collector: Collector, scopes: str) -> str:
    made = run_command([str(STATCOLLECTORD), "token", "create", "--data-dir", str(collector.data_dir), "--scope", scopes])
    assert made.code == 0, made.err
    return made.out.strip()


def pick(page: Any, *runs: str) -> None:
    for run in runs:
        page.get_by_role("checkbox", name=f"Pick {run}", exact=True).check()


def test_runs_are_kept_and_removed(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base', 'old', 'older']").replace("NAMES", "['x']"))
    page = open_page(collector, "/")
    pick(page, "base")
    page.get_by_role("button", name="Keep", exact=True).click()
    page.wait_for_selector(".kept")
    assert json.loads(collector.get("/api/v1/status"))["retention"]["kept"] == ["base"]
    page.get_by_role("button", name="Stop keeping").click()
    page.wait_for_selector(".kept", state="detached")
    page.get_by_role("checkbox", name="Pick base", exact=True).uncheck()
    pick(page, "old", "older")
    page.get_by_role("button", name="Remove…").click()
    page.wait_for_selector("dialog >> text=Remove these 2 runs?")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert len(json.loads(collector.get("/api/v1/runs"))["runs"]) == 3, "not without the confirmation"
    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("button", name="Remove 2 runs").click()
    page.wait_for_selector("dialog", state="detached")
    page.wait_for_selector("table >> text=older", state="detached")
    assert [run["run"] for run in json.loads(collector.get("/api/v1/runs"))["runs"]] == ["base"]


def test_a_run_in_training_is_not_removed_and_the_page_says_why(collector: Collector, open_page: Open) -> None:
    with Stepwise(collector, "live", 2):
        page = open_page(collector, "/", quiet=False)
        pick(page, "live")
        page.get_by_role("button", name="Remove…").click()
        page.get_by_role("button", name="Remove run").click()
        page.wait_for_selector("dialog .refusal >> text=still sending")
        assert page.locator("table >> text=live").count() == 1


def test_who_may_only_read_is_told_which_scope_is_missing(collector: Collector, open_page: Open) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base']").replace("NAMES", "['x']"))
    token = token_for(collector, "read")
    page = open_page(collector, "/", quiet=False)
    reload_for_a_token(collector, page)
    page.fill("form.token input", token)
    page.keyboard.press("Enter")
    pick(page, "base")
    page.get_by_role("button", name="Keep", exact=True).click()
    page.wait_for_selector(".refusal >> text=control")
    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("button", name="Remove run").click()
    page.wait_for_selector("dialog .refusal >> text=delete")


def test_nothing_is_changed_without_the_field_of_the_page(collector: Collector) -> None:
    collector.python(HOSTILE.replace("RUNS", "['base']").replace("NAMES", "['x']"))
    for name, body in (("rm", {"run": "base"}), ("keep", {"run": "base", "keep": True})):
        asked = urllib.request.Request(
            f"http://{collector.http}/api/v1/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=60)
        assert refused.value.code == 403 and "X-Statcollect-Csrf: 1" in refused.value.read().decode()
    assert len(json.loads(collector.get("/api/v1/runs"))["runs"]) == 1


# More steps than a screen has pixels, and a difference that only one step has.
LONG = """
import statagent, torch
agent = statagent.init(run=RUN)
for step in range(STEPS):
    agent.set_step(step)
    for layer in range(3):
        agent.observe(f"net.{layer}", torch.ones(4) * (1 + step % 7) + (WRONG if step == ODD and layer == 1 else 0))
statagent.close()
"""


def test_a_map_that_is_larger_than_an_answer_is_shown_in_tiles(collector: Collector, open_page: Open) -> None:
    steps, odd = 2600, 1717
    for run, wrong in (("base", 0.0), ("ort", 0.5)):
        code = LONG.replace("RUN", repr(run)).replace("STEPS", str(steps)).replace("WRONG", str(wrong)).replace("ODD", str(odd))
        collector.python(code)
    page = open_page(collector, "/?view=compare&a=base&b=ort")
    painted(page)
    until(page, "performance.getEntriesByType('resource').some(e => e.name.includes('/api/v1/heatmap'))")
    page.wait_for_selector(f"[aria-label*='3 tensors over {steps} columns']")
    until(page, f"document.querySelector('.heat-at').textContent.includes('step {odd}')")
    page.focus(".heat-canvas")
    page.keyboard.press("Home")
    assert "the origin" in page.inner_text(".heat-at") and f"step {odd}" in page.inner_text(".heat-at")
    for _ in range(9):
        page.keyboard.press("+")
    until(page, "location.search.includes('window=')")
    # Steps lie one by one now, and only the odd one differs.
    shown = [int(text) for text in page.locator(".heat-steps span").all_inner_texts()]
    assert odd - 10 <= shown[0] <= odd <= shown[-1] + 10
    places = re.search(r"window=(\d+)-(\d+)(?:%3A|:)(\d+)-(\d+)", page.url)
    assert places
    first, last, top, bottom = map(int, places.groups())

    def colours() -> list[list[int]]:
        return [colour_at(page, row - top, odd - first, bottom - top + 1, last - first + 1) for row in range(3)]

    wait_until(lambda: colours()[0] == colours()[2] != colours()[1], PATIENCE, "the tensor that differs in its own row")
    page.keyboard.press("ArrowRight")
    until(page, f"document.querySelector('.heat-at').textContent.startsWith('step {odd + 1},')")
    assert "identical" in page.inner_text(".heat-at") and "net.1" in page.inner_text(".heat-at")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell table")
    assert f"step={odd + 1}" in page.url and "tensor=net.1" in page.url
    before = page.url
    box = page.locator(".heat-canvas").bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 600, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 100, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    until(page, f"location.href !== {json.dumps(before)}")


def test_charts_of_a_long_run_keep_every_peak_and_the_table_and_the_file_every_step(
    collector: Collector, open_page: Open
) -> None:
    steps, odd = 2600, 1717
    collector.python(LONG.replace("RUN", "'r'").replace("STEPS", str(steps)).replace("WRONG", "9.5").replace("ODD", str(odd)))
    series = collector.json("series", "r", "net.1")["records"]
    recorded = {point["step"]: point["stats"] for point in series}
    curves = {one["stat"]: one for one in json.loads(collector.get("/api/v1/curves?run=r&activation=net.1&points=100"))["curves"]}
    for stat in ("l2", "mean", "std", "min", "max", "l1", "nan", "pos_inf", "neg_inf", "zero"):
        at = dict(zip(curves[stat]["steps"], curves[stat]["values"], strict=True))
        assert len(at) <= 202 and all(recorded[step][stat] == value for step, value in at.items())
        assert {0, steps - 1} <= set(at)
        for first in range(0, steps, 26):  # as many steps as a span has
            span = [recorded[step][stat] for step in range(first, first + 26)]
            kept = [value for step, value in at.items() if first <= step < first + 26]
            assert (min(span), max(span)) == (min(kept), max(kept)), (stat, first)
    page = open_page(collector, "/?view=tensor&a=r&tensor=net.1&kind=inspect&mode=train")
    page.wait_for_selector(f"text={steps:,} steps, more than fit side by side")
    assert page.locator(".grid .chart canvas").count() == 6
    page.locator(".behind summary").click()
    page.wait_for_selector("text=Only the first 1,000 steps.")
    rows = table_of(page, "Statistics by step")
    assert [int(row[0]) for row in rows] == list(range(1000))
    assert float(rows[6][1]) == pytest.approx(recorded[6]["l2"], rel=1e-4)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == steps + 1


def test_a_finished_comparison_is_asked_for_once_and_before_the_page_is_drawn(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=collector")
    with page.expect_response("**/api/v1/live*"):
        page.goto(f"http://{recorded.http}{COMPARE}")
    painted(page)
    page.wait_for_timeout(1500)  # the events have said which runs there are, and the page had time to ask again
    asked = "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/v1/diff')).map(e => e.startTime)"
    drawn = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    starts = page.evaluate(asked)
    assert len(starts) == 1 and starts[0] < drawn
    page.get_by_role("link", name="Swap").click()
    until(page, f"{asked}.length === 2")
    page.go_back()
    until(page, f"{asked}.length === 3")  # an answer is not kept for later


ODD_RUNS = """
import statagent, torch
agent = statagent.init(run="empty")
statagent.close()
for run, name in (("apples", "apple"), ("pears", "pear")):
    agent = statagent.init(run=run)
    for step in range(3):
        agent.set_step(step)
        agent.observe(name, torch.ones(4))
    statagent.close()
for run in ("nan", "nan2"):
    agent = statagent.init(run=run)
    for step in range(3):
        agent.set_step(step)
        for layer in range(3):
            agent.observe(f"net.{layer}", torch.full((4,), float("nan")))
        statagent.log_scalar("loss", float("nan"))
    statagent.close()
"""


def test_runs_that_are_odd_are_shown_and_explained(collector: Collector, open_page: Open) -> None:
    collector.python(ODD_RUNS)
    page = open_page(collector, "/?view=run&a=empty")
    page.wait_for_selector("text=This run has no records")
    page = open_page(collector, "/?view=ranks&a=apples")
    page.wait_for_selector(".sentence >> text=The run has one rank")
    page = open_page(collector, "/?view=compare&a=apples&b=pears")
    page.wait_for_selector(".badge >> text=incomparable")
    assert "none has a counterpart in the other run" in page.inner_text("main")
    page = open_page(collector, "/?view=compare&a=empty&b=apples", quiet=False)
    page.wait_for_selector(".badge >> text=incomparable")
    for path in ("/?view=run&a=nan", "/?view=compare&a=nan&b=nan2"):
        page = open_page(collector, path)
        painted(page)
    page = open_page(collector, "/?view=run&a=nan")
    page.wait_for_selector("[aria-label='First alarm'] >> text=2 alarms, the first at step 0")
    page = open_page(collector, "/?view=tensor&a=nan&b=nan2&tensor=net.1&kind=inspect&mode=train", width=390)
    page.wait_for_selector("[aria-label='L2 norm'] >> text=No finite value in any step.")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]


def test_ten_thousand_runs_stay_fluid(collector: Collector, open_page: Open) -> None:
    page = open_page(collector, "/?view=collector")
    run = {
        "attempts": 1, "world_size": 1, "ranks": 1, "records": 5, "steps": 3, "first_step": 0, "last_step": 2, "start_unix_nanos": 1,
        "end_unix_nanos": 2, "state": "finished", "dropped": 0,
    }  # fmt: skip
    many = [{"run": {**run, "run": f"run-{i:05}", "start_unix_nanos": i + 1}, "events": 0} for i in range(10_000)]
    message = {"cursor": "1-1", "whole": True, "runs": many, "removed": [], "caught_up": True}
    events = f"id: 1-1\nevent: runs\ndata: {json.dumps(message)}\n\n"
    page.route("**/api/v1/live*", lambda route: route.fulfill(content_type="text/event-stream", body=events))
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("table >> text=run-09999")
    rows = page.locator("tbody tr").count()
    assert rows < 120, "most of them are not in the document"
    until(page, "performance.getEntriesByType('resource').some(e => e.name.includes('/api/v1/losses'))")
    page.evaluate("document.querySelector('.sliced').scrollTop = 1e9")
    page.wait_for_selector("table >> text=run-00000")
    page.evaluate("document.querySelector('.sliced').scrollTop = 200000")
    page.wait_for_selector("table >> text=run-0")
    assert page.locator("tbody tr").count() < 120
    page.get_by_role("searchbox").fill("run-04242")
    until(page, "document.querySelectorAll('tbody tr').length === 1")
    asked = [url for url in requests_of(page) if "/api/v1/losses" in url]
    assert 1 <= len(asked) <= 5, "losses are asked for together, and only of rows that are shown"
    assert all(url.count("run-") <= 100 for url in asked)


MANY = int(os.environ.get("STATCOLLECT_PAGE_TENSORS", "100000"))  # a million takes a minute
MANY_TENSORS = """
import statagent, torch
for run, odd in (("base", -1), ("ort", TENSORS // 3)):
    agent = statagent.init(run=run)
    values = [torch.ones(4), torch.ones(4) * 1.5]
    for step in range(2):
        agent.set_step(step)
        for i in range(TENSORS):
            agent.observe(f"layer.{i}", values[i == odd])
            if i % 10_000 == 9_999:  # the buffer has room for no more than 32,768
                statagent.flush(timeout=120)
    statagent.close(timeout=120)
"""


def test_very_many_tensors_are_shown_and_said(collector: Collector, open_page: Open) -> None:
    collector.python(MANY_TENSORS.replace("TENSORS", str(MANY)), timeout=600)
    assert json.loads(collector.get("/api/v1/show?run=ort"))["activations"] == MANY, "none was lost"
    page = open_page(collector, "/?view=compare&a=base&b=ort")
    page.set_default_timeout(300_000)
    painted(page)
    odd = f"layer.{MANY // 3}"
    assert odd in sentence(page)
    page.wait_for_selector(f"text={MANY:,} tensors in the order of execution, 2 steps")
    page.wait_for_selector(f"[aria-label*='{MANY} tensors over 2 columns']")  # in tiles, down to single tensors
    page.focus(".heat-canvas")
    page.keyboard.press("Home")
    at = page.inner_text(".heat-at")
    assert "the origin" in at and " more: diverged" in at, "tensors that share a row are said to"
    for _ in range(20):
        if page.locator(".heat-name").count() > 1:
            break
        page.keyboard.press("+")
    until(page, f"document.querySelector('.heat-at').textContent.includes('{odd} ')")
    until(page, f"[...document.querySelectorAll('.heat-name')].some(e => e.textContent.startsWith('{odd} '))")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell table")
    assert odd in page.inner_text(".cell h2")
    page = open_page(collector, "/?view=run&a=ort&stat=l2")
    page.set_default_timeout(300_000)
    painted(page)
    page.wait_for_selector(f"text={MANY:,} tensors in the order of execution, 2 steps")
    page.wait_for_selector("text=share a row")
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000, "the document stays small"


VALUES_VIEW = VIEWS["values"]


def test_a_tensor_shows_what_narrow_formats_lose_and_which_elements_differ(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, VALUES_VIEW)
    page.wait_for_selector("svg.exponents")
    losses = {row[0]: row[1:] for row in table_of(page, "What narrower formats would lose")}
    rows = recorded.json("exponents", "values", "net", "--kind", "inspect", "--step", "2")["records"]
    lost = next(one for one in rows[0]["formats"] if one["dtype"] == "f16")["to_zero"] / rows[0]["components"]
    assert losses["fp16"][0] == f"{100 * lost:.1f} %" == "33.3 %"
    assert losses["bf16"][0] == "\u2013"
    page.wait_for_selector("text=1 of 6 elements differ.")
    assert table_of(page, "Elements that differ most") == [["[1, 2]", "6", "6.25", "0.25"]]
    page.locator("summary", has_text="Captured values").click()
    until(page, "location.search.endsWith('stat=exponents')")
    page.get_by_label("Log axis").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert (
        lines[0].startswith("run,step,rank,")
        and len(lines) == 7
        and download.value.suggested_filename == "values-values2-net.csv"
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_captured_values_need_their_scope(collector: Collector, open_page: Open) -> None:
    collector.python(VALUES)
    token = token_for(collector, "read")
    page = open_page(collector, "/", quiet=False)
    reload_for_a_token(collector, page)
    page.fill("form.token input", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("table >> text=base")
    page.evaluate(
        f"history.pushState(null, '', {json.dumps(VALUES_VIEW.replace('values2', 'ort').replace('a=values', 'a=base'))})"
    )
    page.reload()
    page.wait_for_selector(".refusal >> text=capture")


def test_a_live_map_shows_updates_and_exponents(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=run&a=base&stat=update_ratio")
    painted(page)
    points = recorded.json("series", "base", "blocks.1.ln2.weight", "--stat", "update_ratio", "--by-rank")["records"]
    ratios = [point["value"] for point in points if point["name"].endswith("ratio")]
    row = row_of(page, "blocks.1.ln2.weight weight")
    assert float(row[2]) == pytest.approx(min(ratios), rel=0.02)
    assert float(row[3]) == pytest.approx(max(ratios), rel=0.02)
    page = open_page(recorded, "/?view=run&a=values&stat=exponent_loss")
    painted(page)
    assert float(row_of(page, "net inspect")[3]) == pytest.approx(1 / 3, rel=0.01)
    page = open_page(recorded, "/?view=run&a=broken&stat=exponent_loss")
    page.wait_for_selector("text=No exponents were recorded")
