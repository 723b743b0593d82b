#!/usr/bin/env python3
"""Measures the collector's page in headless Chromium: first paint, the comparison of two runs, zooming in its heat map.

Usage: bench/page.py HTTP_ADDRESS RUN_A RUN_B [--repeats N]. Needs a collector that has the runs, Chromium, and Python's playwright.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import statistics
import time
from typing import Any

ZOOMS = ["+", "+", "-", "+", "0", "+", "-", "-", "+", "0"]
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def painted(page: Any) -> float:
    """Milliseconds of the worker for the newest picture."""
    return float(page.get_attribute(".heat-canvas canvas", "data-milliseconds"))


def measure(browser: Any, url: str) -> dict[str, list[float]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    begin = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("canvas[data-painted]", state="attached", timeout=120_000)
    found = {
        "heat map is there": [1000 * (time.perf_counter() - begin)],
        "first paint": [page.evaluate(PAINT)],
        "paint": [painted(page)],
    }
    page.focus(".heat-canvas")
    found["paint after a zoom"] = []
    for key in ZOOMS:
        page.keyboard.press(key)
        page.wait_for_timeout(200)
        found["paint after a zoom"].append(painted(page))
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("run_a")
    parser.add_argument("run_b")
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    url = f"http://{asked.address}/?view=compare&a={asked.run_a}&b={asked.run_b}"
    all_found: dict[str, list[float]] = {}
    with importlib.import_module("playwright.sync_api").sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(asked.repeats):
            for name, values in measure(browser, url).items():
                all_found.setdefault(name, []).extend(values)
        browser.close()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; milliseconds")
    for name, values in all_found.items():
        print(f"{name:20} median {statistics.median(values):7.1f}  least {min(values):7.1f}  most {max(values):7.1f}")


if __name__ == "__main__":
    main()
