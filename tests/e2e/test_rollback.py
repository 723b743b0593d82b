"""One training that is moved to a restored checkpoint, to an empty store, and back to the first store: the stores together hold
what counts as acknowledged, and no store holds anything twice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Collector, start_python, wait_until

TENSORS = 200
PER_STEP = TENSORS + 1  # and the step's end

# Takes as many steps as each line of its input says, and says when their records are acknowledged or lost.
DRIVEN = f"""
import json, numpy, statagent, sys, time
statagent.init(run="moved", if_exists=sys.argv[1], required=True)
random = numpy.random.default_rng(1)
def check():
    c = statagent.counters()
    assert c["produced"] == c["acked"] + c["pending"] + sum(v for k, v in c.items() if k.startswith("dropped_")), c
    return c
step = 0
for line in sys.stdin:
    for _ in range(int(line)):
        for i in range({TENSORS}):
            statagent.inspect(f"layer.{{i}}", random.standard_normal(64, dtype="float32"))
        statagent.step()
        step += 1
        if step % 5 == 0:
            while check()["pending"] > 2000: time.sleep(0.005)
    while check()["pending"] > 0: time.sleep(0.005)
    print(step, flush=True)
statagent.close(timeout=30)
print(json.dumps(check()), flush=True)
"""


class Driven:
    def __init__(self, collector: Collector, policy: str, **env: str) -> None:
        self.process = start_python(["-c", DRIVEN, policy], env=collector.environment(**env), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def take(self, steps: int) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.kill()
            raise AssertionError(self.process.communicate()[1])

    def end(self) -> Any:
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return json.loads(out.splitlines()[-1])


def steps_of(collector: Collector) -> list[int]:
    return [int(point["step"]) for point in collector.json("series", "moved", "layer.7")["records"]]


def records_of(collector: Collector) -> int:
    return sum(int(run["records"]) for run in collector.json("runs")["runs"])


def sibling(first: Collector, data_dir: Path, *extra: str) -> Collector:
    """Another collector at the same address, for when the first is not there."""
    return Collector(data_dir, address=first.address, http=first.http, extra=list(extra))


@pytest.mark.parametrize(("policy", "spill"), [("error", False), ("replace", True), ("append", True)])
def test_a_training_that_is_moved_between_stores_is_accounted_for(
    collector: Collector, tmp_path: Path, policy: str, spill: bool
) -> None:
    trainer = Driven(collector, policy, **({"STATAGENT_SPILL_DIR": str(tmp_path / "spill")} if spill else {}))
    trainer.take(20)
    assert collector.statctl("checkpoint", str(tmp_path / "saved")).code == 0
    trainer.take(700)  # far more than the agent keeps to send again
    collector.stop()

    restored = sibling(collector, tmp_path / "restored", "--restore-from", str(tmp_path / "saved")).start()
    trainer.take(300)
    assert steps_of(restored)[-1] == 1019
    restored_steps, restored_records = steps_of(restored), records_of(restored)
    assert len(restored_steps) < 1020, "the agent kept everything: the test proves nothing"
    restored.kill()

    empty = sibling(collector, tmp_path / "empty").start()
    trainer.take(300)
    empty_steps, empty_records = steps_of(empty), records_of(empty)
    empty.kill()

    collector.start()
    trainer.take(30)
    counters = trainer.end()
    wait_until(lambda: steps_of(collector)[-1] == 1349, what="the last step in the first store")
    first_steps = steps_of(collector)
    for name, steps in (("first", first_steps), ("restored", restored_steps), ("empty", empty_steps)):
        assert len(steps) == len(set(steps)), f"{name} has a step twice"
    assert set(first_steps) >= set(range(720)), "what the first store had is as it was"
    assert set(first_steps) | set(restored_steps) | set(empty_steps) == set(range(1350)), "and nothing is in no store"
    # All were acknowledged by some store; those that a later one lacked and the agent did not hold any more count as dropped.
    held = records_of(collector) + restored_records + empty_records
    assert counters["pending"] == 0
    assert counters["acked"] <= held
    assert counters["produced"] >= 1350 * PER_STEP
    assert counters["acked"] + counters["dropped_regressed"] == counters["produced"]
