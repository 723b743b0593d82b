"""Mistakes of real trainings: `root.cause` says what was done, names the run that did it, and lists every cause that holds."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Collector

TRAIN = """
import sys
import torch
from torch import nn
import statagent

run, mistake = sys.argv[1:]
torch.manual_seed(1)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16)
        self.down = nn.ModuleDict({"default": nn.Linear(16, 4, bias=False)})
        self.up = nn.ModuleDict({"default": nn.Linear(4, 16, bias=False)})
        self.scaling = {"default": 2.0}

    def forward(self, x):
        return self.base(x) + self.up["default"](self.down["default"](x)) * self.scaling["default"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.norm1, self.adapted, self.norm2 = nn.LayerNorm(16), Adapted(), nn.LayerNorm(16)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens, labels):
        x = self.norm2(torch.tanh(self.adapted(self.norm1(self.embed(tokens)))))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


model = Model()
if mistake == "adapter":
    model.adapted.scaling["default"] = 16.0
norms = [p for n, p in model.named_parameters() if "norm" in n]
rest = [p for n, p in model.named_parameters() if "norm" not in n]
if mistake == "decay":
    norms, rest = norms[:1], rest + norms[1:]
rate, decay = (0.02, 0.2) if mistake == "two settings" else (0.01, 0.1)
optimizer = torch.optim.AdamW([{"params": rest, "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}], lr=rate)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
statagent.init(run=run)
statagent.watch(model, optimizer=optimizer, eval=True, scaler=scaler)
data = torch.Generator().manual_seed(3)
for step in range(4):
    tokens = torch.randint(32, (4, 9), generator=data)
    labels = tokens[:, 1:]
    if mistake == "shift":
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=0)
    if mistake != "no train":
        model.train()
    scaler.scale(model(tokens=tokens[:, :-1], labels=labels)).backward()
    if mistake != "clip scaled":
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step == 1:
        model.eval()
        with torch.no_grad():
            model(tokens=tokens[:, :-1], labels=labels)
statagent.close()
"""
MISTAKES = {
    "shift": ("same_samples", "labels differs at step 0 while tokens of the same batch agrees bit for bit"),
    "no train": ("evaluation_mode", "b was left in evaluation mode after step 1 (eval() without train())"),
    "adapter": ("module_setting", "scaling[default] is 2.0 in a and 16.0 in b (adapted)"),
    "decay": ("group_tensors", "(weight_decay 0.1) has 7 tensors in a and 10 in b, group 1 (weight_decay 0.0) has 4 and 1"),
    "clip scaled": ("clip_norm", "those of b have a norm of 0.1 times 1 / 1024, the loss scale"),
}


def name_of(mistake: str) -> str:
    return f"b-{mistake}".replace(" ", "-")


@pytest.fixture(scope="module")
def runs(shared_collector: Collector) -> Collector:
    shared_collector.python(TRAIN, "a", "")
    for mistake in MISTAKES:
        shared_collector.python(TRAIN, name_of(mistake), mistake)
    return shared_collector


def root_of(runs: Collector, mistake: str) -> Any:
    return runs.diff("a", name_of(mistake))["root"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_cause_is_what_was_done(runs: Collector, mistake: str) -> None:
    rule, text = MISTAKES[mistake]
    root = root_of(runs, mistake)
    assert root["cause"] == root["causes"][0], root
    assert root["cause"]["rule"] == rule, root
    assert text in root["cause"]["text"].replace(name_of(mistake), "b"), root


def test_the_same_samples_are_not_blamed_on_the_data_loader(runs: Collector) -> None:
    told = runs.statctl("diff", "a", "b-shift").out
    assert "random numbers" not in told and "check the data loader" not in told, told
    assert "look at how labels is made" in told, told


LEFT_IN_EVALUATION = """
import sys, torch, statagent
from torch import nn

run, trains = sys.argv[1], sys.argv[2] == "trains"
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(32, 16), nn.Dropout(0.1), nn.Linear(16, 32)

    def forward(self, tokens, labels):
        return nn.functional.cross_entropy(self.head(self.drop(self.embed(tokens))).flatten(0, 1), labels.flatten())


model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
statagent.init(run=run)
statagent.watch(model, optimizer=optimizer)
data = torch.Generator().manual_seed(3)
for step in range(4):
    tokens = torch.randint(32, (4, 9), generator=data)
    if trains:
        model.train()
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        model.eval()
statagent.close()
"""


def test_a_model_left_in_evaluation_is_the_root_and_not_its_batch(shared_collector: Collector) -> None:
    for run in ("trains", "evaluates"):
        shared_collector.python(LEFT_IN_EVALUATION, run, run)
    root = shared_collector.diff("trains", "evaluates")["root"]
    assert (root["step"], root["stage"], root["activation"]) == (2, "forward", "Model"), root
    assert root["cause"]["rule"] == "evaluation_mode", root
    told = shared_collector.statctl("diff", "trains", "evaluates").out
    assert told.startswith("DIVERGED at step 2, rank 0, forward, Model"), told


def test_every_setting_that_holds_is_listed(runs: Collector) -> None:
    runs.python(TRAIN, "both", "two settings")
    causes = runs.diff("a", "both")["root"]["causes"]
    assert [cause["rule"] for cause in causes] == ["learning_rate", "weight_decay"], causes
    assert "Causes: (1) learning rate of group 0 is 0.01 in a and 0.02 in both" in runs.statctl("diff", "a", "both").out
