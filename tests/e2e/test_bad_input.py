"""Bad input of every kind: a clear error, and nothing lost."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from conftest import STATCOLLECTORD, Collector, agent_environment, run_command

ONE_RECORD = """
import statagent, torch, sys
agent = statagent.init(run=sys.argv[1], if_exists=sys.argv[2] if len(sys.argv) > 2 else None, required=True)
statagent.inspect("x", torch.arange(4.0))
statagent.step()
statagent.close(timeout=10)
"""


def test_run_name_taken_is_refused_with_what_is_there_and_the_ways_on(collector: Collector) -> None:
    collector.python(ONE_RECORD, "base")
    done = collector.python(ONE_RECORD, "base", code=None)
    assert done.code != 0
    for word in ("base", "replace", "append", "1 rank"):
        assert word in done.err, done.err
    assert collector.json("show", "base")["summary"]["attempts"] == 1
    assert len(collector.json("series", "base", "x")["records"]) == 1


def test_replace_drops_the_old_data_and_append_keeps_it(collector: Collector) -> None:
    collector.python(ONE_RECORD, "base")
    collector.python(ONE_RECORD, "base", "append")
    assert collector.json("show", "base")["summary"]["attempts"] == 2
    assert len(collector.json("series", "base", "x")["records"]) == 1, "a view never mixes two attempts' copies of a step"
    collector.python(ONE_RECORD, "base", "replace")
    assert collector.json("show", "base")["summary"]["attempts"] == 1


def test_appended_run_takes_each_step_from_the_newest_attempt(collector: Collector) -> None:
    script = """
import statagent, torch, sys
first, last, value = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
agent = statagent.init(run="resumed", if_exists="append", required=True)
agent.set_step(first)
for step in range(first, last + 1):
    statagent.inspect("x", torch.full((3,), value))
    statagent.step()
statagent.close(timeout=10)
"""
    collector.python(script, "0", "5", "1.0")
    collector.python(script, "4", "8", "2.0")
    points = collector.json("series", "resumed", "x")["records"]
    assert [(p["step"], p["stats"]["max"]) for p in points] == [(s, 1.0 if s < 4 else 2.0) for s in range(9)]


@pytest.mark.parametrize("name", ["../etc", "a/b", "a b", "", ".hidden", "x" * 129, "a\nb", "\x1b[31mred", "r\u202eun"])
def test_hostile_run_name_is_refused_in_the_agent(collector: Collector, name: str) -> None:
    script = f"import statagent\nstatagent.init(run={name!r})"
    done = collector.python(script, code=None)
    assert done.code != 0
    assert "run" in done.err and "\x1b[31m" not in done.err
    assert collector.json("runs")["runs"] == []


def test_unknown_run_exits_2_and_names_those_there_are(collector: Collector) -> None:
    collector.python(ONE_RECORD, "base")
    done = collector.statctl("diff", "--run-a", "base", "--run-b", "bsae")
    assert done.code == 2
    assert "bsae" in done.err and "base" in done.err
    assert done.out == ""
    assert collector.statctl("show", "nothing").code == 2
    assert collector.statctl("rm", "nothing", "--yes").code == 2


def test_runs_without_a_common_activation_are_incomparable(collector: Collector) -> None:
    collector.python(ONE_RECORD, "one")
    collector.python(ONE_RECORD.replace('"x"', '"y"'), "two")
    done = collector.statctl("--format", "json", "diff", "--run-a", "one", "--run-b", "two")
    assert done.code == 2, done.out
    assert done.json()["verdict"] == "incomparable"
    assert done.json()["message"]


def test_runs_without_a_common_step_are_incomparable(collector: Collector) -> None:
    collector.python(ONE_RECORD, "one")
    collector.python(ONE_RECORD.replace("statagent.inspect", "agent.set_step(7)\nstatagent.inspect", 1), "two")
    assert collector.diff("one", "two")["verdict"] == "incomparable"


def test_unreachable_collector_is_named_with_the_next_step() -> None:
    from conftest import STATCTL

    with socket.socket() as silent:  # holds the port, but does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        done = run_command([str(STATCTL), "--collector", f"127.0.0.1:{port}", "runs"])
    assert done.code == 2
    assert str(port) in done.err and "statcollectord" in done.err


def test_training_goes_on_without_a_collector_and_exits_soon() -> None:
    script = """
import atexit, time
ending = []
atexit.register(lambda: print("exited after", time.monotonic() - ending[0], flush=True))  # the last to run, after the agent's
import statagent, torch
statagent.init(run="lonely", collector="127.0.0.1:9", connect_timeout=0.2)
for _ in range(5):
    statagent.inspect("x", torch.ones(8)); statagent.step()
c = statagent.counters()
assert c["produced"] == c["acked"] + c["pending"] + sum(v for k, v in c.items() if k.startswith("dropped_")), c
assert c["acked"] == 0
ending.append(time.monotonic())
"""
    import sys

    done = run_command([sys.executable, "-c", script], env=agent_environment(), cold=True)
    assert done.code == 0, done.err
    waited = float(done.out.removeprefix("exited after"))
    assert waited < 8, "exit may wait 2 s for the collector, and some more on a busy machine"


def test_required_collector_that_is_down_is_an_error() -> None:
    import sys

    script = "import statagent; statagent.init(run='x', collector='127.0.0.1:9', required=True, connect_timeout=0.3)"
    done = run_command([sys.executable, "-c", script], env=agent_environment())
    assert done.code != 0
    assert "127.0.0.1:9" in done.err


def test_port_in_use_is_refused(collector: Collector, tmp_path: Path) -> None:
    done = run_command([str(STATCOLLECTORD), "--data-dir", str(tmp_path / "other"), "--listen", collector.address,
                        "--http", "off"])  # fmt: skip
    assert done.code == 2
    assert collector.address in done.err
    assert collector.json("runs")["runs"] == []


def test_second_daemon_on_the_directory_names_the_holder(collector: Collector) -> None:
    assert collector.process is not None
    done = run_command([str(STATCOLLECTORD), "--data-dir", str(collector.data_dir), "--listen", "127.0.0.1:0", "--http", "off"])
    assert done.code == 2
    assert str(collector.process.pid) in done.err


def test_odd_tensors_are_recorded(collector: Collector) -> None:
    script = """
