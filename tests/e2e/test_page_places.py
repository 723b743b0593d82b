"""What the page shows of a difference is what `statctl diff` says of it: the same step, rank, micro-batch and call, and its numbers."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import test_page
from conftest import Collector, wait_until
from test_page import Open, painted

pytestmark = test_page.pytestmark
browser, open_page = test_page.browser, test_page.open_page

# One rank of a run. `fc` runs twice in each of two micro-batches; WRONG is the rank, micro-batch and call that is off from step 1 on. Of
# the other tensors, `cut` is split over the ranks, and `w` a weight that each rank holds.
RANK = """
import array, statagent, sys
wrong = [int(part) for part in sys.argv[1].split("/")]
agent = statagent.init(required=True)
rank, ranks = statagent.rank(), int(sys.argv[2])

def numbers(*values):
    return memoryview(array.array("f", values))

for step in range(3):
    agent.set_step(step)
    def off(micro_batch, call):
        return 0.5 if step >= 1 and wrong == [rank, micro_batch, call] else 0.0
    for micro_batch in range(2):
        agent.observe("embed", numbers(1.0, 2.0, 3.0 + step), "output", micro_batch=micro_batch)
        for call in range(2):
            agent.observe("fc", numbers(rank + 1.0, micro_batch + off(micro_batch, call), call + 4.0), "output", micro_batch=micro_batch)
    if "cut" in sys.argv:
        half = numbers(rank + 1.0, 2.0 + off(9, 0), 3.0, 4.0)
        if ranks == 1:
            agent.observe("cut", numbers(1.0, 2.0, 3.0, 4.0, 2.0, 2.0, 3.0, 4.0), "weight", global_shape=(8,))
        else:
            agent.observe("cut", half, "weight", global_shape=(8,), offset=(4 * rank,))
    else:
        agent.observe("w", numbers(1.0, 2.0 + off(9, 0)), "weight")
