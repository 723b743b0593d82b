"""Zoom: the operators of one module in one step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import statagent

from .models import Calls, Net, data, seeded
from .support import Record, Recording


class Attention(nn.Module):
    """Dropout, views, an in-place operator, a result that is a number, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.drop = nn.Dropout(0.25)
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril())

    def forward(self, x: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(-2, -1)) * scale
        scores = scores.masked_fill(~self.mask, float("-inf"))
        weights = self.drop(scores.softmax(-1))
        weights.add_(0.0)
        return x + weights @ v


def model() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(8, 8), Attention(), nn.Linear(8, 1)))


def batch(seed: int) -> torch.Tensor:
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(seed))


def train(made: nn.Module, steps: int = 3, x: Callable[[int], Any] = batch, **watch: Any) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.05)
    statagent.watch(made, optimizer, **watch)
    torch.manual_seed(5)
    for step in range(steps):
        made(x(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in made.parameters()]


def start() -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0)


def documents(recording: Recording, phase: str = "forward") -> list[tuple[dict[str, str], list[list[str]]]]:
    """Fields and split lines of each zoomed call of this phase."""
    calls: dict[tuple[str, str, str], tuple[dict[str, str], list[list[str]]]] = {}
    for _, kind, _, fields in recording.events:
        if kind == "zoom" and fields["phase"] == phase:
            lines = "~".join(fields[key] for key in sorted(fields) if key.isdigit())
            found = calls.setdefault((fields["module"], fields["micro_batch"], fields["call"]), (fields, []))
            found[1].extend(each.split("|") for each in lines.split("~") if each)
    return list(calls.values())


def operators(recording: Recording) -> list[Record]:
    return [record for record in recording.records if record.kind == "operator"]


def test_every_operator_of_the_module_is_recorded_in_that_step_only(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "1@1")
    start()
    train(model())
    ((fields, lines),) = documents(recording)
    assert (fields["module"], fields["class"], fields["call"], fields["left_out"]) == ("1", "Attention", "0", "0")
    names = [line[2] for line in lines if line[0] == "op"]
    assert names[-3:] == ["aten.bmm", "aten._unsafe_view", "aten.add.Tensor"] or names[-1] == "aten.add.Tensor"
    assert "aten._softmax" in names and "aten.masked_fill.Scalar" in names
    assert {record.step for record in operators(recording)} == {1}
    seen = {(record.name, record.path) for record in operators(recording)}
    for line in lines:
        if line[0] == "in":
            assert (f"1/in{line[1]}", "0") in seen
        elif line[0] == "op":  # a result that has no values yet is none
            assert ((f"1/#{line[1]} {line[2]}", "0") in seen) == (line[2] != "aten.empty_like")
    assert recording.refusals == []


def test_a_line_names_arguments_by_data_flow_the_place_and_the_random_state(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "1@1")
    start()
    train(model())
    ((_, lines),) = documents(recording)
    by_name = {line[2]: line for line in reversed(lines) if line[0] == "op"}
    inputs = {line[2]: line for line in lines if line[0] == "in"}
    assert set(inputs) >= {"input 0", "qkv.weight", "qkv.bias", "mask"}
    scale = by_name["aten.mul.Tensor"]
    assert scale[4].startswith("tests/agent/python/test_zoom.py:") and scale[5].endswith("Attention.forward")
    assert scale[-1] == "other^0.5"
    filled = by_name["aten.masked_fill.Scalar"]
    assert filled[8].startswith("self^&") and filled[-1] == "value^-inf"
    added = by_name["aten.add_.Tensor"]
    assert "i" in added[3]
    used = next(line for line in lines if line[2] == "aten.expand" and line[8].startswith(f"self^&{added[1]}.0"))
    assert "v" in used[3]
    drawn = [line for line in lines if line[0] == "op" and line[6]]
    assert len(drawn) == 1 and len(drawn[0][6]) == 33


@pytest.mark.parametrize("zoom", ["1@1", "1.drop@0; 0@2", "*@1"])
def test_training_with_dropout_is_bit_identical(recording: Recording, monkeypatch: pytest.MonkeyPatch, zoom: str) -> None:
    start()
    plain = train(model())
    outputs = {(r.step, r.name, r.kind, r.path): r.hash for r in recording.records}
    statagent.close(timeout=0)
    monkeypatch.setenv("STATAGENT_ZOOM", zoom)
    recording.records.clear()
    recording._identities.clear()
    start()
    zoomed = train(model())
    again = {(r.step, r.name, r.kind, r.path): r.hash for r in recording.records if r.kind != "operator"}
    assert all(torch.equal(one, other) for one, other in zip(plain, zoomed)) and outputs == again
    assert operators(recording)


def test_nothing_is_there_without_a_zoom(recording: Recording) -> None:
    start()
    made = model()
    train(made)
    assert operators(recording) == [] and documents(recording) == []
    hooks = [hook for part in made.modules() for hook in (*part._forward_pre_hooks.values(), *part._forward_hooks.values())]
    assert hooks and not any("zoom" in type(hook).__module__ for hook in hooks)


def test_a_name_that_the_model_has_not_is_told_with_the_nearest(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "blocks.1.lm@1")
    start()
    train(seeded(Net), x=lambda step: data(seed=step))
    assert "the model has no module 'blocks.1.lm'; did you mean blocks.1.ln" in capsys.readouterr().err
    assert [kind for _, kind, _, _ in recording.events if kind == "zoom_missed"] == ["zoom_missed"]