import statagent, torch
statagent.init(run="odd", required=True)
nan = float("nan")
tensors = {
    "empty": torch.empty(0, 3), "zero_d": torch.tensor(2.5), "int64": torch.arange(-3, 4), "bool": torch.tensor([True, False]),
    "all_nan": torch.full((4,), nan), "transposed": torch.arange(6.0).reshape(2, 3).T, "inf": torch.tensor([1.0, float("inf")]),
    "half": torch.full((70000,), 65504.0, dtype=torch.float16), "bf16": torch.ones(3, dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j]), "expanded": torch.ones(1).expand(5),
}
for name, tensor in tensors.items():
    assert statagent.inspect(name, tensor) is tensor
statagent.step(); statagent.close(timeout=10)
c = statagent.counters()
assert c["pending"] == 0 and c["acked"] == c["produced"], c
"""
    collector.python(script)

    def stats(name: str) -> dict[str, object]:
        (record,) = collector.json("series", "odd", name)["records"]
        return dict(record["stats"])

    assert stats("empty")["numel"] == 0 and stats("empty")["min"] is None
    assert stats("zero_d")["shape"] == [] and stats("zero_d")["mean"] == 2.5
    assert stats("int64")["dtype"] == "i64" and stats("int64")["max"] == 3
    assert stats("bool")["zero"] == 1
    assert stats("all_nan")["nan"] == 4 and stats("all_nan")["mean"] is None
    assert stats("transposed")["shape"] == [3, 2]
    assert stats("inf")["pos_inf"] == 1 and stats("inf")["max"] == 1.0
    assert stats("half")["mean"] == 65504.0 and stats("half")["l1"] == 65504.0 * 70000
    assert stats("complex")["dtype"] == "c64"


def test_what_was_recorded_before_an_exception_is_stored(collector: Collector) -> None:
    script = """
import statagent, torch
statagent.init(run="crashed", required=True)
for step in range(3):
    statagent.inspect("x", torch.full((4,), float(step))); statagent.step()
raise RuntimeError("loss exploded")
"""
    done = collector.python(script, code=None)
    assert done.code == 1 and "loss exploded" in done.err
    assert [p["step"] for p in collector.json("series", "crashed", "x")["records"]] == [0, 1, 2]


def test_garbage_on_the_ports_harms_nobody(collector: Collector) -> None:
    for address in (collector.address, collector.http):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(b"\x00\xff" * 5000 + b"GET / HTTP/9.9\r\n\r\n")
    collector.python(ONE_RECORD, "after")
    assert collector.json("runs")["runs"][0]["run"] == "after"


def test_bad_arguments_exit_2(collector: Collector) -> None:
    negative = [["events", "x", "--since-step", "-1"], ["top", "x", "--step", "-1"], ["summary", "x", "--step", "-1"]]
    negative += [
        ["capture", "x", "y", "--step", "99999999999999999999"],
        ["diff-values", "x", "y", "z", "--step", "1", "--call", "-1"],
    ]
    for arguments in negative:
        assert "expected a whole number from 0 to" in collector.statctl(*arguments).err, arguments
    for arguments in (
        ["nonsense"],
        ["diff"],
        ["diff", "--run-a", "x"],
        ["series"],
        ["--format", "yaml", "runs"],
        ["scalars"],
        *negative,
    ):
        done = collector.statctl(*arguments)
        assert done.code == 2, (arguments, done)
        assert done.err.strip(), arguments
    assert run_command([str(STATCOLLECTORD), "--no-such-flag"]).code == 2


def test_rm_removes_a_run_for_good(collector: Collector) -> None:
    collector.python(ONE_RECORD, "gone")
    collector.python(ONE_RECORD, "stays")
    assert collector.statctl("rm", "gone").code == 2, "without a terminal it wants --yes"
    assert collector.statctl("rm", "gone", "--yes").code == 0
    assert [r["run"] for r in collector.json("runs")["runs"]] == ["stays"]
    assert collector.stop() == 0
    collector.start()
    assert [r["run"] for r in collector.json("runs")["runs"]] == ["stays"]
    collector.python(ONE_RECORD, "gone")


def test_non_loopback_binding_needs_insecure(tmp_path: Path) -> None:
    done = run_command([str(STATCOLLECTORD), "--data-dir", str(tmp_path / "d"), "--listen", "0.0.0.0:0", "--http", "off"])
    assert done.code == 2
    assert "--insecure" in done.err


def test_statctl_json_is_json_even_with_hostile_names(collector: Collector) -> None:
    script = """
import statagent, torch
statagent.init(run="names", required=True)
for name in ("ok.\u00e9", 'quote"back\\\\slash'):
    statagent.inspect(name, torch.ones(2))
statagent.step(); statagent.close(timeout=10)
"""
    collector.python(script)
    assert json.loads(collector.statctl("--format", "json", "series", "names", "ok.\u00e9").out)["records"]
