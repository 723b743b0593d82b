"""deploy/clickhouse.md as it stands: its configuration, its haproxy, its certificates and tokens, three collectors over one ClickHouse."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, ZooKeeper, free_port, haproxy_program, missing_packages
from conftest import BUILD, ROOT, STATCTL, Collector, agent_environment, run_command, start_python, wait_until
from test_durability import STEADY

PAGE = (ROOT / "deploy" / "clickhouse.md").read_text(encoding="utf-8")
missing = missing_packages(replicated=False, balanced=True)
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them"
)


def block(language: str, containing: str) -> str:
    (found,) = [b for b in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if containing in b]
    return str(found)


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    environment = {**os.environ, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
    for line in block("bash", "tls init").strip().splitlines():
        command = line.replace("/etc/statcollect", str(etc)).replace("collect.example", "localhost")
        subprocess.run(command, shell=True, check=True, env=environment, capture_output=True, timeout=60)
    engine = ClickHouseServer(tmp_path / "engine").start()
    collectors: list[Collector] = []
    haproxy: subprocess.Popen[bytes] | None = None
    try:
        ports = free_ports(8)
        config = block("toml", "data-dir").replace("/etc/statcollect", str(etc))
        config = config.replace("statcollect:PASSWORD@10.0.0.5:8123", f"locked:sesame@{engine.address}")
        for n in range(3):
            folder = tmp_path / f"machine{n + 1}"
            folder.mkdir()
            text = config.replace("/var/lib/statcollect", str(folder / "data"))
            for port, of_page in ((ports[2 * n], 7433), (ports[2 * n + 1], 7434)):
                text = text.replace(f"0.0.0.0:{of_page}", f"127.0.0.1:{port}")
            (folder / "statcollectord.toml").write_text(text)
            collectors.append(
                Collector(folder / "data", address=f"127.0.0.1:{ports[2 * n]}", http=f"127.0.0.1:{ports[2 * n + 1]}",
                          extra=["--config", str(folder / "statcollectord.toml")]).start()
            )  # fmt: skip
        balanced = block("haproxy", "leastconn")
        for n in range(3):
            for port, of_page in ((ports[2 * n], 7433), (ports[2 * n + 1], 7434)):
                balanced = balanced.replace(f"10.0.0.1{n + 1}:{of_page}", f"127.0.0.1:{port}")
        balanced = balanced.replace("bind :7433", f"bind 127.0.0.1:{ports[6]}").replace(
            "bind :7434", f"bind 127.0.0.1:{ports[7]}"
        )
        (tmp_path / "haproxy.cfg").write_text(balanced)
        with (tmp_path / "haproxy.log").open("wb") as log:
            haproxy = subprocess.Popen(
                [str(haproxy_program()), "-db", "-f", str(tmp_path / "haproxy.cfg")], stdout=log, stderr=subprocess.STDOUT
            )
        shared = dict(
            word.replace("/etc/statcollect", str(etc)).split("=", 1)
            for line in block("bash", "torchrun").splitlines() if line.startswith("export") for word in shlex.split(line)[1:]
        )  # fmt: skip
        address = f"localhost:{ports[6]}"
        statctl = [str(STATCTL), "--collector", address, "--format", "json"]
        wait_until(lambda: run_command([*statctl, "runs"], env={**os.environ, **shared}).code == 0, timeout=60, what="an answer")
        steps = 100
        agents = {**agent_environment(**shared), "STATAGENT_COLLECTOR": address, "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "page",
                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}  # fmt: skip
        trainers = [
            start_python(["-c", STEADY, "page", str(steps)], env={**agents, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for rank in range(3)
        ]  # fmt: skip
        time.sleep(2)
        collectors[0].kill()
        for trainer in trainers:
            out, err = trainer.communicate(timeout=120)
            assert trainer.returncode == 0, err
            assert out.split() == [str(steps * 52)] * 2 + ["0"]
        shown = run_command([*statctl, "show", "page"], env={**os.environ, **shared}).json()["attempts"]
        assert len(shown) == 1
        assert [(r["rank"], r["records"]) for r in shown[0]["ranks"]] == [(rank, steps * 52) for rank in range(3)]
        if shutil.which("curl"):
            page = run_command(["curl", "-s", "--cacert", str(etc / "ca.pem"), f"https://localhost:{ports[7]}/healthz"])
            assert page.code == 0 and page.out.strip(), page.err
    finally:
        if haproxy is not None:
            haproxy.terminate()
            haproxy.wait(timeout=20)
        for collector in collectors:
            if collector.process is not None:
                collector.stop()
        engine.kill()


PORTS = "<yandex><tcp_port>{}</tcp_port><interserver_http_port>{}</interserver_http_port></yandex>"


@pytest.mark.skipif(bool(missing_packages(replicated=True)), reason="not installed; scripts/setup.sh --for cluster installs them")
def test_replicas_with_the_configuration_on_the_page(tmp_path: Path) -> None:
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    servers = [ClickHouseServer(tmp_path / f"replica{n}") for n in (1, 2)]
    for n, server in enumerate(servers, start=1):
        config = block("xml", "listen_host").replace("10.0.0.5", "127.0.0.1").replace("replica1", f"replica{n}")
        config = config.replace("<host>10.0.0.4</host><port>2181", f"<host>127.0.0.1</host><port>{zookeeper.port}")
        users = block("xml", "password_sha256_hex").replace("10.0.0.0/8", "127.0.0.0/8")
        for folder, name, text in (
            ("config.d", "a", config),
            ("config.d", "b", PORTS.format(*free_ports(2))),
            ("users.d", "a", users),
        ):
            (server.folder / folder).mkdir(exist_ok=True)
            (server.folder / folder / f"{name}.xml").write_text(text)
    collector: Collector | None = None
    try:
        for started in (zookeeper, *servers):
            started.start()
        (dsn,) = re.findall(r"`(clickhouse://\S+quorum=2)`", PAGE)
        for host, server in zip(("10.0.0.5:8123", "10.0.0.6:8123"), servers, strict=True):
            dsn = dsn.replace(host, server.address)
        collector = Collector(tmp_path / "data", extra=["--store", dsn]).start()
        assert "/statcollect?quorum=2 (fsync)" in collector.ready_line
        curls = [
            line
            for line in "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)).splitlines()
            if "curl" in line
        ]
        assert len(curls) == 2
        found = [
            run_command(shlex.split(line.replace("10.0.0.5:8123", servers[0].address))).out
            for line in curls
            if shutil.which("curl")
        ]
        if found:
            assert found[0].startswith("18.16")
            rows = [line.split("\t") for line in found[1].splitlines()]
            assert [row[1:] for row in rows[1:]] == [["0", "2", "2"]] * 4, rows
        trainer = start_python(["-c", STEADY, "page", "20"], env=collector.environment(), stdout=subprocess.DEVNULL)
        assert trainer.wait(timeout=60) == 0
        assert collector.json("runs")["runs"][0]["records"] == 20 * 52
    finally:
        if collector is not None and collector.process is not None:
            collector.stop()
        for started in (*servers, zookeeper):
            started.kill()
