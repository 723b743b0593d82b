"""The layouts: how each cuts the model over its ranks, and how it makes a training step."""

from __future__ import annotations

import fnmatch
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from . import by_hand
from .model import Gpt, Size, loss_of

BUGS = (
    "norm_gradient",
    "bias_on_every_rank",
    "qkv_interleaved",
    "vocabulary_offset",
    "dropout_seed",
    "divided_twice",
    "tied_on_one_stage",
    "samples_swapped",
    "not_averaged",
    "samples_repeated",
)

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # this rank's inputs and targets -> loss, with the gradients made


@dataclass
class Job:
    """A model that is cut, on one rank."""

    watched: nn.Module
    parameters: list[nn.Parameter]
    step: Step
    layouts: dict[str, Any] | None = None  # for watch
    optimizer: Any = None  # if the layout brings its own
    update: Callable[[], Any] | None = None  # what makes its update, if not its step()


@dataclass(frozen=True)
class Layout:
    """ranks: of the launch; data: of these, how many have a part of the batch of their own; micro_batches: of each, in a step."""

    cut: Callable[[Gpt, Size, Layout], Job]
    ranks: int = 1
    data: int = 1
    micro_batches: int = 1
    bug: str | None = None  # one of BUGS
    name: str = ""

    def part_of(self, batch: torch.Tensor, rank: int) -> torch.Tensor:
        """The sequences of a rank, in the order in which a DistributedSampler deals them."""
        number = rank * self.data // self.ranks
        if self.bug == "samples_swapped":
            number = {1: 2, 2: 1}.get(number, number)
        return batch[number :: self.data]


def _accumulate(model: nn.Module, layout: Layout) -> Step:
    count, bug = layout.micro_batches, layout.bug

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        parts = list(zip(inputs.chunk(count), targets.chunk(count)))
        if bug == "samples_repeated":
            parts[-1] = parts[0]
        for x, y in parts:
            loss = loss_of(model(x), y)
            (loss if bug == "not_averaged" else loss / count).backward()
            total += loss.detach() / count
        return total

    return step


def plain(model: Gpt, size: Size, layout: Layout) -> Job:
    return Job(model, list(model.parameters()), _accumulate(model, layout))


def ddp(model: Gpt, size: Size, layout: Layout) -> Job:
    wrapped = nn.parallel.DistributedDataParallel(model)
    step = _accumulate(wrapped, layout)
    return Job(wrapped, list(wrapped.parameters()), _then(step, wrapped, _divide) if layout.bug == "divided_twice" else step)


