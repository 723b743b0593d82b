"""Trains Megatron-Core's GPT with its own wrapper and optimizers, on CPUs over gloo: python megatron_runs.py JOBS.json, under torchrun.

Megatron-Core's optimizers only take parameters on CUDA, and put their scalars there. While one is made or makes an update, OnCpu has torch take the CPU for
it; the random states of CUDA, its streams and the kernel of grouped products are replaced, too. Everything else is as it ships.

`fault`: what one run does otherwise: see FAULTS in test_layouts_megatron.py."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch.overrides import TorchFunctionMode

import statagent

VOCABULARY, WIDTH, LENGTH, BATCH, LAYERS = 24, 16, 8, 4, 2
POSITIONS = 128  # so many that two ranks share FAULTY
FAULTY = "decoder.layers.0.mlp.linear_fc2.weight"  # the parameter of faults in the optimizer


@dataclass(frozen=True)
class Job:
    """`tensor`, `expert_ranks`: how many ranks share a layer, and the experts. `distributed`: Megatron's distributed optimizer."""

    run: str
    tensor: int = 1
    expert_ranks: int = 1
    distributed: bool = False
    bf16: bool = False
    experts: int = 0
    dispatcher: str = "alltoall"
    grouped: bool = False
    fault: str = ""
    steps: int = 3


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if f"{kwargs.get('device')}".startswith("cuda"):
            kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


class _NoStates:
    """In place of the tracker of CUDA's random states, which is not used without dropout."""

    def fork(self, name: str = "") -> Any:
        return contextlib.nullcontext()

    def is_initialized(self) -> bool:
        return True


def _by_expert(rows: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor, trans_b: bool = False) -> torch.Tensor:
    """What the kernel of grouped products computes."""
    return torch.cat([part @ weight for part, weight in zip(rows.split(counts.tolist()), weights)])


def _to_numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Of a tensor on CUDA, the dispatcher reads the numbers of rows in this way."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


@contextlib.contextmanager
def groups_of(job: Job) -> Iterator[Any]:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import experts, moe_utils, token_dispatcher

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=job.tensor, expert_model_parallel_size=job.expert_ranks,
        expert_tensor_parallel_size=1, create_gloo_process_groups=False,
    )  # fmt: skip
    made: dict[str, Any] = {"_CUDA_RNG_STATE_TRACKER": _NoStates(), "_CUDA_RNG_STATE_TRACKER_INITIALIZED": True}
    kernel = SimpleNamespace(assert_grouped_gemm_is_available=lambda: None, ops=SimpleNamespace(gmm=_by_expert))
    with (
        mock.patch.multiple(random, **made),
        mock.patch.object(experts, "gg", kernel),
        mock.patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _to_numbers),
        mock.patch.object(moe_utils, "te_general_gemm", None, create=True),  # which its router uses unless it is None
        mock.patch.multiple("torch.cuda", current_device=lambda: "cpu", Stream=mock.MagicMock, current_stream=mock.MagicMock(), stream=mock.MagicMock()),
    ):  # fmt: skip
        yield parallel_state
    parallel_state.destroy_model_parallel()


def model_of(job: Job, groups: Any) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    of_experts: dict[str, Any] = {}
    if job.experts:
        of_experts = {
            "num_moe_experts": job.experts, "moe_router_topk": 2, "moe_token_dispatcher_type": job.dispatcher, "moe_grouped_gemm": job.grouped,
            "expert_model_parallel_size": job.expert_ranks, "expert_tensor_parallel_size": 1, "moe_router_load_balancing_type": "none", "moe_ffn_hidden_size": 24,
        }  # fmt: skip
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=job.tensor, bias_dropout_fusion=False, gradient_accumulation_fusion=False, masked_softmax_fusion=False,
        bias_activation_fusion=False, add_bias_linear=not job.experts, bf16=job.bf16,
        params_dtype=torch.bfloat16 if job.bf16 else torch.float32, **of_experts,
    )  # fmt: skip
    model: Any = GPTModel(
        config, get_gpt_layer_local_spec(num_experts=job.experts or None, moe_grouped_gemm=job.grouped), vocab_size=VOCABULARY,
        max_sequence_length=POSITIONS, share_embeddings_and_output_weights=False,
    )  # fmt: skip
    fill(model, job, groups)
    if job.bf16:
        model = Float16Module(config, model)
    wrapping = DistributedDataParallelConfig(use_distributed_optimizer=job.distributed, grad_reduce_in_fp32=True)
    return DistributedDataParallel(config, wrapping, model)


