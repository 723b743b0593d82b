"""Twins of training on several ranks over gloo: replicas get the same noise, parts of a tensor that of the whole."""

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
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
sys.path[:0] = os.environ["TESTS"].split(":")
from python.models import Net, data, seeded
from python.support import Recording
from statagent._native import library as _library
recording = Recording(_library.load())
_library.load = lambda: recording
rank, world, way = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["WAY"]
if world > 1:
    torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
def check_distributed_tensors(hooks):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    whole = data(rows=6, width=5)
    for placement in (Shard(0), Shard(1), Replicate()):
        for needs_gradient in (False, True):
            cut = distribute_tensor(whole, mesh, [placement]).requires_grad_(needs_gradient)
            made = hooks.perturbed(cut, 7)
            assert made.placements == cut.placements and made.requires_grad == needs_gradient
            assert torch.equal(made.full_tensor(), hooks.noise.noisy(whole, 7)), placement
    parts = DTensor.from_local(whole, mesh, [Partial()])
    made = hooks.perturbed(parts, 7)
    other = made.to_local() - whole
    assert made.placements == (Partial(),) and other.abs().max() > 0
    torch.testing.assert_close(made.full_tensor(), 2 * whole)
    assert not torch.equal(made.full_tensor() - 2 * whole, 2 * other), "each rank has a sum, and noise, of its own"
def trained(perturb):
    recording.records.clear(), recording.events.clear(), recording._identities.clear()
    net = seeded(Net)
    if way == "ddp":
        net = nn.parallel.DistributedDataParallel(net)
    elif way == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    elif way in ("fsdp1", "fsdp1_flat"):
        from torch.distributed.fsdp import FullyShardedDataParallel
        net = FullyShardedDataParallel(net, use_orig_params=way == "fsdp1", device_id=torch.device("cpu"))
    elif way == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        parallelize_module(net, mesh, {"blocks.0.fc": RowwiseParallel(input_layouts=__import__("torch").distributed.tensor.Replicate()),
                                       "blocks.1.fc": ColwiseParallel(output_layouts=__import__("torch").distributed.tensor.Replicate())})
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb=perturb)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    def whole(p):
        return p.full_tensor() if hasattr(p, "full_tensor") else p
    weights = {}
    if way.startswith("fsdp1"):
        with FullyShardedDataParallel.summon_full_params(net):
            weights = {n.replace("_fsdp_wrapped_module.", ""): p.detach().clone().tolist() for n, p in net.named_parameters()}
    else:
        weights = {n.removeprefix("module."): whole(p).detach().tolist() for n, p in net.named_parameters()}
    same_data = way in ("tp", "one")
    for step in range(2):
        for micro_batch in range(2):
            x = data(seed=10 * step + micro_batch + (0 if same_data else 100 * rank))
            net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert recording.refusals == [], recording.refusals
    assert not [e for e in recording.events if e[1] == "not_perturbed"], recording.events
    if perturb == "1" and way == "ddp":
        check_distributed_tensors(statagent.agent.current().watches.noise_hooks)
    statagent.close(timeout=0)
    return {"weights": weights, "hashes": {
        "/".join(map(str, (r.step, r.mode, r.name, r.kind, r.path, r.micro_batch, r.call))): r.hash for r in recording.records}}
print(json.dumps([trained(perturb) for perturb in json.loads(os.environ["TWINS"])]))
if world > 1:
    torch.distributed.destroy_process_group()
"""


def launch(folder: Path, way: str, twins: list[str | None], world: int = 2) -> list[list[dict[str, Any]]]:
    """What each rank found, for each twin (None: the base): the weights as loaded, whole, and the hashes of all records."""

    def run(rank: int) -> Any:
        done = python(
            SCRIPT, WAY=way, MEETING=f"{folder}/meeting", RANK=str(rank), WORLD_SIZE=str(world), TWINS=json.dumps(twins),
            TESTS=f"{TESTS}:{TESTS.parent / 'e2e'}", timeout=240,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def differing(one: dict[str, int], other: dict[str, int]) -> set[str]:
    assert one.keys() == other.keys()
    return {key for key in one if one[key] != other[key]}


WAYS = ("ddp", "fsdp2", "fsdp1", "fsdp1_flat", "tp")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights of a twin on one rank."""
    ((base, once),) = launch(tmp_path_factory.mktemp("alone"), "one", [None, "3,5,once"], world=1)
    assert base["weights"] != once["weights"]
    found: dict[str, Any] = once["weights"]
    return found


@pytest.mark.parametrize("way", WAYS)
def test_replicas_and_parts_get_the_noise_of_the_whole(tmp_path: Path, way: str, alone: dict[str, Any]) -> None:
    found = launch(tmp_path, way, [None, "1", "1", "3,5,once"])
    hashes = [[each["hashes"] for each in rank] for rank in found]
    for base, twin, again, _ in hashes:
        assert twin == again
        changed = differing(base, twin)
        assert not [key for key in changed if "/init/" in key], "the loaded weights are those of the base"
        for kind in ("output", "grad_output", "weight_grad", "weight"):
            of_kind = [key for key in base if f"/{kind}/" in key and "/init/" not in key]
            assert len([key for key in of_kind if key in changed]) > 0.25 * len(of_kind) > 0, (
                kind
            )  # Adam hides noise from some weights
    (base, twin, *_), (_, other, *_) = hashes
    if way == "ddp":
        assert [key for key in twin if "/weight" in key and twin[key] != other[key]] == []
    if way == "tp":  # everything that is not cut is the same on both ranks
        same = [key for key in base if base[key] == hashes[1][0][key]]
        assert len(same) > 20 and [key for key in same if twin[key] != other[key]] == []
    for rank in found:
        assert rank[3]["weights"] == alone, "noise of the weights does not depend on how they are cut"
