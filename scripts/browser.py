"""The browser that opens the page for tests, pictures and benchmarks."""

from __future__ import annotations

import shutil
from typing import Any

# The first is the same engine without a desktop's window; it starts in half of the time.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), "")
MISSING = "found no Chromium on PATH; scripts/setup.sh --for test installs it"


def launch(playwright: Any, *arguments: str) -> Any:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *arguments])
