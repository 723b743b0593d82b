"""`ranks` of init and STATAGENT_RANKS: the ranks they name record, the others do nothing, and the collector knows it. And: what each rank
says on standard error, and what a program leaves that fails before it records anything."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from conftest import Collector, Finished, run_command, torchrun, wait_until

SCRIPT = textwrap.dedent("""
    import os, sys, torch, statagent
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wait = float(os.environ.get("WAIT", 5))  # for the collector
    agent = statagent.init(ranks=sys.argv[1] or None, connect_timeout=wait)
    assert (agent.rank(), agent.world_size(), statagent.rank()) == (rank, distributed.get_world_size(), rank)
    with statagent.watch(model, optimizer):
        for step in range(3):
            x = torch.ones(4, 8) * (step + 1)
            statagent.log_batch(x=x)
            loss = statagent.inspect("y", model(x)).square().mean()
            loss.backward()
            statagent.log_scalar("loss", loss)
            optimizer.step()
            optimizer.zero_grad()
    assert statagent.flush(timeout=wait) or "WAIT" in os.environ
    print(f"rank {rank} produced {statagent.counters()['produced']}", flush=True)
    statagent.close(timeout=0 if "WAIT" in os.environ else 10)
    distributed.destroy_process_group()
""")


def train(collector: Collector, folder: Path, run: str, ranks: str, world: int = 2, code: int = 0, **variables: str) -> Finished:
    script = folder / "some_ranks.py"
    script.write_text(SCRIPT)
    done = run_command(
        torchrun(world, str(script), ranks), env={**collector.environment(STATAGENT_RUN=run), **variables}, timeout=240
    )
    assert (done.code == 0) == (code == 0), done.out + done.err
    return done


@pytest.mark.parametrize("given", ["argument", "variable"])
def test_a_run_is_complete_with_the_ranks_that_record(shared_collector: Collector, tmp_path: Path, given: str) -> None:
    run = f"rank-0-{given}"
    variables = {"STATAGENT_RANKS": "0"} if given == "variable" else {}
    done = train(shared_collector, tmp_path, run, "" if variables else "0", **variables)  # type: ignore[arg-type]
    assert "rank 1 produced 0" in done.out and "rank 0 produced 0" not in done.out
    assert done.err.count("statagent:") == 2, "the first and the last line of the rank that records; the other one is quiet"
    summary = shared_collector.json("show", run)["summary"]
    assert (summary["state"], summary["ranks"], summary["ranks_expected"], summary["world_size"]) == ("finished", 1, 1, 2)
    shown = shared_collector.statctl("show", run).out
    assert "is finished: 1 of 1 ranks that record, in a world of 2" in shown
    listed = next(line for line in shared_collector.statctl("runs").out.splitlines() if run in line)
    assert "finished" in listed and "1 of" not in listed
    report = shared_collector.json("ranks", run, codes=(0, 1, 2))
    assert report["verdict"] != "INCONSISTENT" and report["findings"] == []
    assert any("only these ranks record: 0" in note for note in report["notes"])


def test_the_middle_of_a_world_records(shared_collector: Collector, tmp_path: Path) -> None:
    done = train(shared_collector, tmp_path, "middle", "1-2", world=4)
    assert "rank 0 produced 0" in done.out and "rank 3 produced 0" in done.out
    summary = shared_collector.json("show", "middle")["summary"]
    assert (summary["state"], summary["ranks"], summary["ranks_expected"], summary["world_size"]) == ("finished", 2, 2, 4)
    report = shared_collector.json("ranks", "middle", codes=(0, 1, 2))
    assert report["verdict"] == "consistent" and report["findings"] == []


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("2", "part '2' is beyond the last rank, 1 of a world of 2"),
        ("1-0", "ends before it begins"),
        ("0,", "part '' is empty"),
        ("all", "is neither a rank nor a closed range"),
    ],
)
def test_what_is_no_rank_is_an_error(shared_collector: Collector, tmp_path: Path, ranks: str, message: str) -> None:
    done = train(shared_collector, tmp_path, "wrong", ranks, code=1)
    assert "InvalidArgumentError" in done.err and message in done.err and "write for example 0,8-15" in done.err
    assert shared_collector.statctl("show", "wrong").code == 2


def test_an_empty_text_is_an_error_and_an_empty_variable_means_all(shared_collector: Collector) -> None:
    script = "import statagent\nstatagent.init(run='none', ranks='')"
    done = shared_collector.python(script, code=1)
    assert "init: ranks is ''; expected the ranks that record, as ranks='0,8-15', or None for all" in done.err
    script = "import statagent\nassert not statagent.init(run='all').idle\nstatagent.log_scalar('a', 1)\nstatagent.close(10)"
    shared_collector.python(script, env={"STATAGENT_RANKS": ""})
    assert shared_collector.json("show", "all")["summary"]["state"] == "finished"


def test_one_rank_says_that_the_collector_is_away(shared_collector: Collector, tmp_path: Path) -> None:
    def lines(level: str) -> list[str]:
        variables = {"STATAGENT_COLLECTOR": "127.0.0.1:9", "WAIT": "0.2", **({"STATAGENT_LOG": level} if level else {})}
        done = train(shared_collector, tmp_path, "away", "", **variables)  # type: ignore[arg-type]
        return [line for line in done.err.splitlines() if "statagent: cannot reach" in line]

    assert len(lines("")) == 1
    assert len(lines("info")) == 2
    assert lines("error") == [] == lines("off")


def test_an_unknown_level_is_an_error(shared_collector: Collector) -> None:
    done = shared_collector.python("import statagent\nstatagent.init(run='x')", env={"STATAGENT_LOG": "loud"}, code=1)
    assert "start the agent: log is 'loud'; expected 'off', 'error', 'warning' or 'info'" in done.err


FAILS = """
import sys, torch, statagent
statagent.init(required=True)
try:
    statagent.watch(torch.nn.Linear(2, 2), include=["nope"])
except statagent.InvalidArgumentError:
    if sys.argv[1] == "raises":
        raise
if sys.argv[1] == "goes on":
    statagent.log_scalar("loss", 1.0)
if sys.argv[1] == "explicit":
    statagent.watch(torch.nn.Linear(2, 2))
statagent.close(timeout=10)
"""


@pytest.mark.parametrize("what", ["raises", "caught"])
def test_a_failed_watch_leaves_no_run(shared_collector: Collector, what: str) -> None:
    env = {"STATAGENT_RUN": f"failed-{what}"}
    for _ in range(2):  # the name is free for the next try
        done = shared_collector.python(FAILS, what, env=env, code=1 if what == "raises" else 0)
        assert ("include pattern 'nope' matches nothing" in done.err) == (what == "raises")
        assert "RunExistsError" not in done.err
    # The agent does not wait for that; its next hello does.
    wait_until(lambda: shared_collector.statctl("show", env["STATAGENT_RUN"]).code == 2, what="the run to be removed")


@pytest.mark.parametrize("what", ["goes on", "explicit"])
def test_a_program_that_goes_on_after_a_failed_watch_has_its_run(shared_collector: Collector, what: str) -> None:
    run = f"failed-{what.replace(' ', '-')}"
    shared_collector.python(FAILS, what, env={"STATAGENT_RUN": run})
    assert shared_collector.json("show", run)["summary"]["state"] == "finished"


def test_a_run_that_records_nothing_without_an_error_is_kept(shared_collector: Collector) -> None:
    shared_collector.python("import statagent\nstatagent.init(run='nothing', required=True)\nstatagent.close(10)")
    assert shared_collector.json("show", "nothing")["summary"]["state"] == "finished"
