"""The trackers themselves: W&B offline, MLflow with a server of its own, Trackio's local store. Each needs its package, which
scripts/setup.sh does not install; test_trackers.py has the details, with stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Collector, address_of, agent_environment, reserved_port, run_command
from test_trackers import TRAIN


@pytest.fixture
def training(collector: Collector) -> Callable[..., None]:
    """Records a run under an active one of the tracker, or `plain`."""

    def run(tracker: str, factor: str, **variables: str) -> None:
        env = collector.environment(**variables, PYTHONPATH=str(ROOT / "agent/python"))
        done = run_command([sys.executable, "-c", TRAIN, tracker, factor], env=env, cold=True)
        assert done.code == 0, done.err

    run("none", "1")
    return run


def publish(collector: Collector, tracker: str, run: str, **variables: str) -> str:
    """What it says of where the verdict is."""
    env = {**agent_environment(), **variables, "PYTHONPATH": str(ROOT / "client/python")}
    command = [sys.executable, "-m", "statcollect", "publish", tracker, "plain", run, "--collector", collector.http]
    done = run_command(command, env=env, cold=True)
    assert done.code == 1 and done.out.startswith("DIVERGED (possible) at step 2"), done
    return done.err.splitlines()[-1]


def test_wandb_offline(collector: Collector, training: Callable[..., None], tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    variables = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    training("wandb", "2", **variables)
    run = collector.json("show", "Fine-run-7")["config"]["tracker.wandb.run"]
    assert run.startswith("p/")
    assert publish(collector, "wandb", "Fine-run-7", **variables) == f"published to W&B run {run}"
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob(f"*{run.removeprefix('p/')}.wandb"))
    for text in (
        b"statcollect.verdict",
        b"DIVERGED",
        b"statcollect.headline",
        b"statcollect, Fine-run-7 against plain: DIVERGED",
    ):
        assert text in kept, text


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("mlflow")
    port = reserved_port()
    address = address_of(port)
    command = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path}/store.db", "--workers", "1",
        "--default-artifact-root", str(tmp_path), "--host", "127.0.0.1", "--port", address.rpartition(":")[2],
    ]  # fmt: skip
    env = {**os.environ, "HOME": str(tmp_path), "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://{address}/health", timeout=1):
                    break
            except OSError:
                assert server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)
        yield f"http://{address}"
    finally:
        os.killpg(server.pid, 15)
        server.wait()


def test_mlflow_with_a_server(collector: Collector, training: Callable[..., None], mlflow_server: str) -> None:
    variables = {"MLFLOW_TRACKING_URI": mlflow_server, "MLFLOW_DISABLE_TELEMETRY": "true"}
    training("mlflow", "3", **variables)
    run = collector.json("show", "Fine-run-8")["config"]["tracker.mlflow.run"]
    assert publish(collector, "mlflow", "Fine-run-8", **variables) == f"published to MLflow run {run}"
    with urllib.request.urlopen(f"{mlflow_server}/api/2.0/mlflow/runs/get?run_id={run}") as answer:
        tags = {tag["key"]: tag["value"] for tag in json.load(answer)["run"]["data"]["tags"]}
    assert tags["statcollect.verdict"] == "DIVERGED" and tags["statcollect.against"] == "plain"
    assert tags["mlflow.note.content"].startswith("statcollect, Fine-run-8 against plain: DIVERGED")


def test_trackio_on_this_machine(collector: Collector, training: Callable[..., None], tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    variables = {"TRACKIO_DIR": str(tmp_path), "HOME": str(tmp_path)}
    training("trackio", "2", **variables, STATAGENT_RUN="other")
    assert publish(collector, "trackio:p/fine", "other", **variables) == "published to Trackio run p/fine"
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*.db*"))
    assert b"statcollect/verdict" in kept and b"DIVERGED" in kept