def test_a_step_that_never_comes_is_told_at_the_end(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "1@77")
    start()
    train(model())
    statagent.close(timeout=0)
    assert "1@77 was not recorded: no training pass of the module was recorded in step 77" in capsys.readouterr().err
    assert [kind for _, kind, _, _ in recording.events if kind == "zoom_missed"] == ["zoom_missed"]


@pytest.mark.parametrize("text", ["blocks.1.ln", "@3", "a@", "a@-1", "a@3-4", "a@1e3", "a@" + "9" * 30])
def test_a_zoom_that_cannot_be_read_is_refused(recording: Recording, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", text)
    start()
    with pytest.raises(statagent.InvalidArgumentError, match=r"STATAGENT_ZOOM has .*expected MODULE@STEP"):
        statagent.watch(model())


def test_several_calls_and_micro_batches_are_told_apart(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    start()
    made = seeded(lambda: Calls(lambda self, x: self.part(self.part(x)), part=nn.Linear(8, 8)))
    statagent.watch(made)
    for _ in range(2):
        made(batch(0)).mean().backward()
    assert [(f["micro_batch"], f["call"]) for f, _ in documents(recording)] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]


def test_a_failed_pass_leaves_no_mode_behind(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    start()
    made = seeded(lambda: Calls(lambda self, x: self.part(x), part=nn.Linear(8, 8)))
    statagent.watch(made)
    with pytest.raises(RuntimeError):
        made(torch.randn(2, 3))
    assert torch._C._len_torch_dispatch_stack() == 0
    made(batch(0)).mean().backward()
    assert documents(recording)[-1][1]


def test_more_operators_than_the_limit_are_counted(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    from statagent._watch import zoom_operators

    monkeypatch.setattr(zoom_operators, "OPERATORS_MAX", 20)
    monkeypatch.setenv("STATAGENT_ZOOM", "1@1")
    start()

    def loop(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = x + 1
        return x

    train(nn.Sequential(nn.Linear(8, 8), Calls(loop), nn.Linear(8, 1)))
    ((fields, lines),) = documents(recording)
    assert int(fields["operators"]) < 20 and int(fields["operators"]) + int(fields["left_out"]) == 50
    assert len(lines) <= 20


@pytest.mark.parametrize("kind", ["reentrant", "non_reentrant"])
def test_a_checkpointed_module_is_zoomed_once(recording: Recording, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "blocks.1@1")
    start()
    train(seeded(lambda: Net(checkpoints=kind)), x=lambda step: data(seed=step).requires_grad_())
    ((fields, _),) = documents(recording)
    assert fields["call"] == "0" and int(fields["operators"]) > 3


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_functions_of_autograd_functorch_and_code_without_a_source(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    start()
    made_of: dict[str, Any] = {}
    exec(compile("def odd(x):\n    return x.sin()\n", "odd\tname\x1b", "exec"), made_of)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = _Double.apply(x)
        x = torch.func.vmap(torch.cos)(x)
        if x.sum().item() > 1e9:
            return x
        torch._assert_async(x.isfinite().all())
        return made_of["odd"](x)

    made = seeded(lambda: Calls(lambda self, x: self.part(x), part=Calls(forward)))
    statagent.watch(made)
    made(batch(0).requires_grad_()).mean().backward()
    ((_, lines),) = documents(recording)
    names = [line[2] for line in lines if line[0] == "op"]
    assert {"aten.mul.Tensor", "aten.cos", "aten._local_scalar_dense", "aten.sin"} <= set(names)
    sine = next(line for line in lines if line[2] == "aten.sin")
    assert sine[4].endswith("odd\\x09name\\x1b:2") and sine[5] == "odd"
    assert next(line for line in lines if line[2] == "aten._local_scalar_dense")[7].startswith("=")
    assert recording.refusals == []


def test_a_compiled_module_runs_eagerly_in_the_zoomed_step_only(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "1@1")
    agent = statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0)
    graphs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        def call(*args: Any) -> Any:
            graphs.append(agent.current_step())
            return graph(*args)

        return call

    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.05)
    statagent.watch(made, optimizer)
    compiled = torch.compile(made, backend=backend)
    for step in range(3):
        compiled(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    ((_, lines),) = documents(recording)
    assert "aten._softmax" in {line[2] for line in lines}
    assert set(graphs) == {0, 2}
    assert next(text for _, kind, text, _ in recording.events if kind == "zoom").endswith(
        "; compiled modules, if any, ran eagerly in this step"
    )


def test_a_module_that_two_threads_run_is_zoomed_in_the_one_that_came_first(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATAGENT_ZOOM", "part@0")
    start()
    inside, other = threading.Event(), threading.Event()
    stacks: list[int] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is threading.main_thread():
            inside.set()
            other.wait(20)
        return x.sin()

    made = seeded(lambda: Calls(lambda self, x: self.part(x), part=Calls(forward)))
    statagent.watch(made)

    def second() -> None:
        inside.wait(20)
        made.part(batch(1))
        stacks.append(torch._C._len_torch_dispatch_stack())
        other.set()

    thread = threading.Thread(target=second)
    thread.start()
    made(batch(0).requires_grad_()).mean().backward()
    thread.join()
    assert stacks == [0] and torch._C._len_torch_dispatch_stack() == 0
    ((_, lines),) = documents(recording)
    assert [line[2] for line in lines if line[0] == "op"] == ["aten.sin"]
