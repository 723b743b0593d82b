"""Raw values of tensors: asked for while real training runs, or from its start; bit for bit what the training itself computed."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy
from conftest import Collector, run_command, start_python, torchrun, wait_until
from tcp_proxy import TcpProxy

# Trains slowly until stopped, and saves what it computes in `values`/STEP.RANK.npy.
SCRIPT = textwrap.dedent("""
    import os, sys, time, numpy, torch, statagent
    from pathlib import Path
    from torch import distributed, nn

    values, steps, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    wide = int(sys.argv[4]) if len(sys.argv) > 4 else 8
    rank = int(os.environ.get("RANK", 0))
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    torch.manual_seed(rank)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, wide), nn.Linear(wide, 3)

        def forward(self, x):
            hidden = statagent.inspect("hidden", torch.tanh(self.fc1(x)).t()).t()
            out = self.fc2(hidden)
            numpy.save(values / f"{agent.current_step()}.{rank}.npy", out.detach().numpy())
            if wide < 1000 or agent.current_step() == 2:
                numpy.save(values / f"{agent.current_step()}.{rank}.hidden.npy", hidden.detach().t().contiguous().numpy())
            return out

    model = Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    agent = statagent.init()
    statagent.watch(model, optimizer=optimizer)
    for step in range(steps):
        if (values / "stop").exists():
            break
        model(torch.randn(16, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
    statagent.close(timeout=30)
    print("counters", statagent.counters())
""")


class Training:
    """A training process in the background; its own values lie in `values`. 0 ranks: one, without a launcher."""

    def __init__(self, collector: Collector, folder: Path, run: str, *arguments: str, ranks: int = 2, **env: str) -> None:
        self.values = folder / f"values-{run}"
        self.values.mkdir()
        script = folder / "train.py"
        script.write_text(SCRIPT)
        command = [str(script), str(self.values), *(arguments or ("4000", "0.05"))]
        self.out = (folder / f"{run}.out").open("w+")
        self.process = start_python(
            torchrun(ranks, *command)[1:] if ranks else command,
            env={**collector.environment(STATAGENT_RUN=run), **env},
            stdout=self.out,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        (self.values / "stop").touch()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()

    def end(self) -> None:
        (self.values / "stop").touch()
        assert self.process.wait(60) == 0, Path(self.out.name).read_text()

    def array(self, step: int, rank: int, suffix: str = "") -> Any:
        return numpy.load(self.values / f"{step}.{rank}{suffix}.npy")


def wait_for_step(collector: Collector, run: str, step: int, seconds: float = 60) -> int:
    """The last step of the run's slowest rank, once all are at `step`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        shown = collector.statctl("--format", "json", "show", run)
        if shown.code == 0:
            ranks = json.loads(shown.out)["attempts"][-1]["ranks"]
            lasts = [rank["last_step"] for rank in ranks]
            if len(ranks) == 2 and all(last is not None and last >= step for last in lasts):
                return int(min(lasts))
        time.sleep(0.2)
    raise AssertionError(f"{run} did not come to step {step}")


def test_request_during_training_gives_the_values_bit_for_bit(collector: Collector, tmp_path: Path) -> None:
    with Training(collector, tmp_path, "live") as training:
        step = wait_for_step(collector, "live", 3) + 40
        out = tmp_path / "captured"
        done = collector.statctl("capture", "live", "fc2", "--step", str(step), "--out", f"{out}/")
        assert done.code == 0, done.out + done.err
        assert f"asked ranks 0, 1 of run 'live' to capture fc2 at step {step}" in done.err
        for rank in (0, 1):
            kept = numpy.load(out / f"fc2.step{step}.rank{rank}.npy")
            expected = training.array(step, rank)
            assert kept.dtype == numpy.float32 and kept.shape == (16, 3)
            assert kept.tobytes() == expected.tobytes(), f"rank {rank}"
        listed = collector.json("captures", "live")
        assert [(r["rank"], r["step"], r["complete"], r["kind"]) for r in listed["records"]] == [
            (0, step, True, "output"),
            (1, step, True, "output"),
        ]
        assert [r["state"] for r in listed["requests"][0]["ranks"]] == ["captured", "captured"]
        events = collector.json("events", "live", "--kind", "capture")["records"]
        assert {e["rank"] for e in events} == {0, 1} and all(e["step"] == step for e in events)
        assert "captured fc2 (output): f32 16x3, 48 elements" in events[0]["text"]

        again = collector.statctl(
            "capture", "live", "fc2", "--step", str(step), "--rank", "1", "--out", str(tmp_path / "one.npy")
        )
        assert again.code == 0 and "asked" not in again.err, "what is there is not asked for again"
        assert numpy.load(tmp_path / "one.npy").tobytes() == training.array(step, 1).tobytes()

        later = wait_for_step(collector, "live", step) + 40
        strided = collector.statctl(
            "capture", "live", "hidden", "--step", str(later), "--rank", "0", "--out", str(tmp_path / "h.npy")
        )
        assert strided.code == 0, strided.out + strided.err
        assert numpy.load(tmp_path / "h.npy").tobytes() == training.array(later, 0, ".hidden").tobytes(), "logical order"

        past = collector.statctl("capture", "live", "fc2", "--step", "2")
        assert past.code == 2 and "step 2 has passed (rank 0 is at step" in past.err
        assert "STATAGENT_CAPTURES='fc2@2'" in past.err
        unknown = collector.statctl("capture", "live", "fc3", "--step", "100000")
        assert unknown.code == 2 and "closest: fc" in unknown.err
        kind = collector.statctl("capture", "live", "fc2", "--kind", "input", "--step", "100000")
        assert kind.code == 2 and "it was seen as" in kind.err
        foreign = collector.statctl("capture", "live", "fc2", "--step", "100000", "--rank", "7")
        assert foreign.code == 2 and "there is no rank 7" in foreign.err
        steps = collector.statctl("record", "live", "--steps", "0-1")
        assert steps.code == 2 and "all of them have passed" in steps.err
        pending = collector.statctl("capture", "live", "fc2", "--step", "100000", "--no-wait")
        assert pending.code == 0
        training.end()
    ended = collector.statctl("capture", "live", "fc2", "--step", "100000")
    assert ended.code == 2 and "none of its ranks is connected" in ended.err
    missed = collector.json("captures", "live")["requests"][-1]["ranks"]
    assert [r["state"] for r in missed] == ["missed", "missed"]
    assert all("the run ended at step" in r["why"] for r in missed)
    http = json.loads(collector.get(f"/api/v1/captures?run=live&activation=fc2&steps={step}"))
    assert [r["rank"] for r in http["records"]] == [0, 1]
    lines = collector.get(f"/api/v1/capture?run=live&activation=fc2&step={step}&rank=0").splitlines()
    assert bytes.fromhex("".join(json.loads(line)["data"] for line in lines)) == training.array(step, 0).tobytes()


def test_a_request_outlives_the_collector(collector: Collector, tmp_path: Path) -> None:
    with Training(collector, tmp_path, "live") as training:
        step = wait_for_step(collector, "live", 3) + 150
        assert collector.statctl("capture", "live", "fc2", "--step", str(step), "--no-wait").code == 0
        collector.kill()
        collector.start()
        done = collector.statctl(
            "capture", "live", "fc2", "--step", str(step), "--rank", "0", "--out", str(tmp_path / "a.npy"), timeout=90
        )
        assert done.code == 0, done.out + done.err
        assert numpy.load(tmp_path / "a.npy").tobytes() == training.array(step, 0).tobytes()


def test_places_given_from_the_start_and_the_comparison_of_two_runs(collector: Collector, tmp_path: Path) -> None:
    captures = {"STATAGENT_CAPTURES": "fc2@1-2; hidden@2; fc1.weight@1:kind=weight_grad; fc2@99"}
    for run in ("base", "same"):
        with Training(collector, tmp_path, run, "4", "0", ranks=2, **captures) as training:
            assert training.process.wait(60) == 0, Path(training.out.name).read_text()
    rows = collector.json("captures", "base", "--rank", "0")["records"]
    assert sorted((r["step"], r["activation"], r["kind"]) for r in rows) == [
        (1, "fc1.weight", "weight_grad"),
        (1, "fc2", "output"),
        (2, "fc2", "output"),
        (2, "hidden", "inspect"),
    ]
    texts = [e["text"] for e in collector.json("events", "base", "--kind", "capture_missed")["records"]]
    assert len(texts) == 2 and all("the run ended at step 4" in text for text in texts)
    equal = collector.statctl("diff-values", "base", "same", "fc2", "--step", "1")
    assert equal.code == 0 and "EQUAL" in equal.out, equal.out + equal.err
    other = collector.statctl("diff-values", "base", "same", "fc2", "--step", "0")
    assert other.code == 2 and "captured are: step 1, rank 0, fc2 (output, path '0')" in other.err
    bad = run_command(
        ["python3", "-c", "import statagent; statagent.init(run='x', captures=['fc2'])"], env=collector.environment()
    )
    assert bad.code != 0 and "NAME@STEP" in bad.err


def test_of_a_process_that_dies_between_chunks_no_half_is_shown_as_whole(collector: Collector, tmp_path: Path) -> None:
    """64 MiB take many chunks; the collector is killed among them and goes on, the process is killed among them and does not."""
    wide = 1 << 20  # `hidden` has 16 of it: 64 MiB
    spec = "hidden@2:bytes_max=67108864"
    with Training(collector, tmp_path, "big", "40", "0.1", str(wide), ranks=1, STATAGENT_CAPTURES=spec) as training:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            listed = collector.statctl("--format", "json", "captures", "big")
            rows = json.loads(listed.out)["records"] if listed.code == 0 else []
            if rows:
                break
            time.sleep(0.02)
        collector.kill()
        collector.start()
        (before,) = collector.json("captures", "big")["records"]
        assert 0 < before["bytes_stored"] <= before["bytes"] == 64 << 20
        if not before["complete"]:
            refused = collector.statctl("diff-values", "big", "big", "hidden", "--step", "2")
            assert refused.code == 2 and "bytes have arrived" in refused.err
        while time.monotonic() < deadline and not collector.json("captures", "big")["records"][0]["complete"]:
            time.sleep(0.2)
        done = collector.statctl("capture", "big", "hidden", "--step", "2", "--out", str(tmp_path / "big.npy"))
        assert done.code == 0, done.out + done.err
        assert numpy.load(tmp_path / "big.npy").tobytes() == training.array(2, 0, ".hidden").tobytes()
        assert os.path.getsize(tmp_path / "big.npy") > 64 << 20


def test_what_a_killed_process_could_not_finish_is_shown_as_incomplete_and_refused(collector: Collector, tmp_path: Path) -> None:
    """The line carries 24 of the 64 MiB; then the process is ended with -9."""
    spec = "hidden@2:bytes_max=67108864"
    proxy = TcpProxy(collector.address, seed=1, bytes_max=24 << 20)

    def rows() -> list[dict[str, Any]]:
        listed = collector.statctl("--format", "json", "captures", "cut")
        found: list[dict[str, Any]] = json.loads(listed.out)["records"] if listed.code == 0 else []
        return found

    env = {"STATAGENT_CAPTURES": spec, "STATAGENT_COLLECTOR": proxy.address}
    with Training(collector, tmp_path, "cut", "40", "0.1", str(1 << 20), ranks=0, **env) as training:
        wait_until(rows, what="a first chunk")
        wait_until(lambda: proxy.connections[0].black_hole_at is not None, what="the end of the line's capacity")
        training.process.kill()
        training.process.wait()
    proxy.close()
    (row,) = rows()
    assert not row["complete"] and 0 < row["bytes_stored"] < row["bytes"] == 64 << 20
    listed = collector.statctl("captures", "cut")
    assert listed.code == 0 and "MiB so far" in listed.out, listed.out + listed.err
    out = tmp_path / "half.npy"
    for arguments in (["--out", str(out)], []):
        refused = collector.statctl("capture", "cut", "hidden", "--step", "2", *arguments)
        assert refused.code == 2 and "of 64.0 MiB have arrived" in refused.err, refused.out + refused.err
        assert "capture it again if the run has ended" in refused.err
    assert not out.exists() and not list(tmp_path.glob("half.npy*")), "nothing half is left behind"
    differ = collector.statctl("diff-values", "cut", "cut", "hidden", "--step", "2")
    assert differ.code == 2 and "bytes have arrived; expected all of them" in differ.err, differ.out + differ.err
