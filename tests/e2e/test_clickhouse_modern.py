"""The second store over the SQL of a modern ClickHouse (chdb). Slow, and chdb is large, so it is not installed by scripts/setup.sh."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from naive.check import check_seeds
from store_conformance import check_conformance

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("chdb") is None, reason="chdb is not installed: .venv/bin/python -m pip install chdb (530 MB)"
)


@pytest.fixture(scope="module")
def modern(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server over chdb."""
    folder = tmp_path_factory.mktemp("chdb")
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("chdb_server.py")), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    yield f"127.0.0.1:{int(server.stdout.readline())}"
    server.kill()
    server.wait(timeout=20)


def test_diff_equals_the_naive_model_over_a_modern_clickhouse(tmp_path: Path, modern: str) -> None:
    found = check_seeds(tmp_path, range(100, 103), store=f"clickhouse://{modern}/modern")
    assert not found, "\n".join(found)


def test_the_store_conforms_over_a_modern_clickhouse(modern: str) -> None:
    check_conformance(modern, timeout=400, at_once=1)
