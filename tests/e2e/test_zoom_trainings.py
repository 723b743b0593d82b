"""Zooms that statctl makes itself: `ab --zoom` and `zoom --train` train again and name the operator. Real trainings and collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import STATCTL, Collector, run_command
from test_front_door import answer, statctl, training_environment

SCRIPT = """
import os, sys, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
eps = float(os.environ.get("EPS", "1e-5"))
class Norm(nn.Module):
    def forward(self, x):
        return F.layer_norm(x, (8,), eps=eps)
model = nn.Sequential(nn.Linear(4, 8), Norm(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 if "--lr" in sys.argv else 1e-3)
if "--break" in sys.argv and os.environ.get("STATAGENT_ZOOM"):
    raise SystemExit(9)
for step in range(8):
    loss = model(torch.randn(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", step + 1)
"""
LINE = "train.py:9"
TRAIN = ["python", "train.py"]
AB = ["ab", "--steps", "4", "--no-twins", "--zoom", "--env-b", "EPS=0.1"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


# --- ab --zoom


def test_ab_trains_both_again_and_names_the_operator_below_the_verdict(work: Path) -> None:
    done = statctl(work, *AB, "--", *TRAIN)
    assert done.code == 1, done.err
    assert done.out.startswith("DIVERGED at step 0, rank 0, forward, 1 (Norm)")
    below = done.out[done.out.index("1, step 0, rank 0, forward: operator 1 of 1 differs") :]
    assert f"{LINE}  in Norm.forward" in below and "eps  1e-05 in ab-a.zoom, 0.1 in ab-b.zoom" in below
    assert "zoom: both are trained again up to step 0, in which every operator of 1 is recorded" in done.err
    for which, run in (("A", "ab-a"), ("B", "ab-b")):
        assert f"zoom of {which}: '{run}.zoom' has 1 steps" in done.err, done.err
    # What is as it was is not trained again.
    again = statctl(work, *AB, "--reuse", "--", *TRAIN)
    assert again.code == 1 and again.out == done.out
    for taken in ("A: 'ab-a' is", "zoom of A: 'ab-a.zoom' is", "zoom of B: 'ab-b.zoom' is"):
        assert f"{taken} as it was last time" in again.err, again.err
    (work / "train.py").write_text(SCRIPT + "# changed\n")
    changed = statctl(work, *AB, "--reuse", "--", *TRAIN)
    assert changed.code == 1 and "as it was last time" not in changed.err


def test_ab_with_a_zoom_as_json_is_the_diff_with_the_zoom_at_its_end(work: Path) -> None:
    done = statctl(work, "--format", "json", *AB, "--", *TRAIN)
    answer = done.json()
    assert done.code == 1 and answer["verdict"] == "diverged" and list(answer)[-1] == "zoom"
    call, _ = answer["zoom"]["calls"]  # the forward pass, then the backward one
    assert (call["module"], call["outcome"], call["a"][0]["place"]) == ("1", "operator", LINE)
    wrong = statctl(work, "--format", "csv", *AB, "--", "touch", "ran")
    assert wrong.code == 2 and "--format csv, which has no place for operators" in wrong.err and not (work / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 0, "no zoom: their diff names no tensor to zoom into (IDENTICAL)"),
        (("---", *TRAIN, "--lr"), 1, "which no forward pass of a module computes"),
        (("--env-b", "EPS=0.1", "--", *TRAIN, "--break"), 1, "zoom of A: the command ended with exit code 9"),
    ],
)
def test_without_a_zoom_the_verdict_and_its_exit_code_stand(work: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    options, command = (arguments[:2], arguments[2:]) if arguments[:1] == ("--env-b",) else ((), ("--", *TRAIN, *arguments))
    done = statctl(work, "ab", "--steps", "2", "--no-twins", "--zoom", *options, *command)
    assert done.code == code and done.out.startswith(("IDENTICAL", "DIVERGED")[code]), done.err
    assert said in done.err, done.err
    assert statctl(work, "--format", "json", "diff", "ab-a", "ab-b").code == code


MASK = """
import sys, torch
from torch import nn
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)
    def forward(self, x):
        scores = x @ x.transpose(-2, -1)
        if "--no-mask" not in sys.argv:
            scores = scores.masked_fill(torch.ones(4, 4).triu(1) > 0, float("-inf"))
        return self.out(scores.softmax(-1) @ x)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), Attention())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(2, 4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_goes_into_the_root_is_looked_for_in_the_module_around_it(work: Path) -> None:
    (work / "mask.py").write_text(MASK)
    train = ["python", "mask.py"]
    done = statctl(work, "ab", "--steps", "1", "--no-twins", "--zoom", "--", *train, "---", *train, "--no-mask")
    assert done.code == 1 and done.out.startswith("DIVERGED at step 0, rank 0, forward, 1.out (Linear)"), done.err
    assert "every operator of 1.out is recorded" in done.err and "every operator of 1 is recorded" in done.err
    assert "masked_fill" in done.out and "mask.py:11" in done.out, done.out


def test_a_training_further_out_that_fails_leaves_the_verdict(work: Path) -> None:
    fails = 'import os\nif os.environ.get("STATAGENT_ZOOM", "").startswith("1@"): raise SystemExit(9)\n'
    (work / "mask.py").write_text(fails + MASK)
    train = ["python", "mask.py"]
    done = statctl(work, "ab", "--steps", "1", "--no-twins", "--zoom", "--", *train, "---", *train, "--no-mask")
    assert done.code == 1 and done.out.startswith("DIVERGED at step 0, rank 0, forward, 1.out (Linear)"), done.err
    assert "zoom of A: the command ended with exit code 9" in done.err, done.err


ROOT = """
import sys, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8))])
    def forward(self, x):
        x = self.first(x) * (1.01 if "--scaled" in sys.argv else 1.0)
        for block in self.blocks:
            x = block(x)
        return x
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_list_of_modules_is_passed_over_on_the_way_to_the_whole_model(work: Path) -> None:
    (work / "root.py").write_text(ROOT)
    train = ["python", "root.py"]
    done = statctl(work, "ab", "--steps", "1", "--no-twins", "--zoom", "--", *train, "---", *train, "--scaled")
    assert done.code == 1 and done.out.startswith("DIVERGED at step 0, rank 0, forward, blocks.0.0 (Linear)"), done.err
    assert [part.split(" is ")[0] for part in done.err.split("every operator of ")[1:]] == ["blocks.0.0", "blocks.0", "Net"], (
        done.err
    )
    assert "aten.mul.Tensor" in done.out and "root.py:10" in done.out, done.out


# --- zoom --train


def test_zoom_trains_both_again_as_they_were_recorded(work: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    # Words that a shell would split, and a variable that affects numbers.
    assert statctl(work, "run", "base", "--", *TRAIN, "--name", "two words\n").code == 0
    assert (
        statctl(work, "run", "ort", "--", "env", "EPS=0.1", *TRAIN, "--name", "it's", CUBLAS_WORKSPACE_CONFIG=":16:8").code == 0
    )
    listed = statctl(work, "zoom", "base", "ort")
    assert listed.code == 2 and "--train" in listed.err
    assert "statctl run ort.zoom -- env EPS=0.1 " in listed.out, listed.out
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    command = [str(STATCTL), "--data-dir", str(work / "data"), "zoom", "base", "ort", "--train", "--yes"]
    done = run_command(command, cwd=elsewhere, env=training_environment())
    assert done.code == 1, done.err
    assert f"A: as 'base' was recorded, in {work}; the environment is that of this shell" in done.err
    assert (
        f"B: as 'ort' was recorded, in {work}; the environment is that of this shell, but for CUBLAS_WORKSPACE_CONFIG=:16:8: "
        in done.err
    )
    assert f"{LINE}  in Norm.forward" in done.out and "eps  1e-05 in base.zoom, 0.1 in ort.zoom" in done.out
    shown: dict[str, Any] = {run: answer(work, "show", run) for run in ("base", "base.zoom", "ort", "ort.zoom")}
    for run in ("base", "ort"):
        first, again = shown[run]["config"], shown[f"{run}.zoom"]["config"]
        assert {first[key] == again[key] for key in ("command_line", "recording.folder")} == {True}
        assert first.get("env.CUBLAS_WORKSPACE_CONFIG") == again.get("env.CUBLAS_WORKSPACE_CONFIG")
        assert shown[f"{run}.zoom"]["summary"]["steps"] == 1
    # How a training was started is no difference of settings.
    settings = {row["key"] for row in statctl(work, "--format", "json", "diff", "base", "ort").json()["inputs"]["config"]}
    assert not {key for key in settings if key.startswith("recording.")}, settings


def test_zoom_asks_before_it_runs_what_the_collector_says(work: Path) -> None:
    for run, eps in (("base", "1e-5"), ("ort", "0.1")):
        assert statctl(work, "run", run, "--", "env", f"EPS={eps}", *TRAIN).code == 0
    done = statctl(work, "zoom", "base", "ort", "--train")
    assert done.code == 2 and "add --yes to run them" in done.err, done.err
    assert f"A: as 'base' was recorded, in {work}; " in done.err and "env EPS=1e-5 " in done.err, done.err
    assert "base.zoom" not in statctl(work, "runs").out, "nothing is trained"
    outside = statctl(work, "zoom", "base", "ort", "--yes")
    assert outside.code == 2 and "--train" in outside.err, outside.err


def test_variables_of_ab_are_given_again(work: Path) -> None:
    assert statctl(work, "ab", "--steps", "2", "--no-twins", "--env-b", "EPS=0.1", "--", *TRAIN).code == 1
    done = statctl(work, "zoom", "ab-a", "ab-b", "--train", "--yes")
    assert done.code == 1 and "eps  1e-05 in ab-a.zoom, 0.1 in ab-b.zoom" in done.out, done.err


def test_zoom_does_not_train_what_it_does_not_know(work: Path) -> None:
    below = work / "below"
    below.mkdir()
    (below / "train.py").write_text(SCRIPT)
    assert statctl(work, "run", "base", "--", *TRAIN).code == 0
    secret = ("--api-key", "c2VjcmV0IHRoYXQgaXMgbG9uZw")
    assert statctl(work, "run", "secret", "--", "env", "EPS=0.1", *TRAIN, *secret).code == 0
    gone = run_command([str(STATCTL), "--data-dir", str(work / "data"), "run", "gone", "--", "env", "EPS=0.1", *TRAIN],
                       cwd=below, env=training_environment())  # fmt: skip
    assert gone.code == 0, gone.err
    (below / "train.py").unlink()
    below.rmdir()
    for run, why in (
        ("secret", "its command has a secret, which is not stored"),
        ("gone", f"its folder, {below}, is not there any more"),
    ):
        done = statctl(work, "zoom", "base", run, "--train", "--yes")
        assert done.code == 2 and f"train '{run}' again: {why}" in done.err and "leave --train out" in done.err, done.err
        assert "base.zoom" not in statctl(work, "runs").out, "nothing is trained"


def test_a_run_that_statctl_has_not_started_has_no_command(collector: Collector, work: Path) -> None:
    for run, eps in (("base", "1e-5"), ("ort", "0.1")):
        watched = SCRIPT.replace("for step", "import statagent\nstatagent.init()\nstatagent.watch(model, optimizer)\nfor step")
        assert collector.python(watched, env={"STATAGENT_RUN": run, "EPS": eps}).code == 0
    done = collector.statctl("zoom", "base", "ort", "--train")
    assert done.code == 2 and "train 'base' again: its command is not known" in done.err, done.err
    assert "THE COMMAND OF base" in collector.statctl("zoom", "base", "ort").out
