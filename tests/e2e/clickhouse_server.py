"""A real clickhouse-server on loopback with a temporary folder, for tests of the second store; replicas of it with their ZooKeeper."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from clickhouse_local import (
    ClickHouse,
    ReplicatedClickHouse,
    ZooKeeper,
    clickhouse_program,
    free_port,
    haproxy_program,
    missing_packages,
)

__all__ = [
    "ClickHouse",
    "ClickHouseServer",
    "Replicas",
    "ZooKeeper",
    "free_port",
    "haproxy_program",
    "missing_packages",
    "program",
]

_databases = itertools.count(1)
program = clickhouse_program


class ClickHouseServer(ClickHouse):
    def start(self) -> ClickHouseServer:
        super().start()
        return self

    def new_dsn(self, through: str = "") -> str:
        """A database that no other test uses; `through`: the address of a proxy."""
        return f"clickhouse://{through or self.address}/e2e_{next(_databases)}"


class Replicas(ReplicatedClickHouse):
    def start(self) -> Replicas:
        super().start()
        return self

    def new_dsn(self, *through: str, quorum: int = 2) -> str:
        """The same; `through`: addresses of proxies, instead of the replicas'."""
        hosts = ",".join(through or [replica.address for replica in self.replicas])
        return f"clickhouse://{hosts}/e2e_{next(_databases)}?quorum={quorum}"
