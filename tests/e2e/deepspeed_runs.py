"""Trains under DeepSpeed on CPUs over gloo: python deepspeed_runs.py JOBS.json, under torchrun: ZeRO beside tensor parallelism, with the optimizer's state
offloaded, and Ulysses over a Llama of Transformers. Stage 0 is the same training without DeepSpeed.

`fault`: what one run does otherwise: see FAULTS in test_layouts_deepspeed.py."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

import statagent

VOCABULARY, LENGTH, WIDTH, BATCH = 32, 8, 16, 8
FAULTY = "blocks.0.fc2.weight"  # the parameter of the fault in the optimizer


@dataclass(frozen=True)
class Job:
    """`tensor`: how many ranks share a layer. `offload`: the optimizer's state is offloaded to the CPU."""

    run: str
    stage: int = 0
    tensor: int = 1
    offload: bool = False
    ulysses: bool = False
    fault: str = ""
    steps: int = 3


@dataclass(frozen=True)
class Ranks:
    """Those that share a layer, and those with other samples."""

    tensor: Any
    data: Any
    rank: int  # of `tensor`
    size: int


def ranks_of(tensor: int) -> Ranks:
    """Neighbours share a layer. Every rank makes all groups."""
    world, me = distributed.get_world_size(), distributed.get_rank()
    rows = [list(range(first, first + tensor)) for first in range(0, world, tensor)]
    columns = [list(range(offset, world, tensor)) for offset in range(tensor)]
    shared = [distributed.new_group(row) for row in rows][me // tensor]
    return Ranks(shared, [distributed.new_group(column) for column in columns][me % tensor], me % tensor, tensor)


def mpu_of(ranks: Ranks) -> Any:
    """What a program tells DeepSpeed of its own tensor parallelism."""
    return SimpleNamespace(
        get_model_parallel_rank=lambda: ranks.rank, get_model_parallel_world_size=lambda: ranks.size,
        get_model_parallel_group=lambda: ranks.tensor, get_data_parallel_group=lambda: ranks.data,
        get_data_parallel_rank=lambda: distributed.get_rank(ranks.data),
        get_data_parallel_world_size=lambda: distributed.get_world_size(ranks.data),
    )  # fmt: skip


class _Enter(torch.autograd.Function):
    """Whole activations into a cut matrix: each rank's gradient is a part of the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous().clone()
        distributed.all_reduce(gradient, group=ctx.ranks.tensor)
        return gradient, None


class _Leave(torch.autograd.Function):
    """Each rank's part of the sum into whole activations."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        x = x.clone()
        distributed.all_reduce(x, group=ranks.tensor)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Cut(nn.Module):
    """A matrix of which this rank has the rows (dim 0) or the columns (dim 1)."""

    def __init__(self, whole: nn.Linear, dim: int, ranks: Ranks) -> None:
        super().__init__()
        self.dim, self.ranks = dim, ranks
        part: Any = nn.Parameter(whole.weight.detach().chunk(ranks.size, dim)[ranks.rank].clone())
        if ranks.size > 1:
            part.tensor_model_parallel, part.partition_dim, part.partition_stride = True, dim, 1
        self.weight = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.dim == 0:
            return F.linear(_Enter.apply(x, self.ranks), self.weight)
        return _Leave.apply(F.linear(x, self.weight), self.ranks)


class Block(nn.Module):
    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(LENGTH, LENGTH, bias=False)
        self.fc1 = Cut(nn.Linear(WIDTH, 4 * WIDTH, bias=False), 0, ranks)
        self.fc2 = Cut(nn.Linear(4 * WIDTH, WIDTH, bias=False), 1, ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class Net(nn.Module):
    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(ranks) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def engine_of(job: Job, net: nn.Module, optimizer: Any, mpu: Any) -> Any:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled for a minute; gloo does the same

    zero: dict[str, Any] = {"stage": job.stage}
    if job.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    config = {
        "train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 1.0, "zero_optimization": zero,
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
    }  # fmt: skip
    return deepspeed.initialize(model=net, optimizer=optimizer, config=config, mpu=mpu, dist_init_required=False)[0]


def plant(job: Job, net: nn.Module, engine: Any) -> None:
    """After the update of step 0: the state of this rank's part of a parameter is lost."""
    if job.fault != "stale_state":
        return
    (wanted,) = [parameter for name, parameter in net.named_parameters() if name == FAULTY]
    mapping: Any = getattr(wanted, "_hp_mapping", None)
    if mapping is not None:
        mapping.get_hp_fragment(optim_state_key="exp_avg").zero_()


def layouts_of(job: Job, ranks: Ranks) -> dict[str, Any]:
    blocks = statagent.batch(order="blocks", group=ranks.data)
    if job.tensor == 1:
        return {"*": blocks}
    same = dict.fromkeys(
        ("tokens", "*norm", "*.mix", "*.fc2", "blocks.?", "head", "Net"), (statagent.replicate(ranks.tensor), blocks)
    )
    return {"*.fc1": (statagent.shard(-1, ranks.tensor), blocks), **same, "*": blocks}


def train(job: Job) -> None:
    ranks = ranks_of(job.tensor)
    torch.manual_seed(1)
    net = Net(ranks)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.0, foreach=False)
    engine = engine_of(job, net, optimizer, mpu_of(ranks) if job.tensor > 1 else None) if job.stage else None
    statagent.init(run=job.run, if_exists="replace", launch=f"{job.run}-1")
    statagent.watch(engine or net, optimizer=optimizer, layouts=layouts_of(job, ranks) if engine else None)
    copies, copy = distributed.get_world_size(ranks.data), distributed.get_rank(ranks.data)
    for step in range(job.steps):
        text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(100 + step))
        mine = text.chunk(copies)[copy]
        logits = (engine or net)(mine[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        statagent.log_scalar("loss", loss.item())
        if engine is not None:
            engine.backward(loss)
            engine.step()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if step == 0:
            plant(job, net, engine)
    statagent.close(timeout=20)
    if engine is not None:
        engine.destroy()


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=64,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config)


@functools.cache
def ulysses_groups() -> Any:
    """Of all ranks; from now on Transformers' attention exchanges heads for tokens."""
    import deepspeed
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled for a minute; gloo does the same
    deepspeed.init_distributed("gloo", dist_init_required=False)
    return UlyssesSPAttentionHF.register_with_transformers(
        llama(), core_attn_implementation="sdpa", sequence_parallel_size=distributed.get_world_size(), micro_batch_size=BATCH
    )


def train_ulysses(job: Job) -> None:
    """All ranks share every sequence."""
    model, mpu = llama(), ulysses_groups() if job.stage else None
    rank, size = distributed.get_rank(), distributed.get_world_size()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, foreach=False)
    engine = engine_of(job, model, optimizer, mpu) if job.stage else None
    statagent.init(run=job.run, if_exists="replace", launch=f"{job.run}-1")
    statagent.watch(engine or model, optimizer=optimizer)
    for step in range(job.steps):
        text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(100 + step))
        positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
        ids, targets, where = (each.chunk(size, 1)[rank].contiguous() for each in (text[:, :-1], text[:, 1:], positions))
        if job.fault == "positions" and step >= 1:
            where = torch.arange(LENGTH // size).expand(BATCH, LENGTH // size)
        logits = (engine or model)(input_ids=ids, position_ids=where, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        statagent.log_scalar("loss", loss.item())
        if engine is not None:
            engine.backward(loss / size)  # gradients of ranks that share sequences are summed
            engine.step()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    statagent.close(timeout=20)
    if engine is not None:
        engine.destroy()


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for options in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        job = Job(**options)
        train_ulysses(job) if job.ulysses else train(job)
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
