"""TLS between real processes: what connects, what is refused and in which words, and that nothing is lost meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, STATCOLLECTORD, STATCTL, Collector, Finished, run_command, wait_until
from network import Machines, two_machines
from test_connection_limits import acknowledged, training

# Both clients, each with the names of its settings in messages.
AGENT = """
import statagent
statagent.init(run="one", required=True, connect_timeout=3)
statagent.log_scalar("loss", 1.0)
statagent.step()
statagent.close(timeout=20)
"""
NAMES = {"statctl": "--tls-ca", "agent": "STATAGENT_TLS_CA"}

# Replaces the clock that OpenSSL compares dates with.
CLOCK = """
#include <stdlib.h>
#include <time.h>
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time_t shifted = now.tv_sec + 86400 * atol(getenv("CLOCK_DAYS"));
  if (out != NULL) *out = shifted;
  return shifted;
}
"""


def make(folder: Path, *hosts: str) -> Path:
    named = [word for host in hosts for word in ("--host", host)]
    done = run_command([str(STATCOLLECTORD), "tls", "init", str(folder), *named])
    assert done.code == 0, done.err
    assert {oct(path.stat().st_mode & 0o777) for path in folder.glob("*.key")} == {"0o600"}
    return folder


def expired(folder: Path) -> None:
    """Another certificate for the server's key, from yesterday."""
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    request = ["openssl", "req", "-new", "-key", "server.key", "-subj", "/CN=old", "-out", "old.csr"]
    subprocess.run(request, cwd=folder, check=True)
    sign = ["openssl", "x509", "-req", "-in", "old.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    subprocess.run([*sign, "-days", "-1", "-extfile", "names", "-out", "server.pem"], cwd=folder, check=True, capture_output=True)


def replace(old: Path, new: Path, *names: str) -> None:
    for name in names:  # one after the other: in between they do not match
        os.replace(new / name, old / name)


class Secured(Collector):
    """A collector with TLS whose clients have `variables`."""

    def __init__(self, data_dir: Path, certs: Path, *extra: str) -> None:
        super().__init__(data_dir)
        self.extra = ["--tls-cert", str(certs / "server.pem"), "--tls-key", str(certs / "server.key"), *extra]
        self.variables = {"TLS_CA": str(certs / "ca.pem")}

    def environment(self, **extra: str) -> dict[str, str]:
        env = super().environment(**extra)
        for name, value in self.variables.items():
            env |= {f"STATAGENT_{name}": value, f"STATCTL_{name}": value}
        return env

    def ask(self, *arguments: str) -> Finished:
        return run_command([str(STATCTL), *arguments], env=self.environment())

    def runs(self) -> Finished:
        return self.ask("runs")

    def as_client(self, client: str, **extra: str) -> Finished:
        command = [str(STATCTL), "runs"] if client == "statctl" else [sys.executable, "-c", AGENT]
        return run_command(command, env=self.environment(**extra))

    def https(self, certs: Path, client: Path | None = None) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
        if client is not None:
            context.load_cert_chain(client / "client.pem", client / "client.key")
        host, port = self.http.rsplit(":", 1)
        return http.client.HTTPSConnection(host, int(port), timeout=20, context=context)


def with_client_certificate(collector: Secured, certs: Path) -> Secured:
    collector.variables |= {"TLS_CERT": str(certs / "client.pem"), "TLS_KEY": str(certs / "client.key")}
    return collector


@pytest.fixture
def machines() -> Iterator[Machines]:
    with two_machines() as found:
        yield found


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return make(tmp_path / "certs", "127.0.0.1")


@pytest.fixture
def secured(tmp_path: Path, certs: Path) -> Iterator[Secured]:
    started = Secured(tmp_path / "data", certs)
    started.start()
    yield started
    if started.process is not None:
        started.stop()


@pytest.fixture
def mutual(tmp_path: Path, certs: Path) -> Iterator[Secured]:
    """Clients need a certificate, and have none yet."""
    started = Secured(tmp_path / "data", certs, "--tls-client-ca", str(certs / "ca.pem"))
    started.start()
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "clock.so", "clock.c"], cwd=folder, check=True)
    return folder / "clock.so"


