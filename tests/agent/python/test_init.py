"""init: arguments, environment, configuration, errors, the end of the process."""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import statagent
from statagent import CollectorUnavailableError, InvalidArgumentError, LibraryNotFoundError, StatagentError
from statagent._native import library as _library
from statagent._runtime import variables as _variables

from .models import Net, data
from .support import ROOT, Recording, python

NOWHERE: dict[str, Any] = {"collector": "127.0.0.1:1", "connect_timeout": 0}


def test_run_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="STATAGENT_RUN"):
        statagent.init(**NOWHERE)
    with pytest.raises(ValueError, match="run"):
        statagent.init(run="", **NOWHERE)
    monkeypatch.setenv("STATAGENT_RUN", "from.environment")
    assert not statagent.init(**NOWHERE).closed


@pytest.mark.parametrize("run", ["../up", "a/b", "a\nb", "a\0b", "\x1b[31m", "-a", "x" * 129, "ä", 3, b"base"])
def test_hostile_run_names_are_refused(run: Any) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        statagent.init(run=run, **NOWHERE)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": -1}, {"rank": "0"}, {"rank": 2**40}, {"rank": 4, "world_size": 4}, {"sketch": 5}, {"samples": 5000},
        {"if_exists": "overwrite"}, {"steps": "ten"}, {"connect_timeout": -1}, {"connect_timeout": "soon"},
        {"buffer_records_max": 0}, {"threads": 0}, {"threads": 65}, {"config": ["lr"]}, {"config": "lr=1"}, {"required": "maybe"}, {"collector": "no port"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_arguments_say_what_was_expected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        statagent.init(**{"run": "test", **NOWHERE, **wrong})
    assert isinstance(caught.value, InvalidArgumentError)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STATAGENT_RUN", "a/b"), ("STATAGENT_SKETCH", "many"), ("STATAGENT_STEPS", "x"), ("STATAGENT_CONNECT_TIMEOUT", "soon"),
        ("STATAGENT_CONFIG", "{lr:"), ("STATAGENT_CONFIG", "[1]"), ("STATAGENT_CONFIG", "@/nowhere.json"),
        ("STATAGENT_IF_EXISTS", "maybe"), ("STATAGENT_RANK", "first"),
    ],
)  # fmt: skip
def test_wrong_variables_are_named(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_RUN", "test")
    monkeypatch.setenv("STATAGENT_COLLECTOR", "127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgumentError):
        statagent.init(connect_timeout=None if "TIMEOUT" in variable else 0)


def test_rank_comes_from_the_launcher_or_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    agent = statagent.init(run="test", **NOWHERE)
    assert (agent.rank(), agent.world_size(), statagent.rank()) == (3, 8, 3)
    agent.close(0)
    agent = statagent.init(run="test", rank=1, world_size=2, **NOWHERE)
    assert (agent.rank(), agent.world_size()) == (1, 2)


def test_second_init_is_refused_until_closed() -> None:
    statagent.init(run="test", **NOWHERE)
    with pytest.raises(
        StatagentError,
        match=r"init\(run='next'\).*already has an agent, for run 'test'; expected none.*close it first with statagent\.close\(\)",
    ):
        statagent.init(run="next", **NOWHERE)
    statagent.close(timeout=0)
    assert not statagent.init(run="test2", **NOWHERE).closed


def test_unknown_variables_are_reported_with_the_nearest_known_name(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATAGENT_STEP", "0-9")
    monkeypatch.setenv("STATAGENT_FROBNICATE", "1")
    monkeypatch.setenv("STATAGENT_SKETCH", "16")
    for run in ("one", "two"):
        statagent.init(run=run, **NOWHERE).close(0)
    about = [line for line in capfd.readouterr().err.splitlines() if "unknown" in line]
    assert len(about) == 2, "each once"
    assert "'STATAGENT_FROBNICATE' is unknown and has no effect; known are: STATAGENT_AUTO, " in about[0]
    assert about[1].endswith("'STATAGENT_STEP' is unknown and has no effect; did you mean STATAGENT_STEPS?")


def test_every_variable_that_is_read_is_known() -> None:
    sources = [*(ROOT / "agent").rglob("*.py"), ROOT / "agent" / "option_resolver.cc"]
    text = "\n".join(path.read_text() for path in sources)
    read = {f"STATAGENT_{name}" for name in re.findall(r'environment\.Fill\("([A-Z_]+)"', text)}
    read |= set(re.findall(r'environ(?:\.get\(|\[)"(STATAGENT_[A-Z_]+)"', text))
    assert {"STATAGENT_STEPS", "STATAGENT_LIBRARY", "STATAGENT_CONNECT_TIMEOUT"} <= read
    assert read <= _variables.KNOWN


def test_required_collector_that_is_absent_is_an_error_in_time() -> None:
    started = time.monotonic()
    with pytest.raises(CollectorUnavailableError, match=r"127\.0\.0\.1:1.*expected statcollectord"):
        statagent.init(run="test", collector="127.0.0.1:1", required=True, connect_timeout=0.3)
    assert time.monotonic() - started < 5
    assert statagent.counters()["produced"] == 0


def test_absent_collector_is_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0.2)
    statagent.log_scalar("loss", 1.0)
    said = capfd.readouterr()
    assert len(said.err.splitlines()) == 1
    assert "training continues" in said.err
    assert said.out == ""


def test_silent_server_does_not_hold_up_init() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        statagent.init(run="test", collector=f"127.0.0.1:{server.getsockname()[1]}", connect_timeout=0.3)
        statagent.log_scalar("loss", 1.0)
        statagent.close(timeout=0.3)
        assert time.monotonic() - started < 10, "0.6 s, on a busy machine; without a limit it would wait for the server's answer"


# --- configuration ---


@dataclass
class Recipe:
    lr: float
    sizes: tuple[int, ...]


def test_configuration_is_flattened_with_dots(recording: Recording) -> None:
    config: dict[Any, Any] = {
        "model": {"layers": 2, "norm": None},
        "recipe": Recipe(0.1, (1, 2)),
        "flag": True,
        3: "three",
        "empty": {},
        "list": [],
    }
    statagent.init(run="test", config=config, **NOWHERE)
    found = recording.config
    expected = {
        "model.layers": "2", "model.norm": "null", "recipe.lr": "0.1", "recipe.sizes.0": "1", "recipe.sizes.1": "2", "flag": "true",
        "3": "three",
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert {"empty", "list"} <= found.keys()


def test_addresses_of_objects_are_no_configuration(recording: Recording) -> None:
    config = {"model": object(), "activation": test_addresses_of_objects_are_no_configuration, "text": "mapped at 0x10"}
    statagent.init(run="test", config=config, **NOWHERE)
    assert recording.config["model"] == "<object object>"
    assert recording.config["activation"] == "<function test_addresses_of_objects_are_no_configuration>"
    assert recording.config["text"] == "mapped at 0x10", "a text of the user's stays as it is"


def test_configuration_of_the_environment_is_merged_below_the_argument(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"lr": 1, "data": {"name": "text"}}))
    monkeypatch.setenv("STATAGENT_CONFIG", f"@{file}")
    statagent.init(run="test", config={"lr": 2}, **NOWHERE)
    assert recording.config["lr"] == "2"
    assert recording.config["data.name"] == "text"


def test_what_the_process_knows_about_itself_is_recorded(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    statagent.init(run="test", **NOWHERE)
    found = recording.config
    assert found["torch.version"] == torch.__version__
    assert found["torch.num_threads"] == str(torch.get_num_threads())
    assert found["torch.default_dtype"] == "torch.float32"
    assert found["env.OMP_NUM_THREADS"] == "2"
    assert found["env.CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert {"python.version", "numpy.version", "platform", "command_line", "torch.deterministic_algorithms"} <= found.keys()
    assert not any(str(Path.cwd()) == value for value in found.values())


def test_commit_and_changes_of_the_script_are_recorded(tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "train.py"
    script.write_text(
        "import statagent._settings.environment as e; f = e.git_state(); print(*map(f.get, ('git.commit', 'git.dirty', 'git.diff')))"
    )

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    def found() -> list[str]:
        return python(f"import runpy, sys; sys.argv = [{str(script)!r}]; runpy.run_path({str(script)!r})").stdout.split()

    assert found() == ["None", "None", "None"]
    git("init", "-q")
    git("add", "train.py")
    git("commit", "-q", "-m", "first")
    assert found() == [git("rev-parse", "HEAD"), "false", "None"]
    script.write_text(script.read_text() + "\n")
    once = found()
    assert once[:2] == [git("rev-parse", "HEAD"), "true"]
    assert found() == once
    script.write_text(script.read_text() + "\n")
    assert found()[2] != once[2], "the hash tells which change it is"


def test_configuration_that_cannot_be_text_does_no_harm(recording: Recording) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no")

    loop: dict[str, Any] = {"a": 1}
    statagent.init(
        run="test", config={"bad": Hostile(), "nul": "a\0b", "surrogate": "\ud800", "tensor": torch.zeros(2)}, **NOWHERE
    )
    assert "Hostile" in recording.config["bad"]
    statagent.close(timeout=0)
    loop["again"] = loop
    with pytest.raises(ValueError, match="nested deeper"):
        statagent.init(run="test", config=loop, **NOWHERE)
    with pytest.raises(ValueError, match="entries"):
        statagent.init(run="test", config={"ids": list(range(100_000))}, **NOWHERE)


# --- the library's place ---


def test_library_that_is_nowhere_names_every_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATAGENT_LIBRARY", str(tmp_path / "libstatagent.so"))
    with pytest.raises(LibraryNotFoundError, match=r"STATAGENT_LIBRARY") as caught:
        _library.find()
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, ImportError)


def copied_package(tree: Path) -> Path:
    """The package and the header that marks a source tree, below `tree`."""
    import shutil

    shutil.copytree(ROOT / "agent" / "python" / "statagent", tree / "agent" / "python" / "statagent")
    (tree / "agent" / "include" / "statagent").mkdir(parents=True)
    (tree / "agent" / "include" / "statagent" / "statagent.h").touch()
    return tree / "agent" / "python"


def found_in(tree: Path) -> str:
    script = (
        "import os, sys; os.environ.pop('STATAGENT_LIBRARY', None); from statagent._native import library; print(library.find())"
    )
    return python(f"import sys; sys.path.insert(0, {str(tree / 'agent' / 'python')!r})\n{script}", code=None).stdout.strip()


def test_build_tree_is_searched_release_first_then_the_newest(tmp_path: Path) -> None:
    import os

    package = copied_package(tmp_path)
    places = {}
    for age, preset in enumerate(["release", "new", "old"]):
        file = tmp_path / "build" / preset / "lib" / "libstatagent.so"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
        places[preset] = str(file)
    os.utime(places["release"], (1, 1))
    assert found_in(tmp_path) == places["release"]
    Path(places["release"]).unlink()
    assert found_in(tmp_path) == places["new"]
    beside = package / "statagent" / "lib" / "libstatagent.so"
    beside.parent.mkdir()
    beside.touch()
    assert found_in(tmp_path) == str(beside)


def test_file_that_is_no_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libstatagent.so"
    broken.write_text("not a library")
    done = python("import statagent, numpy; statagent.compute(numpy.ones(2))", code=1, STATAGENT_LIBRARY=str(broken))
    assert "LibraryNotFoundError" in done.stderr
    assert str(broken) in done.stderr


# --- switched off ---


def test_disabled_makes_everything_a_no_op() -> None:
    script = """
import statagent, torch
agent = statagent.init(run="not/a/run", collector="nowhere")
model = torch.nn.Linear(2, 2)
watch = statagent.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
x = torch.ones(2)
assert statagent.inspect("x", x) is x
statagent.log_scalar("loss", "not a number")
statagent.log_batch(x=object())
statagent.step()
assert statagent.flush() and statagent.close()
watch.remove()
assert not model._forward_hooks
assert statagent.counters() == {"produced": 0, "acked": 0, "pending": 0}
"""
    done = python(script, STATAGENT_DISABLE="1", STATAGENT_LIBRARY="/nowhere/libstatagent.so")
    assert (done.stdout, done.stderr) == ("", "")


# --- the end of the process ---

TRAINER = """
import atexit, sys, time
ending = []
atexit.register(lambda: print(time.monotonic() - ending[0], flush=True))  # the last to run, after the agent's
import statagent, torch
statagent.init(run="exit", collector="127.0.0.1:1", connect_timeout=0)
model = torch.nn.Linear(4, 4)
statagent.watch(model)
for _ in range(20):
    model(torch.ones(4)).sum().backward()
    statagent.step()
ending.append(time.monotonic())
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("raise RuntimeError('loss exploded')", 1), ("sys.exit(3)", 3)],
    ids=["return", "exception", "exit"],
)
def test_exit_waits_two_seconds_at_most_without_a_collector(end: str, code: int) -> None:
    done = python(TRAINER + end, code=code, cold=True)
    assert 0 < float(done.stdout) < 8, "2 s for the agent, the rest for a busy machine"
    assert ("loss exploded" in done.stderr) == (code == 1)
    said = [line for line in done.stderr.splitlines() if "were not stored within" in line]
    assert len(said) == 1
    assert re.search(r"close: [1-9]\d* records .* counted as dropped; .* 127\.0\.0\.1:1 .*STATAGENT_SPILL_DIR", said[0])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_close_their_agent(method: str, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text("""
import statagent, torch
def train():
    statagent.init(run="child", collector="127.0.0.1:1", connect_timeout=0)
    statagent.inspect("x", torch.ones(4))
    statagent.step()
""")
    done = python(f"""
import multiprocessing, sys
sys.path.insert(0, {str(tmp_path)!r})
import ranks
child = multiprocessing.get_context({method!r}).Process(target=ranks.train)
child.start()
child.join()
assert child.exitcode == 0, child.exitcode
""")
    assert len([line for line in done.stderr.splitlines() if "were not stored within" in line]) == 1, done.stderr


def test_signals_are_left_to_the_program() -> None:
    done = python(TRAINER + "import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", code=-15)
    assert done.stdout == "", "SIGTERM ends the process at once, as without the agent"


def test_forked_children_are_inert() -> None:
    script = """
import os, statagent, torch
statagent.init(run="fork", collector="127.0.0.1:1", connect_timeout=0)
model = torch.nn.Linear(4, 4)
statagent.watch(model)
model(torch.ones(4)).sum().backward()
before = statagent.counters()
for ending in ("return", "exit"):
    pid = os.fork()
    if pid == 0:
        model(torch.ones(4)).sum()
        statagent.inspect("x", torch.ones(4))
        statagent.log_scalar("loss", 1.0)
        statagent.step()
        statagent.flush(timeout=5)
        statagent.close()
        if ending == "exit":
            os._exit(0)
        raise SystemExit(0)
    assert os.waitpid(pid, 0)[1] == 0
assert statagent.counters() == before, (statagent.counters(), before)
model(torch.ones(4)).sum().backward()
assert statagent.counters()["produced"] > before["produced"]
print("parent goes on")
"""
    assert "parent goes on" in python(script, timeout=30).stdout


def test_data_loader_workers_are_inert() -> None:
    script = """
import statagent, torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        statagent.inspect("worker", torch.full((2,), float(i)))
        statagent.log_scalar("worker", i)
        return torch.full((2,), float(i))
statagent.init(run="workers", collector="127.0.0.1:1", connect_timeout=0)
for _ in range(2):
    assert sum(len(b) for b in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")) == 8
assert statagent.counters()["produced"] == 0, statagent.counters()
print("ok")
"""
    assert "ok" in python(script, timeout=60).stdout


def test_unpicklable_state_is_not_dragged_into_spawned_workers(recording: Recording) -> None:
    import pickle

    statagent.init(run="test", **NOWHERE)
    net = Net()
    statagent.watch(net)
    again = pickle.loads(pickle.dumps(net))
    assert torch.equal(again(data()), net(data()))
