"""What scripts/release.sh makes beside wheels (test_wheel.py) and Debian packages (test_bare_root.py)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release"))


def script(name: str, *arguments: str | Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable] if name.endswith(".py") else []
    done = subprocess.run(
        [*command, ROOT / "scripts" / name, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sbom") / "sbom.json"
    script("make_sbom.py", "--build", BUILD, "--out", out)
    return out


def components(path: Path) -> dict[str, dict[str, Any]]:
    return {component["name"]: component for component in json.loads(path.read_text(encoding="utf-8"))["components"]}


def test_the_sbom_fits_its_schema(sbom: Path) -> None:
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="scripts/setup.sh --for test installs cyclonedx-python-lib"
    )
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    text = sbom.read_text(encoding="utf-8")
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"bomFormat"', '"bomFormatt"')) is not None


def test_the_sbom_lists_what_is_linked_compiled_in_and_bundled(sbom: Path) -> None:
    found = components(sbom)
    assert {"libgrpc++1.51", "libprotobuf32", "librocksdb7.8", "libssl3"} <= set(found) or "libgrpc++-dev" in found
    assert any(name.startswith("libssl") for name in found)
    assert "preact" in found, "the page's library"
    assert "typescript" not in found, "a tool, not part of the product"
    for name, component in found.items():
        assert component["version"], name
    # Every header of others that the product includes is of a package in the list.
    setup = (ROOT / "scripts/setup.sh").read_text(encoding="utf-8")
    compiled = {name for name, component in found.items() if component["properties"][0]["value"] == "compiled in"}
    assert compiled and all(name in setup for name in compiled)


def test_two_sboms_are_equal(sbom: Path, tmp_path: Path) -> None:
    script("make_sbom.py", "--build", BUILD, "--out", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == sbom.read_bytes()


def test_archives_depend_on_contents_alone(tmp_path: Path) -> None:
    made = []
    for number, names in enumerate((("a", "b/c"), ("b/c", "a"))):
        folder = tmp_path / str(number) / "folder"
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
            os.utime(folder / name, (1_000_000 * (number + 1),) * 2)
        script("lib/tar.sh", folder, tmp_path / f"{number}.tar.gz", SOURCE_DATE_EPOCH="1700000000")
        made.append((tmp_path / f"{number}.tar.gz").read_bytes())
    assert made[0] == made[1]


def test_two_releases_of_a_commit_are_compared(tmp_path: Path) -> None:
    """Of the site, which needs no build: scripts/check_reproducible.sh without arguments takes a quarter of an hour."""
    pytest.importorskip("material", reason="scripts/setup.sh --for docs installs mkdocs-material")
    done = script("check_reproducible.sh", "--apart", "--only", "docs", "--keep", tmp_path)
    assert re.fullmatch(
        r"equal     SHA256SUMS \(\d+ bytes\)\nequal     statcollect-[\d.]+-docs.tar.gz \(\d+ bytes\)\n", done.stdout
    )
    (archive,) = (tmp_path / "second").glob("*.tar.gz")
    archive.write_bytes(archive.read_bytes()[:-1] + b"x")
    (tmp_path / "first/more").touch()
    differs = script("check_reproducible.sh", "--compare", tmp_path / "first", tmp_path / "second", code=1).stdout
    assert f"DIFFERENT {archive.name}: byte" in differs and "MISSING   more" in differs and "equal     SHA256SUMS" in differs


def test_wrong_arguments_are_named() -> None:
    assert "not 'wheels'" in script("release.sh", "--only", "wheels", code=2).stderr
    assert "not 'debug'" in script("release.sh", "--preset", "debug", code=2).stderr
    assert "build/nothing" in script("make_debs.py", "--build", "build/nothing", code=1).stderr
    assert "expected digits" in script("make_debs.py", "--build", BUILD, "--revision", "A B", code=1).stderr
    assert "run scripts/build.sh" in script("make_sbom.py", "--build", "build/nothing", "--out", "/dev/null", code=1).stderr


def test_the_chart_has_the_projects_version() -> None:
    number = re.search(r"^project\(statcollect VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert number
    chart = (ROOT / "deploy/helm/statcollect/Chart.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^(?:version|appVersion): (.*)$", chart, re.MULTILINE) == [number[1]] * 2
