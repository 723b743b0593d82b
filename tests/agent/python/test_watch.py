"""What a watched model records, and under which identities."""

from __future__ import annotations

import copy
import gc
import io
import math
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import statagent
from statagent import Agent, InvalidArgumentError, compute
from statagent._torch.autograd import hook_result
from statagent.watch import KINDS

from .models import Calls, Nested, Net, data, seeded
from .support import Recording

FORWARD_ORDER = [
    "blocks.0.ln", "blocks.0.fc", "blocks.0", "blocks.1.ln", "blocks.1.fc", "blocks.1", "head", "Net",
]  # fmt: skip


def train(model: nn.Module, steps: int = 1, micro_batches: int = 1, optimizer: Any = None) -> None:
    for step in range(steps):
        for micro_batch in range(micro_batches):
            model(data(seed=100 * step + micro_batch)).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            statagent.step()


@pytest.fixture
def net() -> Net:
    return seeded(Net)


# --- names, order, values ---


def test_outputs_come_in_execution_order_under_qualified_names(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    train(net)
    assert recording.names("output") == FORWARD_ORDER
    assert recording.refusals == []
    record = recording.one("blocks.1.ln", "output")
    assert (record.path, record.micro_batch, record.call, record.mode) == ("0", 0, 0, "train")
    assert (record.parent, record.class_name) == ("blocks.1", "LayerNorm")
    assert (record.dtype, record.shape) == ("f32", (4, 8))


def test_depth_counts_from_1_at_the_root(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    train(net)
    depths = {name: recording.one(name, "output").depth for name in ("Net", "head", "blocks.0", "blocks.0.fc")}
    assert depths == {"Net": 1, "head": 2, "blocks.0": 3, "blocks.0.fc": 4}


def test_values_are_those_of_the_tensors(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net, kinds={"input", "output", "grad_output", "grad_input"})
    seen: dict[str, torch.Tensor] = {}

    def keep(_: nn.Module, args: Any, output: torch.Tensor) -> None:
        seen.update(input=args[0].detach().clone(), output=output.detach().clone())
        args[0].register_hook(lambda g: seen.update(grad_input=g.clone()))
        output.register_hook(lambda g: seen.update(grad_output=g.clone()))

    net.block(1).ln.register_forward_hook(keep)
    train(net)
    for kind in ("input", "output"):
        assert recording.one("blocks.1.ln", kind).hash == compute(seen[kind])["hash"]
    assert recording.one("blocks.1.ln", "grad_output").hash == compute(seen["grad_output"])["hash"]


def test_gradients_of_outputs_arrive_in_backward_order(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    train(net)
    names = recording.names("grad_output")
    assert sorted(names) == sorted(FORWARD_ORDER)
    assert [n for n in names if n in ("blocks.0.ln", "blocks.1.ln", "head")] == ["head", "blocks.1.ln", "blocks.0.ln"]


def test_gradient_of_an_output_used_twice_is_the_sum(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: (y := self.fc(x)) * 2 + y * 3, fc=nn.Linear(8, 2))
    statagent.watch(model)
    model(data()).sum().backward()
    assert recording.one("fc", "grad_output").l2 == pytest.approx(5 * math.sqrt(8))


def test_nested_outputs_get_paths(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: (o := self.inner(x))["last"][0].sum() + o["out"].hidden.sum(), inner=Nested())
    statagent.watch(model)
    model(data().requires_grad_()).backward()
    paths = [r.path for r in recording.of("output") if r.name == "inner"]
    assert paths == ["out.hidden", "out.extra.pair.0", "out.extra.pair.3", "last.0"]
    assert recording.one("inner", "output", path="out.extra.pair.3").dtype == "i64"
    assert sorted(r.path for r in recording.of("grad_output") if r.name == "inner") == ["last.0", "out.hidden"]


def test_keyword_inputs_go_by_name(agent: Agent, recording: Recording) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
            return x * by

    model = Calls(lambda self, x: self.inner(x, by=torch.ones(8)), inner=Scaled())
    statagent.watch(model, kinds={"input"}, include=["inner"])
    model(data())
    assert [r.path for r in recording.of("input")] == ["0", "by"]


@pytest.mark.parametrize("result", ["none", "text", "input"])
def test_outputs_that_are_no_new_tensor_break_nothing(agent: Agent, recording: Recording, result: str) -> None:
    results = {"none": lambda x: None, "text": lambda x: "text", "input": lambda x: x}
    model = Calls(
        lambda self, x: (self.inner(x), self.fc(x))[1], inner=Calls(lambda self, x: results[result](x)), fc=nn.Linear(8, 1)
    )
    statagent.watch(model)
    train(model)
    assert recording.names("output") == ["inner"] * (result == "input") + ["fc", "Calls"]
    assert statagent.counters().get("dropped_refused", 0) == 0


@pytest.mark.parametrize("strange", ["sparse", "meta", "quantized"])
def test_tensors_without_statistics_are_counted_and_training_goes_on(
    agent: Agent, recording: Recording, strange: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make = {
        "sparse": lambda: torch.eye(3).to_sparse(),
        "meta": lambda: torch.zeros(3, device="meta"),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    }
    model = Calls(lambda self, x: (self.odd(x), self.fc(x))[1], odd=Calls(lambda self, x: make[strange]()), fc=nn.Linear(8, 1))
    statagent.watch(model)
    train(model, steps=3)
    assert recording.names("output", 2) == ["fc", "Calls"]
    assert statagent.counters()["dropped_refused"] == 3
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_sparse_gradient_of_an_embedding_is_counted(agent: Agent, recording: Recording) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert statagent.counters()["dropped_refused"] == 1
    assert recording.names("weight_grad") == ["1.weight", "1.bias"]


# --- calls, shared modules ---


def test_module_called_twice_gets_calls_0_and_1(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: self.fc(self.fc(x)), fc=nn.Linear(8, 8))
    statagent.watch(model)
    train(model, steps=2)
    for step in (0, 1):
        assert [r.call for r in recording.of("output", step) if r.name == "fc"] == [0, 1]
        assert [r.call for r in recording.of("grad_output", step) if r.name == "fc"] == [1, 0]
    assert recording.refusals == []


def test_shared_module_goes_by_its_first_name(agent: Agent, recording: Recording) -> None:
    shared = nn.Linear(8, 8)
    model = Calls(lambda self, x: self.second(self.first(x)), first=shared, second=shared)
    statagent.watch(model)
    train(model)
    assert [(r.name, r.call) for r in recording.of("output")] == [("first", 0), ("first", 1), ("Calls", 0)]
    assert recording.names("weight") == ["first.weight", "first.bias"]


def test_tied_weights_are_recorded_once(agent: Agent, recording: Recording) -> None:
    a, b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    b.weight = a.weight
    model = Calls(lambda self, x: self.b(self.a(x)), a=a, b=b)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer)
    train(model, optimizer=optimizer)
    for kind in ("weight_grad", "optimizer_state"):
        assert set(recording.names(kind)) == {"a.weight"}
    assert [(r.name, r.mode) for r in recording.of("weight")] == [("a.weight", "init"), ("a.weight", "train")]
    assert recording.refusals == []


def test_submodule_called_outside_the_root_is_recorded(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    net.head(data()).sum().backward()
    assert recording.names("output") == ["head"]
    assert recording.names("grad_output") == ["head"]


# --- micro-batches and steps ---


def test_forward_after_backward_begins_the_next_micro_batch(agent: Agent, recording: Recording, net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    train(net, steps=2, micro_batches=3, optimizer=optimizer)
    for step in (0, 1):
        for kind in ("output", "grad_output"):
            assert [r.micro_batch for r in recording.of(kind, step) if r.name == "head"] == [0, 1, 2]
    assert {r.call for r in recording.records} == {0}
    assert recording.ended_steps == [0, 1]
    assert recording.refusals == []


def test_two_forwards_before_one_backward_are_calls_of_one_micro_batch(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    (net(data(seed=1)) - net(data(seed=2))).square().mean().backward()
    assert [(r.micro_batch, r.call) for r in recording.of("output") if r.name == "head"] == [(0, 0), (0, 1)]
    assert sorted((r.micro_batch, r.call) for r in recording.of("grad_output") if r.name == "head") == [(0, 0), (0, 1)]


def test_batch_and_scalars_belong_to_their_micro_batch(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    for seed in range(2):
        x = data(seed=seed)
        statagent.log_batch(x=x)
        loss = net(x).sum()
        loss.backward()
        statagent.log_scalar("loss", loss)
    assert [(r.name, r.micro_batch) for r in recording.of("batch")] == [("x", 0), ("x", 1)]
    logged = [(name, micro_batch) for _, name, _, micro_batch in recording.scalars if not name.startswith("rng/")]
    assert logged == [("loss", 0), ("loss", 1)]


def test_second_backward_through_one_graph_is_no_second_observation(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    loss = net(data()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert recording.names("grad_output").count("head") == 1
    assert recording.refusals == []


def test_steps_outside_the_window_are_not_recorded(agent: Agent, recording: Recording, net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer, steps="1,3-,every=1")
    train(net, steps=5, optimizer=optimizer)
    assert sorted({r.step for r in recording.records if r.mode == "train"}) == [1, 3, 4]
    assert recording.ended_steps == [0, 1, 2, 3, 4]


def test_window_of_init_counts_too(recording: Recording, net: Net) -> None:
    statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0, steps="2-")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    train(net, steps=4, optimizer=optimizer)
    assert sorted({r.step for r in recording.records if r.mode == "train"}) == [2, 3]
    assert {r.kind for r in recording.records if r.mode == "init"} == {"weight"}, "initial weights are always wanted"


# --- evaluation ---


def test_evaluation_is_not_recorded_and_advances_nothing(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    net(data()).sum().backward()
    before = len(recording.records)
    with torch.no_grad():
        net(data())
    net.eval()
    net(data())
    assert statagent.inspect("seen", data()) is not None
    net.train()
    after = [r for r in recording.records[before:] if r.kind != "inspect"]
    assert after == []
    net(data()).sum().backward()
    assert [r.micro_batch for r in recording.of("output") if r.name == "head"] == [0, 1]


def test_inspect_inside_an_evaluation_pass_is_not_recorded(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: statagent.inspect("inner", self.fc(x)), fc=nn.Linear(8, 8))
    statagent.watch(model)
    with torch.no_grad():
        model(data())
    assert recording.of("inspect") == []
    model(data()).sum().backward()
    assert [r.call for r in recording.of("inspect")] == [0]


def test_evaluation_on_request_is_marked(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net, eval=True)
    net(data()).sum().backward()
    net.eval()
    net(data())
    net(data())
    net.train()
    net(data()).sum().backward()
    assert [(r.mode, r.call) for r in recording.of("output") if r.name == "head"] == [
        ("train", 0), ("eval", 0), ("eval", 1), ("train", 0),
    ]  # fmt: skip
    assert [r.micro_batch for r in recording.of("output") if r.name == "head" and r.mode == "train"] == [0, 1]
    assert recording.refusals == []


def test_part_in_eval_mode_inside_a_training_pass_is_recorded(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    net.blocks[0].eval()
    with torch.no_grad():
        frozen = net.block(1).ln.weight.clone()
    net(data()).sum().backward()
    assert frozen.shape == (8,)
    assert recording.one("blocks.0.fc", "output").mode == "train"


# --- activation checkpoints ---


@pytest.mark.parametrize("kind", ["reentrant", "non_reentrant"])
def test_checkpoint_records_what_the_plain_model_records(agent: Agent, recording: Recording, kind: str) -> None:
    plain, checkpointed = seeded(Net), seeded(lambda: Net(checkpoints=kind))
    x = [data(seed=s).requires_grad_() for s in range(4)]

    def observed(model: Net) -> dict[tuple[Any, ...], int]:
        start = len(recording.records)
        with statagent.watch(model, kinds={"output", "grad_output"}):
            for step in range(2):
                for micro_batch in range(2):
                    model(x[2 * step + micro_batch]).square().mean().backward()
                statagent.step()
        first = min(r.step for r in recording.records[start:])
        found = [((r.step - first, r.name, r.kind, r.path, r.micro_batch, r.call), r.hash) for r in recording.records[start:]]
        assert len(found) == len(dict(found)), "something was recorded twice"
        return dict(found)

    expected, found = observed(plain), observed(checkpointed)
    assert found == expected
    assert recording.refusals == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_module_called_twice_in_each_checkpoint_keeps_its_calls_apart(
    agent: Agent, recording: Recording, reentrant: bool
) -> None:
    """Checkpoints are recomputed from the last to the first, the calls inside of one in their order."""
    fc, first, second = (seeded(lambda: nn.Linear(8, 8)) for _ in range(3))

    def block(self: Any, x: torch.Tensor, own: nn.Module) -> torch.Tensor:
        return self.fc(own(self.fc(x).tanh())).sigmoid()

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for own in (self.first, self.second):
            x = checkpoint(block, self, x, own, use_reentrant=reentrant)
        return self.fc(x)

    def plain(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.fc(block(self, block(self, x, self.first), self.second))

    found = []
    for function in (plain, forward):
        model = Calls(function, fc=fc, first=first, second=second)
        start = len(recording.records)
        with statagent.watch(model, kinds={"grad_output"}, include=["fc"]):
            for seed in range(2):  # micro-batches
                model(data(seed=seed).requires_grad_()).sum().backward()
            statagent.step()
        found.append({(r.micro_batch, r.call, r.hash) for r in recording.records[start:]})
    assert found[1] == found[0]
    assert {(micro_batch, call) for micro_batch, call, _ in found[1]} == {(m, c) for m in range(2) for c in range(5)}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_module_called_twice_keeps_its_calls_apart(agent: Agent, recording: Recording, reentrant: bool) -> None:
    fc = seeded(lambda: nn.Linear(8, 8))

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.fc, checkpoint(self.fc, x, use_reentrant=reentrant).tanh(), use_reentrant=reentrant)

    def plain(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.fc(x).tanh())

    found = []
    for function in (plain, forward):
        model = Calls(function, fc=fc)
        start = len(recording.records)
        with statagent.watch(model, kinds={"grad_output"}, include=["fc"]):
            model(data().requires_grad_()).sum().backward()
            statagent.step()
        found.append({(r.call, r.hash) for r in recording.records[start:]})
    assert found[0] == found[1]
    assert {call for call, _ in found[1]} == {0, 1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_inspect_inside_a_checkpoint_is_recorded_once(agent: Agent, recording: Recording, reentrant: bool) -> None:
    inner = Calls(lambda self, x: statagent.inspect("middle", self.fc(x)).tanh(), fc=nn.Linear(8, 8))
    model = Calls(lambda self, x: checkpoint(self.inner, x, use_reentrant=reentrant), inner=inner)
    statagent.watch(model)
    for _ in range(2):
        model(data().requires_grad_()).sum().backward()
    assert [(r.micro_batch, r.call) for r in recording.of("inspect")] == [(0, 0), (1, 0)]
    assert recording.refusals == []


# --- results stay what they were ---


def in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = self.fc(x)
    y += 1
    z = self.act(y).view(4, 2, 4)
    return self.out(z).flatten(1).mul_(2)


MODELS = {
    "net": Net,
    "checkpoint": lambda: Net(checkpoints="non_reentrant"),
    "checkpoint_reentrant": lambda: Net(checkpoints="reentrant"),
    "in_place": lambda: Calls(in_place, fc=nn.Linear(8, 8), act=nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), out=nn.Linear(4, 4)),
    "views": lambda: Calls(
        lambda self, x: torch.cat(self.split(self.fc(x)), 1), fc=nn.Linear(8, 8), split=Calls(lambda self, x: x.chunk(2, dim=1))
    ),
    "recurrent": lambda: Calls(lambda self, x: self.lstm(x[None])[0][0], lstm=nn.LSTM(8, 4, num_layers=2)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "attention": lambda: Calls(lambda self, x: self.attn(x[None], x[None], x[None])[0][0], attn=nn.MultiheadAttention(8, 2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_watching_changes_no_bit_of_the_training(agent: Agent, recording: Recording, kind: str) -> None:
    def trained(watched: bool) -> list[torch.Tensor]:
        model = seeded(MODELS[kind])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        made = statagent.watch(model, optimizer, kinds=set(KINDS)) if watched else None
        results = []
        torch.manual_seed(7)
        for step in range(3):
            x = data(seed=step).requires_grad_()
            output = model(x)
            output.square().mean().backward()
            assert x.grad is not None
            results += [output.detach().clone(), x.grad.clone()] + [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
        if made is not None:
            made.remove()
        return results + [p.detach().clone() for p in model.parameters()]

    plain, watched = trained(False), trained(True)
    assert len(recording.records) > 20
    assert recording.refusals == []
    assert statagent.counters().get("dropped_refused", 0) == 0
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_graphs_are_freed_as_without_a_watch(agent: Agent, net: Net) -> None:
    import gc
    import weakref

    statagent.watch(net, kinds={"input", "output", "grad_output", "grad_input"})
    kept = []
    net.block(0).fc.register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output)))
    loss = net(data().requires_grad_()).sum()
    loss.backward()
    del loss
    gc.collect()
    assert [reference() for reference in kept] == [None]


def test_remove_takes_everything_off(agent: Agent, recording: Recording, net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with statagent.watch(net, optimizer):
        pass
    before = len(recording.records)
    train(net, optimizer=optimizer)
    assert len(recording.records) == before
    assert recording.ended_steps == []
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    statagent.watch(net, optimizer)
    train(net, optimizer=optimizer)
    assert recording.names("output") == FORWARD_ORDER


def test_removing_between_forward_and_backward_is_safe(agent: Agent, recording: Recording, net: Net) -> None:
    made = statagent.watch(net)
    loss = net(data()).sum()
    made.remove()
    loss.backward()
    assert recording.of("grad_output") == []


def test_copies_and_pickles_of_a_watched_model_work_and_are_not_watched(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net)
    stored = io.BytesIO()
    torch.save(net, stored)
    stored.seek(0)
    before = len(recording.records)
    for other in (copy.deepcopy(net), torch.load(stored, weights_only=False)):
        other(data()).sum().backward()
    assert len(recording.records) == before
    net(data()).sum().backward()
    assert recording.names("output") == FORWARD_ORDER


def test_forward_that_raises_leaves_the_watch_usable(agent: Agent, recording: Recording) -> None:
    fail = [True]

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        if fail.pop() if fail else False:
            raise RuntimeError("out of luck")
        return y

    model = Calls(forward, fc=nn.Linear(8, 8))
    statagent.watch(model)
    with pytest.raises(RuntimeError, match="out of luck"):
        model(data())
    train(model)
    assert [(r.name, r.call) for r in recording.of("output")] == [("fc", 0), ("fc", 1), ("Calls", 0)]


def test_error_inside_a_hook_is_counted_not_raised(
    agent: Agent, recording: Recording, net: Net, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer, kinds=set(KINDS))

    def explode(*_: Any) -> int:
        raise MemoryError("no memory left")

    monkeypatch.setattr(agent, "native_observe", explode)
    train(net, steps=2, optimizer=optimizer)
    counts = statagent.counters()
    assert counts["dropped_refused"] > 40
    assert counts["produced"] == counts["acked"] + counts["pending"] + sum(
        n for k, n in counts.items() if k.startswith("dropped_")
    )
    assert len(capfd.readouterr().err.splitlines()) == 1


# --- selection ---


def test_include_and_exclude_choose_modules_and_their_parameters(agent: Agent, recording: Recording, net: Net) -> None:
    statagent.watch(net, include=["blocks.*", "head"], exclude=["*.ln"])
    train(net)
    assert recording.names("output") == ["blocks.0.fc", "blocks.0", "blocks.1.fc", "blocks.1", "head"]
    assert set(recording.names("weight")) == {
        f"{name}.{part}" for name in ("blocks.0.fc", "blocks.1.fc", "head") for part in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"include": ["block.*"]}, r"'block\.\*' matches nothing; .*blocks\.0"),
        ({"kinds": ["outputs"]}, r"found 'outputs'.*expected .*output"),
        ({"kinds": []}, r"kinds is empty"),
        ({"kinds": ["weight_grad"]}, r"needs the optimizer"),
        ({"steps": "ten"}, r"ten"),
        ({"optimizer": 3}, r"found a int as optimizer"),
        ({"include": [3]}, r"include holds 3"),
        ({"kinds": 5}, "kinds is 5; expected some of: output"),
        ({"include": 5}, "include holds 5; expected patterns"),
        ({"parameter_steps": [1]}, r"watch: parameter_steps is \[1\], a list"),
        ({"name": 5}, "name is 5; expected at most 256 bytes of printable text"),
        ({"name": "a\nb"}, r"name is 'a\\nb'; expected"),
        ({"name": "x" * 300}, "name is 'xxx"),
    ],
)
def test_wrong_arguments_are_named_with_what_exists(agent: Agent, net: Net, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        statagent.watch(net, **arguments)
    assert not any(module._forward_hooks for module in net.modules()), "a refused watch left hooks behind"
    statagent.watch(net)


def test_watching_twice_is_refused(agent: Agent, net: Net) -> None:
    statagent.watch(net)
    with pytest.raises(InvalidArgumentError, match="already watched"):
        statagent.watch(net)


def test_an_optimizer_given_twice_is_one(agent: Agent, recording: Recording, net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer=[optimizer, optimizer])
    for _ in range(2):
        net(data()).sum().backward()
        optimizer.step()
    assert recording.ended_steps == [0, 1]
    assert all(r.call == 0 for r in recording.of("weight_grad"))


def test_two_models_are_told_apart_by_name(agent: Agent, recording: Recording) -> None:
    first, second = seeded(Net), seeded(Net, 1)
    statagent.watch(first, name="generator")
    statagent.watch(second, name="critic")
    second(first(data()).repeat(1, 3)[:, :8]).sum().backward()
    assert {"generator", "critic", "generator.head", "critic.head", "critic.blocks.0.ln"} <= set(recording.names("output"))
    assert recording.refusals == []


def test_close_removes_all_hooks_and_frees_the_agent(recording: Recording) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    closed = []
    for _ in range(5):
        agent = statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0)
        statagent.watch(net, optimizer)
        train(net, optimizer=optimizer)
        agent.close(timeout=0)
        closed.append(weakref.ref(agent))
        del agent
    hooks: list[Any] = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    for module in net.modules():
        hooks += [module._forward_hooks, module._forward_pre_hooks]
    assert [len(each) for each in hooks] == [0] * len(hooks)
    gc.collect()
    assert sum(each() is not None for each in closed) == 1, "but the last one, whose counters can still be read"


def test_watch_needs_init_and_a_module(recording: Recording, net: Net) -> None:
    with pytest.raises(statagent.StatagentError, match=r"call statagent\.init\(\) first"):
        statagent.watch(net)
    statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0)
    with pytest.raises(ValueError, match="found a function as model"):
        statagent.watch(train)


# --- wrappers ---


def test_wrapper_prefixes_are_removed(agent: Agent, recording: Recording) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = seeded(Net)
    net.blocks[1] = checkpoint_wrapper(net.blocks[1])
    statagent.watch(nn.DataParallel(net))
    net(data().requires_grad_()).sum().backward()
    assert [n for n in recording.names("output") if not n.endswith("blocks.1")] == [n for n in FORWARD_ORDER if n != "blocks.1"]
    assert all("module" not in r.name and "_" not in r.name for r in recording.of("weight"))


def test_compiled_model_is_recorded_under_plain_names(agent: Agent, recording: Recording, net: Net) -> None:
    compiled = torch.compile(net, backend="eager")
    statagent.watch(compiled)
    for _ in range(2):
        compiled(data()).sum().backward()
        statagent.step()
    assert recording.names("output", 1) == FORWARD_ORDER
    assert recording.refusals == []


def test_module_named_like_a_wrapper_keeps_its_name(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: self.module(x), module=nn.Linear(8, 8))
    statagent.watch(model)
    train(model)
    assert recording.names("output") == ["module", "Calls"]


def test_a_hook_that_the_user_takes_off_takes_none_of_ours_with_it(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    statagent.watch(net)
    seen: list[str] = []
    handles: list[Any] = []

    def touch(_: Any, __: Any, output: torch.Tensor) -> None:
        handles.append(output.register_hook(lambda g: seen.append("user")))

    def untouch(_: Any, __: Any, output: torch.Tensor) -> None:
        handles.pop().remove()
        hook_result(output, lambda g: seen.append("second of ours"))

    first = net.head.register_forward_hook(touch)
    net.head._forward_hooks.move_to_end(first.id, last=False)  # before ours
    net.head.register_forward_hook(untouch)
    net(data()).sum().backward()
    assert seen == ["second of ours"]
    assert recording.one("head", "grad_output")


def test_an_output_without_a_gradient_beside_one_that_has_it_is_left_out(agent: Agent, recording: Recording) -> None:
    """Both are outputs of one node of the graph, for which torch calls the hooks of all of them."""

    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            first, second = x.unbind()
            return first, second

    model = Halves()
    statagent.watch(model)
    model(torch.ones(2, 3, requires_grad=True))[1].sum().backward()
    assert agent.counters().get("dropped_refused", 0) == 0
    assert [each.path for each in recording.records if each.kind == "grad_output"] == ["1"]
