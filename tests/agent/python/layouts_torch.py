"""Checks of the layouts of torch's own wrappers and of the user's, run on every rank by layouts_ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

import statagent
from statagent._layouts import dtensor, slices
from statagent._layouts.data_parallel import Replicas, data_parallel
from statagent._layouts.fsdp1 import FlatShards
from statagent._layouts.placement import Placement
from statagent._layouts.placement import whole as whole_of
from statagent._layouts.samples import Batch, batch
from statagent._layouts.sequences import sequence
from statagent._layouts.user import replicate, shard

from .layouts_ranks import Found
from .layouts_watched import watched


def _counted(shape: tuple[int, ...]) -> torch.Tensor:
    """Whole numbers, so that sums in any order are exact."""
    return (torch.arange(torch.Size(shape).numel()) % 11 - 5).float().view(shape)


def _net(hidden: int = 7) -> nn.Sequential:
    """Sizes that neither 2 nor 4 divides."""
    net = nn.Sequential(nn.Linear(5, hidden), nn.Linear(hidden, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(_counted(tuple(parameter.shape)))
    return net


def _mesh(ranks: int) -> Any:
    return init_device_mesh("cpu", (ranks,), mesh_dim_names=("all",))


def _square(ranks: int) -> Any:
    return init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))


Place = Callable[[str, torch.Tensor], "Placement | None"]  # name and tensor -> its placement


def _train(found: Found, label: str, model: nn.Module, place: Place, hidden: int = 7) -> None:
    """One update with the same batch on all ranks, so that the mean over them is exact; gradients, weights and state against a plain one."""
    x = _counted((4, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, foreach=False)
    plain = _net(hidden)
    update = torch.optim.AdamW(plain.parameters(), lr=0.125, foreach=False)
    plain(x).sum().backward()
    model(x).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            key = slices.plain_name(name.removeprefix("module."))
            found.part(f"{label} {key} gradient", _local(parameter.grad), place(name, parameter.grad))
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        found.whole(f"{label} {name} gradient", parameter.grad)
    optimizer.step()
    update.step()
    for name, parameter in model.named_parameters():
        key = slices.plain_name(name.removeprefix("module."))
        found.part(f"{label} {key} weight", _local(parameter), place(name, parameter))
        state = optimizer.state.get(parameter, {}).get("exp_avg")
        if state is not None:
            found.part(f"{label} {key} state", _local(state), place(name, state))
    for name, parameter in plain.named_parameters():
        found.whole(f"{label} {name} weight", parameter)
        found.whole(f"{label} {name} state", update.state[parameter]["exp_avg"])


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local().detach() if hasattr(tensor, "to_local") else tensor.detach()


# --- DTensor


def distributed_tensors(found: Found, rank: int, ranks: int) -> None:
    """All cuts of tensors of even, uneven and tiny sizes, over meshes of one and two dimensions."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    meshes = [_mesh(ranks)] + ([_square(ranks)] if ranks > 2 else [])
    for mesh, shape in itertools.product(meshes, ((8, 4), (7, 5), (1, 3), (6, 5, 3), (9,), (0, 4))):
        kinds = [Replicate(), *(Shard(d) for d in range(len(shape))), Shard(-1)]
        for placements in itertools.product(kinds, repeat=mesh.ndim):
            label = f"{shape} {placements}"
            tensor = distribute_tensor(_counted(shape), mesh, placements)
            found.part(label, _local(tensor), dtensor.placement_of(tensor))
            found.whole(label, _counted(shape))


def partial_sums(found: Found, rank: int, ranks: int) -> None:
    """A sum that is still to be reduced is marked, other reductions are not known."""
    from torch.distributed.tensor import DTensor, Partial

    mesh = _mesh(ranks)
    placed = dtensor.placement_of(DTensor.from_local(_counted((3, 4)), mesh, [Partial()]))
    assert placed == Placement((3, 4), boxes=(((0, 0), (3, 4)),), partial=True), placed
    for reduction in ("avg", "max"):
        assert dtensor.placement_of(DTensor.from_local(_counted((3, 4)), mesh, [Partial(reduction)])) is None
    found.part("whole", _counted((3, 4)), whole_of((3, 4)))
    found.whole("whole", _counted((3, 4)))


