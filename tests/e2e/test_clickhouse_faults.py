"""Answers of a ClickHouse that a test cannot bring about, put in by a proxy before a real one; and TLS, which the proxy ends."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, program
from conftest import STATCOLLECTORD, Finished, Gates, run_command, wait_until
from http_faults import HttpFaults, Injected, Request, failing
from test_clickhouse import Cluster, check_ledger, records_of
from test_durability import start

pytestmark = pytest.mark.skipif(program() is None, reason="clickhouse-server is not installed; scripts/setup.sh installs it")
FULL = "Cannot reserve 1.00 MiB, not enough space."


@pytest.fixture
def faults(shared_engine: ClickHouseServer) -> Iterator[HttpFaults]:
    proxy = HttpFaults(shared_engine.address)
    yield proxy
    proxy.close()


def into_records(request: Request) -> bool:
    return ".records (" in request.statement and request.statement.startswith("INSERT")


def opened(tmp_path: Path, dsn: str) -> Finished:
    """A collector that is expected not to start."""
    return run_command(
        [
            str(STATCOLLECTORD),
            "--data-dir",
            str(tmp_path / "refused"),
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--store",
            dsn,
        ],
        timeout=60,
    )


@pytest.mark.parametrize("passed_on", [True, False], ids=["it was stored", "it was not stored"])
@pytest.mark.parametrize("code", [319, 244, 159])
def test_an_insert_of_unknown_outcome_is_sent_again_until_it_is_known(
    tmp_path: Path, shared_engine: ClickHouseServer, faults: HttpFaults, code: int, passed_on: bool
) -> None:
    cluster = Cluster(tmp_path, shared_engine.new_dsn(through=faults.address))
    collector = cluster.add()
    inserts = 0

    def every_third(request: Request) -> Injected | None:
        nonlocal inserts
        if not into_records(request):
            return None
        inserts += 1
        return failing(code, "Unknown status, client must retry.", passed_on) if inserts % 3 else None

    faults.rule = every_third
    steps = 60
    trainer = start(collector, "unknown", steps)
    check_ledger(collector, "unknown", trainer, steps)
    assert faults.injected > 3
    cluster.stop()


def test_a_full_engine_stops_acknowledgements_and_recording_continues_by_itself(
    tmp_path: Path, shared_engine: ClickHouseServer, faults: HttpFaults
) -> None:
    cluster = Cluster(tmp_path, shared_engine.new_dsn(through=faults.address))
    collector = cluster.add()
    steps = 150
    gates = Gates(tmp_path / "gates", 30)
    trainer = start(collector, "full", steps, **gates.environment())
    wait_until(lambda: records_of(collector, "full") >= 1000, timeout=60, what="records")
    faults.rule = lambda request: failing(243, FULL) if into_records(request) else None
    gates.open(30)
    wait_until(lambda: faults.injected >= 2, timeout=60, what="a refused insert")
    stored = records_of(collector, "full")
    wait_until(lambda: faults.injected >= 4, timeout=60, what="more refused inserts")
    assert records_of(collector, "full") == stored
    log = (collector.data_dir.parent / "collector.err").read_text()
    assert "code 243" in log and "free space on the engine's disk, or remove runs (statctl rm)" in log, log
    faults.rule = lambda _: None
    check_ledger(collector, "full", trainer, steps)
    cluster.stop()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Injected(200, "1.1.54388\n"), "found ClickHouse 1.1.54388; expected 18.16 or newer; upgrade it"),
        (Injected(200, "18.14.9\n"), "found ClickHouse 18.14.9; expected 18.16 or newer"),
        (Injected(200, "<html>It works!</html>"), "expected ClickHouse's HTTP interface"),
        (Injected(404, "no such page"), "found HTTP status 404"),
        (failing(241, "Memory limit (total) exceeded"), "code 241, Memory limit (total) exceeded"),
    ],
)
def test_an_engine_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, shared_engine: ClickHouseServer, faults: HttpFaults, answer: Injected, said: str
) -> None:
    faults.rule = lambda request: answer if "SELECT version()" in request.statement else None
    done = opened(tmp_path, shared_engine.new_dsn(through=faults.address))
    assert done.code == 2 and said in done.err, done.err


# --- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, server.pem and server.key for 127.0.0.1 and engine.example."""
    return make_authority(tmp_path_factory.mktemp("authority") / "tls", "127.0.0.1", "engine.example")


def make_authority(folder: Path, *hosts: str) -> Path:
    arguments = [word for host in hosts for word in ("--host", host)]
    done = run_command([str(STATCOLLECTORD), "tls", "init", str(folder), *arguments])
    assert done.code == 0, done.err
    return folder


def with_tls(shared_engine: ClickHouseServer, authority: Path) -> HttpFaults:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    return HttpFaults(shared_engine.address, context)


def secure(dsn: str, options: str = "") -> str:
    return dsn.replace("clickhouse://", "clickhouses://") + options


def test_records_travel_over_tls(tmp_path: Path, shared_engine: ClickHouseServer, authority: Path) -> None:
    proxy = with_tls(shared_engine, authority)
    cluster = Cluster(tmp_path, secure(shared_engine.new_dsn(through=proxy.address), f"?ca={authority}/ca.pem"))
    collector = cluster.add()
    assert f"data clickhouses://{proxy.address}/" in collector.ready_line
    check_ledger(collector, "tls", start(collector, "tls", 30), 30)
    cluster.stop()
    proxy.close()


def test_tls_that_cannot_be_trusted_is_refused(tmp_path: Path, shared_engine: ClickHouseServer, authority: Path) -> None:
    foreign = make_authority(tmp_path / "foreign", "127.0.0.1")
    elsewhere = make_authority(tmp_path / "elsewhere", "engine.example")
    proxy, of_another_host = with_tls(shared_engine, authority), with_tls(shared_engine, elsewhere)
    expected = "expected TLS with a certificate of this host that an authority in"
    for dsn, said in (
        (secure(shared_engine.new_dsn(through=proxy.address)), f"{expected} the system's certificates signed"),
        (secure(shared_engine.new_dsn(through=proxy.address), f"?ca={foreign}/ca.pem"), f"{expected} '{foreign}/ca.pem'"),
        (secure(shared_engine.new_dsn(through=of_another_host.address), f"?ca={elsewhere}/ca.pem"), expected),
        (secure(shared_engine.new_dsn(through=proxy.address), "?ca=/nowhere/ca.pem"), f"{expected} '/nowhere/ca.pem'"),
        # The engine's port is plain: it waits for the rest of the request, or answers in plain text.
        (secure(shared_engine.new_dsn(), f"?ca={authority}/ca.pem"), f"is this its HTTPS port?|{expected}"),
        (shared_engine.new_dsn(through=proxy.address), "is this its HTTP port?"),  # and the proxy's is not
        (shared_engine.new_dsn() + f"?ca={authority}/ca.pem", "found ca= without TLS (write clickhouses://"),
    ):
        done = opened(tmp_path, dsn)
        assert done.code == 2 and any(words in done.err for words in said.split("|")), (dsn, done.err)
    proxy.close()
    of_another_host.close()