def test_two_ranks_train_over_mutual_tls_and_statctl_compares(mutual: Secured, certs: Path) -> None:
    with_client_certificate(mutual, certs)
    mutual.train("base")
    mutual.train("again")
    mutual.train("other", "--seed", "7")
    same = mutual.ask("diff", "base", "again")
    assert same.code == 0, same.out + same.err
    assert mutual.ask("diff", "base", "other").code == 1
    shown = mutual.ask("--format", "json", "show", "base")
    assert json.loads(shown.out)["summary"]["ranks"] == 2, shown.out


def test_training_goes_on_and_loses_nothing_while_certificates_change(secured: Secured, certs: Path, tmp_path: Path) -> None:
    with training(secured, "before"):
        pass
    with training(secured, "steady") as trainer:
        wait_until(lambda: acknowledged(trainer) > 20, what="the first records")
        other = make(tmp_path / "other", "127.0.0.1")
        replace(certs, other, "server.key", "server.pem", "ca.pem")
        wait_until(lambda: secured.runs().code == 0, what="the new certificate, which only the new authority signed")
        before = acknowledged(trainer)
        wait_until(lambda: acknowledged(trainer) > before + 20, what="records on the old connection")
        connection = secured.https(certs)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200, "the new certificate over HTTP, too"
    assert "steady" in secured.runs().out


def test_refused_tls_costs_no_record(secured: Secured, certs: Path, tmp_path: Path) -> None:
    with training(secured, "patient") as trainer:
        wait_until(lambda: acknowledged(trainer) > 20, what="the first records")
        assert secured.stop() == 0
        good = tmp_path / "good"
        good.mkdir()
        for name in ("server.key", "server.pem"):
            (good / name).write_bytes((certs / name).read_bytes())
        replace(certs, make(tmp_path / "stranger", "127.0.0.1"), "server.key", "server.pem")
        secured.start()
        assert "not signed by an authority" in secured.runs().err
        stuck = acknowledged(trainer)
        time.sleep(2)
        assert acknowledged(trainer) == stuck, "the agent sent records to a collector that it cannot trust"
        replace(certs, good, "server.key", "server.pem")
        wait_until(lambda: acknowledged(trainer) > stuck + 100, what="all records, once the certificate is right")
    # training() checks that every record was acknowledged


@pytest.mark.parametrize("client", ["statctl", "agent"])
def test_each_failure_has_its_words(secured: Secured, certs: Path, tmp_path: Path, clock: Path, client: str) -> None:
    def error(**extra: str) -> str:
        done = secured.as_client(client, **extra)
        assert done.code != 0
        return done.err

    good = dict(secured.variables)
    assert secured.as_client(client).code == 0
    secured.variables = {"TLS_CA": str(make(tmp_path / "other", "127.0.0.1") / "ca.pem")}
    assert re.search(f"is not signed by an authority that {NAMES[client]}.* has .*give it the ca.pem", error())
    secured.variables = {}
    assert re.search(f"speaks TLS, and this client does not; give it the collector's ca.pem with {NAMES[client]}", error())
    secured.variables = {"TLS_CA": str(certs / "nothing.pem")}
    assert re.search("nothing.pem': cannot be read: No such file .*check its path", error())
    secured.variables = good
    assert re.search("has expired .on .*; put a new one", error(LD_PRELOAD=str(clock), CLOCK_DAYS="1000"))
    assert re.search("is not valid yet .before .*; check the clocks", error(LD_PRELOAD=str(clock), CLOCK_DAYS="-3"))
    make(certs, "gpu7.example.org")
    wait_until(
        lambda: "is for gpu7.example.org, not for '127.0.0.1'" in secured.runs().err, what="the certificate with another name"
    )
    assert "is for gpu7.example.org, not for '127.0.0.1'" in error()