def fill(model: Any, job: Job, groups: Any) -> None:
    """Gives each parameter this rank's part of values that follow from its name on one rank."""
    rank, of_experts = groups.get_tensor_model_parallel_rank(), groups.get_expert_model_parallel_rank()
    for name, parameter in model.named_parameters():
        path, shape = name.split("."), list(parameter.shape)
        if "local_experts" in path:
            at = path.index("local_experts") + 1
            path[at] = f"{int(path[at]) + of_experts * job.experts // job.expert_ranks}"
        grouped = ".experts.weight" in name
        cut = getattr(parameter, "tensor_model_parallel", False) and job.tensor > 1 and ".experts." not in name
        dim = parameter.partition_dim if cut else 0
        shape[dim] *= job.tensor if cut else 1
        if grouped:  # one expert's weights after the other
            shape = [job.expert_ranks, parameter.numel()]
        values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, ".".join(path))))) * 0.2
        if grouped:
            values = values[of_experts].view_as(parameter)
        values = values.chunk(job.tensor, dim)[rank] if cut else values
        with torch.no_grad():
            parameter.copy_(values + 1 if "norm.weight" in name else values)


def optimizer_of(job: Job, model: Any) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = OptimizerConfig(
        optimizer="adam", lr=1e-2, weight_decay=0.01, clip_grad=1.0, use_distributed_optimizer=job.distributed, bf16=job.bf16,
        params_dtype=torch.bfloat16 if job.bf16 else torch.float32,
    )  # fmt: skip
    return get_megatron_optimizer(config, [model], use_gloo_process_groups=False)


def updated_tensor(model: Any, optimizer: Any) -> tuple[Any, Any] | None:
    """The tensor that this rank's optimizer updates for the parameter FAULTY, or a part of it, and the optimizer of torch. None: it has none."""
    (wanted,) = [parameter for name, parameter in model.named_parameters() if name.endswith(FAULTY)]
    for each in optimizer.chained_optimizers:
        pairs = [(wanted, wanted)]
        for models, mains in (
            ("model_fp32_groups", "shard_fp32_groups"), ("model_float16_groups", "shard_fp32_from_float16_groups"), ("float16_groups", "fp32_from_float16_groups")
        ):  # fmt: skip
            for here, there in zip(getattr(each, models, ()), getattr(each, mains, ())):
                pairs += zip(here, there)
        for parameter, main in pairs:
            if parameter is wanted and main in each.optimizer.state:
                return main, each.optimizer
    return None


def plant(job: Job, model: Any, optimizer: Any, last: bool) -> None:
    """After the update of step 0."""
    if job.fault == "eps" and last:
        for group in optimizer.param_groups:
            group["eps"] = 1e-3
    if job.fault in ("stale_state", "main_drift") and last:
        found = updated_tensor(model, optimizer)
        if found is not None:
            tensor, inner = found
            if job.fault == "stale_state":
                inner.state[tensor]["exp_avg"].zero_()
            else:
                tensor.data.mul_(1 + 3e-4)  # less than bf16 resolves


def train(job: Job) -> None:
    with groups_of(job) as groups, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_of(job, groups)
        with OnCpu():
            optimizer = optimizer_of(job, model)
        rank, copies = groups.get_data_parallel_rank(), groups.get_data_parallel_world_size()
        statagent.init(run=job.run, if_exists="replace", launch=f"{job.run}-1")
        statagent.watch(model, optimizer=optimizer)
        positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
        mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
        for step in range(job.steps):
            text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
            mine, where = text.chunk(copies)[rank], positions.chunk(copies)[rank]
            model.zero_grad_buffer()
            optimizer.zero_grad()
            loss = model(mine[:, :-1].contiguous(), where, mask, labels=mine[:, 1:].contiguous()).float().mean()
            loss.backward()
            model.finish_grad_sync()
            statagent.log_scalar("loss", loss.item())
            last = distributed.get_rank() == distributed.get_world_size() - 1
            kept = stale_weights(job, model, last) if step == 0 else {}
            with OnCpu():
                optimizer.step()
            if step == 0:
                plant(job, model, optimizer, last)
            for parameter, before in kept.items():
                parameter.data.copy_(before)
        statagent.close(timeout=20)


def stale_weights(job: Job, model: Any, last: bool) -> dict[Any, torch.Tensor]:
    """Of parameters whose update does not reach the model."""
    if job.fault != "stale_expert" or not last:
        return {}
    experts = model.module.decoder.layers[-1].mlp.experts.local_experts
    return {parameter: parameter.detach().clone() for parameter in experts[-1].parameters()}


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        train(Job(**job))
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
