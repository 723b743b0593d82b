"""The conformance tests of the store, over a ClickHouse of the caller's."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BUILD, Finished, run_command

PROGRAM = BUILD / "tests" / "store_conformance_test"


def check_conformance(address: str, timeout: float = 240, at_once: int = 3) -> None:
    """`address`: host and port, or several with what a DSN has behind the database. In that many processes: each case has a database of its
    own, and mostly waits for ClickHouse."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    env = {**os.environ, "STATCOLLECT_TEST_CLICKHOUSE": address, "GTEST_TOTAL_SHARDS": str(at_once)}

    def run(shard: int) -> Finished:
        return run_command(
            [str(PROGRAM), "--gtest_filter=*/ClickHouse"], env={**env, "GTEST_SHARD_INDEX": str(shard)}, timeout=timeout
        )

    with ThreadPoolExecutor(at_once) as threads:
        for done in threads.map(run, range(at_once)):
            assert done.code == 0 and re.search(r"\[  PASSED  \] [1-9]\d* test", done.out), done.out[-5000:]