def _styles(mesh: Any, found: Found, label: str) -> None:
    """Plain outputs of torch's styles, sequences in dimension 1."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )  # fmt: skip

    x = _counted((2, 8, 12))
    styles: list[tuple[str, Any, Callable[[], nn.Module], Any]] = [
        ("columns", ColwiseParallel(), lambda: nn.Linear(12, 10), x),
        ("columns gathered", ColwiseParallel(output_layouts=Replicate()), lambda: nn.Linear(12, 10), x),
        ("rows", RowwiseParallel(input_layouts=Replicate()), lambda: nn.Linear(12, 8), x),
        ("rows scattered", RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), lambda: nn.Linear(12, 8), x),
        ("embedding", RowwiseParallel(input_layouts=Replicate()), lambda: nn.Embedding(14, 6), torch.arange(16).view(2, 8) % 14),
    ]
    for name, style, make, argument in styles:
        torch.manual_seed(1)
        module = make()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(_counted(tuple(parameter.shape)))
        expected = module(argument).detach()
        parallelize_module(module, mesh, style)
        output = module(argument)
        assert type(output) is torch.Tensor or not hasattr(output, "device_mesh"), type(output)
        layout = dtensor.output_layout(module)
        assert layout is not None, f"{label} {name}"
        weight: Any = module.weight
        features = int(weight.shape[0]) if isinstance(module, nn.Linear) else None
        found.part(f"{label} {name}", output.detach() + 0, dtensor.placement_under(*layout, tuple(output.shape), features))
        found.whole(f"{label} {name}", expected)
    norm = nn.LayerNorm(12)
    expected = norm(x).detach()
    parallelize_module(norm, mesh, SequenceParallel(use_local_output=True))
    output = norm(distribute_tensor(x, mesh, [Shard(1)]))
    layout = dtensor.output_layout(norm)
    assert layout is not None
    found.part(f"{label} norm", output.detach() + 0, dtensor.placement_under(*layout, tuple(output.shape), None))
    found.whole(f"{label} norm", expected)
    identity = nn.Identity()
    prepare = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1), use_local_output=True)
    parallelize_module(identity, mesh, prepare)
    output, layout = identity(x), dtensor.output_layout(identity)
    assert layout is not None
    found.part(f"{label} prepared", output + 0, dtensor.placement_under(*layout, tuple(output.shape), None))
    found.whole(f"{label} prepared", x)


def tensor_parallel_styles(found: Found, rank: int, ranks: int) -> None:
    _styles(_mesh(ranks), found, "all")
    if ranks > 2:
        _styles(_square(ranks)["tp"], found, "tp")


def foreign_hooks(found: Found, rank: int, ranks: int) -> None:
    """A hook of the program is not taken for a style's, and a style that returns a DTensor is left to that."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh, plain = _mesh(ranks), nn.Linear(4, 4)
    plain.register_forward_hook(lambda module, args, output: output if mesh is not None else None)
    assert dtensor.output_layout(plain) is None
    assert dtensor.output_layout(parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel(use_local_output=False))) is None
    found.part("whole", _counted((3,)), whole_of((3,)))
    found.whole("whole", _counted((3,)))


class _Parallel(nn.Module):
    """Layers of torch's tensor parallelism, and plain ones between them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.drop, self.head = nn.Dropout(0.0), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(x + self.drop(self.down(self.act(self.up(self.norm(x))))))


def tensor_parallel_watched(found: Found, rank: int, ranks: int) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = parallelize_module(_Parallel(), _mesh(ranks), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with watched(found, "tensor parallel"):
        statagent.watch(model, optimizer)
        for _ in range(2):
            model(torch.ones(3, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found.part("whole", _counted((3,)), whole_of((3,)))
    found.whole("whole", _counted((3,)))


# --- wrappers


def fsdp2(found: Found, rank: int, ranks: int) -> None:
    from torch.distributed.fsdp import fully_shard

    meshes = {"one": _mesh(ranks)} | ({"hybrid": _square(ranks)} if ranks > 2 else {})
    for label, mesh in meshes.items():
        model = _net()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert data_parallel(model) == (rank, ranks)
        _train(found, label, model, lambda name, tensor: dtensor.placement_of(tensor))


def fsdp2_over_tensor_parallel(found: Found, rank: int, ranks: int) -> None:
    """Strided shards: tensor parallelism has cut what fully_shard cuts."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if ranks > 2:
        mesh = _square(ranks)
        model = _net(6)  # torch's styles need parts of equal size, and fully_shard cuts the 3 rows of each in 2 and 1
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        assert data_parallel(model) == (mesh.get_local_rank("dp"), 2)
        _train(found, "two", model, lambda name, tensor: dtensor.placement_of(tensor), hidden=6)
    else:
        found.part("whole", _counted((3,)), whole_of((3,)))
        found.whole("whole", _counted((3,)))


