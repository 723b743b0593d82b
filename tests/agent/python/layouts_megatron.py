"""Megatron-Core's GPT, watched on every rank: tensor, pipeline and data parallel, with gated layers and experts.

Runs on CPUs over gloo with torch's layer norm, which Megatron-Core does not combine with sequence parallelism. Only what needs CUDA is
replaced: the tracker of random states, which is not used without dropout, and the device of one unused scale."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import distributed

import statagent

from .layouts_ranks import Found
from .layouts_watched import check, watched

VOCABULARY, WIDTH, SEQUENCE, BATCH, STEPS = 24, 16, 8, 4, 2


class _NoStates:
    """In place of the tracker of CUDA's random states."""

    def fork(self, name: str = "") -> Any:
        return contextlib.nullcontext()

    def is_initialized(self) -> bool:
        return True


@contextlib.contextmanager
def _groups(tensor: int, pipeline: int = 1, experts: int = 1, chunks: int = 1) -> Iterator[Any]:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, expert_model_parallel_size=experts,
        create_gloo_process_groups=False, virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    )  # fmt: skip
    made: dict[str, Any] = {"_CUDA_RNG_STATE_TRACKER": _NoStates(), "_CUDA_RNG_STATE_TRACKER_INITIALIZED": True}
    with mock.patch.multiple(random, **made), mock.patch("torch.cuda.current_device", return_value="cpu"):
        yield parallel_state
    parallel_state.destroy_model_parallel()