def _then(step: Step, model: nn.Module, after: Callable[[nn.Module], None]) -> Step:
    def both(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = step(inputs, targets)
        after(model)
        return loss

    return both


def _divide(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= distributed.get_world_size()


def in_order(model: Gpt, size: Size, layout: Layout) -> Job:
    """The user says which samples are where; the table of positions has none."""
    import statagent

    job = ddp(model, size, layout) if layout.ranks > 1 else plain(model, size, layout)
    samples = statagent.batch(micro_batches=layout.micro_batches)
    job.layouts = {"positions": statagent.batch(None), "*": samples}
    return job


def zero1(model: Gpt, size: Size, layout: Layout) -> Job:
    return ddp(model, size, layout)  # the optimizer is what is cut: train.py


def deepspeed_zero(model: Gpt, size: Size, layout: Layout) -> Job:
    """Of the stage that is the last letter of the layout's name."""
    import deepspeed

    stage = int(layout.name[-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    config = {
        "train_micro_batch_size_per_gpu": size.batch // layout.data, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }  # fmt: skip
    engine: Any
    engine, wrapper, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = loss_of(engine(inputs), targets)
        engine.backward(loss)
        return loss.detach()

    return Job(engine, [], step, optimizer=wrapper, update=engine.step)


def fsdp1(model: Gpt, size: Size, layout: Layout) -> Job:
    return _fsdp1(model, layout, use_orig_params=True)


def fsdp1_flat(model: Gpt, size: Size, layout: Layout) -> Job:
    return _fsdp1(model, layout, use_orig_params=False)


def fsdp1_hybrid(model: Gpt, size: Size, layout: Layout) -> Job:
    """Shards over two ranks, and replicas of them on the two others."""
    from torch.distributed.fsdp import ShardingStrategy

    mesh = init_device_mesh("cpu", (2, layout.ranks // 2), mesh_dim_names=("replicas", "shards"))
    return _fsdp1(model, layout, use_orig_params=True, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


def _fsdp1(model: Gpt, layout: Layout, **options: Any) -> Job:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from .model import Block

    wrapped = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), **options
    )
    return Job(wrapped, list(wrapped.parameters()), _accumulate(wrapped, layout))


def fsdp2(model: Gpt, size: Size, layout: Layout) -> Job:
    return _fsdp2(model, layout, init_device_mesh("cpu", (layout.ranks,), mesh_dim_names=("dp",)))


def fsdp2_hybrid(model: Gpt, size: Size, layout: Layout) -> Job:
    return _fsdp2(model, layout, init_device_mesh("cpu", (2, layout.ranks // 2), mesh_dim_names=("replicas", "shards")))


def _fsdp2(model: Gpt, layout: Layout, mesh: DeviceMesh) -> Job:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Job(model, list(model.parameters()), _accumulate(model, layout))


# --- tensor parallel, by torch's own styles


def tensor_parallel(model: Gpt, size: Size, layout: Layout) -> Job:
    _cut_tensors(model, init_device_mesh("cpu", (layout.ranks,), mesh_dim_names=("tp",)), sequence=False)
    return plain(model, size, layout)


def sequence_parallel(model: Gpt, size: Size, layout: Layout) -> Job:
    _cut_tensors(model, init_device_mesh("cpu", (layout.ranks,), mesh_dim_names=("tp",)), sequence=True)
    return plain(model, size, layout)


def data_and_tensor(model: Gpt, size: Size, layout: Layout) -> Job:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (layout.data, layout.ranks // layout.data), mesh_dim_names=("dp", "tp"))
    _cut_tensors(model, mesh["tp"], sequence=False)
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return plain(model, size, layout)


def _cut_tensors(model: Gpt, mesh: DeviceMesh, sequence: bool) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )  # fmt: skip

    between: Any = Shard(1) if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "blocks.*.attn.qkv": ColwiseParallel(),
        "blocks.*.attn.wo": RowwiseParallel(output_layouts=between),
        "blocks.*.mlp.fc1": ColwiseParallel(),
        "blocks.*.mlp.fc2": RowwiseParallel(output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if sequence:
        plan["positions"] = _SplitRows()
        plan |= dict.fromkeys(("blocks.*.ln1", "blocks.*.ln2", "norm"), SequenceParallel())
        plan |= dict.fromkeys(
            ("blocks.*.attn", "blocks.*.mlp"), PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
        )
        plan["blocks.*.attn.qkv"] = ColwiseParallel(input_layouts=Replicate())
    for name, module in model.named_modules():
        style = next((style for pattern, style in plan.items() if fnmatch.fnmatch(name, pattern)), None)
        if style is not None:
            parallelize_module(module, mesh, style)


def _SplitRows() -> Any:  # noqa: N802 (makes a style, like the classes beside it)
    """The table of positions is the same on all ranks; each takes the rows of its part of the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import RowwiseParallel

    return RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))


# --- tensor parallel by hand


def megatron(model: Gpt, size: Size, layout: Layout) -> Job:
    return _by_hand(model, size, layout, sequence=False)


def megatron_sequence(model: Gpt, size: Size, layout: Layout) -> Job:
    return _by_hand(model, size, layout, sequence=True)


def _by_hand(model: Gpt, size: Size, layout: Layout, sequence: bool) -> Job:
    to_sum = by_hand.cut(model, size, sequence, layout.bug)

    def reduce(_: nn.Module) -> None:
        for parameter in to_sum:
            assert parameter.grad is not None
            distributed.all_reduce(parameter.grad)

    step = _then(_accumulate(model, layout), model, reduce)
    return Job(model, list(model.parameters()), step, _layouts_by_hand(size, sequence))


def _layouts_by_hand(size: Size, sequence: bool) -> dict[str, Any]:
    """What the user of such a model says to watch: nothing in its modules does."""
    import statagent

    outputs = statagent.shard(1) if sequence else statagent.replicate()
    said: dict[str, Any] = dict.fromkeys(("tokens.weight", "head.weight"), statagent.shard(0, global_size=size.vocabulary))
    said |= dict.fromkeys(("*.qkv.*", "*.fc1.*"), statagent.shard(0)) | dict.fromkeys(
        ("*.wo.weight", "*.fc2.weight"), statagent.shard(1)
    )
    said |= dict.fromkeys(("*.qkv", "*.fc1", "*.drop"), statagent.shard(-1))
    said |= dict.fromkeys(("*.bias", "*.weight", "head", "Gpt"), statagent.replicate())
    if sequence:
        said["positions"] = statagent.shard(0)
    return said | {"*": outputs}


# --- pipeline


def pipeline(model: Gpt, size: Size, layout: Layout) -> Job:
    """Two stages, each with half of the blocks; one forward, one backward."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, stages = distributed.get_rank(), layout.ranks
    keep_stage(model, rank, stages)
    stage = PipelineStage(model, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, layout.micro_batches, loss_fn=loss_of)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == stages - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        if size.tied and layout.bug != "tied_on_one_stage":
            _sum_tied(model, rank, stages)
        return torch.stack(losses).mean().detach() if losses else torch.full((), float("nan"))

    return Job(model, list(model.parameters()), step)


def pipeline_in_order(model: Gpt, size: Size, layout: Layout) -> Job:
    """With `group=`, because the stages are not data-parallel ranks. Where their samples are stays unknown."""
    import statagent

    job = pipeline(model, size, layout)
    samples = statagent.batch(group=(0, 1), micro_batches=layout.micro_batches)
    job.layouts = {"positions": statagent.batch(None), "*": samples}
    return job


def pipeline_unsaid(model: Gpt, size: Size, layout: Layout) -> Job:
    """Without `group=`: that the stages are not data-parallel ranks is seen in the first forward pass."""
    import statagent

    job = pipeline(model, size, layout)
    job.layouts = {"positions": statagent.batch(None), "*": statagent.batch(micro_batches=layout.micro_batches)}
    return job


def _sum_tied(model: Gpt, rank: int, stages: int) -> None:
    """The first and the last stage hold the same table; its gradient is the sum of both."""
    weight = model.tokens.weight if rank == 0 else model.head.weight if rank == stages - 1 else None
    if weight is not None:
        assert weight.grad is not None and stages == 2
        distributed.all_reduce(weight.grad)


def keep_stage(model: Gpt, stage: int, stages: int) -> None:
    """Removes what other stages hold. The names stay those of the whole model."""
    names = list(model.blocks)
    first, last = len(names) * stage // stages, len(names) * (stage + 1) // stages
    for name in [*names[:first], *names[last:]]:
        del model.blocks[name]
    if stage > 0:
        model.tokens = model.positions = None
    if stage < stages - 1:
        model.norm = model.head = None
    elif model.head is not None:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())


LAYOUTS: dict[str, Layout] = {
    "plain": Layout(plain),
    "accumulate": Layout(plain, micro_batches=2),
    "ddp2": Layout(ddp, ranks=2, data=2),
    "ddp4": Layout(ddp, ranks=4, data=4),
    "ddp2_order": Layout(in_order, ranks=2, data=2),
    "ddp4_order": Layout(in_order, ranks=4, data=4),
    "accumulate_order": Layout(in_order, micro_batches=2),
    "ddp2_accumulate": Layout(ddp, ranks=2, data=2, micro_batches=4),
    "ddp2_accumulate_order": Layout(in_order, ranks=2, data=2, micro_batches=4),
    "ddp4_accumulate_order": Layout(in_order, ranks=4, data=4, micro_batches=2),
    "zero1": Layout(zero1, ranks=2, data=2),
    "fsdp1": Layout(fsdp1, ranks=2, data=2),
    "fsdp1_flat": Layout(fsdp1_flat, ranks=2, data=2),
    "fsdp1_hybrid": Layout(fsdp1_hybrid, ranks=4, data=4),
    "fsdp2": Layout(fsdp2, ranks=2, data=2),
    "fsdp2_hybrid": Layout(fsdp2_hybrid, ranks=4, data=4),
    "tp2": Layout(tensor_parallel, ranks=2),
    "tp2_sp": Layout(sequence_parallel, ranks=2),
    "dp2_tp2": Layout(data_and_tensor, ranks=4, data=2),
    "megatron2": Layout(megatron, ranks=2),
    "megatron2_sp": Layout(megatron_sequence, ranks=2),
    "pp2": Layout(pipeline, ranks=2, micro_batches=4),
    "pp2_order": Layout(pipeline_in_order, ranks=2, micro_batches=4),
    "pp2_unsaid": Layout(pipeline_unsaid, ranks=2, micro_batches=4),
}
if importlib.util.find_spec("deepspeed") is not None:  # scripts/setup.sh does not install it
    LAYOUTS |= {f"deepspeed{stage}": Layout(deepspeed_zero, ranks=2, data=2, name=f"deepspeed{stage}") for stage in (1, 2, 3)}
