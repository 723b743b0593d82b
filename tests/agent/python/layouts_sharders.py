"""Checks of the layouts of DeepSpeed and Megatron-Core, run on every rank by layouts_ranks."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import distributed

from statagent._layouts import megatron, slices
from statagent._layouts.cuts import equal_part, zigzag_part
from statagent._layouts.placement import whole as whole_of

from .layouts_ranks import Found

VOCABULARY, WIDTH, SEQUENCE, BATCH = 24, 8, 16, 2


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3), torch.nn.LayerNorm(3))


def _groups(net: torch.nn.Module) -> list[dict[str, Any]]:
    """Two, as with weight decay for matrices only, so that an update consists of two."""
    return [
        {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]


def _zero(stage: int, found: Found, rank: int) -> None:
    """The slices of gradients, state and weights against the same training without DeepSpeed."""
    import deepspeed

    net = _net()
    optimizer = torch.optim.AdamW(_groups(net), lr=0.1, foreach=False)
    config = {
        "train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }  # fmt: skip
    engine, sharded, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config, dist_init_required=False)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    where = slices.deepspeed(sharded)

    def note(kind: str) -> None:
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                values = {"gradient": tensor.grad, "weight": tensor, **optimizer.state.get(tensor, {})}
                for each in where[id(tensor)]:
                    for label, value in values.items():
                        here = each.of(value) if value is not None and label in kind.split() else None
                        if here is not None:
                            found.part(f"{names[id(each.parameter)]} {label}", here, each.place())

    before = sharded.optimizer.register_step_pre_hook(lambda *_: note("gradient"))
    after = sharded.optimizer.register_step_post_hook(lambda *_: note("weight exp_avg"))
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-3, 4, (4, 5), generator=generator).float()
    engine.backward(engine(x).square().mean())  # the same batch on all ranks: the mean over them is exact
    engine.step()
    before.remove(), after.remove()

    plain = _net()
    update = torch.optim.AdamW(_groups(plain), lr=0.1, foreach=False)
    plain(x).square().mean().backward()
    for name, parameter in plain.named_parameters():
        found.whole(f"{name} gradient", parameter.grad)
    update.step()
    for name, parameter in plain.named_parameters():
        found.whole(f"{name} weight", parameter)
        found.whole(f"{name} exp_avg", update.state[parameter]["exp_avg"])


def zero1(found: Found, rank: int, ranks: int) -> None:
    _zero(1, found, rank)


def zero2(found: Found, rank: int, ranks: int) -> None:
    _zero(2, found, rank)


def zero3(found: Found, rank: int, ranks: int) -> None:
    _zero(3, found, rank)


# --- Megatron-Core


def _start(tensor: int, context: int = 1) -> Any:
    from megatron.core import parallel_state

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]  # where Megatron makes the buffers of sequence parallelism
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor, context_parallel_size=context, create_gloo_process_groups=False
    )
    return parallel_state


def _config(**options: Any) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TransformerConfig(
            num_layers=2, hidden_size=WIDTH, num_attention_heads=4, ffn_hidden_size=4 * WIDTH, use_cpu_initialization=True,
            hidden_dropout=0.0, attention_dropout=0.0, **options,
        )  # fmt: skip


def _counted(shape: tuple[int, ...]) -> torch.Tensor:
    """Whole numbers, so that sums in any order are exact."""
    return (torch.arange(torch.Size(shape).numel()) % 7 - 3).float().view(shape)


def _fill(module: torch.nn.Module, whole: dict[str, torch.Tensor], placements: dict[str, Any]) -> None:
    """Each parameter gets what its placement says of the whole one."""
    for name, parameter in module.named_parameters():
        boxes = placements[name].boxes
        along = next((d for d in range(parameter.dim()) if len({offset[d] for offset, _ in boxes}) > 1), 0)
        pieces = [whole[name][tuple(slice(o, o + s) for o, s in zip(*box))] for box in boxes]
        with torch.no_grad():
            parameter.copy_(torch.cat(pieces, along))


def _linear(kind: str, sequence: bool, **options: Any) -> torch.nn.Module:
    from megatron.core import tensor_parallel

    config = _config(sequence_parallel=sequence, tensor_model_parallel_size=distributed.get_world_size())
    init = torch.nn.init.zeros_
    if kind == "column":
        options = {"gather_output": False, **options}
        return tensor_parallel.ColumnParallelLinear(WIDTH, 4 * WIDTH, config=config, init_method=init, bias=True, **options)
    if kind == "row":
        return tensor_parallel.RowParallelLinear(
            4 * WIDTH, WIDTH, config=config, init_method=init, bias=True, input_is_parallel=True, skip_bias_add=False, **options
        )  # fmt: skip
    return tensor_parallel.VocabParallelEmbedding(
        VOCABULARY, WIDTH, init_method=init, config=config, reduce_scatter_embeddings=sequence, **options
    )


def _run(
    found: Found, label: str, module: torch.nn.Module, arguments: list[torch.Tensor], shapes: dict[str, tuple[int, ...]]
) -> Any:
    """Fills the module with parts of known parameters, records those and the output at their placements."""
    placements = {n: megatron.of_parameter(p, module, tuple(p.shape)) for n, p in module.named_parameters()}
    whole = {name: _counted(shape) for name, shape in shapes.items()}
    _fill(module, whole, placements)
    for name, parameter in module.named_parameters():
        found.part(f"{label} {name}", parameter, placements[name])
        found.whole(f"{label} {name}", whole[name])
    output = module(*arguments)
    output = output[0] if isinstance(output, tuple) else output
    found.part(f"{label} output", output.detach(), megatron.Activations(module).output(module, tuple(output.shape)))
    return whole


def linears(found: Found, rank: int, ranks: int) -> None:
    """Column, row and vocabulary parallel layers, with and without sequence parallelism."""
    _start(ranks)
    functional = torch.nn.functional
    x, wide = _counted((SEQUENCE, BATCH, WIDTH)), _counted((SEQUENCE, BATCH, 4 * WIDTH))
    for sequence in (False, True):
        rows = slice(SEQUENCE // ranks * rank, SEQUENCE // ranks * (rank + 1)) if sequence else slice(None)
        name = "sequence" if sequence else "tensor"
        module = _linear("column", sequence)
        w = _run(found, f"{name} column", module, [x[rows]], {"weight": (4 * WIDTH, WIDTH), "bias": (4 * WIDTH,)})
        found.whole(f"{name} column output", functional.linear(x, w["weight"], w["bias"]))
        found.part(f"{name} column input", x[rows], megatron.Activations(module).input(module, tuple(x[rows].shape)))
        found.whole(f"{name} column input", x)
        module = _linear("row", sequence)
        columns = wide.chunk(ranks, -1)[rank]
        w = _run(found, f"{name} row", module, [columns], {"weight": (WIDTH, 4 * WIDTH), "bias": (WIDTH,)})
        found.whole(f"{name} row output", functional.linear(wide, w["weight"], w["bias"]))
        found.part(f"{name} row input", columns, megatron.Activations(module).input(module, tuple(columns.shape)))
        found.whole(f"{name} row input", wide)
        ids = torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE) % VOCABULARY
        w = _run(found, f"{name} embedding", _linear("embedding", sequence), [ids], {"weight": (VOCABULARY, WIDTH)})
        embedded = functional.embedding(ids, w["weight"])
        found.whole(f"{name} embedding output", embedded.transpose(0, 1).contiguous() if sequence else embedded)
    module = _linear("column", False, gather_output=True)
    w = _run(found, "gathered", module, [x], {"weight": (4 * WIDTH, WIDTH), "bias": (4 * WIDTH,)})
    found.whole("gathered output", functional.linear(x, w["weight"], w["bias"]))
    module = _linear("column", False, stride=2)
    w = _run(found, "gated", module, [x], {"weight": (4 * WIDTH, WIDTH), "bias": (4 * WIDTH,)})
    found.whole("gated output", functional.linear(x, w["weight"], w["bias"]))


def strided_initialization(found: Found, rank: int, ranks: int) -> None:
    """Megatron's own cut of a master weight is that of the placement."""
    from megatron.core import tensor_parallel

    _start(ranks)
    for stride in (1, 2):
        module = tensor_parallel.ColumnParallelLinear(
            WIDTH, 4 * WIDTH, config=_config(), init_method=lambda w: w.copy_(_counted(tuple(w.shape)).to(w)), bias=False,
            gather_output=False, stride=stride,
        )  # fmt: skip
        found.part(f"stride {stride}", module.weight, megatron.of_parameter(module.weight, module, tuple(module.weight.shape)))
        found.whole(f"stride {stride}", _counted((4 * WIDTH, WIDTH)))


