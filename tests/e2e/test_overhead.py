"""Runs with overhead budgets on two real ranks: ranks agree on the steps, runs with different choices compare, and a fault is bracketed."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
from conftest import Collector, run_command, torchrun

STEPS = 56
FAULT = 45
# The agents' clock is simulated, because the machine may be busy: a step takes 0.6 s, and recording it in full 0.9 s more. With 100 % every
# second step fits, with 40 % every fifth. One run, "tight", has the real clock. Announcements travel in real time, so the script waits for them.
SCRIPT = textwrap.dedent("""
    import dataclasses, json, os, sys, time, torch, statagent
    from statagent._runtime import thinning
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")

    thinning.ANNOUNCED_SECONDS, thinning.ANNOUNCED_STEPS, thinning.PATIENCE_SECONDS = 0.01, 12, 1000.0

    def train(run, overhead=None, steps=None, simulated=True, losses=True, fault=None, nan=None):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
        ddp = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        agent = statagent.init(run=run, overhead=overhead, steps=steps)
        simulated = simulated and agent.clock.meter is not None
        now = [0.0]
        if simulated:
            agent.clock._thinning._outside = dataclasses.replace(agent.clock._thinning._outside, clock=lambda: now[0])
        watch = statagent.watch(ddp, optimizer=optimizer)
        for step in range(56):
            if overhead and step in (10, 28, 36):  # a choice is announced, an alarm is raised, its steps are announced
                time.sleep(1.5)
            for micro_batch in range(2):
                data = torch.Generator().manual_seed(1000 * step + 10 * micro_batch + agent.rank())
                x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
                if fault == step and micro_batch == 0:
                    with torch.no_grad():
                        model[2].weight.mul_(1.01)
                if nan == step:
                    x = x * float("nan")
                loss = nn.functional.cross_entropy(ddp(x), y)
                loss.backward()
                if losses:
                    statagent.log_scalar("loss", loss)
            if simulated:
                agent.clock.meter.spent = 900_000_000 if agent.clock.wanted else 500_000
                now[0] += 1.5 if agent.clock.wanted else 0.6005
            if nan == step:
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
        watch.remove()
        statagent.close(timeout=10)
        distributed.barrier()

    for job in json.loads(sys.argv[1]):
        train(**job)
    distributed.destroy_process_group()
