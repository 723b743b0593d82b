"""Zooms into what is not a module's forward pass: its backward pass, what lies between modules, losses and updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import statagent

from .models import Calls, Net, data, seeded
from .support import Recording
from .test_zoom import batch, documents, operators, start


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = Scale.apply(self.norm(self.linear(x)))
        hidden.register_hook(lambda gradient: gradient * 2)
        return x + hidden.sin()


def model() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(8, 8), Block(), nn.Linear(8, 8), nn.Linear(8, 1)))


class OwnSGD(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def train(
    monkeypatch: pytest.MonkeyPatch, zoom: str, steps: int = 3, optimizer: Any = None, made: Any = None
) -> list[torch.Tensor]:
    if zoom:
        monkeypatch.setenv("STATAGENT_ZOOM", zoom)
    start()
    made = made or model()
    optimizer = (optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=0.05)))(list(made.parameters()))
    statagent.watch(made, optimizer)
    for step in range(steps):
        output = made(batch(step))
        loss = nn.functional.mse_loss(output, torch.zeros_like(output))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch._C._len_torch_dispatch_stack() == 0
    return [parameter.detach().clone() for parameter in made.parameters()]


def of(lines: list[list[str]], kind: str) -> list[list[str]]:
    return [line for line in lines if line[0] == kind]


def test_a_backward_pass_takes_the_lines_of_the_forward_operators(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, "1@1")
    ((_, forward),) = documents(recording)
    ((fields, lines),) = documents(recording, "backward")
    assert (fields["module"], fields["micro_batch"], fields["call"]) == ("1", "0", "0")
    place = {line[2]: line[4] for line in of(forward, "op")}
    by_name = {line[2]: line for line in of(lines, "op")}
    assert by_name["aten.native_layer_norm_backward"][4] == place["aten.native_layer_norm"]
    assert by_name["aten.native_layer_norm_backward"][5].endswith("Block.forward (NativeLayerNormBackward0)")
    assert by_name["aten.cos"][4] == place["aten.sin"]
    seen = {record.name for record in operators(recording)}
    assert {f"1/backward #{line[1]} {line[2]}" for line in of(lines, "op")} <= seen
    assert recording.refusals == []


def test_gradients_come_in_and_go_out_by_name_and_a_hook_is_told(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, "1@1")
    ((_, lines),) = documents(recording, "backward")
    labels = [line[2] for line in of(lines, "in")]
    assert labels[0] == "gradient of output 0"
    assert any(label.startswith("gradient into ScaleBackward") and label.endswith("changed by a hook") for label in labels)
    assert any(label.startswith("saved: aten.") for label in labels) and "norm.weight" in labels
    out = {line[1]: line[2] for line in of(lines, "out")}
    assert set(out) >= {f"gradient of {name}" for name in ("linear.weight", "linear.bias", "norm.weight", "norm.bias", "input 0")}
    assert out["gradient of norm.weight"].endswith(".1")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x + x.sin() + x.cos()


def test_what_autograd_adds_up_within_the_module_is_an_operator(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, "0@1", made=nn.Sequential(Residual()))
    ((_, lines),) = documents(recording, "backward")
    (added,) = [line for line in of(lines, "op") if line[2] == "autograd.sum"]
    inputs = {line[1]: line[2] for line in of(lines, "in")}
    parts = [text.split("^")[1].split(":")[0] for text in added[8:]]
    assert len(parts) == 3, added
    assert sorted(inputs.get(part.removeprefix("&in"), "computed") for part in parts) == [
        "computed",
        "computed",
        "gradient of output 0",
    ]
    used = [line for line in of(lines, "op") if any(f"&{added[1]}.0:" in text for text in line[8:])]
    assert used, "the gradients of the linear layer are computed from the sum"
    assert not any("summed or changed" in label for label in inputs.values())


def test_the_backward_of_a_function_of_autograd_has_its_own_line(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, "1@1")
    ((_, lines),) = documents(recording, "backward")
    (scaled,) = [line for line in of(lines, "op") if line[5] == "Scale.backward"]
    assert scaled[2] == "aten.mul.Tensor" and scaled[-1] == "other^2"
    assert scaled[4].startswith("tests/agent/python/test_zoom_parts.py:")


@pytest.mark.parametrize("kind", ["reentrant", "non_reentrant"])
def test_the_backward_of_a_checkpointed_module_is_recorded_without_what_is_computed_again(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "blocks.1@1")
    start()
    made = seeded(lambda: Net(checkpoints=kind))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    statagent.watch(made, optimizer)
    for step in range(2):
        made(data(seed=step).requires_grad_()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(documents(recording)) == 1
    ((_, lines),) = documents(recording, "backward")
    names = [line[2] for line in of(lines, "op")]
    assert "aten.native_layer_norm_backward" in names and "aten.native_layer_norm" not in names
    assert all(line[4] for line in of(lines, "op"))
    assert recording.refusals == []


def test_a_backward_pass_that_fails_leaves_no_mode_behind(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no gradient")

    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    agent = statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0)
    made = seeded(lambda: Calls(lambda self, x: self.part(x), part=Calls(lambda self, x: Fails.apply(x.sin()).cos())))
    statagent.watch(made)
    with pytest.raises(RuntimeError, match="no gradient"):
        made(batch(0).requires_grad_()).mean().backward()
    assert torch._C._len_torch_dispatch_stack() == 0
    agent.end_step()
    ((_, lines),) = documents(recording, "backward")
    assert "aten.sin" in [line[2] for line in of(lines, "op")]  # of cos


def test_a_module_called_twice_and_micro_batches_have_a_backward_pass_each(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    start()
    made = seeded(lambda: Calls(lambda self, x: self.part(self.part(x)), part=nn.Linear(8, 8)))
    statagent.watch(made)
    for _ in range(2):
        made(batch(0)).mean().backward()
    calls = [(fields["micro_batch"], fields["call"]) for fields, _ in documents(recording, "backward")]
    assert sorted(calls) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]


def test_what_lies_between_two_modules_is_recorded_up_to_what_the_second_is_given(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = seeded(lambda: Calls(lambda self, x: self.b(self.a(x).sin() * 3), a=nn.Linear(8, 8), b=nn.Linear(8, 1)))
    train(monkeypatch, "a..b@1", made=made)
    ((fields, lines),) = documents(recording)
    assert fields["module"] == "a..b"
    assert [line[2] for line in of(lines, "op")] == ["aten.sin", "aten.mul.Tensor"]
    assert [line[2] for line in of(lines, "in")] == ["output 0"] and of(lines, "out") == [["out", "input 0", "&1.0"]]


def test_a_second_module_that_never_follows_is_told(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = seeded(lambda: Calls(lambda self, x: self.b(self.a(x).relu()), a=nn.Linear(8, 8), b=nn.Linear(8, 1)))
    train(monkeypatch, "b..a@1", made=made)
    statagent.close(timeout=0)
    assert documents(recording) == []
    assert "b..a@1 was not recorded: no training pass in which 'a' ran after 'b' in step 1" in capsys.readouterr().err


def test_the_loss_is_what_comes_after_the_output_up_to_backward(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, "loss@1")
    ((fields, lines),) = documents(recording)
    assert fields["module"] == "loss"
    assert [line[2] for line in of(lines, "op")] == ["aten.zeros_like", "aten.mse_loss"]
    assert of(lines, "out") == [["out", "loss", "&1.0"]]
    assert {record.step for record in operators(recording)} == {1}


def test_functions_that_the_agent_wraps_are_the_programs_own(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "loss@0; part@0")
    start()
    made = seeded(lambda: Calls(lambda self, x: self.part(x), part=nn.Embedding(5, 3, padding_idx=0)))
    statagent.watch(made)
    tokens = torch.tensor([0, 1, 2])
    nn.functional.cross_entropy(made(tokens), tokens % 3, ignore_index=0).backward()
    statagent.close(timeout=0)
    (_, inside), (_, loss) = documents(recording)
    assert "aten.embedding" in {line[2] for line in of(inside, "op")}
    assert {"aten._log_softmax", "aten.nll_loss_forward"} <= {line[2] for line in of(loss, "op")}


@pytest.mark.parametrize("foreach", [False, True])
def test_an_update_is_recorded_for_one_parameter(recording: Recording, monkeypatch: pytest.MonkeyPatch, foreach: bool) -> None:
    train(monkeypatch, "optimizer:1.norm.weight@1", optimizer=lambda parameters: torch.optim.AdamW(parameters, foreach=foreach))
    ((fields, lines),) = documents(recording, "update")
    assert (fields["module"], fields["class"]) == ("optimizer:1.norm.weight", "AdamW")
    assert {line[3] for line in of(lines, "in")} <= {"f32[8]", "f32[]"}
    assert {line[2] for line in of(lines, "in")} >= {"parameter", "gradient", "state exp_avg", "state exp_avg_sq"}
    assert {line[1] for line in of(lines, "out")} == {"parameter", "state exp_avg", "state exp_avg_sq", "state step"}
    functions = {line[5] for line in of(lines, "op")}
    assert ("_single_tensor_adam" in functions) != foreach
    assert any(function.endswith("at once") for function in functions) == foreach
    assert not any(line[4] for line in of(lines, "op"))
    assert recording.refusals == []


def test_a_fused_update_is_recorded_for_one_parameter(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, "optimizer:1.norm.weight@1", optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True))
    ((_, lines),) = documents(recording, "update")
    (fused,) = [line for line in of(lines, "op") if "fused" in line[2]]
    assert "of 10 at once" in fused[5] and fused[7].startswith("f32[8];f32[8]")


def test_with_fsdp2_this_ranks_part_of_the_parameter_is_followed(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:
        made = model()
        for layer in made.children():
            fully_shard(layer)
        fully_shard(made)
        train(monkeypatch, "1@1; loss@1; optimizer:1.norm.weight@1", made=made)
    finally:
        dist.destroy_process_group()
    ((_, lines),) = documents(recording, "update")
    assert [line[2] for line in of(lines, "in")].count("gradient") == 1
    assert not any(line[2].startswith("gradient (") or not line[2] for line in of(lines, "in"))  # not of its neighbours
    assert [fields["module"] for fields, _ in documents(recording)] == ["1", "loss"]
    ((_, backward),) = documents(recording, "backward")
    assert {line[1] for line in of(backward, "out")} >= {"gradient of linear.weight", "gradient of norm.bias"}
    assert recording.refusals == []


def test_an_optimizer_of_the_users_own_has_its_line(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, "optimizer:3.*@1", optimizer=OwnSGD)
    found = documents(recording, "update")
    assert [fields["module"] for fields, _ in found] == ["optimizer:3.weight", "optimizer:3.bias"]
    for _, lines in found:
        (added,) = of(lines, "op")
        assert added[2] == "aten.add_.Tensor" and added[5] == "OwnSGD.step" and added[-1] == "alpha^-0.1"
        assert added[4].startswith("tests/agent/python/test_zoom_parts.py:") and of(lines, "out") == [
            ["out", "parameter", "&0.0"]
        ]
    assert recording.refusals == []


def test_an_update_that_fails_leaves_no_mode_behind(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(OwnSGD):
        failed = False

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            if not self.failed:
                self.failed = True
                raise RuntimeError("no update")

    monkeypatch.setenv("STATAGENT_ZOOM", "optimizer:1.norm.weight@0")
    start()
    made = model()
    optimizer = Fails(made.parameters())
    statagent.watch(made, optimizer)
    made(batch(0)).mean().backward()
    with pytest.raises(RuntimeError, match="no update"):
        optimizer.step()
    made(batch(0)).mean().backward()
    optimizer.step()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert len(documents(recording, "update")) == 1


@pytest.mark.parametrize("zoom", ["1@1", "loss@1", "0..3@1", "optimizer:1.norm.weight@1", "1@1; loss@1; optimizer:*@1"])
def test_training_is_bit_identical(recording: Recording, monkeypatch: pytest.MonkeyPatch, zoom: str) -> None:
    plain = train(monkeypatch, "")
    statagent.close(timeout=0)
    recording._identities.clear()
    assert all(torch.equal(one, other) for one, other in zip(plain, train(monkeypatch, zoom)))
    assert operators(recording)


@pytest.mark.parametrize(
    ("zoom", "reason"),
    [
        ("1..4@1", "the model has no module '4'; expected one of"),
        ("1.nrom..3@1", "the model has no module '1.nrom'; did you mean 1.norm"),
        ("optimizer:1.norm.wieght@1", "the model has no parameter '1.norm.wieght'; did you mean 1.norm.weight"),
    ],
)
def test_names_that_the_model_has_not_are_told_with_the_nearest(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], zoom: str, reason: str
) -> None:
    train(monkeypatch, zoom)
    assert reason in capsys.readouterr().err
    assert [kind for _, kind, _, _ in recording.events if kind == "zoom_missed"] == ["zoom_missed"]


def test_of_a_hundred_thousand_operators_those_beyond_the_limit_are_counted(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100_000):
            x = x + 1
        return x

    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    start()
    made = seeded(lambda: Calls(lambda self, x: self.part(x), part=Calls(loop)))
    statagent.watch(made)
    made(torch.ones(1, requires_grad=True)).mean().backward()
    ((fields, _),) = documents(recording)
    assert int(fields["operators"]) <= 10_000 and int(fields["operators"]) + int(fields["left_out"]) == 100_000
    assert sum(len(value) for _, kind, _, each in recording.events if kind == "zoom" for value in each.values()) < 5 << 20
    assert recording.refusals == []


@pytest.mark.parametrize("zoom", ["part@0", "loss@0"])
def test_transforms_of_functorch_and_gradients_of_gradients_are_recorded(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, zoom: str
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        slopes = torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)
        (again,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
        return slopes + again

    monkeypatch.setenv("STATAGENT_ZOOM", zoom)
    start()
    made = seeded(lambda: Calls(lambda self, x: self.part(x * 1), part=Calls(forward)))
    statagent.watch(made)
    x = torch.ones(3, 2, requires_grad=True)
    torch.func.vmap(torch.cos)(made(x)).sum().backward()
    assert x.grad is not None and torch._C._len_torch_dispatch_stack() == (zoom == "loss@0")
    statagent.close(timeout=0)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert len(documents(recording)) == 1 and recording.refusals == []


def test_a_module_within_a_transform_of_functorch_is_recorded(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    start()
    made = seeded(lambda: Calls(lambda self, x: self.part(x), part=nn.Linear(8, 8)))
    statagent.watch(made)
    weights = {name: value.detach() for name, value in made.named_parameters()}
    slopes = torch.func.grad(lambda given: torch.func.functional_call(made, given, (batch(0),)).sum())(weights)
    assert len(slopes) == 2 and torch._C._len_torch_dispatch_stack() == 0
    ((_, lines),) = documents(recording)
    assert "aten.addmm" in {line[2] for line in of(lines, "op")}


def test_a_zoom_that_lies_within_another_says_so(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(monkeypatch, "1@1; 1.norm@1")
    statagent.close(timeout=0)
    assert [fields["module"] for fields, _ in documents(recording)] == ["1"]
    assert "1.norm@1 was not recorded: 1@1 was being recorded when it began in step 1" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a..@1", "..b@1", "optimizer:@1"])
def test_a_zoom_with_half_a_name_is_refused(recording: Recording, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", text)
    start()
    with pytest.raises(statagent.InvalidArgumentError, match=r"STATAGENT_ZOOM has .*expected MODULE@STEP"):
        statagent.watch(model())