def _model(tensor: int, pipeline: int, gated: bool, experts: int, groups: Any, chunk: int = 0, chunks: int = 1) -> Any:
    """`chunk`: of the interleaved stages that this rank has."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    of_experts: dict[str, Any] = {}
    if experts:
        of_experts = {
            "num_moe_experts": experts, "moe_router_topk": 1, "moe_router_pre_softmax": True, "moe_token_dispatcher_type": "allgather", "add_bias_linear": False,
            "expert_model_parallel_size": groups.get_expert_model_parallel_world_size(),
        }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = TransformerConfig(
            num_layers=4, hidden_size=WIDTH, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0,
            attention_dropout=0.0, tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
            pipeline_dtype=torch.float32, bias_dropout_fusion=False, gradient_accumulation_fusion=False, gated_linear_unit=gated,
            masked_softmax_fusion=False, bias_activation_fusion=False,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None, **of_experts,
        )  # fmt: skip
        stage = groups.get_pipeline_model_parallel_rank() + pipeline * chunk
        return GPTModel(
            config, get_gpt_layer_local_spec(num_experts=experts or None), vocab_size=VOCABULARY, max_sequence_length=SEQUENCE,
            pre_process=stage == 0, post_process=stage == pipeline * chunks - 1, share_embeddings_and_output_weights=False,
            vp_stage=chunk if chunks > 1 else None,
        )  # fmt: skip


def _whole(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The values of a parameter follow from its name."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    values = torch.randn(shape, generator=generator) * 0.1
    return values + 1 if "norm.weight" in name else values


def _fill(model: Any, part: tuple[int, int], names: dict[str, str]) -> None:
    """This rank's part of each parameter, cut as Megatron's documentation says: not by what is tested. `names`: global ones."""
    rank, size = part
    for name, parameter in model.named_parameters():
        name = names.get(name, name)
        shape, dim = list(parameter.shape), getattr(parameter, "partition_dim", -1)
        cut = getattr(parameter, "tensor_model_parallel", False) and dim >= 0 and size > 1
        if cut:
            shape[dim] *= size
        whole = _whole(name, tuple(shape))
        if cut:
            halves = whole.chunk(2, dim) if "linear_fc1" in name and model.config.gated_linear_unit else [whole]
            whole = torch.cat([half.chunk(size, dim)[rank] for half in halves], dim)
        with torch.no_grad():
            parameter.copy_(whole)


def _optimizer(model: Any) -> Any:
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer

    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    tensor = torch.tensor
    with mock.patch("torch.tensor", lambda *a, **k: tensor(*a, **{**k, "device": "cpu"})):
        return FP32Optimizer(inner, OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=0.0), lambda *_: None)


def _batches() -> Iterator[tuple[torch.Tensor, ...]]:
    for step in range(STEPS):
        ids = torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(step))
        positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
        mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
        yield ids, positions, mask


def _train(chunks: list[Any], optimizer: Any, groups: Any, pipeline: int) -> None:
    """`chunks`: the stages that this rank has, each of which follows those of all ranks before it."""
    data, copies = groups.get_data_parallel_rank(), groups.get_data_parallel_world_size()
    first, last = groups.get_pipeline_model_parallel_rank(), pipeline * len(chunks) - 1
    before, after = groups.get_pipeline_model_parallel_prev_rank, groups.get_pipeline_model_parallel_next_rank
    for ids, positions, mask in _batches():
        mine, where = ids.chunk(copies)[data], positions.chunk(copies)[data]
        inputs, outputs = [], []
        for number, model in enumerate(chunks):
            stage = first + pipeline * number
            inputs.append(torch.zeros(SEQUENCE, len(mine), WIDTH, requires_grad=True))
            if stage > 0:
                distributed.recv(inputs[-1].data, before())
                model.set_input_tensor(inputs[-1])
            outputs.append(model(mine, where, mask, labels=mine))
            if stage < last:
                distributed.send(outputs[-1].detach().contiguous(), after())
        for number in reversed(range(len(chunks))):
            stage = first + pipeline * number
            if stage < last:
                gradient = torch.zeros_like(outputs[number])
                distributed.recv(gradient, after())
                outputs[number].backward(gradient)
            else:
                outputs[number].mean().backward()
            if stage > 0:
                received = inputs[number].grad
                assert received is not None
                distributed.send(received.contiguous(), before())
        for parameter in (parameter for model in chunks for parameter in model.parameters()):
            if parameter.grad is not None and getattr(parameter, "allreduce", True):  # as Megatron's own wrapper does on CUDA
                distributed.all_reduce(parameter.grad, group=groups.get_data_parallel_group())
                parameter.grad /= copies
        optimizer.step()
        optimizer.zero_grad()


def _gpt(
    label: str, tensor: int, pipeline: int = 1, gated: bool = False, experts: int = 0, expert_ranks: int = 1, chunks: int = 1
) -> Any:
    """`tensor` 0: a model on each rank by itself. `chunks`: interleaved stages of each rank."""

    def run(found: Found, rank: int, ranks: int) -> None:
        with _groups(tensor, pipeline, expert_ranks, chunks) as groups:
            models = [_model(tensor, pipeline, gated, experts, groups, chunk, chunks) for chunk in range(chunks)]
            expert = groups.get_expert_model_parallel_rank() * (experts // expert_ranks)
            for chunk, model in enumerate(models):
                offset = (groups.get_pipeline_model_parallel_rank() + pipeline * chunk) * 4 // (pipeline * chunks)
                names = {name: _global(name, offset, expert) for name, _ in model.named_parameters()}
                _fill(model, (groups.get_tensor_model_parallel_rank(), tensor), names)
                if gated:  # as versions before 0.16 have it
                    for layer in model.decoder.layers:
                        layer.mlp.linear_fc1.weight.partition_stride = layer.mlp.linear_fc1.bias.partition_stride = 1
            optimizer = _optimizer(torch.nn.ModuleList(models))
            with watched(found, label):
                for model in models:
                    statagent.watch(model, optimizer=optimizer, updates="0-")
                if not experts:  # whose router needs Transformer Engine
                    _train(models, optimizer, groups, pipeline)

    return check(label, run)


def _global(name: str, layers: int, experts: int) -> str:
    parts = name.split(".")
    for i, part in enumerate(parts[:-1]):
        if part == "layers":
            parts[i + 1] = str(int(parts[i + 1]) + layers)
        if part == "local_experts":
            parts[i + 1] = str(int(parts[i + 1]) + experts)
    return ".".join(parts)


PLAIN = [_gpt("plain", 1), _gpt("gated", 1, gated=True)]
TWO = [
    _gpt("tensor", 2), _gpt("tensor_gated", 2, gated=True), _gpt("pipeline", 1, 2), _gpt("interleaved_pipeline", 1, 2, chunks=2), _gpt("experts", 1, experts=4),
    _gpt("expert_ranks", 1, experts=4, expert_ranks=2),
]  # fmt: skip
CHECKS = {1: PLAIN, 2: TWO, 4: [_gpt("tensor_data", 2), _gpt("tensor_pipeline", 2, 2), _gpt("pipeline_data", 1, 2)]}
