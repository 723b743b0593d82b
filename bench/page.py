#!/usr/bin/env python3
"""Measures the collector's page in headless Chromium with its own collector, and what a live page costs; prints JSON.

bench/page.py                       # about five minutes and 4 GB of disk
bench/page.py --quick               # small runs, to see that it works
bench/page.py --only map,live       # some of: map, series, live

Needs statcollectord and statcollect-bench (scripts/build.sh), Chromium, and Python's playwright.
map:    1,000 tensors x 1,000 steps (10^6 cells, in one answer) and x 4,000 steps (in tiles): first paint, when the map is there, frames a
        second while it is panned
series: all statistics of a tensor with 10^5 steps, in charts
live:   256 ranks x 1,000 tensors, a step a second: processor time of the collector once the page is there, durable records a second,
        and time to acknowledge a batch, without a page, with one that shows the run, and with one that shows the list
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from collector import Collector

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from browser import CHROMIUM, MISSING, launch

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTIONS = ("map", "series", "live")
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
FIRST_MAP = "performance.getEntriesByName('heat map')[0].startTime"
ANSWER = "performance.getEntriesByType('resource').filter(e => e.name.includes(%s)).map(e => e.responseEnd)"
CHARTS_SHOWN = "Math.max(...performance.getEntriesByName('chart').map(e => e.startTime + e.duration))"
CHARTS = "performance.getEntriesByName('chart').map(e => e.duration)"
WINDOW_OPENS_MS = 2000
PAINTED = "canvas[data-painted]"
# Moves the mouse in every frame; counts frames and pictures.
PAN = """async ([x, y, seconds]) => {
  const box = document.querySelector('.heat-canvas'), canvas = box.querySelector('canvas');
  const begin = performance.now(), painted = Number(canvas.dataset.painted);
  let frames = 0, pictures = 0, last = canvas.dataset.painted;
  const worst = [];
  let before = begin;
  while (performance.now() - begin < 1000 * seconds) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    worst.push(now - before);
    before = now;
    ++frames;
    if (canvas.dataset.painted !== last) { ++pictures; last = canvas.dataset.painted; }
    const at = 250 * Math.sin((now - begin) / 400);
    box.dispatchEvent(new PointerEvent('pointermove', {clientX: x + at, clientY: y + at / 3, bubbles: true, pointerId: 1}));
  }
  const elapsed = (performance.now() - begin) / 1000;
  worst.sort((a, b) => a - b);
  return {frames_per_second: frames / elapsed, pictures_per_second: pictures / elapsed,
          frame_ms_p99: worst[Math.floor(0.99 * (worst.length - 1))], of: painted};
}"""


@dataclass
class Sizes:
    map_steps: tuple[int, int]
    tensors: int
    series_steps: int
    live_ranks: int
    live_seconds: int
    live_opening: int  # of these, before the collector's time counts
    live_turns: int
    repeats: int


FULL = Sizes((1000, 4000), 1000, 100_000, 256, 30, 10, 3, 5)
QUICK = Sizes((60, 2500), 20, 2_000, 4, 6, 2, 1, 2)


def send(collector: Collector, run: str, **options: object) -> dict[str, Any]:
    """What statcollect-bench ingest prints."""
    words = [str(machine.BUILD / "bin" / "statcollect-bench"), "ingest", "--collector", collector.address, "--run", run]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    print("==", *words[1:], file=sys.stderr, flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def bundle_bytes(collector: Collector) -> int:
    """Of all files of the page, as they are sent to a browser; without the template of a report, which is read when one saves it."""
    total = 0
    files = (Path(__file__).parent.parent / "web" / "dist" / "page" / "assets").iterdir()
    for path in ("/", *(f"/assets/{file.name}" for file in files if file.name != "report.html")):
        asked = urllib.request.Request(f"http://{collector.http}{path}", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            body = answer.read()
            total += len(body) if answer.headers["Content-Encoding"] == "gzip" else len(gzip.compress(body, 9))
    return total


def summary(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 1), "least": round(min(values), 1), "most": round(max(values), 1)}


@contextmanager
def opened(browser: Any, url: str) -> Iterator[Any]:
    """A page in a window that is open already: a new one keeps both cores busy with the browser's own pages for half a second."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(180_000)
    page.wait_for_timeout(WINDOW_OPENS_MS)
    page.goto(url)
    yield page
    context.close()


