"""The README's promises: the commands it names exist, its links lead somewhere, its snippets work (those: tests/e2e)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release"))
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
)
COMMANDS = ROOT / "docs/statctl.md"


def anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_to_headings_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*\.md|)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        assert anchor in anchors(linked), f"{page.name} links to #{anchor}, which {linked.name} does not have"


def test_readme_fits_in_120_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_index_lists_every_page_of_docs() -> None:
    linked = set(re.findall(r"\]\(([^)#\s]+)", (ROOT / "docs/index.md").read_text(encoding="utf-8")))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - linked == {"index.md"}


def test_every_command_of_statctl_is_on_its_page() -> None:
    shown = subprocess.run([BUILD / "bin/statctl", "help", "--all"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z][a-z-]*)  ", shown.split("Options:")[0], re.MULTILINE))
    assert "diff" in commands
    described = set(re.findall(r"`statctl ([a-z-]+)", COMMANDS.read_text(encoding="utf-8")))
    assert commands <= described


def test_scripts_that_the_pages_name_exist_and_explain_themselves() -> None:
    named = {name for page in PAGES for name in re.findall(r"scripts/\w+\.sh", page.read_text(encoding="utf-8"))}
    assert {"scripts/demo.sh", "scripts/test.sh"} <= named
    for name in named:
        assert os.access(ROOT / name, os.X_OK), f"{name} is named but cannot be run"
    for name in ("demo", "test", "setup"):
        shown = subprocess.run([ROOT / f"scripts/{name}.sh", "--help"], capture_output=True, text=True, check=True)
        assert shown.stdout.startswith("Usage:")


def test_pages_name_commands_as_they_are_called_now() -> None:
    _, _, before = COMMANDS.read_text(encoding="utf-8").partition("## Names before\n")
    old = {name for part in before.split(";") for name in re.findall("`([a-z-]+)`", re.split(r" (?:is|are|below) ", part)[0])}
    assert {"series", "import", "keep"} <= old
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            named = set(re.findall(r"statctl (?:--\S+ \S+ )*([a-z][a-z-]*)", page.read_text(encoding="utf-8"))) & old
            assert not named, f"{page.name} names {sorted(named)}; {COMMANDS.name} has their new names"


def test_statctl_commands_that_the_pages_name_exist() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent == ROOT or "examples" in page.parts)
    text += "\n".join(re.findall(r"`(statctl [^`]+)`", COMMANDS.read_text(encoding="utf-8")))
    named = set(re.findall(r"statctl ([a-z][a-z-]*)\b", text)) - {"help"}
    assert "diff" in named
    for command in named:
        shown = subprocess.run([BUILD / "bin/statctl", "help", command], capture_output=True, text=True, check=False)
        assert shown.returncode == 0, f"statctl {command} is named on a page: {shown.stderr}"
        assert "Example" in shown.stdout