def _fsdp1(model: nn.Module, original: bool) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"), use_orig_params=original
    )


def fsdp1(found: Found, rank: int, ranks: int) -> None:
    model = _fsdp1(_net(), True)
    assert data_parallel(model) == (rank, ranks)
    known = FlatShards(model)
    parameters = dict(model.named_parameters())
    _train(found, "original", model, lambda name, tensor: known.place(parameters[name], tuple(tensor.shape)))


def fsdp1_flat(found: Found, rank: int, ranks: int) -> None:
    """use_orig_params=False: the parameters are flat, and the originals are slices of them."""
    model = _fsdp1(_net(), False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, foreach=False)
    where = slices.flat_parameters(model)
    model(_counted((4, 5))).sum().backward()
    gradients = {id(p): p.grad for p in model.parameters()}
    optimizer.step()
    for flat in model.parameters():
        values = {"gradient": gradients[id(flat)], "weight": flat, "state": optimizer.state[flat]["exp_avg"]}
        for (label, tensor), part in itertools.product(values.items(), where[id(flat)]):
            found.part(f"{part.parameter} {label}", part.of(tensor), part.place())
    plain = _net()
    update = torch.optim.AdamW(plain.parameters(), lr=0.125, foreach=False)
    plain(_counted((4, 5))).sum().backward()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        found.whole(f"{name} gradient", parameter.grad)
    update.step()
    for name, parameter in plain.named_parameters():
        found.whole(f"{name} weight", parameter)
        found.whole(f"{name} state", update.state[parameter]["exp_avg"])