@pytest.mark.parametrize("client", ["statctl", "agent"])
def test_a_client_certificate_that_is_missing_or_wrong(mutual: Secured, certs: Path, tmp_path: Path, client: str) -> None:
    lacking = mutual.as_client(client)
    assert lacking.code != 0
    assert "requires a client certificate, and this client has none" in lacking.err
    assert "TLS_CERT" in lacking.err, "the next step"
    with_client_certificate(mutual, make(tmp_path / "other", "127.0.0.1"))
    assert "refuses this client's certificate: another authority signed it" in mutual.as_client(client).err
    with_client_certificate(mutual, certs)
    mutual.variables["TLS_KEY"] = str(certs / "server.key")
    assert "is not the key of the certificate" in mutual.as_client(client).err
    del mutual.variables["TLS_KEY"]
    assert "expected both or neither" in mutual.as_client(client).err
    with_client_certificate(mutual, certs)
    assert mutual.as_client(client).code == 0


@pytest.mark.parametrize("client", ["statctl", "agent"])
def test_a_client_with_tls_at_a_collector_without(certs: Path, tmp_path: Path, client: str) -> None:
    plain = Secured(tmp_path / "data", certs)
    plain.extra = []
    plain.start()
    try:
        assert re.search(
            "does not speak TLS, and this client does; start statcollectord with --tls-cert", plain.as_client(client).err
        )
        plain.variables = {"TLS_CERT": str(certs / "client.pem"), "TLS_KEY": str(certs / "client.key")}
        assert "ca.pem" in plain.as_client(client).err, "a certificate alone would silently mean no TLS"
    finally:
        assert plain.stop() == 0