def context_parallel(found: Found, rank: int, ranks: int) -> None:
    """Zigzag over the sequence, as Megatron cuts its batches; with tensor and sequence parallelism on 4 ranks."""
    from megatron.core.utils import get_batch_on_this_cp_rank

    tensor = ranks // 2
    groups = _start(tensor, context=2)
    ids = torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE)
    here = get_batch_on_this_cp_rank({"tokens": ids.clone()})["tokens"]
    module = _linear("row", sequence=tensor > 1)
    known = megatron.Activations(module)
    found.part("tokens", here, known.batch(tuple(here.shape)))
    found.whole("tokens", ids)
    activation = _counted((BATCH, SEQUENCE, WIDTH))
    mine = get_batch_on_this_cp_rank({"tokens": activation.clone()})["tokens"].transpose(0, 1).contiguous()
    mine = mine.chunk(tensor)[groups.get_tensor_model_parallel_rank()]
    found.part("activation", mine, known.output(module, tuple(mine.shape)))
    found.whole("activation", activation.transpose(0, 1).contiguous())


def distributed_optimizer(found: Found, rank: int, ranks: int) -> None:
    """The ranges of Megatron's distributed optimizer, from its own map, of parameters that tensor parallelism has cut already. The optimizer
    itself accepts CUDA tensors only."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer, Range

    groups = _start(2)
    data, parts = groups.get_data_parallel_rank(), groups.get_data_parallel_world_size()
    wholes = {"weight": _counted((12, 6)), "row": _counted((5, 8)), "norm": _counted((11,))}
    module = torch.nn.Module()
    for name, whole in wholes.items():
        dim = {"weight": 0, "row": 1}.get(name)
        local = whole if dim is None else whole.chunk(2, dim)[groups.get_tensor_model_parallel_rank()].contiguous()
        module.register_parameter(name, torch.nn.Parameter(local.clone()))
        if dim is not None:
            parameter = getattr(module, name)
            parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1
    index, at = {}, 0
    for parameter in module.parameters():
        index[parameter] = (at, at + parameter.numel(), 0)
        at += parameter.numel()
    each = -(-at // parts)
    mine = Range(each * data, min(at, each * (data + 1)))
    ranges = DistributedOptimizer._build_model_gbuf_param_range_map(index, mine, 0)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    optimizer = DistributedOptimizer.__new__(DistributedOptimizer)
    optimizer.model_param_gbuf_map = dict.fromkeys(ranges, (0, torch.float32, 0))
    optimizer.gbuf_ranges = [{torch.float32: [{"param_map": ranges}]}]
    optimizer.model_fp32_groups = [list(ranges)]
    shards = [p.detach().view(-1)[ranges[p]["param"].start : ranges[p]["param"].end] for p in ranges]
    optimizer.shard_fp32_groups = [shards]
    optimizer.model_float16_groups = optimizer.shard_fp32_from_float16_groups = []
    where = slices.megatron(optimizer)
    for shard in shards:
        (part,) = where[id(shard)]
        placed = part.place(megatron.of_parameter(part.parameter, module, tuple(part.parameter.shape)))
        found.part(names[id(part.parameter)], part.of(shard), placed)
    for name, whole in wholes.items():
        found.whole(name, whole)


def zigzag_of_hand(found: Found, rank: int, ranks: int) -> None:
    """Against chunks that are written out."""
    whole = _counted((4 * ranks,))
    length, spans = zigzag_part(4, rank, ranks)
    assert length == 4 * ranks
    assert spans[0][0] == 2 * rank and spans[-1][1] == 4 * ranks - 2 * rank, spans
    _, blocks = equal_part(4, rank, ranks, 2)
    assert blocks == ((2 * rank, 2 * rank + 2), (2 * (ranks + rank), 2 * (ranks + rank) + 2)), blocks
    found.whole("nothing", whole)
    found.part("nothing", whole, whole_of(tuple(whole.shape)))


MEGATRON = [linears, strided_initialization, context_parallel, distributed_optimizer, zigzag_of_hand]
CHECKS = {2: [zero1, zero2, zero3, *MEGATRON], 4: [zero1, zero2, zero3, *MEGATRON]}
