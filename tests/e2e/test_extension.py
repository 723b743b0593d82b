"""Hooks in C, by DLPack or torch's methods, and hooks through ctypes record the same, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import ROOT, Collector, agent_environment, run_command

PROGRAM = """
import os, sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import statagent
from statagent._native import host
from statagent._native.tensors import Place

how, run = sys.argv[1], sys.argv[2]
if how != "ctypes":
    host.extension.read_by_methods(how == "methods")
assert (host.extension is None) == (how == "ctypes")
by_python = [0]
borrow = Place.borrow
def counted(*arguments):
    by_python[0] += 1
    return borrow(*arguments)
Place.borrow = counted

torch.manual_seed(0)
torch.set_num_threads(1)

class Does(nn.Module):
    def __init__(self, what, **parts):
        super().__init__()
        self.what = what
        for name, part in parts.items():
            self.add_module(name, part)
    def forward(self, *values):
        return self.what(self, *values)

class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8)
        self.twice = nn.Linear(8, 8)
        self.pair = Does(lambda self, x: (x * 2, {"sum": x.sum(), "half": x.bfloat16()}))
        self.views = Does(lambda self, x: x.t()[1:])
        self.empty = Does(lambda self, x: x[:0])
        self.scalar = Does(lambda self, x: x.mean())
        self.wide = Does(lambda self, x: x.double())
        self.odd = Does(lambda self, x: x.flatten()[1:])
        self.number = Does(lambda self, x: x.argmax(1))
        self.complex = Does(lambda self, x: torch.complex(x, x * 3))
        self.imaginary = Does(lambda self, x: torch.complex(x, x * 3).conj().imag)
        self.same = Does(lambda self, x: x)
        self.frozen = Does(lambda self, x: x.detach())
        self.refused = Does(lambda self, x: x.detach().to_sparse())
        self.kept = Does(lambda self, x: self.inner(x), inner=nn.Linear(8, 8))
        self.again = Does(lambda self, x: self.inner(x), inner=nn.Linear(8, 8))
    def forward(self, x):
        x = self.twice(self.twice(self.norm(self.first(x)).relu()))
        y, more = self.pair(self.same(x))
        x = checkpoint(self.kept, x, use_reentrant=False) + checkpoint(self.again, x, use_reentrant=True)
        for part in (self.views, self.empty, self.scalar, self.wide, self.odd, self.number, self.frozen, self.refused):
            part(x)
        x = x + self.imaginary(x) + self.complex(x).real + self.views(x).sum() + self.odd(x).sum() + self.wide(x).float()
        with torch.no_grad():
            self.twice(x)
        return self.last(x + y + more["sum"] + more["half"].float())

model = Root()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
agent = statagent.init(run=run, required=True, sketch=16, samples=4)
statagent.watch(model, optimizer=optimizer, kinds={"output", "input", "grad_output", "grad_input", "weight", "weight_grad", "optimizer_state"},
    memory=False, eval=True, random_states=False)
for step in range(4):
    for part in range(2 + step % 2):
        batch = torch.randn(4 + step, 6, requires_grad=True)  # layouts change with the step
        model(batch).square().mean().backward()
    model.eval()
    with torch.no_grad():
        model(torch.randn(3, 6))
    model.train()
    optimizer.step()
    optimizer.zero_grad()
print("by Python", by_python[0], "refused", statagent.counters().get("dropped_refused", 0))
assert statagent.flush(30)
statagent.close(30)
"""


@pytest.mark.parametrize("how", ["dlpack", "methods"])
def test_records_are_those_of_hooks_through_ctypes(collector: Collector, tmp_path: Path, how: str) -> None:
    said, tables = {}, {}
    for each in (how, "ctypes"):
        script = tmp_path / "program.py"
        script.write_text(PROGRAM)
        env = collector.environment(STATAGENT_EXTENSION="0" if each == "ctypes" else "1")
        done = run_command([sys.executable, str(script), each, each], env, cold=True)
        assert done.code == 0, done.err
        words = next(line for line in done.out.splitlines() if line.startswith("by Python")).split()
        said[each] = int(words[2]), int(words[4])
        table = tmp_path / f"{each}.csv"
        assert collector.statctl("export", "csv", each, str(table), "--sketch").code == 0
        tables[each] = table.read_text()
    assert tables[how] == tables["ctypes"]
    assert tables[how].count("\n") > 1000
    assert said[how][1] == said["ctypes"][1] > 0
    assert said[how][0] < said["ctypes"][0] / 2, "most records take the short way"


@pytest.mark.parametrize(
    ("pretend", "found"),
    [
        ("version_info = (3, 9, 18)", False),
        ("abiflags = 't'", False),
        ("implementation.name = 'pypy'", False),
        ("argv = []", True),
    ],
)
def test_the_extension_is_for_builds_of_cpython_with_the_stable_interface(pretend: str, found: bool) -> None:
    script = (
        f"import sys; sys.{pretend}; sys.path.insert(0, {str(ROOT / 'agent/python')!r});"
        "from statagent._native import host; print(host.extension is not None)"
    )
    done = run_command([sys.executable, "-c", script], agent_environment(), cold=True)
    assert done.out.split() == [str(found)], done.err
