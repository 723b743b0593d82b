"""The ring: raw values of the last steps, which become captures when something breaks, and outlive a process that is killed."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Collector, run_command, start_python, torchrun, wait_until

# Trains 30 steps; at step 25 the batch is a thousand times too large, or the process is killed after it.
SCRIPT = textwrap.dedent("""
    import os, signal, sys, numpy, torch, statagent
    from pathlib import Path
    from torch import distributed, nn

    values, fault = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ.get("RANK", 0))
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    width = int(os.environ.get("WIDTH", 8))
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    agent = statagent.init()
    statagent.watch(model, optimizer=optimizer)
    start = int(os.environ.get("START", 0))
    if start:
        agent.set_step(start)
    for step in range(start, 30):
        x = torch.randn(16, 4)
        target = torch.ones(16, 3)
        if step == 25 and rank == int(os.environ.get("WORLD_SIZE", 1)) - 1:
            if fault == "spike":
                target = target * 1000
            if fault == "nan":
                x[0, 0] = float("nan")
        out = model(x)
        numpy.save(values / f"{step}.{rank}.npy", out.detach().numpy())
        loss = (out - target).square().mean()
        statagent.log_scalar("loss", loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numpy.save(values / f"{step}.{rank}.grad.npy", model[2].weight.grad.numpy())
        if step == 25 and fault == "kill":
            assert statagent.flush(timeout=20)
            os.kill(os.getpid(), signal.SIGKILL)
    statagent.close(timeout=30)
""")


class Trained:
    """A training that has ended; its own values lie in `values`."""

    def __init__(
        self,
        collector: Collector,
        folder: Path,
        run: str,
        fault: str,
        env: dict[str, str] | None = None,
        ranks: int = 0,
        values: str = "values",
    ) -> None:
        self.values = folder / f"{values}-{run}"
        self.values.mkdir()
        script = folder / "train.py"
        script.write_text(SCRIPT)
        command = [str(script), str(self.values), fault]
        self.out = folder / f"{run}.out"
        with self.out.open("w") as out:
            process = start_python(
                torchrun(ranks, *command)[1:] if ranks else command,
                env={**collector.environment(STATAGENT_RUN=run), **(env or {})},
                stdout=out,
                stderr=out,
            )
            self.code = process.wait(120)

    def check(self, collector: Collector, folder: Path, run: str, step: int, rank: int = 0) -> None:
        """What is kept is what the training computed, bit for bit."""
        for name, options, suffix in (("2", [], ""), ("2.weight", ["--kind", "weight_grad"], ".grad")):
            path = folder / f"{run}.{step}{suffix}.npy"
            saved = collector.statctl(
                "capture", run, name, "--step", str(step), "--rank", str(rank), *options, "--out", str(path)
            )
            assert saved.code == 0, saved.out + saved.err
            expected = numpy.load(self.values / f"{step}.{rank}{suffix}.npy")
            assert numpy.load(path).tobytes() == expected.tobytes(), f"{name} at step {step}"


def captured(collector: Collector, run: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = collector.json("captures", run)["records"]
    assert all(row["complete"] for row in rows)
    return rows


def told(collector: Collector, run: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = collector.json("events", run, "--kind", "ring_written")["records"]
    return events


@pytest.mark.parametrize(("fault", "cause"), [("spike", "loss_spike"), ("nan", "nan")])
def test_a_spike_leaves_the_steps_before_it(collector: Collector, tmp_path: Path, fault: str, cause: str) -> None:
    trained = Trained(collector, tmp_path, "broken", fault, {"STATAGENT_RING": "3,4MiB"})
    assert trained.code == 0, trained.out.read_text()
    (event, *_) = told(collector, "broken")
    assert event["step"] == 25 and cause in event["fields"]["cause"].split(","), event
    rows = captured(collector, "broken")
    assert {row["kind"] for row in rows} == {"output", "weight_grad"}
    assert {23, 24, 25} <= {row["step"] for row in rows}
    for step in (23, 24, 25):
        trained.check(collector, tmp_path, "broken", step)
    (line, *_) = [line for line in trained.out.read_text().splitlines() if "of the ring written as captures" in line]
    assert "step 25" in line and "statctl values list" in line


def test_a_step_larger_than_the_ring_leaves_room_for_those_before_it(collector: Collector, tmp_path: Path) -> None:
    # A step has 6 MB; its share of 4 MiB is a sixth.
    env = {"STATAGENT_RING": "3,4MiB", "WIDTH": "40000"}
    trained = Trained(collector, tmp_path, "wide", "spike", env)
    assert trained.code == 0, trained.out.read_text()
    (event, *_) = told(collector, "wide")
    assert event["fields"]["missing"] == "0" and "of each step 4 of 8 tensors whole and the first rows of 4" in event["text"], (
        event
    )
    assert "statagent: the ring has room for this of each step: 4 of 8 tensors whole" in trained.out.read_text()
    kept: dict[int, set[tuple[Any, ...]]] = {}
    for row in captured(collector, "wide"):
        if row["step"] <= 25:
            kept.setdefault(row["step"], set()).add((row["activation"], row["kind"], row["elements"]))
    assert sorted(kept) == [22, 23, 24, 25]
    assert all(tensors == kept[25] and len(tensors) == 8 for tensors in kept.values()), "the same of each step"
    for step in (22, 25):
        path = tmp_path / f"wide.{step}.npy"
        saved = collector.statctl("capture", "wide", "2", "--step", str(step), "--out", str(path))
        assert saved.code == 0, saved.out + saved.err
        assert numpy.load(path).tobytes() == numpy.load(trained.values / f"{step}.0.npy").tobytes()


def test_without_a_ring_nothing_is_kept_and_without_a_spike_nothing_is_written(collector: Collector, tmp_path: Path) -> None:
    for run, fault, ring in (("off", "spike", {}), ("quiet", "none", {"STATAGENT_RING": "3,4MiB"})):
        trained = Trained(collector, tmp_path, run, fault, ring)
        assert trained.code == 0, trained.out.read_text()
        assert captured(collector, run) == [] and told(collector, run) == []


def test_a_killed_process_leaves_its_last_steps(collector: Collector, tmp_path: Path) -> None:
    spilled = tmp_path / "spill"
    env = {"STATAGENT_RING": "3,4MiB", "STATAGENT_SPILL_DIR": str(spilled)}
    trained = Trained(collector, tmp_path, "killed", "kill", env)
    assert trained.code == -signal.SIGKILL, trained.out.read_text()
    (left,) = spilled.glob("*.ring")
    assert left.stat().st_mode & 0o777 == 0o600
    assert captured(collector, "killed") == []

    looked = collector.statctl("import", "spill", str(spilled), "--dry-run")
    assert looked.code == 0 and "would send the values of" in looked.out, looked.out + looked.err
    sent = collector.statctl("import", "spill", str(spilled))
    assert sent.code == 0 and "sent the values of" in sent.out, sent.out + sent.err
    assert not left.exists()
    assert {23, 24, 25} <= {row["step"] for row in captured(collector, "killed")}
    for step in (23, 24, 25):
        trained.check(collector, tmp_path, "killed", step)
    (event,) = told(collector, "killed")
    assert event["fields"]["cause"] == "killed" and event["step"] == 25
    again = collector.statctl("import", "spill", str(spilled))
    assert again.code == 2 and "nothing to send" in again.err


def test_the_next_launch_says_how_to_send_what_a_killed_one_left(collector: Collector, tmp_path: Path) -> None:
    spilled = tmp_path / "spill"
    env = {"STATAGENT_RING": "3,4MiB", "STATAGENT_SPILL_DIR": str(spilled)}
    first = Trained(collector, tmp_path, "again", "kill", env)
    assert first.code == -signal.SIGKILL and "have ended left" not in first.out.read_text(), first.out.read_text()
    second = Trained(
        collector, tmp_path, "again", "none", {**env, "START": "26", "STATAGENT_IF_EXISTS": "append"}, values="resumed"
    )
    assert second.code == 0, second.out.read_text()
    (line,) = [line for line in second.out.read_text().splitlines() if "processes that have ended left" in line]
    assert "left 1 file in spill_dir" in line, "its own file is not one"
    program, *words = line.partition("to their runs: ")[2].split()
    assert program == "statctl"
    sent = collector.statctl(*words)
    assert sent.code == 0 and "sent the values of" in sent.out, sent.out + sent.err
    for step in (23, 24, 25):
        first.check(collector, tmp_path, "again", step)


def test_a_damaged_ring_file_is_refused_and_kept(collector: Collector, tmp_path: Path) -> None:
    env = {"STATAGENT_RING": "3,4MiB", "STATAGENT_SPILL_DIR": str(tmp_path / "spill")}
    Trained(collector, tmp_path, "killed", "kill", env)
    (left,) = (tmp_path / "spill").glob("*.ring")
    whole = left.read_bytes()
    for damage, message in (
        (b"x" * 8 + whole[8:], "expected the ring file of an agent"),
        (whole[: len(whole) // 2], "sizes that do not fit"),
        (whole[:64] + b"\x00" * 8 + whole[72:], "the hello in it is damaged"),
        (b"", "it ends at byte 0"),
    ):
        left.write_bytes(damage)
        refused = collector.statctl("import", "spill", str(left))
        assert refused.code == 2 and message in refused.out + refused.err, refused.out + refused.err
        assert left.exists()
    (left.with_suffix(".spill")).write_bytes(b"")
    left.write_bytes(whole)
    refused = collector.statctl("import", "spill", str(left))
    assert refused.code == 2 and "send that first" in refused.out + refused.err, refused.out + refused.err


def test_an_agent_that_ends_takes_its_ring_file_with_it(collector: Collector, tmp_path: Path) -> None:
    env = {"STATAGENT_RING": "3,4MiB", "STATAGENT_SPILL_DIR": str(tmp_path / "spill")}
    assert Trained(collector, tmp_path, "whole", "none", env).code == 0
    assert list((tmp_path / "spill").iterdir()) == []


def test_of_two_ranks_the_one_with_the_spike_writes(collector: Collector, tmp_path: Path) -> None:
    trained = Trained(collector, tmp_path, "two", "spike", {"STATAGENT_RING": "3,4MiB"}, ranks=2)
    assert trained.code == 0, trained.out.read_text()
    wait_until(lambda: captured(collector, "two"), what="captures")
    rows = captured(collector, "two")
    assert {row["rank"] for row in rows} == {1}
    assert {23, 24, 25} <= {row["step"] for row in rows}
    for step in (23, 24, 25):
        trained.check(collector, tmp_path, "two", step, rank=1)


@pytest.mark.parametrize(
    ("ring", "message"),
    [
        ("3", "ring: the size is '3'; expected STEPS,BYTES, such as 3,64MiB"),
        ("0,64MiB", "ring: the number of steps is '0'; expected 1..1000"),
        ("3,64", "ring: the memory is '64'; expected 1 MiB to 128 MiB, such as 64MiB"),
        ("3,1GiB", "ring: the memory is '1GiB'"),
        ("3,64MiB;*:kind=outputs", "ring: kind: found 'outputs' (did you mean 'output'?)"),
    ],
)
def test_bad_values_are_said(collector: Collector, ring: str, message: str) -> None:
    bad = run_command(["python3", "-c", f"import statagent; statagent.init(run='x', ring={ring!r})"], env=collector.environment())
    assert bad.code != 0 and message in bad.err, bad.err
