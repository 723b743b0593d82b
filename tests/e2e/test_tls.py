"""TLS between real processes: what connects, what is refused and in which words, and that nothing is lost meanwhile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import STATCOLLECTORD, Collector, Finished, run_command, wait_until
from test_connection_limits import acknowledged, training


def make(folder: Path, *hosts: str) -> Path:
    named = [word for host in hosts for word in ("--host", host)]
    done = run_command([str(STATCOLLECTORD), "tls", "init", str(folder), *named])
    assert done.code == 0, done.err
    assert {oct(path.stat().st_mode & 0o777) for path in folder.glob("*.key")} == {"0o600"}
    return folder


def expired(folder: Path) -> None:
    """Another certificate for the server's key, from yesterday."""
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    subprocess.run(
        ["openssl", "req", "-new", "-key", "server.key", "-subj", "/CN=old", "-out", "old.csr"], cwd=folder, check=True
    )
    sign = ["openssl", "x509", "-req", "-in", "old.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    subprocess.run([*sign, "-days", "-1", "-extfile", "names", "-out", "server.pem"], cwd=folder, check=True, capture_output=True)


class Secured(Collector):
    """A collector whose clients have `variables`."""

    def __init__(self, data_dir: Path, certs: Path, *extra: str) -> None:
        super().__init__(data_dir)
        self.extra = ["--tls-cert", str(certs / "server.pem"), "--tls-key", str(certs / "server.key"), *extra]
        self.variables = {"TLS_CA": str(certs / "ca.pem")}

    def environment(self, **extra: str) -> dict[str, str]:
        env = super().environment(**extra)
        for name, value in self.variables.items():
            env |= {f"STATAGENT_{name}": value, f"STATCTL_{name}": value}
        return env

    def runs(self) -> Finished:
        return run_command([str(STATCOLLECTORD.parent / "statctl"), "runs"], env=self.environment())


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


def test_training_and_statctl_over_tls_and_certificates_that_change(secured: Secured, certs: Path, tmp_path: Path) -> None:
    with training(secured, "before"):
        pass
    with training(secured, "steady") as trainer:
        wait_until(lambda: acknowledged(trainer) > 20, what="the first records")
        other = make(tmp_path / "other", "127.0.0.1")
        for name in ("server.key", "server.pem"):  # one after the other: in between they do not match
            os.replace(other / name, certs / name)
        os.replace(other / "ca.pem", certs / "ca.pem")
        wait_until(lambda: secured.runs().code == 0, what="the new certificate, which only the new authority signed")
        before = acknowledged(trainer)
        wait_until(lambda: acknowledged(trainer) > before + 20, what="records on the old connection")
    assert "steady" in secured.runs().out


def test_statctl_says_what_is_wrong(secured: Secured, certs: Path, tmp_path: Path) -> None:
    secured.variables = {"TLS_CA": str(make(tmp_path / "other", "127.0.0.1") / "ca.pem")}
    assert "not signed by an authority that --tls-ca" in secured.runs().err
    secured.variables = {}
    assert "speaks TLS, and this client does not" in secured.runs().err
    secured.variables = {"TLS_CA": str(certs / "nothing.pem")}
    assert "nothing.pem': cannot be read: No such file" in secured.runs().err
    secured.variables = {"TLS_CA": str(certs / "ca.pem")}
    make(certs, "gpu7.example.org")
    wait_until(
        lambda: "is for gpu7.example.org, not for '127.0.0.1'" in secured.runs().err, what="the certificate with another name"
    )


def test_client_certificates(certs: Path, tmp_path: Path) -> None:
    collector = Secured(tmp_path / "data", certs, "--tls-client-ca", str(certs / "ca.pem"))
    collector.start()
    try:
        assert "refuses this client's certificate, or misses one" in collector.runs().err
        collector.variables |= {"TLS_CERT": str(certs / "client.pem"), "TLS_KEY": str(certs / "client.key")}
        assert collector.runs().code == 0
        with training(collector, "mutual"):
            pass
    finally:
        assert collector.stop() == 0


def test_an_expired_certificate_is_refused_at_the_start(certs: Path, tmp_path: Path) -> None:
    expired(certs)
    done = run_command([str(STATCOLLECTORD), "--data-dir", str(tmp_path / "data"), *Secured(tmp_path, certs).extra])
    assert done.code == 2
    assert "the certificate expired on" in done.err
