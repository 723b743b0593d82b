"""Models under DeepSpeed ZeRO and FullyShardedDataParallel, watched on every rank, and the same training on one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import statagent

from .layouts_ranks import Found
from .layouts_watched import check, watched

STEPS = 2


class Net(nn.Module):
    """Sizes that neither 2 nor 4 divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


def _groups(net: nn.Module) -> list[dict[str, Any]]:
    """Two, so that the update of a ZeRO optimizer consists of two."""
    return [
        {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]


def _batches() -> list[torch.Tensor]:
    """The same on all ranks, so that the mean of gradients over them is exact."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(-3, 4, (4, 5), generator=generator).float() for _ in range(STEPS)]


def _train(model: nn.Module, optimizer: Any) -> None:
    for x in _batches():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def plain(found: Found, rank: int, ranks: int) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(_groups(net), lr=0.1, eps=0.1, foreach=False)
    with watched(found, "plain"):
        statagent.watch(net, optimizer=optimizer, updates="0-", layouts={"*": statagent.replicate()})
        _train(net, optimizer)


def _zero(stage: int, given: str) -> Any:
    def run(found: Found, rank: int, ranks: int) -> None:
        import deepspeed

        net = Net()
        own = torch.optim.AdamW(_groups(net), lr=0.1, eps=0.1, foreach=False)
        config = {
            "train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        }  # fmt: skip
        engine, sharded, _, _ = deepspeed.initialize(model=net, optimizer=own, config=config, dist_init_required=False)
        with watched(found, f"zero{stage} {given}"):
            statagent.watch(
                engine, optimizer={"inner": own, "outer": sharded}.get(given) or _of_accelerate(sharded), updates="0-"
            )
            for x in _batches():
                engine.backward(engine(x).square().mean())
                engine.step()
        assert "step" not in vars(sharded)
        engine.destroy()

    return check(f"zero{stage}_{given}", run)


def _of_accelerate(optimizer: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper

    Accelerator(cpu=True)
    return DeepSpeedOptimizerWrapper(optimizer)


def _fsdp1(label: str, originals: bool, strategy: str) -> Any:
    def run(found: Found, rank: int, ranks: int) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        hybrid = strategy == "HYBRID_SHARD"
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards")) if hybrid else None
        model = FullyShardedDataParallel(
            Net(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"), use_orig_params=originals,
            sharding_strategy=ShardingStrategy[strategy], device_mesh=mesh,
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, eps=0.1, weight_decay=0.0, foreach=False)
        with watched(found, label):
            statagent.watch(model, optimizer=optimizer, updates="0-")
            _train(model, optimizer)

    return check(label, run)


def plain_without_decay(found: Found, rank: int, ranks: int) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, eps=0.1, weight_decay=0.0, foreach=False)
    with watched(found, "plain without decay"):
        statagent.watch(net, optimizer=optimizer, updates="0-", layouts={"*": statagent.replicate()})
        _train(net, optimizer)


def fsdp2_hybrid(found: Found, rank: int, ranks: int) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards"))
    model = Net()
    for layer in (model.first, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(_groups(model), lr=0.1, eps=0.1, foreach=False)
    with watched(found, "fsdp2_hybrid"):
        statagent.watch(model, optimizer=optimizer, updates="0-")
        _train(model, optimizer)


FSDP = [
    plain, plain_without_decay, _fsdp1("fsdp1", True, "FULL_SHARD"), _fsdp1("fsdp1_flat", False, "FULL_SHARD"),
    _fsdp1("fsdp1_flat_grad", False, "SHARD_GRAD_OP"), _fsdp1("fsdp1_no_shard", False, "NO_SHARD"),
]  # fmt: skip
HYBRID = [_fsdp1("fsdp1_hybrid", True, "HYBRID_SHARD"), _fsdp1("fsdp1_hybrid_flat", False, "HYBRID_SHARD"), fsdp2_hybrid]
ZERO = [plain, *(_zero(stage, given) for stage in (1, 2, 3) for given in ("outer", "inner", "accelerate"))]
CHECKS = {2: FSDP, 4: [*FSDP, *HYBRID]}
