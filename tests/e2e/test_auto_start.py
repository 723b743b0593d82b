"""How the instrumentation gets into an interpreter, and that it leaves everything else as it was."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from auto_runs import PROGRAMS, START, environment, lines, program, summary
from auto_runs import record as record_in_a_fork
from conftest import Collector, run_command

TRAIN = """
import torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
print("trained")
"""
FAKE_TORCH = "__version__ = '1.13.1'\nprint('imported')\n"

record = functools.partial(record_in_a_fork, cold=True)  # what these tests are of


def environment_without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


def test_a_program_without_torch_imports_nothing_of_ours(collector: Collector) -> None:
    script = "import sys, json; print(sys.path, sorted(sys.modules), 'sitecustomize' in sys.modules)"
    auto = record(collector, "none", sys.executable, "-c", script, STATAGENT_AUTO_NOTES="")
    plain = run_command([sys.executable, "-c", script], env=environment_without("PYTHONPATH"), cold=True)
    assert auto.code == 0 and auto.err == ""
    modules, before = (eval(done.out.partition("] ")[2].rpartition(" ")[0]) for done in (auto, plain))
    assert auto.out.partition("] ")[0] == plain.out.partition("] ")[0], "the path is that of the program"
    assert not [name for name in set(modules) - set(before) if "statagent" in name or "torch" in name]
    assert summary(collector, "none") == {}


def test_another_sitecustomize_runs_once_and_fails_as_it_would_without_us(collector: Collector, tmp_path: Path) -> None:
    theirs = tmp_path / "sitecustomize.py"
    path = f"{START}:{tmp_path}"
    script = "import sitecustomize; print(sitecustomize.__file__, sitecustomize.ANSWER)"
    theirs.write_text("print('theirs')\nANSWER = 42\n")
    done = record(collector, "none", sys.executable, "-c", script, PYTHONPATH=path)
    assert done.out == f"theirs\n{theirs} 42\n" and done.err == "", done.err
    theirs.write_text("raise ValueError('planted')\n")
    for path_of in (path, str(tmp_path)):
        failing = record(collector, "none", sys.executable, "-c", "print('goes on')", PYTHONPATH=path_of)
        assert failing.out == "goes on\n" and failing.code == 0
        assert failing.err == "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nValueError: planted\n", failing.err
    trained = record(collector, "mine", sys.executable, "-c", TRAIN, PYTHONPATH=path)
    assert trained.out == "trained\n" and summary(collector, "mine")["steps"] == 2, "ours has begun all the same"


def test_nothing_of_ours_happens_without_the_switch(collector: Collector) -> None:
    done = record(
        collector, "off", sys.executable, "-c", TRAIN + "import sys; print('statagent' in sys.modules)", STATAGENT_AUTO=""
    )
    assert done.out == "trained\nFalse\n" and done.err == "" and summary(collector, "off") == {}
    disabled = record(collector, "off", sys.executable, "-c", TRAIN, STATAGENT_DISABLE="1")
    assert disabled.out == "trained\n" and disabled.err == "" and summary(collector, "off") == {}


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_an_interpreter_that_ignores_the_path_leaves_no_note(collector: Collector, flag: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    done = record(collector, "none", sys.executable, flag, "-c", "print(1)", STATAGENT_AUTO_NOTES=str(notes))
    assert done.out == "1\n" and done.err == "" and not notes.exists()


def test_notes_say_how_far_a_process_came(collector: Collector, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    for words in (["-c", "pass"], ["-c", "import torch"], ["-c", TRAIN], [*program("plain.py", "without_optimizer")[1:]]):
        record(collector, "noted", sys.executable, *words, STATAGENT_AUTO_NOTES=str(notes))
    found: dict[str, list[str]] = {}
    for line in notes.read_text().splitlines():
        found.setdefault(line.split()[0], []).append(line.split()[1])
    assert list(found.values()) == [
        ["python"], ["python", "torch"], ["python", "torch", "optimizer", "recording"], ["python", "torch", "nothing"],
    ]  # fmt: skip


def test_modules_and_programs_of_every_kind_are_recorded(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(TRAIN)
    (tmp_path / "train.py").write_text(TRAIN)
    ways = {
        "module": [sys.executable, "-m", "package"], "file": [sys.executable, "train.py"],
        "spawned": [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'train.py']))"],
        "replaced": [sys.executable, "-c", "import os, sys; os.execv(sys.executable, [sys.executable, 'train.py'])"],
        "forked": [sys.executable, "-c", "import os\nif os.fork(): print(os.wait()[1])\nelse:\n" + "".join(f"    {line}\n" for line in TRAIN.splitlines())],
        "shell": ["sh", "-c", f"{sys.executable} train.py"],
    }  # fmt: skip
    for run, command in ways.items():
        done = record(collector, run, *command, cwd=tmp_path)
        assert done.code == 0 and "trained" in done.out, done.err
        assert summary(collector, run)["steps"] == 2 and len(lines(done)) == 2, (run, done.err)


def test_an_interpreter_whose_path_has_no_statagent_gets_it_and_nothing_else(collector: Collector, tmp_path: Path) -> None:
    script = """
