"""The conformance tests of the store, over a ClickHouse of the caller's."""

from __future__ import annotations

import os

import pytest
from conftest import BUILD, run_command

PROGRAM = BUILD / "tests" / "store_conformance_test"


def check_conformance(address: str, timeout: float = 240) -> None:
    """`address`: host and port, or several with what a DSN has behind the database."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    done = run_command(
        [str(PROGRAM), "--gtest_filter=*/ClickHouse"], env={**os.environ, "STATCOLLECT_TEST_CLICKHOUSE": address}, timeout=timeout
    )
    assert done.code == 0 and "[  PASSED  ]" in done.out, done.out[-5000:]