def pan(page: Any, zooms: int) -> dict[str, float]:
    """Zooms in, then moves the map for three seconds."""
    page.focus(".heat-canvas")
    for _ in range(zooms):
        page.keyboard.press("+")
        page.wait_for_timeout(300)
    box = page.locator(".heat-canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.keyboard.down("Shift")
    page.mouse.down()
    found: dict[str, float] = page.evaluate(PAN, [x, y, 3])
    page.mouse.up()
    page.keyboard.up("Shift")
    found.pop("of")
    return {name: round(value, 1) for name, value in found.items()}


def measure_map(browser: Any, collector: Collector, sizes: Sizes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for steps in sizes.map_steps:
        a, b = f"a{steps}", f"b{steps}"
        options = {"streams": 1, "activations": sizes.tensors, "steps": steps, "sketch": 16, "seed": 1}
        send(collector, a, **options)
        send(collector, b, **options, differ_from=steps // 2)
        url = f"http://{collector.http}/?view=compare&a={a}&b={b}"
        begin = time.perf_counter()
        with urllib.request.urlopen(
            f"http://{collector.http}/api/v1/diff?run_a={a}&run_b={b}&heat_map_columns=2048&heat_map_rows=2048"
        ) as one:
            one.read()
        diff_ms = 1000 * (time.perf_counter() - begin)
        paints: list[float] = []
        there: list[float] = []
        painting: list[float] = []
        answered: list[float] = []
        for _ in range(sizes.repeats):
            with opened(browser, url) as page:
                page.wait_for_selector(PAINTED, state="attached")
                there.append(page.evaluate(FIRST_MAP))
                answered.append(page.evaluate(ANSWER % "'/api/v1/diff'")[0])
                paints.append(page.evaluate(FIRST_PAINT))
                painting.append(float(page.get_attribute(PAINTED, "data-milliseconds")))
        with opened(browser, url) as page:
            page.wait_for_selector(PAINTED, state="attached")
            page.wait_for_timeout(3000)  # tiles
            panned = {"zoomed out once": pan(page, 1), "zoomed in": pan(page, 3)}
        found[f"{sizes.tensors} tensors x {steps} steps"] = {
            "first_paint_ms": summary(paints),
            "diff_answered_ms": summary(answered),
            "map_shown_ms": summary(there),
            "diff_alone_ms": round(diff_ms, 1),
            "painting_ms": summary(painting),
            "panning": panned,
        }
    return found


def measure_series(browser: Any, collector: Collector, sizes: Sizes) -> dict[str, Any]:
    send(collector, "long", streams=1, activations=1, steps=sizes.series_steps, sketch=0, seed=1)
    with urllib.request.urlopen(f"http://{collector.http}/api/v1/top?run=long&count=1") as answer:
        row = json.load(answer)["records"][0]
    place = f"tensor={row['activation']}&kind={row['kind']}&path={row['output_path']}&mode={row['mode']}"
    begin = time.perf_counter()
    with urllib.request.urlopen(f"http://{collector.http}/api/v1/curves?run=long&activation={row['activation']}") as answer:
        size = len(answer.read())
    asked = 1000 * (time.perf_counter() - begin)
    there: list[float] = []
    first: list[float] = []
    each: list[float] = []
    drawn: list[float] = []
    answered: list[float] = []
    for _ in range(sizes.repeats):
        with opened(browser, f"http://{collector.http}/?view=tensor&a=long&{place}") as page:
            page.wait_for_selector(".grid .chart canvas")
            page.wait_for_timeout(100)
            there.append(page.evaluate(CHARTS_SHOWN))
            answered.append(page.evaluate(ANSWER % "'/api/v1/curves'")[0])
            took = page.evaluate(CHARTS)
            first.append(sum(took))
            each += took
            # Another axis draws everything again.
            drawn.append(
                page.evaluate(
                    """async () => { const box = document.querySelector('.choice.check input'), begin = performance.now(); box.click();
                    await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame); return performance.now() - begin; }"""
                )
            )
    return {
        "steps": sizes.series_steps,
        "charts": len(took),
        "chart_drawn_ms": summary(each),
        "all_charts_drawn_ms": summary(first),
        "charts_shown_ms": summary(there),
        "query_answered_ms": summary(answered),
        "query_alone_ms": round(asked, 1),
        "answer_bytes": size,
        "all_charts_drawn_again_ms": summary(drawn),
    }


def cores_while_sending(collector: Collector, sizes: Sizes, run: str, rate: int) -> dict[str, float]:
    words = {
        "streams": sizes.live_ranks, "activations": sizes.tensors, "seconds": sizes.live_seconds, "records_per_second": rate,
    }  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, collector, run, **words)
        time.sleep(sizes.live_opening)
        before, begin = collector.cpu_seconds(), time.perf_counter()
        time.sleep(sizes.live_seconds - sizes.live_opening - 1)  # it still sends
        cores = (collector.cpu_seconds() - before) / (time.perf_counter() - begin)
        sent = sending.result()
    return {
        "collector_cores": cores,
        "durable_records_per_second": sent["records_per_second"],
        "ack_ms_p50": sent["ack_ms"]["p50"],
        "ack_ms_p99": sent["ack_ms"]["p99"],
    }


def measure_live(browser: Any, collector: Collector, sizes: Sizes) -> dict[str, Any]:
    """The views take turns, so that what else the machine does is the same for all."""
    rate = max(20_000, sizes.live_ranks * sizes.tensors)
    views = {"no page": None, "the run": "/?view=run&a={run}&stat=l2", "the list of runs": "/"}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in views}
    for turn in range(sizes.live_turns):
        for name, path in views.items():
            run = f"live-{name.replace(' ', '-')}-{turn}"
            if path is None:
                rounds[name].append(cores_while_sending(collector, sizes, run, rate))
                continue
            with opened(browser, f"http://{collector.http}{path.format(run=run)}"):
                rounds[name].append(cores_while_sending(collector, sizes, run, rate))
    found: dict[str, Any] = {"ranks": sizes.live_ranks, "tensors": sizes.tensors, "records_per_second": rate}
    for name, turns in rounds.items():
        found[name] = {key: [round(turn[key], 4) for turn in turns] for key in turns[0]}
    alone = rounds["no page"]
    for name in ("the run", "the list of runs"):
        more = [
            with_page["collector_cores"] - without["collector_cores"]
            for with_page, without in zip(rounds[name], alone, strict=True)
        ]
        found[name]["cores_more_than_without_page"] = round(statistics.median(more), 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="which measurements, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small sizes: the figures mean nothing")
    asked = parser.parse_args()
    wanted = asked.only.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"--only: found {', '.join(sorted(unknown))}; expected some of {', '.join(SECTIONS)}")
    if not CHROMIUM:
        parser.error(MISSING)
    sizes = QUICK if asked.quick else FULL
    measures = {"map": measure_map, "series": measure_series, "live": measure_live}
    result: dict[str, Any] = {**machine.facts(), "quick": asked.quick}
    with importlib.import_module("playwright.sync_api").sync_playwright() as running, Collector() as collector:
        browser = launch(running)
        result["browser"] = browser.version
        result["bundle_gzip_bytes"] = bundle_bytes(collector)
        for name in wanted:
            result[name] = measures[name](browser, collector, sizes)
        browser.close()
    result["load_after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
