"""The page's sources in web/: unit tests, and that what is committed of them is what they give. Skipped without Node.js."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NO_NODE = 3  # exit code of scripts/web.sh


def web(*arguments: str) -> str:
    done = subprocess.run(
        [str(ROOT / "scripts" / "web.sh"), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode == NO_NODE:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_committed_bundle_is_what_the_sources_give(tmp_path: Path) -> None:
    web("build", str(tmp_path / "dist"))
    made, committed = contents(tmp_path / "dist"), contents(ROOT / "web" / "dist")
    assert sorted(made) == sorted(committed), "run scripts/web.sh build and commit web/dist"
    assert [name for name in made if made[name] != committed[name]] == [], "run scripts/web.sh build and commit web/dist"


def test_the_types_are_those_of_the_api(tmp_path: Path) -> None:
    web("types", str(tmp_path / "schema.ts"))
    assert (tmp_path / "schema.ts").read_text() == (ROOT / "web/src/api/schema.ts").read_text(), "run scripts/web.sh types"


def test_unit_tests_pass() -> None:
    assert "passed" in web("test")


def test_nothing_comes_from_another_origin() -> None:
    for name, content in contents(ROOT / "web" / "dist").items():
        text = content.decode()
        for foreign in ("https://", "//cdn", "eval(", "new Function"):
            found = [text[max(0, at - 60) : at + 60] for at in (text.find(foreign),) if at >= 0]
            assert found == [], name