""")
JOBS: list[dict[str, Any]] = [
    {"run": "second", "overhead": "100%"},
    {"run": "fifth", "overhead": "40%"},
    {"run": "faulty", "overhead": "40%", "fault": FAULT},
    {"run": "silent", "overhead": "40%", "fault": FAULT, "losses": False},
    {"run": "every"},
    {"run": "asked", "overhead": "40%", "steps": "40-45"},
    {"run": "alarmed", "overhead": "40%", "nan": 26},
    {"run": "tight", "overhead": "0.5%", "simulated": False},
]


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    script = tmp_path_factory.mktemp("overhead") / "train.py"
    script.write_text(SCRIPT)
    done = run_command(torchrun(2, str(script), json.dumps(JOBS)), env=shared_collector.environment(), timeout=240)
    assert done.code == 0, done.out + done.err
    return shared_collector


def full_steps(collector: Collector, run: str) -> dict[int, list[int]]:
    """By rank: the steps with an output of the first module."""
    records = collector.json("series", run, "0", "--kind", "output")["records"]
    steps: dict[int, list[int]] = {}
    for record in records:
        steps.setdefault(record.get("rank", 0), []).append(record.get("step", 0))
    return {rank: sorted(set(found)) for rank, found in steps.items()}


def settings(collector: Collector, run: str) -> dict[str, str]:
    return dict(collector.json("show", run)["config"])


def policy_steps(text: str) -> list[int]:
    """The steps that a schedule such as "0-15/1, 16-/20" records in full. On a busy machine a run may change its schedule on the way."""
    steps: list[int] = []
    for part in text.split(", "):
        bounds, every = part.split("/")
        first, last = bounds.split("-")
        steps += [step for step in range(int(first), int(last) + 1 if last else STEPS) if step % int(every) == 0]
    return steps


def chosen(collector: Collector, run: str) -> tuple[int, int]:
    """What rank 0 proposed: the divisor, and the first step for which it holds."""
    events = collector.json("events", run, "--kind", "overhead")["records"]
    first = next(event["fields"] for event in events if "announce" in event["fields"])
    return int(first["every"]), int(first["first"])


@pytest.mark.parametrize(("run", "every"), [("second", 2), ("fifth", 5), ("faulty", 5)])
def test_ranks_record_the_same_steps_in_full(runs: Collector, run: str, every: int) -> None:
    found, first = chosen(runs, run)
    assert (found, first) == (every, 16)
    steps = full_steps(runs, run)
    assert steps[0] == steps[1] == [*range(first), *(step for step in range(first, STEPS) if step % every == 0)]
    assert settings(runs, run)["recording.full_steps"] == f"0-{first - 1}/1, {first}-/{every}"


def test_every_step_has_its_losses_and_batches(runs: Collector) -> None:
    losses = runs.json("scalars", "fifth", "--name", "loss")["records"]
    places = {(each.get("rank", 0), each.get("step", 0), each.get("micro_batch", 0)) for each in losses}
    assert places == {(rank, step, micro_batch) for rank in (0, 1) for step in range(STEPS) for micro_batch in (0, 1)}
    batches = runs.json("series", "fifth", "input", "--kind", "batch")["records"]
    places = {(each.get("rank", 0), each.get("step", 0), each.get("micro_batch", 0)) for each in batches}
    assert places == {(rank, step, micro_batch) for rank in (0, 1) for step in range(STEPS) for micro_batch in (0, 1)}


@pytest.mark.parametrize(
    ("a", "b", "of_a", "of_b"), [("second", "fifth", 2, 5), ("every", "fifth", 1, 5), ("second", "every", 2, 1)]
)
def test_the_same_model_is_identical_whatever_each_run_chose(runs: Collector, a: str, b: str, of_a: int, of_b: int) -> None:
    found = runs.diff(a, b)
    assert found["verdict"] == "identical", found
    assert found["unmatched"] == {"only_a": [], "only_b": []}
    shared = sorted(set(full_steps(runs, a)[0]) & set(full_steps(runs, b)[0]))
    (said,) = [each["detail"] for each in found["comparable"] if each["check"] == "recording"]
    assert said.startswith(f"compared in full: {len(shared)} of {STEPS} steps (0..")
    every = 10 if (of_a, of_b) == (2, 5) else of_a * of_b
    assert f"multiples of {every} in" in said
    assert not [each["key"] for each in found["inputs"]["config"] if each["key"] == "recording.full_steps"]


def test_a_fault_between_the_shared_steps_is_bracketed(runs: Collector) -> None:
    found = runs.diff("second", "silent")
    assert found["verdict"] == "diverged"
    assert found["first"]["step"] == 50
    sentence = "first seen at step 50; last agreeing step 40; run both again with steps=40-50 to see where it began"
    assert sentence in found["notes"]
    assert sentence in found["root"]["because"]
    assert found["root"]["confidence"] != "certain"
    assert found["bracket"] == {"first_seen": 50, "last_agreeing": 40}
    text = runs.statctl("diff", "--run-a", "second", "--run-b", "silent").out
    assert sentence in text
    assert "Next: run both again with steps=40-50" in text


def test_the_losses_of_every_step_narrow_a_fault_down(runs: Collector) -> None:
    found = runs.diff("second", "faulty")
    assert found["verdict"] == "diverged"
    assert (found["first"]["step"], found["first"]["stage"]) == (FAULT, "loss")
    assert (
        f"first seen at step {FAULT}; last agreeing step 40; run both again with steps=40-{FAULT} to see where it began"
        in found["notes"]
    )
    assert found["root"]["confidence"] != "certain"
    assert "recording" not in json.dumps(found["root"].get("cause") or {})


def test_show_says_how_often_and_at_what_cost(runs: Collector) -> None:
    text = runs.statctl("show", "fifth").out
    measured = settings(runs, "fifth")["recording.overhead_measured"]
    assert f"full statistics every 5th step (overhead 40%: measured {measured}); scalars and batches every step" in text
    assert 25 < float(measured.rstrip("%")) < 40
    assert "full statistics" not in runs.statctl("show", "every").out


def test_what_the_hooks_really_take_is_measured(runs: Collector) -> None:
    every, first = chosen(runs, "tight")
    assert (first, every >= 5) == (16, True)
    steps = full_steps(runs, "tight")
    assert steps[0] == steps[1] == policy_steps(settings(runs, "tight")["recording.full_steps"])
    assert runs.diff("every", "tight")["verdict"] == "identical"


def test_ranks_find_nothing_missing(runs: Collector) -> None:
    assert runs.json("ranks", "fifth")["findings"] == []


def test_steps_that_were_asked_for_win(runs: Collector) -> None:
    assert full_steps(runs, "asked")[0] == list(range(40, 46))
    assert "recording.overhead" not in settings(runs, "asked")


def test_an_alarm_brings_steps_in_full_on_every_rank(runs: Collector) -> None:
    events = runs.json("events", "alarmed", "--kind", "overhead")["records"]
    window = next(event["fields"] for event in events if "last" in event["fields"])
    first, last = int(window["first"]), int(window["last"])
    assert last == first + 3
    steps = full_steps(runs, "alarmed")
    assert steps[0] == steps[1]
    assert set(range(first, last + 1)) <= set(steps[0])
