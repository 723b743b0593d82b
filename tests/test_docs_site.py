"""The documentation site builds without a warning, has every page, and loads nothing from other servers (scripts/docs.sh)."""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, MISSING, launch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [ROOT / "scripts/docs.sh", "build", "--out", out], capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return out


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    navigation = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        built = name.replace("README.html", "index.html")
        assert (site / built).is_file(), built
        if "/" not in name:
            assert f'href="{built}"' in navigation, f"{built} is not in the navigation"


def test_llms_text_lists_the_pages_with_links_that_exist(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# statcollect\n\n> Finds the first place")
    linked = re.findall(r"\]\(([^)#]+)", text)
    assert len(linked) > 40 and "agents.html" in linked and "repository/index.html" in linked
    missing = [link for link in linked if not (site / link).exists()]
    assert not missing, missing


def test_pages_outside_docs_come_along(site: Path) -> None:
    readme = (site / "repository/index.html").read_text(encoding="utf-8")
    assert 'src="../pictures/data-flow.svg"' in readme
    assert 'href="../docs/' not in readme, "a link that only works in the repository"
    for name in (
        "CHANGELOG",
        "deploy/index",
        "examples/gpt_torch/index",
        "proto/statcollect/v1/query.proto",
        "deploy/alerts.yml",
    ):
        assert (site / f"repository/{name}.html").is_file(), name
    assert "rpc Diff" in re.sub(
        r"<[^>]+>", "", (site / "repository/proto/statcollect/v1/query.proto.html").read_text(encoding="utf-8")
    )


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("reference/statagent.html", ["statagent.init", "statagent.watch", "statagent.Agent", "statagent.compute"]),
        ("reference/statcollect.html", ["statcollect.connect", "statcollect.Collector.diff", "statcollect.assert_matches"]),
        ("repository/agent/include/statagent/statagent.h.html", ["statagent_start", "struct_size"]),
    ],
)
def test_the_reference_has_the_public_names(site: Path, page: str, names: list[str]) -> None:
    text = (site / page).read_text(encoding="utf-8")
    for name in names:
        assert name in text


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    """In a copy of the repository's pages; the build itself says which link."""
    files = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/e2e/corpus", "web/dist")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(["git", "-C", tmp_path, "init", "-q"], check=True)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    with (tmp_path / "docs/glossary.md").open("a") as page:
        page.write("\nSee [nothing](no-such-page.md).\n")
    done = subprocess.run(
        ["bash", tmp_path / "scripts/docs.sh", "build"], capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode != 0
    assert "no-such-page.md" in done.stdout + done.stderr


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_browser_finds_pages_and_asks_no_other_server(address: str, site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip(MISSING)
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "repository/index.html", "reference/statagent.html", "verdict.html"):
            page.goto(f"{address}/{name}")
        page.keyboard.press("/")
        page.keyboard.type("spill directory")
        page.wait_for_selector(".md-search-result__item a", timeout=20_000)
        found = page.inner_text(".md-search-result__list")
        browser.close()
    assert "spill" in found.lower()
    assert asked and all(url.startswith((f"{address}/", "data:", "blob:")) for url in asked), asked
    # Sources are not searched: their pages would drown the others.
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    assert not any(entry["location"].startswith("repository/proto") for entry in index["docs"])
