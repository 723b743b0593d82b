"""DistributedDataParallel over gloo: watched before or after wrapping."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .support import python

TESTS = Path(__file__).resolve().parents[1]

SCRIPT = """
import json, sys, os, statagent, torch
from torch.nn.parallel import DistributedDataParallel
sys.path[:0] = os.environ["TESTS"].split(":")
from python.models import Net, data, seeded
from python.support import Recording
from statagent._native import library as _library
recording = Recording(_library.load())
_library.load = lambda: recording
torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=int(os.environ["RANK"]),
                                     world_size=int(os.environ["WORLD_SIZE"]))
statagent.init(run="ddp", collector="127.0.0.1:1", connect_timeout=0)
net = seeded(Net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
before = os.environ["ORDER"] == "before"
if before:
    statagent.watch(net, optimizer)
model = DistributedDataParallel(net)
if not before:
    statagent.watch(model, optimizer)
for step in range(2):
    for micro_batch in range(2):
        x = data(seed=10 * step + micro_batch + 100 * int(os.environ["RANK"]))
        with model.no_sync() if micro_batch == 0 else torch.enable_grad():
            model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
assert recording.refusals == [], recording.refusals
print(json.dumps(sorted({(r.step, r.name, r.kind, r.path, r.micro_batch, r.call) for r in recording.records})))
print(json.dumps([r.hash for r in recording.records if r.kind in ("weight_grad", "weight")]))
torch.distributed.destroy_process_group()
"""


def run(tmp_path: Path, order: str, world: int = 1, rank: int = 0) -> tuple[list[Any], list[int]]:
    """Identities and hashes of weights and their gradients, as one rank recorded them."""
    done = python(
        SCRIPT, ORDER=order, MEETING=f"{tmp_path}/meeting", RANK=str(rank), WORLD_SIZE=str(world),
        TESTS=f"{TESTS}:{TESTS.parent / 'e2e'}",
    )  # fmt: skip
    identities, hashes = map(json.loads, done.stdout.splitlines())
    return identities, hashes


@pytest.mark.parametrize("order", ["before", "after"])
def test_wrapped_model_is_recorded_under_plain_names(tmp_path: Path, order: str) -> None:
    identities, _ = run(tmp_path, order)
    assert not [name for _, name, *_ in identities if "module" in name]
    for expected in (
        [0, "Net", "output", "0", 0, 0],
        [1, "blocks.1.ln", "grad_output", "0", 1, 0],
        [1, "head.weight", "weight_grad", "", 0, 0],
        [1, "head.weight", "optimizer_state", "exp_avg", 0, 0],
    ):
        assert expected in identities, identities


def test_reduced_gradients_and_weights_agree_over_two_ranks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: run(tmp_path, "after", 2, rank), (0, 1))
    assert first == second
    assert len(first[1]) > 20
