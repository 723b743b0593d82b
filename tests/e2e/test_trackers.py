"""Trackers: the name of a run from an active one, and `python -m statcollect publish`. The trackers are stand-ins, which
keep to disk what they are told: the packages are 60 MB each, and transformers would log to them."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, STATCTL, Collector, Finished, agent_environment, run_command

STAND_INS = {
    "wandb": """
import json, os
run = None

class Settings:
    def __init__(self, **options): pass

class Run:
    def __init__(self, entity, project, id, name, notes):
        self.entity, self.project, self.id, self.name, self.notes, self.summary = entity, project, id, name, notes, {}

    def finish(self):
        global run
        with open(os.environ["WANDB_DIR"] + "/" + self.id + ".json", "w") as file:
            json.dump({"summary": self.summary, "notes": self.notes}, file)
        run = None

def init(entity=None, project=None, id="cpm2rgc5", name=None, resume=None, settings=None):
    global run
    path = os.environ["WANDB_DIR"] + "/" + id + ".json"
    notes = json.load(open(path))["notes"] if os.path.exists(path) else "mine"
    run = Run(entity, project, id, name, notes)
    return run
""",
    "mlflow": """
import json, os, types
_active = None

class _Run:
    def __init__(self, run_id, run_name=None, tags=None):
        self.info = types.SimpleNamespace(run_id=run_id, run_name=run_name)
        self.data = types.SimpleNamespace(tags=tags or {})

def start_run(run_name=None):
    global _active
    _active = _Run("df2c76865b", run_name)

def active_run():
    return _active

class MlflowClient:
    def get_run(self, run_id):
        path = os.environ["MLFLOW_DIR"] + "/" + run_id
        return _Run(run_id, tags=json.load(open(path)) if os.path.exists(path) else {})

    def set_tag(self, run_id, name, value):
        tags = {**self.get_run(run_id).data.tags, name: value}
        with open(os.environ["MLFLOW_DIR"] + "/" + run_id, "w") as file:
            json.dump(tags, file)
""",
}
TRAIN = """
import sys
import numpy
import statagent

tracker, factor = sys.argv[1], float(sys.argv[2])
if tracker == "wandb":
    import wandb
    wandb.init(project="p", name="Fine run #7")
elif tracker == "mlflow":
    import mlflow
    mlflow.start_run(run_name="Fine run #8")
statagent.init(run=None if tracker != "none" else "plain")
for step in range(3):
    statagent.inspect("x", numpy.ones(4, numpy.float32) * numpy.float32(factor if step > 1 else 1.0))
    statagent.step()
