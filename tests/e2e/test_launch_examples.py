"""examples/launch: two nodes on this machine under one run; Slurm's two programs are stand-ins that only hand out node numbers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from clickhouse_server import free_port
from conftest import BUILD, ROOT, STATCOLLECTORD, WARM, Collector, agent_environment

LAUNCH = ROOT / "examples/launch"
TRAIN = """
import statagent, torch
from torch import distributed
distributed.init_process_group("gloo")
statagent.init(required=True)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
statagent.watch(net, optimizer=optimizer)
for step in range(3):
    torch.manual_seed(10 * step + distributed.get_rank())
    net(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
assert statagent.close(timeout=20)
distributed.destroy_process_group()
"""


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    path = f"{tmp_path / 'bin'}:{BUILD / 'bin'}:{os.environ['PATH']}"
    warm = WARM.stand_in()
    return agent_environment(
        PATH=path, PYTHON=warm["PYTHON_EXEC"], STATCOLLECT_DATA=str(tmp_path / "data"), STATCOLLECT_TLS=str(tmp_path / "tls" / "node"), COLLECTOR_PORT=str(free_port()),
        MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo", **warm, **extra,
    )  # fmt: skip


def expect_one_run_of_two_ranks(tmp_path: Path) -> None:
    """In the collector's data, after the scripts have stopped it."""
    kept = Collector(tmp_path / "data").start()
    try:
        shown = kept.json("show", "base")
        assert len(shown["attempts"]) == 1 and shown["summary"]["ranks"] == 2 and shown["summary"]["steps"] == 3
        assert shown["summary"]["state"] == "finished" and shown["summary"]["dropped"] == 0
    finally:
        kept.stop()


def test_torchrun_on_two_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    env = environment(tmp_path, NODES="2", MAIN="127.0.0.1")
    nodes = [
        subprocess.Popen(
            [LAUNCH / "torchrun.sh", "base", str(tmp_path / "train.py")], env={**env, "NODE_RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    for node in reversed(nodes):
        out = node.communicate(timeout=120)[0]
        assert node.returncode == 0, out
    assert (tmp_path / "tls" / "node" / "client.key").stat().st_mode & 0o777 == 0o600, "they spoke mutual TLS"
    expect_one_run_of_two_ranks(tmp_path)


def test_slurm_starts_one_task_a_node(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    stand_ins = {
        "scontrol": 'echo 127.0.0.1; echo "another"',
        "srun": 'shift; for n in 0 1; do SLURM_NODEID=$n "$@" & done; failed=0; for _ in 0 1; do wait -n || failed=1; done; exit $failed',
    }
    for name, text in stand_ins.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    env = environment(tmp_path, SLURM_JOB_NODELIST="node[0-1]", SLURM_JOB_NUM_NODES="2", SLURM_JOB_ID="7")
    done = subprocess.run(
        [LAUNCH / "slurm.sh", "base", str(tmp_path / "train.py")],
        env=env,
        text=True,
        capture_output=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expect_one_run_of_two_ranks(tmp_path)


def test_a_collector_that_cannot_start_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    env = environment(tmp_path)
    done = subprocess.run(
        [LAUNCH / "torchrun.sh", "base", "train.py"], env=env, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "make folder" in done.stderr and "it ended" in done.stderr, done.stderr


@pytest.mark.parametrize("script", ["torchrun.sh", "slurm.sh"])
def test_the_scripts_explain_themselves(script: str) -> None:
    done = subprocess.run([LAUNCH / script], text=True, capture_output=True, timeout=20, check=False)
    assert done.returncode == 2 and "Usage" in done.stderr


def test_alert_rules_name_metrics_that_exist(collector: Collector) -> None:
    """And nothing else: an expression over a metric that is not there never fires."""
    yaml = pytest.importorskip("yaml")
    groups = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    served = set(re.findall(r"^# TYPE (\w+)", collector.get("/metrics"), re.MULTILINE))
    for rule in rules:
        assert {"summary", "description"} == set(rule["annotations"])
        named = set(re.findall(r"\bstatcollect_\w+", rule["expr"]))
        assert named <= served, rule["alert"]
        assert named or "up{" in rule["expr"], rule["alert"]
    assert STATCOLLECTORD.is_file()
