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
from clickhouse_server import ClickHouseServer, free_port, haproxy_program, missing_packages
from conftest import BUILD, ROOT, STATCTL, Collector, agent_environment, run_command, start_python, wait_until
from test_durability import STEADY

PAGE = (ROOT / "deploy" / "clickhouse.md").read_text(encoding="utf-8")
missing = missing_packages(replicated=False, balanced=True)
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them"
)


def block(language: str, containing: str) -> str:
    (found,) = [b for b in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in b]
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