def ddp(found: Found, rank: int, ranks: int) -> None:
    model = nn.parallel.DistributedDataParallel(_net())
    assert data_parallel(model) == (rank, ranks)
    replicas = Replicas(model)
    parameters = dict(model.named_parameters())

    def place(name: str, tensor: torch.Tensor) -> Placement | None:
        return whole_of(tuple(tensor.shape)) if replicas.has(parameters[name]) else None

    _train(found, "all", model, place)
    if ranks > 2:  # of a part of the ranks: the others may have other parts of the tensors
        group = [distributed.new_group([0, 1]), distributed.new_group([2, 3])][rank // 2]
        some = nn.parallel.DistributedDataParallel(_net(), process_group=group)
        assert not any(Replicas(some).has(p) for p in some.parameters())
        assert data_parallel(some) == (rank % 2, 2)


# --- the user's


def _among(samples: Batch, placed: Placement, ranks: tuple[int, int]) -> Placement | None:
    """Of an activation whose first dimension has the samples."""
    assert samples.ranks in (None, ranks)
    return samples.place(placed, ranks, placed.global_shape[0])


def _sampler(rank: int, ranks: int) -> Any:
    return torch.utils.data.DistributedSampler(cast(Any, range(16)), ranks, rank, shuffle=True)


def samplers(found: Found, rank: int, ranks: int) -> None:
    """A data loader with torch's DistributedSampler, or made by Accelerate, says which samples of the global batch are here."""
    data = _counted((16, 3))
    order: list[int] = list(iter(torch.utils.data.DistributedSampler(cast(Any, range(16)), 1, 0, shuffle=True)))  # of one rank
    loader = torch.utils.data.DataLoader(cast(Any, range(16)), batch_size=8 // ranks, sampler=_sampler(rank, ranks))
    for number, indices in enumerate(loader):
        here = data[indices]
        found.part(f"sampler {number}", here, _among(batch(0, loader), whole_of(tuple(here.shape)), (rank, ranks)))
        found.whole(f"sampler {number}", data[order[8 * number : 8 * number + 8]])
    assert batch(0, loader.sampler) == batch(0, loader) == Batch(0, "interleaved", (rank, ranks))
    from accelerate.data_loader import prepare_data_loader

    plain: Any = torch.utils.data.DataLoader(cast(Any, range(16)), batch_size=8 // ranks)
    shard_of: Any = prepare_data_loader(plain, num_processes=ranks, process_index=rank, put_on_device=False)
    for number, indices in enumerate(shard_of):
        here = data[indices]
        found.part(f"accelerate {number}", here, _among(batch(0, shard_of), whole_of(tuple(here.shape)), (rank, ranks)))
        found.whole(f"accelerate {number}", data[8 * number : 8 * number + 8])

    class Reversed(torch.utils.data.DistributedSampler):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return reversed(list(super().__iter__()))

    with pytest.raises(statagent.InvalidArgumentError, match="does not say which samples"):
        batch(0, Reversed(cast(Any, range(16)), ranks, rank))


def users(found: Found, rank: int, ranks: int) -> None:
    """shard, replicate and batch, by group, mesh and tuple."""
    x = _counted((4 * ranks, 3, 8))
    groups: list[Any] = [None, _mesh(ranks), (rank, ranks), distributed.group.WORLD]
    for index, group in enumerate(groups):
        for dim in (0, -1):
            mine = x.chunk(ranks, dim)[rank].contiguous()
            found.part(f"{index} {dim}", mine, shard(dim, group).place(tuple(mine.shape)))
            found.whole(f"{index} {dim}", x)
        found.part(f"{index} replica", x, replicate(group).place(tuple(x.shape)))
        found.whole(f"{index} replica", x)
        blocks = x.chunk(ranks)[rank]
        found.part(f"{index} blocks", blocks, _among(batch(0, "blocks", group), whole_of(tuple(blocks.shape)), (rank, ranks)))
        found.whole(f"{index} blocks", x)
        dealt = x[rank::ranks].contiguous()
        found.part(f"{index} dealt", dealt, _among(batch(0, "interleaved", group), whole_of(tuple(dealt.shape)), (rank, ranks)))
        found.whole(f"{index} dealt", x)
    uneven = _counted((2 * ranks - 1, 3))
    mine = uneven[2 * rank : 2 * rank + 2]
    found.part("uneven", mine, shard(0, None, global_size=2 * ranks - 1).place(tuple(mine.shape)))
    found.whole("uneven", uneven)
    if ranks > 2:  # samples over dp, features over tp
        mesh = _square(ranks)
        data, tensor = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
        mine = x[data::2].chunk(2, -1)[tensor].contiguous()
        placed = shard(-1, mesh["tp"]).place(tuple(mine.shape))
        found.part("both", mine, _among(batch(0, "interleaved", mesh["dp"]), placed, (data, 2)))
        found.whole("both", x)
        found.part("mesh replica", x, replicate(mesh).place(tuple(x.shape)))
        found.whole("mesh replica", x)
    for wrong in (
        lambda: shard(3).place((2, 2)),
        lambda: shard(0, global_size=100).place((2, 2)),
        lambda: shard(0, (ranks, ranks)),
        lambda: shard("0"),  # type: ignore[arg-type]
        lambda: shard(0, global_size=-1),
        lambda: shard(0, "tp"),
        lambda: batch(0, "random"),
        lambda: batch("0"),  # type: ignore[arg-type]
        lambda: batch(0, [1, 2]),
        lambda: batch(0, _sampler(1, 2), (0, 2)),
        lambda: batch(0, torch.utils.data.DataLoader(cast(Any, range(4)))),
    ):
        with pytest.raises(statagent.InvalidArgumentError, match=r"expected|found"):
            wrong()


def contexts(found: Found, rank: int, ranks: int) -> None:
    """sequence: blocks and zigzag, one sequence and packed ones, alone, and with a batch or a tensor that is cut, too."""
    generator = torch.Generator().manual_seed(7)
    data, across = divmod(rank, 2) if ranks > 2 else (0, rank)  # with samples or features over the other half of four ranks
    for order, chunks in (("blocks", 1), ("zigzag", 2)):
        each = chunks * ranks
        lengths = [each * int(n) for n in torch.randint(0, 5, (6,), generator=generator)]
        for lists in ([8 * ranks], lengths, [each]):
            x = _counted((2, sum(lists), 3))
            mine = torch.cat([_dealt(part, order, rank, ranks) for part in x.split(lists, 1)], 1)
            along = sequence(1, order, (rank, ranks), lists.copy if len(lists) > 1 else None)
            placed = along.place(whole_of(tuple(mine.shape)), along.here(mine.shape[1]), mine.shape[1])
            found.part(f"{order} {lists}", mine, placed)
            found.whole(f"{order} {lists}", x)
        if ranks > 2:
            x = _counted((4, 16, 6))
            part = _dealt(x, order, across, 2)
            along = sequence(-2, order, (across, 2))
            here = along.here(part.shape[1])
            samples = part[2 * data : 2 * data + 2].contiguous()
            placed = along.place(whole_of(tuple(samples.shape)), here, part.shape[1])
            assert placed is not None
            found.part(f"{order} and samples", samples, batch(0, "blocks", (data, 2)).place(placed, (data, 2), 2))
            for dim in (-1, 1):  # tensor parallelism, sequence parallelism
                cut = part.chunk(2, dim)[data].contiguous()
                inner = shard(dim, (data, 2)).place(tuple(cut.shape))
                found.part(f"{order} and shard({dim})", cut, along.place(inner, here, part.shape[1]))
                found.whole(f"{order} and shard({dim})", x)
            found.whole(f"{order} and samples", x)
    assert sequence(1, group=(0, 2)).place(whole_of((2, 5)), (8, ((0, 4),)), 4) is None  # not as many as there are tokens
    assert sequence(2, group=(0, 2)).place(whole_of((2, 4)), (8, ((0, 4),)), 4) is None
    for wrong in (
        lambda: sequence(1, "random"),
        lambda: sequence("1"),  # type: ignore[arg-type]
        lambda: sequence(1, lengths=[4, 4]),  # type: ignore[arg-type]
        lambda: sequence(1, "zigzag", (0, 2)).here(3),
        lambda: sequence(1, "zigzag", (0, 2), lambda: [6, 6]).here(6),
        lambda: sequence(1, "blocks", (0, 2), lambda: [4, 6]).here(6),
        lambda: sequence(1, "blocks", (0, 2), lambda: [-4, 8]).here(2),
    ):
        with pytest.raises(statagent.InvalidArgumentError, match=r"expected|found"):
            wrong()


def packed(found: Found, rank: int, ranks: int) -> None:
    """Sequences of other lengths in each step, packed into one row of the same length. The last ones cannot be dealt out."""
    each = 2 * ranks
    steps = [[each, 3 * each], [2 * each, each, each], [each, 3 * each], [each - 1, 3 * each + 1]]
    lengths: list[int] = []
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(_counted((2, 3)))
    hashes = []
    with watched(found, "packed"):
        along = sequence(1, "zigzag", (rank, ranks), lambda: lengths)
        statagent.watch(model, layouts={"*": (along, batch(group=(0, 1)))})
        for number, these in enumerate(steps):
            lengths[:] = these
            x = _counted((1, 4 * each, 3)) + number
            y = model(torch.cat([_dealt(part, "zigzag", rank, ranks) for part in x.split(steps[number % 3], 1)], 1))
            y.sum().backward()
            hashes.append(statagent.compute(x @ model.weight.t())["hash"])
            statagent.step()
    found.facts["hashes"] = hashes
    found.part("whole", _counted((3,)), whole_of((3,)))
    found.whole("whole", _counted((3,)))


def _dealt(x: torch.Tensor, order: str, rank: int, ranks: int) -> torch.Tensor:
    """This rank's part of the sequence along dimension 1."""
    if order == "blocks":
        return x.chunk(ranks, 1)[rank].contiguous() if x.shape[1] else x
    chunks = x.chunk(2 * ranks, 1)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]], 1) if x.shape[1] else x


ALL = [
    distributed_tensors, partial_sums, tensor_parallel_styles, foreign_hooks, tensor_parallel_watched, fsdp2, fsdp2_over_tensor_parallel, fsdp1, fsdp1_flat,
    ddp, users, samplers, contexts, packed,
]  # fmt: skip
CHECKS = {2: ALL, 4: ALL}