statagent.close(timeout=20)
"""

# How pairs of runs are compared: (run A, run B, options of diff, the same in the URL).
PAIRS = {
    "calls": ("calls", "calls2", [], ""),
    "one rank of two": ("calls", "calls2", ["--rank", "1"], "&rank=1"),
    "parts": ("parts", "parts2", ["--kinds", "weight"], "&kinds=weight"),
    "whole tensors": ("whole", "parts2", ["--kinds", "weight"], "&kinds=weight"),
    "replicas": ("single", "replicas2", ["--merge-ranks"], "&merge_ranks=true"),
}
NUMBERS = {
    "L2 norm": "l2", "mean": "mean", "standard deviation": "std", "minimum": "min", "maximum": "max", "L1 norm": "l1", "NaN": "nan",
    "zeros": "zero",
}  # fmt: skip


def record(collector: Collector, run: str, ranks: int, wrong: str, *more: str) -> None:
    for rank in range(ranks):
        environment = {"STATAGENT_RUN": run, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        collector.python(RANK, wrong, str(ranks), *more, env={**environment, "TORCHELASTIC_RUN_ID": run})


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> Collector:
    record(shared_collector, "calls", 2, "9/9/9")
    record(shared_collector, "calls2", 2, "1/1/1")
    record(shared_collector, "parts", 2, "9/9/9", "cut")
    record(shared_collector, "parts2", 2, "1/9/0", "cut")
    record(shared_collector, "whole", 1, "9/9/9", "cut")
    record(shared_collector, "single", 1, "9/9/9")
    record(shared_collector, "replicas2", 2, "1/9/0")
    return shared_collector


def shown(page: Any) -> dict[str, tuple[float | None, float | None]]:
    """The numbers of both runs in the table of the chosen cell, by their name in the API."""
    page.wait_for_selector(".cell table.stats")
    found = {}
    for line in page.locator(".cell table.stats tbody tr").all_inner_texts():
        cells = [cell.strip() for cell in line.split("\t")]
        if cells[0] in NUMBERS:
            a, b = (None if cell == "\u2013" else float(cell.replace(",", "").replace("\u2212", "-")) for cell in cells[1:3])
            found[NUMBERS[cells[0]]] = (a, b)
    assert found, page.inner_text(".cell")
    return found


def assert_shows(page: Any, found: dict[str, Any]) -> None:
    numbers = shown(page)
    for name, (a, b) in numbers.items():
        for number, side in ((a, found["a"]), (b, found["b"])):
            expected = side[name] if side else None
            assert (number is None) == (expected is None), (name, number, expected)
            assert number is None or number == pytest.approx(expected, rel=1e-5, abs=1e-12), (name, numbers, found)
    assert any(a != b for a, b in numbers.values()), f"two equal sides of a difference: {numbers}"


@pytest.mark.parametrize("pair", PAIRS)
def test_show_the_origin_has_the_numbers_of_the_root(recorded: Collector, open_page: Open, pair: str) -> None:
    a, b, options, query = PAIRS[pair]
    root = recorded.diff(a, b, *options)["root"]
    assert root["activation"] in ("fc", "cut", "w") and root["step"] == 1
    page = open_page(recorded, f"/?view=compare&a={a}&b={b}{query}")
    painted(page)
    page.get_by_role("button", name="Show the origin").click()
    assert_shows(page, root)
    address = parse_qs(urlsplit(page.url).query)
    assert address["step"] == [str(root["step"])] and address["tensor"] == [root["activation"]]
    assert address["place"] == [f"{(root['ranks_a'] or [root['rank']])[0]}/{root['micro_batch']}/{root['call']}"]
    # The link has all of it.
    other = open_page(recorded, page.url.split(recorded.http)[1])
    assert_shows(other, root)
    # So have the view of the tensor and its table.
    page.get_by_role("link", name="All statistics of this tensor").click()
    page.wait_for_selector(".grid .chart canvas")
    page.locator(".behind summary").click()
    row = page.locator("[aria-label='Statistics by step'] tbody tr").filter(
        has=page.get_by_role("rowheader", name="1", exact=True)
    )
    norms = re.findall(r"[\d.e-]+", row.locator("td").first.inner_text())
    assert [float(norm) for norm in norms] == [pytest.approx(side["l2"], rel=1e-3) for side in (root["a"], root["b"])]


@pytest.mark.parametrize("pair", PAIRS)
def test_every_cell_has_the_numbers_of_its_row_in_the_diff(recorded: Collector, open_page: Open, pair: str) -> None:
    a, b, options, query = PAIRS[pair]
    rows = recorded.diff(a, b, *options)["diverged"]
    assert rows
    page = open_page(recorded, f"/?view=compare&a={a}&b={b}{query}")
    painted(page)
    page.locator(".behind summary").click()
    # A click shows the root where it is, or else the farthest of what was listed at the first step that diverged.
    for name in sorted({row["activation"] for row in rows}):
        page.locator(".behind tbody tr").filter(has_text=re.compile(rf"^{name} ")).get_by_role("button").click()
        until = f"new URLSearchParams(location.search).get('tensor') === '{name}'"
        test_page.until(page, until)
        of_step = [row for row in rows if row["activation"] == name and row["step"] == 1]
        assert_shows(page, max(of_step, key=lambda row: row["distance"] or 0))
    # A link to any other place shows that.
    for row in rows:
        rank = (row["ranks_a"] or [row["rank"]])[0]
        place = f"&tensor={row['activation']}&kind={row['kind']}&path={row['output_path']}&mode={row['mode']}&step={row['step']}"
        place += f"&place={rank}/{row['micro_batch']}/{row['call']}"
        other = open_page(recorded, f"/?view=compare&a={a}&b={b}{query}{place}")
        assert_shows(other, row)


def choices(page: Any, below: str = "main") -> dict[str, str]:
    """What is chosen of rank, micro-batch and call."""
    found = {}
    for part in ("Rank", "Micro-batch", "Call"):
        box = page.locator(below).get_by_role("combobox", name=part, exact=True)
        if box.count():
            found[part] = box.input_value()
    return found


def test_rank_micro_batch_and_call_can_be_chosen_and_are_in_the_url(recorded: Collector, open_page: Open) -> None:
    page = open_page(recorded, "/?view=compare&a=calls&b=calls2")
    painted(page)
    page.get_by_role("button", name="Show the origin").click()
    page.locator(".cell").get_by_role("combobox", name="Call").wait_for()
    assert choices(page, ".cell") == {"Rank": "1", "Micro-batch": "1", "Call": "1"}
    page.locator(".cell").get_by_role("combobox", name="Rank").select_option("0")
    test_page.until(page, "new URLSearchParams(location.search).get('place') === '0/1/1'")
    numbers = shown(page)
    assert all(a == b for a, b in numbers.values()), "nothing differs there"
    assert "rank 0, micro-batch 1, call 1" in page.inner_text(".cell")


def test_the_view_of_a_tensor_begins_at_the_origin_and_chooses_rank_micro_batch_and_call(
    recorded: Collector, open_page: Open
) -> None:
    page = open_page(recorded, "/?view=compare&a=calls&b=calls2")
    painted(page)
    page.get_by_role("button", name="Show the origin").click()
    page.get_by_role("link", name="All statistics of this tensor").click()
    page.wait_for_selector(".grid .chart canvas")
    page.get_by_role("combobox", name="Call").wait_for()
    assert choices(page) == {"Rank": "1", "Micro-batch": "1", "Call": "1"}
    assert (
        page.locator(".grid .chart .key.origin").all_inner_texts()
        == ["step 1, the origin"] * page.locator(".grid .chart").count()
    )

    def norms() -> list[float]:
        """Of both runs at step 1."""
        region = page.locator("[aria-label='Statistics by step']")
        if not region.count():
            page.locator(".behind summary").first.click()
        row = region.locator("tbody tr").filter(has=page.get_by_role("rowheader", name="1", exact=True))
        return [float(number) for number in re.findall(r"[\d.e-]+", row.locator("td").first.inner_text())]

    a, b = norms()
    assert a != b
    for part, chosen, place in (("Call", "0", "1/1/0"), ("Rank", "0", "0/1/0"), ("Micro-batch", "0", "0/0/0")):
        page.get_by_role("combobox", name=part).select_option(chosen)
        test_page.until(page, f"new URLSearchParams(location.search).get('place') === '{place}'")
        rank, micro_batch, call = map(int, place.split("/"))
        points = recorded.json("series", "calls2", "fc", "--rank", str(rank))["records"]
        (expected,) = (
            point["stats"]["l2"]
            for point in points
            if (point["step"], point["micro_batch"], point["call"]) == (1, micro_batch, call)
        )
        wait_until(lambda wanted=expected: norms() == [pytest.approx(wanted, rel=1e-3)] * 2, what=place)
    # An old bookmark, without a place, shows the first one, and says which.
    other = open_page(recorded, "/?view=tensor&a=calls&b=calls2&tensor=fc&kind=output&mode=train&rank=1")
    other.wait_for_selector(".grid .chart canvas")
    assert choices(other)["Call"] == "0" and "rank 1" in other.inner_text(".lead")
