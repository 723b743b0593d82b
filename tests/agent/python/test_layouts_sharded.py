"""What is read from the objects of Megatron-Core and DeepSpeed, by objects that are like theirs; with the packages themselves:
test_layouts_megatron.py and test_layouts_deepspeed.py in tests/e2e."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent._layouts.data_parallel import Replicas
from statagent._layouts.placement import Placement, whole
from statagent._settings.checklist import model_checklist

from .support import Recording


class Mixed:
    """Updates copies in float32 of a model in bfloat16, as Megatron-Core's optimizer does."""

    def __init__(self, model: nn.Module) -> None:
        self.float16_groups = [list(model.parameters())]
        self.fp32_from_float16_groups = [[parameter.detach().clone().float() for parameter in model.parameters()]]
        self.optimizer = torch.optim.AdamW(self.fp32_from_float16_groups[0], lr=1e-3, foreach=False)

    def step(self) -> None:
        for parameter, main in zip(self.float16_groups[0], self.fp32_from_float16_groups[0]):
            main.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        for parameter, main in zip(self.float16_groups[0], self.fp32_from_float16_groups[0]):
            parameter.data.copy_(main)


Mixed.__module__ = "megatron.core.optimizer.optimizer"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_copy_that_is_updated_is_recorded_where_it_has_another_precision(
    agent: statagent.Agent, recording: Recording, dtype: torch.dtype
) -> None:
    model = nn.Linear(4, 3).to(dtype)
    optimizer: Any = Mixed(model)
    statagent.watch(model, optimizer=optimizer)
    model(torch.ones(2, 4, dtype=dtype)).sum().backward()
    optimizer.step()
    found = {(r.kind, r.path): r for r in recording.records if r.name == "weight" and r.mode != "init"}
    state = {("optimizer_state", path) for path in ("exp_avg", "exp_avg_sq")}
    main = {("optimizer_state", "main")} if dtype == torch.bfloat16 else set()
    assert set(found) == {("weight", ""), ("weight_grad", "")} | state | main
    if main:
        copy = optimizer.fp32_from_float16_groups[0][0]
        assert found["optimizer_state", "main"].hash == statagent.compute(copy)["hash"]
        assert found["weight_grad", ""].hash == statagent.compute(copy.grad)["hash"]


class DeepSpeedEngine(nn.Module):
    def __init__(self, module: nn.Module, mpu: Any) -> None:
        super().__init__()
        self.module, self.mpu = module, mpu


def test_parameters_beside_zero_are_cut_as_they_are_marked() -> None:
    model = nn.ModuleDict({"norm": nn.LayerNorm(4), "up": nn.Linear(4, 6), "odd": nn.Linear(4, 6)})
    up: Any = model["up"].weight
    odd: Any = model["odd"].weight
    up.tensor_model_parallel, up.partition_dim, up.partition_stride = True, 0, 2
    odd.model_parallel = True  # along which dimension, nothing shows
    mpu = SimpleNamespace(get_model_parallel_rank=lambda: 1, get_model_parallel_world_size=lambda: 2)
    found = Replicas(DeepSpeedEngine(model, mpu))
    assert found.place(model["norm"].weight, (4,)) == whole((4,))
    assert found.place(up, (6, 4)) == Placement((12, 4), boxes=(((3, 0), (3, 4)), ((9, 0), (3, 4))))
    assert found.place(odd, (6, 4)) is None and found.cuts_any()


class Cut(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 6)
        self.input_size, self.input_size_per_partition, self.expert_parallel, self.tp_rank, self.world_size = 4, 2, True, 1, 2


def test_how_a_module_is_cut_is_no_setting_of_it() -> None:
    settings = model_checklist(nn.ModuleDict({"fc": Cut()}))
    found = {key.removeprefix("module.fc.") for key in settings if key.startswith("module.fc.")}
    assert "input_size" in found
    assert not found & {"input_size_per_partition", "expert_parallel", "tp_rank", "world_size"}