import sys
try:
    import statcollect
except ImportError:
    print("no statcollect")
import statagent
print(statagent.__file__, [entry for entry in sys.path if entry.endswith("agent/python")])
"""
    done = record(collector, "none", sys.executable, "-c", script, cwd=tmp_path)
    assert done.code == 0 and done.out == f"no statcollect\n{START.parents[1] / '__init__.py'} []\n", done.out + done.err


def test_a_statagent_of_the_program_goes_before(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "statagent").mkdir()
    (tmp_path / "statagent" / "__init__.py").write_text("OWN = True\n")
    done = record(
        collector,
        "none",
        sys.executable,
        "-c",
        TRAIN + "import statagent; print(statagent.OWN)",
        PYTHONPATH=f"{START}:{tmp_path}",
    )
    assert done.code == 0 and done.out == "trained\nTrue\n"
    (line,) = lines(done)
    assert line.startswith("statctl run: cannot record: ModuleNotFoundError: ") and line.endswith("; training goes on"), line


def test_an_old_torch_is_named(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    done = record(collector, "none", sys.executable, "-c", "import torch", PYTHONPATH=f"{START}:{tmp_path}")
    assert done.code == 0 and done.out == "imported\n"
    assert lines(done) == ["statctl run: found torch 1.13.1; expected 2.1 or later; nothing is recorded"]
    (tmp_path / "torch.py").write_text("raise ImportError('no libcuda')\n")
    broken = record(collector, "none", sys.executable, "-c", "import torch", PYTHONPATH=f"{START}:{tmp_path}")
    assert broken.code == 1 and broken.err.endswith("ImportError: no libcuda\n") and lines(broken) == []


def test_an_error_in_the_program_is_reported_as_without_us(collector: Collector) -> None:
    script = "import no_such_module"
    auto = record(collector, "none", sys.executable, "-c", script)
    without = run_command([sys.executable, "-c", script], env=environment_without("PYTHONPATH"), cold=True)
    assert auto.code == without.code == 1 and auto.err == without.err


def test_torch_looks_as_before_once_the_model_is_watched(collector: Collector) -> None:
    """Sources, signatures and pickles of what is replaced are torch's own."""
    script = (
        TRAIN
        + """
import copy, inspect, pickle
from torch._dynamo.utils import unpatched_nn_module_call
print(torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl is unpatched_nn_module_call)
print(inspect.signature(torch.autograd.backward) == inspect.signature(inspect.unwrap(torch.autograd.backward)))
print(torch.__spec__.loader.__class__.__name__, torch.autograd.backward.__module__)
again = pickle.loads(pickle.dumps(optimizer))
print(type(again) is torch.optim.SGD, type(copy.deepcopy(optimizer)) is torch.optim.SGD)
print(b"statagent" in pickle.dumps(optimizer), b"statagent" in pickle.dumps(model))
"""
    )
    done = record(collector, "looks", sys.executable, "-c", script)
    assert done.code == 0 and done.out.splitlines()[1:] == [
        "True", "True", "SourceFileLoader torch.autograd", "True True", "False False",
    ], done.out + done.err  # fmt: skip


def test_a_helper_process_that_never_trains_says_nothing(collector: Collector) -> None:
    env = {**environment(collector, "helper")}
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "plain.py"), "workers"], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("statagent: ") == 2, done.stderr
    assert summary(collector, "helper")["ranks"] == 1