statagent.close()
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a process that has the stand-ins."""
    folder = tmp_path_factory.mktemp("trackers")
    for name, text in STAND_INS.items():
        (folder / f"{name}.py").write_text(text)
    return {"WANDB_DIR": str(folder), "MLFLOW_DIR": str(folder), "TRACKERS": str(folder)}


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector, variables: dict[str, str]) -> Collector:
    path = f"{ROOT / 'agent/python'}{os.pathsep}{variables['TRACKERS']}"
    env = shared_collector.environment(**variables, PYTHONPATH=path)
    for tracker, factor in (("none", "1"), ("wandb", "2"), ("mlflow", "3")):
        done = run_command([sys.executable, "-c", TRAIN, tracker, factor], env=env, cold=True)
        assert done.code == 0, done.err
    return shared_collector


def publish(
    collector: Collector, variables: dict[str, str], b: str, to: str, folder: Path | None = None, **more: str
) -> Finished:
    path = f"{ROOT / 'client/python'}{os.pathsep}{folder or variables['TRACKERS']}"
    env = {**agent_environment(), **variables, "PYTHONPATH": path, **more}
    command = [sys.executable, "-m", "statcollect", "publish", to, "plain", b, "--collector", collector.http]
    return run_command(command, env=env, cold=True)


def test_a_run_without_a_name_has_that_of_the_tracker(recorded: Collector) -> None:
    runs = {run["run"] for run in recorded.json("runs")["runs"]}
    assert runs == {"plain", "Fine-run-7", "Fine-run-8"}
    config = recorded.json("show", "Fine-run-7")["config"]
    assert config["tracker.wandb.run"] == "p/cpm2rgc5" and "tracker.mlflow.run" not in config
    assert not any(key.startswith("tracker") for key in recorded.json("show", "plain")["config"])
    compared = recorded.json("config", "plain", "Fine-run-7", codes=(0, 1))["items"]
    assert not [item["key"] for item in compared if item["key"].startswith("tracker")], "which tracker is no difference"


def test_the_lines_of_trackers_md_record_a_run_of_that_name(collector: Collector, variables: dict[str, str]) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/trackers.md").read_text(encoding="utf-8"), re.DOTALL)
    path = f"{ROOT / 'agent/python'}{os.pathsep}{variables['TRACKERS']}"
    program = f"import statagent, wandb\n{lines}statagent.log_scalar('loss', 1.0)\nstatagent.close(timeout=30)\n"
    done = run_command([sys.executable, "-c", program], env=collector.environment(**variables, PYTHONPATH=path), cold=True)
    assert done.code == 0, done.err
    assert [run["run"] for run in collector.json("runs")["runs"]] == ["base"]


def test_the_verdict_goes_to_wandb_as_summary_and_note(recorded: Collector, variables: dict[str, str]) -> None:
    for _ in range(2):
        done = publish(recorded, variables, "Fine-run-7", "wandb")
        assert done.code == 1 and done.err == "published to W&B run p/cpm2rgc5\n", done
        assert done.out.startswith("DIVERGED (possible) at step 2"), done
    kept = json.loads((Path(variables["WANDB_DIR"]) / "cpm2rgc5.json").read_text())
    assert kept["summary"]["statcollect.verdict"] == "DIVERGED" and "step 2" in kept["summary"]["statcollect.headline"]
    assert kept["summary"]["statcollect.link"] == f"http://{recorded.http}/?view=compare&a=plain&b=Fine-run-7"
    first, second = kept["notes"].splitlines()
    assert first == "mine" and second.startswith("statcollect, Fine-run-7 against plain: DIVERGED (possible) at step 2"), (
        "not once per call"
    )


def test_the_verdict_goes_to_mlflow_as_tags_and_note(recorded: Collector, variables: dict[str, str]) -> None:
    done = publish(recorded, variables, "Fine-run-8", "mlflow")
    assert done.code == 1 and "published to MLflow run df2c76865b" in done.err, done
    tags = json.loads((Path(variables["MLFLOW_DIR"]) / "df2c76865b").read_text())
    assert tags["statcollect.verdict"] == "DIVERGED" and tags["statcollect.against"] == "plain"
    assert tags["mlflow.note.content"].startswith("statcollect, Fine-run-8 against plain: DIVERGED")
    same = publish(recorded, variables, "plain", "mlflow:df2c76865b")
    assert same.code == 0, same
    assert (
        "plain against plain: IDENTICAL"
        in json.loads((Path(variables["MLFLOW_DIR"]) / "df2c76865b").read_text())["mlflow.note.content"]
    )


def test_statctl_diff_publishes_what_it_has_shown(recorded: Collector, variables: dict[str, str]) -> None:
    env = agent_environment(**variables, PYTHONPATH=variables["TRACKERS"], STATCTL_PYTHON=sys.executable)

    def diff(*words: str) -> Finished:
        return run_command([str(STATCTL), "--collector", recorded.address, "diff", *words], env=env)

    done = diff("plain", "Fine-run-8", "--publish", "mlflow")
    assert done.code == 1 and "published to MLflow run df2c76865b" in done.err, done
    shown = done.out.partition(" ")[2].splitlines()[0]
    path = Path(variables["MLFLOW_DIR"]) / "df2c76865b"
    tags = json.loads(path.read_text())
    assert tags["statcollect.verdict"] == "DIVERGED" and tags["statcollect.headline"].startswith(shown[:40])
    assert tags["statcollect.link"] == f"http://{recorded.http}/?view=compare&a=plain&b=Fine-run-8"
    with_options = diff("plain", "Fine-run-8", "--step", "0-1", "--publish", "mlflow", "--format", "json")
    assert with_options.code == 0 and json.loads(with_options.out)["verdict"] == "identical", with_options
    tags = json.loads(path.read_text())
    assert tags["statcollect.verdict"] == "IDENTICAL", "of the comparison that was asked for"
    assert "steps=0-1" in tags["statcollect.link"]

    wrong = diff("plain", "Fine-run-8", "--publish", "comet")
    assert wrong.code == 2 and "found tracker 'comet'; expected wandb, mlflow or trackio" in wrong.err and not wrong.out
    missing = diff("plain", "Fine-run-8", "--publish", "trackio:p/x")
    assert missing.code == 2 and "pip install trackio" in missing.err and "DIVERGED" in missing.out, "the answer comes first"
    unknown = diff("Fine-run-8", "plain", "--publish", "mlflow")
    assert unknown.code == 2 and "recorded without an active mlflow run" in unknown.err and "DIVERGED" in unknown.out


def test_trackers_that_are_not_there_or_hang_are_clear_errors(
    recorded: Collector, variables: dict[str, str], tmp_path: Path
) -> None:
    assert "expected wandb, mlflow, trackio" in publish(recorded, variables, "plain", "comet").err
    missing = publish(recorded, variables, "plain", "trackio:p/x", tmp_path)
    assert missing.code == 2 and "pip install trackio" in missing.err and "IDENTICAL" in missing.out, "the answer comes first"
    unknown = publish(recorded, variables, "Fine-run-7", "mlflow")
    assert unknown.code == 2 and "recorded without an active mlflow run" in unknown.err and "name it: mlflow:RUN" in unknown.err
    (tmp_path / "mlflow.py").write_text("import time\nclass MlflowClient:\n    def get_run(self, run_id): time.sleep(600)\n")
    began = time.monotonic()
    hangs = publish(recorded, variables, "plain", "mlflow:x", tmp_path, STATCOLLECT_PUBLISH_SECONDS="1")
    assert hangs.code == 2 and "no answer within 1 s" in hangs.err and time.monotonic() - began < 30
    (tmp_path / "mlflow.py").write_text("class MlflowClient:\n    def get_run(self, run_id): raise OSError('refused\\x1b[2J')\n")
    fails = publish(recorded, variables, "plain", "mlflow:x", tmp_path)
    assert fails.code == 2 and r"OSError: refused\x1b[2J" in fails.err and "Traceback" not in fails.err


BROKEN = """
import sys, types
sys.modules["wandb"], sys.modules["mlflow"] = types.ModuleType("wandb"), types.ModuleType("mlflow")
sys.modules["mlflow"].active_run = lambda: 1 / 0
import statagent
try:
    statagent.init()
except statagent.StatagentError as error:
    print(error)
"""


def test_a_tracker_of_another_version_is_as_none(shared_collector: Collector) -> None:
    done = run_command([sys.executable, "-c", BROKEN], env=shared_collector.environment(), cold=True)
    assert "the run has no name" in done.out
