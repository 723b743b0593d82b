"""A run that ended and goes on from a checkpoint, beside one that was never stopped: real training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Collector

STEPS, STOP = 6, 3
# RUN FIRST STEPS LOADED SAVED [late]: trains the steps FIRST..FIRST+STEPS-1 from the checkpoint LOADED ("-": from the beginning), saving one in SAVED
# before each step. late: the model is watched before the checkpoint is loaded and the step is set, with other weights in it.
TRAIN = """
import sys
import torch
from torch import nn
import statagent

run, first, steps, loaded, saved, *how = sys.argv[1:]
torch.manual_seed(1 if not how else 2)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
agent = statagent.init(run=run, if_exists="append", required=True)
if "late" in how:
    statagent.watch(model, optimizer=optimizer)
if loaded != "-":
    state = torch.load(loaded)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
agent.set_step(int(first))
if "late" not in how:
    statagent.watch(model, optimizer=optimizer)
for step in range(int(first), int(first) + int(steps)):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{saved}.{step}")
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    loss = model(x).square().mean()
    statagent.log_scalar("loss", loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert statagent.close(timeout=30)
"""


@pytest.fixture
def folder(collector: Collector, tmp_path: Path) -> Path:
    """With checkpoints of run `whole` and of the first part of run `parts`."""
    collector.python(TRAIN, "whole", "0", str(STEPS), "-", str(tmp_path / "whole"))
    collector.python(TRAIN, "parts", "0", str(STOP), "-", str(tmp_path / "parts"))
    return tmp_path


def go_on(collector: Collector, folder: Path, run: str, checkpoint: str, *how: str) -> Any:
    """Trains the rest of the steps in `run`, and asks."""
    collector.python(TRAIN, run, str(STOP), str(STEPS - STOP), str(folder / checkpoint), str(folder / "second"), *how)
    return collector.diff("whole", run)


def test_weights_loaded_from_a_checkpoint_are_compared_with_what_the_other_run_had(collector: Collector, folder: Path) -> None:
    report = go_on(collector, folder, "parts", f"whole.{STOP}")
    assert report["verdict"] == "identical", report
    (note,) = [note for note in report["notes"] if "launched again" in note]
    assert f"at step {STOP}; its weights as loaded there were compared with those of whole after step {STOP - 1}" in note
    weights = 6
    initial = collector.diff("whole", "parts", "--steps", str(STOP), "--kinds", "weight")
    assert initial["compared"]["records"] == 2 * weights, "as loaded and after the update"


def test_a_stale_checkpoint_is_found_in_the_weights_that_were_loaded(collector: Collector, folder: Path) -> None:
    first = go_on(collector, folder, "parts", f"whole.{STOP - 1}")["first"]
    assert (first["step"], first["stage"], first["activation"], first["mode"]) == (STOP, "weights", "0.weight", "init"), first
    assert first["origin"]


def test_a_run_of_its_own_may_begin_at_the_checkpoint_of_another(collector: Collector, folder: Path) -> None:
    report = go_on(collector, folder, "branch", f"whole.{STOP}")
    assert report["verdict"] == "identical", report
    assert report["steps"] == {"first": STOP, "last": STEPS - 1}


def test_a_model_watched_before_its_checkpoint_is_loaded_says_nothing_wrong(collector: Collector, folder: Path) -> None:
    report = go_on(collector, folder, "parts", f"whole.{STOP}", "late")
    assert report["verdict"] == "identical", report
    assert report["inputs"]["weights"] == "identical"
