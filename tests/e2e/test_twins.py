"""statctl twins: a training is run again with noise, and its twins are kept with it. Real training and collector."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SMALL, STATCTL, TRAIN, WARM, Collector, Finished, run_command, torchrun, wait_until

SCRIPT = """
import sys, torch, statagent
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
statagent.init(required=True, run=sys.argv[1] if len(sys.argv) > 1 else None)
statagent.watch(model, optimizer=optimizer)
for step in range(4):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    loss = model(x).square().mean()
    statagent.log_scalar("loss", loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", flush=True)
statagent.close(timeout=20)
"""
TRAINING = ("python", "-c", SCRIPT)


@pytest.fixture(scope="module")
def base(shared_collector: Collector) -> Collector:
    shared_collector.python(SCRIPT, env={"STATAGENT_RUN": "base"})
    return shared_collector


def twins(collector: Collector, *arguments: str, options: tuple[str, ...] = (), timeout: float = 300) -> Finished:
    env = {**collector.environment(), "STATCTL_COLLECTOR": collector.address}
    env.pop("STATAGENT_COLLECTOR")  # statctl's own is passed on
    return run_command([str(STATCTL), *options, "twins", *arguments], env=WARM.on_path(env), timeout=timeout)


def names(collector: Collector, *arguments: str) -> list[str]:
    return [run["run"] for run in collector.json("runs", *arguments)["runs"]]


def test_two_twins_are_recorded_listed_skipped_recorded_again_and_removed(base: Collector) -> None:
    done = twins(base, "base", "--quick", "--", *TRAINING)
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert lines[0] == "twin 1 of 2: 'base.twin-1-1' (1 ulp, seed 1) is being recorded"
    assert "twin 2 of 2: 'base.twin-1-2' (1 ulp, seed 2) is being recorded" in lines
    assert lines.count("trained") == 2 and "trained" not in done.out
    assert "statctl diff base OTHER measures the rounding of 'base' with these twins from now on." in done.out

    runs = {run["run"]: run for run in base.json("runs", "--twins")["runs"]}
    assert [runs[name]["twin_of"] for name in ("base", "base.twin-1-1", "base.twin-1-2")] == ["", "base", "base"]
    assert runs["base.twin-1-1"]["records"] == runs["base"]["records"] and runs["base.twin-1-1"]["state"] == "finished"
    assert not [name for name in names(base) if "twin" in name]
    assert "base (+2 twins)" in base.statctl("runs").out
    listed = [line.split()[0] for line in base.statctl("runs", "--twins").out.splitlines() if line]
    assert listed[listed.index("base") + 1 :][:2] == ["base.twin-1-1", "base.twin-1-2"]
    config = base.json("show", "base.twin-1-2")["config"]
    assert {key: config[f"recording.{key}"] for key in ("perturb", "perturb_seed", "perturb_mode", "perturb_base")} == {
        "perturb": "1", "perturb_seed": "2", "perturb_mode": "leaf", "perturb_base": "base",
    }  # fmt: skip
    assert base.diff("base", "base.twin-1-1", "--exact")["verdict"] == "diverged", "there is noise"
    assert base.statctl("diff", "base", "base.twin-1-1").code == 0, "and it is rounding"

    again = twins(base, "base", "--quick", "--", "false")
    assert again.code == 0 and "twin 1 of 2: 'base.twin-1-1' exists (finished, " in again.err and "--again" in again.err
    replaced = twins(base, "base", "--quick", "--again", "--", *TRAINING, options=("--format", "json", "--quiet"))
    assert replaced.code == 0 and replaced.err == ""
    assert [(twin["run"], twin["recorded"], twin["steps"]) for twin in replaced.json()["twins"]] == [
        ("base.twin-1-1", True, 4), ("base.twin-1-2", True, 4),
    ]  # fmt: skip

    base.python(SCRIPT, env={"STATAGENT_RUN": "other"})
    base.python(SCRIPT, env={"STATAGENT_RUN": "other", "STATAGENT_PERTURB": "1"})
    removed = base.statctl("rm", "base", "--yes")
    assert "2 twins of it stay, such as 'base.twin-1-1'" in removed.err
    assert [name for name in names(base) if name.startswith("base")] == ["base.twin-1-1", "base.twin-1-2"], "no base hides them"
    assert base.statctl("rm", "other", "--yes", "--twins").code == 0
    assert not [name for name in names(base, "--twins") if name.startswith("other")]


def test_a_twin_has_the_steps_and_the_mode_that_were_asked_for(base: Collector) -> None:
    base.python(SCRIPT, env={"STATAGENT_RUN": "asked"})
    done = twins(base, "asked", "--quick", "--once", "--steps", "0-1", "--", *TRAINING)
    assert done.code == 0, done.err
    shown = base.json("show", "asked.twin-1-1")
    assert shown["summary"]["steps"] == 2 and shown["config"]["recording.perturb_mode"] == "once"


def test_the_ladder_has_three_more_sizes(base: Collector) -> None:
    base.python(SCRIPT, env={"STATAGENT_RUN": "tall"})
    done = twins(base, "tall", "--steps", "0", "--", *TRAINING, options=("--format", "json"))
    assert [twin["run"] for twin in done.json()["twins"]] == [
        "tall.twin-1-1", "tall.twin-1-2", "tall.twin-32-1", "tall.twin-1024-1", "tall.twin-32768-1",
    ]  # fmt: skip


def test_twins_of_two_ranks(collector: Collector) -> None:
    collector.train("ddp")
    done = twins(collector, "ddp", "--quick", "--steps", "0-1", "--", "python", *torchrun(2, str(TRAIN), *SMALL)[1:])
    assert done.code == 0, done.err
    shown = collector.json("show", "ddp.twin-1-1")["summary"]
    assert shown["ranks"] == 2 and shown["steps"] == 2
    assert (
        collector.json("ranks", "ddp.twin-1-1", codes=(0, 1))["verdict"]
        == collector.json("ranks", "ddp", codes=(0, 1))["verdict"]
    )


def test_a_command_that_fails_ends_it_and_names_the_twin(base: Collector) -> None:
    base.python(SCRIPT, env={"STATAGENT_RUN": "failing"})
    failing = (sys.executable, "-c", "import sys; print('line 1'); print('why it failed', file=sys.stderr); sys.exit(7)")
    loud = twins(base, "failing", "--", *failing)
    assert loud.code == 2 and loud.out == "" and "line 1\n" in loud.err and "twin 2" not in loud.err
    assert loud.err.splitlines()[-1] == (
        "statctl: twins failing: twin 1 of 5: the command ended with exit code 7 while it trained 'failing.twin-1-1'; expected 0; "
        "its last output is above; mend it and run this again: twins that exist are skipped"
    )
    silent = twins(base, "failing", "--", *failing, options=("--quiet",))
    assert silent.code == 2 and "line 1\nwhy it failed\n" in silent.err.replace(
        "why it failed\nline 1\n", "line 1\nwhy it failed\n"
    )


WRONG = {
    "no base": (("missing", "--", "true"), "run 'missing'"),
    "a twin": (("base.twin-1-1", "--", "true"), "is a twin itself; expected the run that it is a twin of: 'base'"),
    "no command": (("base",), "command is required"),
    "no such program": (("tried", "--", "/no/such/program"), "start '/no/such/program': No such file"),
    "steps": (("tried", "--steps", "x", "--", "true"), "x"),
    "nothing recorded": (("tried", "--", "true"), "has recorded nothing of run 'tried.twin-1-1': the command has started no Python"),
    "another name": (("tried", "--", *TRAINING, "elsewhere"), "has recorded nothing of run 'tried.twin-1-1'"),
    "a name": (("a/b", "--", "true"), "a/b"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_an_error_with_a_next_step(base: Collector, case: str) -> None:
    if "tried" not in names(base):
        base.python(SCRIPT, env={"STATAGENT_RUN": "tried"})
    arguments, message = WRONG[case]
    done = twins(base, *arguments)
    assert done.code == 2 and done.out == "" and message in done.err, done.err


def test_ctrl_c_ends_the_command_and_the_rest(base: Collector, tmp_path: Path) -> None:
    base.python(SCRIPT, env={"STATAGENT_RUN": "stopped"})
    begun = tmp_path / "begun"
    script = f"import time, pathlib; pathlib.Path({str(begun)!r}).open('a').write('x'); time.sleep(60)"
    process = subprocess.Popen(
        [str(STATCTL), "--collector", base.address, "twins", "stopped", "--", sys.executable, "-c", script],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_until(begun.exists, 30, "the command")
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err.endswith("statctl: interrupted\n"), err
    assert begun.read_text() == "x"


def test_a_twin_is_never_taken_for_a_program_without_noise(base: Collector) -> None:
    """A program that only logs, or another language's: nothing would be perturbed."""
    done = base.python(
        "import statagent; statagent.init(run='bare', required=True); statagent.log_scalar('loss', 1.0)",
        env={"STATAGENT_PERTURB": "1"},
    )  # fmt: skip
    assert "no model was watched, so nothing of this twin is perturbed" in done.err