def test_what_the_collector_refuses_at_its_start(certs: Path, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        done = run_command([str(STATCOLLECTORD), "--data-dir", str(tmp_path / "data"), *arguments])
        assert done.code == 2, done.out
        return done.err

    files = Secured(tmp_path, certs).extra
    assert "found neither TLS nor tokens; expected both; add --tls-auto" in error("--listen", "0.0.0.0:0", "--http", "off")
    found = error("--listen", "0.0.0.0:0", "--http", "off", *files)
    assert "found TLS, but no tokens" in found and "token create --data-dir" in found
    assert "--http 0.0.0.0:0: other machines" in error("--listen", "127.0.0.1:0", "--http", "0.0.0.0:0")
    assert "add the missing one" in error(*files[:2])
    assert "leave out the other" in error("--tls-auto", *files)
    expired(certs)
    assert "the certificate expired on" in error(*files)
    (certs / "server.pem").write_text("-----BEGIN CERTIFICATE-----\nMIIB\n")
    assert "has no readable certificate" in error(*files)


def test_https_serves_keeps_connections_and_survives_clients_that_leave(secured: Secured, certs: Path) -> None:
    secured.as_client("agent")
    connection = secured.https(certs)
    for path in (
        "/healthz",
        "/metrics",
        "/",
        "/api/v1/runs",
        "/api/v1/openapi.json",
        "/api/v1/runs",
        "/no",
        "/api/v1/show?run=one",
    ):
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == (404 if path == "/no" else 200), (path, body)
        if path == "/healthz":
            first = connection.sock
        assert connection.sock is first, f"a new connection after {path}"
    connection.request("POST", "/api/v1/show", json.dumps({"run": "one"}), {"Content-Type": "application/json"})
    assert json.loads(connection.getresponse().read())["summary"]["run"] == "one"
    for path in ("/api/v1/records?run=one", "/api/v1/runs"):  # gone in the middle of an answer, or before it
        leaving = secured.https(certs)
        leaving.request("GET", path)
        leaving.sock.close()
    # Two requests at once: the second one comes while the first is answered.
    connection.sock.sendall(b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
    received = b""
    while received.count(b'"runs"') < 2:
        received += connection.sock.recv(65536)
    assert "one" in secured.runs().out


def test_https_and_clients_that_do_not_speak_it(secured: Secured, certs: Path) -> None:
    host, port = secured.http.rsplit(":", 1)
    plain = http.client.HTTPConnection(host, int(port), timeout=20)
    plain.request("GET", "/healthz")
    answer = plain.getresponse()
    assert answer.status == 400
    assert "found no TLS; expected https; use https://" in json.loads(answer.read())["error"]
    # Handshakes that never end, and connections that say nothing.
    halves = []
    for address in (secured.http, secured.address):
        halves += [socket.create_connection((host, int(address.rsplit(":", 1)[1]))) for _ in range(2)]
        halves[-1].sendall(b"\x16\x03\x01\x02\x00\x01")
    new = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    old = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    for context in (new, old):
        context.set_alpn_protocols(["h2", "http/1.1"])
    for port in (secured.http.rsplit(":", 1)[1], secured.address.rsplit(":", 1)[1]):
        with socket.create_connection((host, int(port))) as connection:
            assert new.wrap_socket(connection, server_hostname=host).version() == "TLSv1.3"
        with socket.create_connection((host, int(port))) as connection, pytest.raises((ssl.SSLError, ConnectionError)):
            old.wrap_socket(connection, server_hostname=host)
    for half in halves:
        half.settimeout(25)
        assert half.recv(1) == b"", f"the collector ends it: {half}"


def test_https_asks_for_client_certificates_too(mutual: Secured, certs: Path) -> None:
    def status(client: Path | None) -> int:
        connection = mutual.https(certs, client)
        connection.request("GET", "/healthz")
        return connection.getresponse().status

    with pytest.raises((ssl.SSLError, ConnectionError)):
        status(None)
    assert status(certs) == 200


def test_the_python_client_takes_statctls_variables(mutual: Secured, certs: Path) -> None:
    with_client_certificate(mutual, certs)
    assert mutual.as_client("agent").code == 0
    script = "import statcollect, sys\nprint([run.run for run in statcollect.connect(sys.argv[1]).runs()])"

    def connect(address: str) -> Finished:
        env = mutual.environment(PYTHONPATH=str(ROOT / "client" / "python"))
        return run_command([sys.executable, "-c", script, address], env=env)

    for address in (mutual.http, f"https://{mutual.http}"):
        done = connect(address)
        assert done.out == "['one']\n", done.err
    del mutual.variables["TLS_CERT"], mutual.variables["TLS_KEY"]
    assert "tls_cert=" in connect(mutual.http).err


def test_tls_auto_makes_all_that_ranks_and_statctl_need(tmp_path: Path) -> None:
    collector = Collector(tmp_path / "data", extra=["--tls-auto"])
    collector.start()
    errors = tmp_path / "collector.err"
    try:
        lines = re.findall(r"^  export (.*)$", errors.read_text(), re.MULTILINE)
        variables = dict(word.split("=", 1) for line in lines for word in line.split())
        assert set(variables) == {f"{p}_{n}" for p in ("STATAGENT", "STATCTL") for n in ("COLLECTOR", "TLS_CA", "TOKEN_FILE")}
        env = {**collector.environment(), **variables}
        done = run_command([sys.executable, "-c", AGENT], env=env)
        assert done.code == 0, done.err
        assert "one" in run_command([str(STATCTL), "runs"], env=env).out
        without = {name: value for name, value in env.items() if name != "STATCTL_TOKEN_FILE"}
        assert "no token was sent" in run_command([str(STATCTL), "runs"], env=without).err
        token = Path(variables["STATCTL_TOKEN_FILE"])
        assert oct(token.stat().st_mode & 0o777) == "0o600"
        assert collector.stop() == 0
        kept = token.read_text()
        collector.start()
        assert token.read_text() == kept, "nothing is made a second time"
        assert "one" in run_command([str(STATCTL), "runs"], env=env).out
    finally:
        if collector.process is not None:
            assert collector.stop() == 0


@pytest.mark.parametrize("arguments", [
    ["--tls-auto", "--listen", "127.0.0.1:0", "--http", "off", "--data-dir", "data"], ["--listen", "256.0.0.1:1"],
    ["tls", "init"], ["tls", "init", "/proc/none"], ["token", "list", "--wrong"], ["token", "revoke", "none"],
    ["token", "create", "--scope", "ingest"],
])  # fmt: skip
def test_a_line_is_written_at_once(arguments: list[str], tmp_path: Path) -> None:
    """Other output of the terminal could land between its parts. A pipe of packets keeps writes apart."""
    output, errors = os.pipe2(os.O_DIRECT)
    writes = []
    with subprocess.Popen([STATCOLLECTORD, *arguments], stdout=subprocess.PIPE, stderr=errors, cwd=tmp_path) as process:
        os.close(errors)
        assert process.stdout is not None
        if "--tls-auto" in arguments:
            process.stdout.readline()  # the ready line, behind what the clients need
            process.terminate()
        while written := os.read(output, 1 << 16):
            writes.append(written.decode())
    os.close(output)
    assert writes and all(written.endswith("\n") for written in writes), writes


def test_tls_auto_between_two_machines(machines: Machines, tmp_path: Path) -> None:
    collector = Collector(tmp_path / "data", address=machines.listen, extra=["--tls-auto"], wrapper=machines.here)
    collector.start()
    try:
        files = tmp_path / "data" / "tls"
        env = collector.environment()
        for client, token in (("STATAGENT", "agents.token"), ("STATCTL", "statctl.token")):
            env[f"{client}_COLLECTOR"] = f"{machines.host}:{collector.address.rsplit(':', 1)[1]}"
            env |= {f"{client}_TLS_CA": str(files / "ca.pem"), f"{client}_TOKEN_FILE": str(files / token)}
        done = run_command([*machines.there, sys.executable, "-c", AGENT], env=env)
        assert done.code == 0, done.err
        assert "one" in run_command([*machines.there, str(STATCTL), "runs"], env=env).out
        plain = {name: value for name, value in env.items() if "TLS" not in name}
        assert "speaks TLS, and this client does not" in run_command([*machines.there, str(STATCTL), "runs"], env=plain).err
    finally:
        assert collector.stop() == 0


def client_certificate(certs: Path, folder: Path, name: str) -> dict[str, str]:
    """A certificate of the authority with this subject's alternative name; the variables of a client that uses it."""
    folder.mkdir()
    (folder / "names").write_text(f"subjectAltName=DNS:{name}\n")
    key = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=somebody"]
    subprocess.run([*key, "-keyout", str(folder / "client.key"), "-out", str(folder / "csr")], check=True, capture_output=True)
    sign = [
        "openssl",
        "x509",
        "-req",
        "-in",
        "csr",
        "-CA",
        str(certs / "ca.pem"),
        "-CAkey",
        str(certs / "ca.key"),
        "-CAcreateserial",
    ]
    subprocess.run([*sign, "-days", "2", "-extfile", "names", "-out", "client.pem"], cwd=folder, check=True, capture_output=True)
    (folder / "client.key").chmod(0o600)
    return {
        f"{client}_TLS_{kind}": str(folder / file)
        for client in ("STATAGENT", "STATCTL")
        for kind, file in (("CERT", "client.pem"), ("KEY", "client.key"))
    }


def test_names_in_client_certificates_authorise(certs: Path, tmp_path: Path) -> None:
    principals = ["--tls-principal", "rank7.gpu=ingest", "--tls-principal", "me.lab=read,delete,admin"]
    collector = Secured(tmp_path / "data", certs, "--tls-client-ca", str(certs / "ca.pem"), *principals)
    rank, me, other = (client_certificate(certs, tmp_path / name, name) for name in ("rank7.gpu", "me.lab", "other.lab"))
    collector.start()
    try:
        sent = collector.as_client("agent", **rank)
        assert sent.code == 0, sent.err
        assert collector.as_client("statctl", **me).code == 0
        lacks = collector.as_client("statctl", **rank)
        assert lacks.code == 2 and "certificate rank7.gpu has scope 'ingest'" in lacks.err, lacks.err
        unknown = collector.as_client("statctl", **other)
        assert unknown.code == 2 and "other.lab is in no --tls-principal" in unknown.err, unknown.err
        env = collector.environment(**me)
        removed = run_command([str(STATCTL), "rm", "one", "--yes"], env=env)
        assert removed.code == 0, removed.err
        audit = run_command([str(STATCTL), "audit", "--method", "DeleteRun", "--format", "json"], env=env)
        assert [row["principal"] for row in audit.json()["records"]] == ["certificate me.lab"], audit.err

        def https(name: str) -> int:
            connection = collector.https(certs, tmp_path / name)
            connection.request("GET", "/api/v1/runs")
            return connection.getresponse().status

        assert [https(name) for name in ("me.lab", "rank7.gpu", "other.lab")] == [200, 403, 401]
    finally:
        collector.stop()


def test_bad_principals_stop_the_start(certs: Path, tmp_path: Path) -> None:
    with_ca = [
        "--tls-cert",
        str(certs / "server.pem"),
        "--tls-key",
        str(certs / "server.key"),
        "--tls-client-ca",
        str(certs / "ca.pem"),
    ]
    for flags, word in (
        (["--tls-principal", "rank7=ingest"], "--tls-client-ca"),
        ([*with_ca, "--tls-principal", "rank7=root"], "not a scope"),
        ([*with_ca, "--tls-principal", "rank7"], "no NAME="),
    ):
        refused = run_command(
            [str(STATCOLLECTORD), "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--http", "off", *flags]
        )
        assert refused.code == 2 and word in refused.err, refused.err


def handshake(address: str, version: str, typed: str, certs: Path, *, first: bytes = b"") -> str:
    """What openssl's client says while the keys are typed into it: R negotiates again (TLS 1.2), K updates keys (TLS 1.3).

    `first` is what the server sends of its own accord. It is waited for: a record that crosses the client's R is an error
    of the client's, whatever the server answers.
    """
    client = subprocess.Popen(
        ["openssl", "s_client", "-connect", address, version, "-CAfile", str(certs / "ca.pem"), "-alpn", "h2,http/1.1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
    )  # fmt: skip
    typing, output = client.stdin, client.stdout
    assert typing is not None and output is not None
    said = b""
    patience = threading.Timer(20, client.kill)
    patience.start()

    def read_until(pattern: bytes, start: int) -> None:
        nonlocal said
        while not re.search(pattern, said[start:], re.DOTALL):
            more = output.read(4096)
            if not more:
                return
            said += more

    try:
        read_until(rb"Verify return code.*(---|read R BLOCK)\n.*" + re.escape(first), 0)
        for key in typed:
            start = len(said)
            typing.write(f"{key}\n".encode())
            read_until(rb"no.renegotiation|unexpected record" if key == "R" else rb"KEYUPDATE", start)
        typing.close()
        read_until(rb"\Z.", 0)  # to the end
    except BrokenPipeError:
        read_until(rb"\Z.", 0)
    finally:
        patience.cancel()
        client.kill()
        client.wait()
    return said.decode(errors="replace")


def test_nobody_negotiates_again_on_an_open_connection(tmp_path: Path, certs: Path) -> None:
    older = Secured(tmp_path / "data", certs, "--tls-min", "1.2")
    older.start()
    try:
        # gRPC's first frame are its settings: type 4, no flags, stream 0.
        for address, first in ((older.http, b""), (older.address, b"\x04\0\0\0\0\0")):
            refused = handshake(address, "-tls1_2", "R", certs, first=first)
            assert "Protocol  : TLSv1.2" in refused and "RENEGOTIATING" in refused, refused
            assert re.search("no.renegotiation", refused.split("RENEGOTIATING")[1]), refused
            # TLS 1.3 has updates of keys instead, which cost no handshake.
            kept = handshake(address, "-tls1_3", "KK", certs, first=first)
            assert "TLSv1.3" in kept and kept.count("KEYUPDATE") == 2 and "error" not in kept.split("KEYUPDATE")[1], kept
        assert older.runs().code == 0
    finally:
        assert older.stop() == 0
