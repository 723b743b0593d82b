"""The drop-in for ONNX Runtime's hooks: names, steps, windows, errors, users' own subscribers."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import sys
import warnings
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent.compat.ort import (
    ActivationSummarizer,
    GlobalSubscriberManager,
    OutputExistsError,
    RuntimeStates,
    StatisticsSubscriber,
    SubscriberBase,
    SubscriberManager,
    _InspectActivation,
    inspect_activation,
)
from statagent.compat.ort import _run as run_module
from statagent.compat.ort._run import run_name

from .models import Calls, Net, data, seeded
from .support import Recording, python

Subscribe = Callable[..., StatisticsSubscriber]
FC = "Linear_1_0th_output"


@pytest.fixture(autouse=True)
def fresh_manager() -> Iterator[None]:
    yield
    GlobalSubscriberManager._unsubscribe()
    GlobalSubscriberManager._subscribers = []


@pytest.fixture
def subscribe(agent: statagent.Agent) -> Subscribe:
    """Subscribes a StatisticsSubscriber of these arguments; its agent is the recorded one."""

    def make(model: nn.Module, *more: SubscriberBase, **arguments: Any) -> StatisticsSubscriber:
        made = StatisticsSubscriber("out", **arguments)
        GlobalSubscriberManager.subscribe(model, [made, *more])
        return made

    return make


def one_layer(forward: Callable[[Any, torch.Tensor], Any] = lambda self, x: self.fc(x)) -> nn.Module:
    return seeded(lambda: Calls(forward, fc=nn.Linear(8, 8)))


def train(model: nn.Module, steps: int = 1) -> None:
    for _ in range(steps):
        model(data()).square().mean().backward()


def seen(recording: Recording, kind: str, name: str = FC) -> list[tuple[int, int]]:
    """(step, call) of a name's records."""
    return [(r.step, r.call) for r in recording.of(kind) if r.name == name]


def of_passes(recording: Recording) -> list[Any]:
    """What forward and backward passes recorded: everything but the weights as loaded."""
    return [r for r in recording.records if r.mode != "init"]


# --- names


def test_modules_are_numbered_depth_first_with_the_root_zero(subscribe: Subscribe, recording: Recording) -> None:
    net = seeded(Net)
    subscribe(net)
    train(net)
    assert recording.names("output") == [
        "LayerNorm_3_0th_output", "Linear_4_0th_output", "Block_2_0th_output", "LayerNorm_6_0th_output", "Linear_7_0th_output",
        "Block_5_0th_output", "Linear_8_0th_output", "Net_0_0th_output",
    ]  # fmt: skip
    layer_norm = recording.one("LayerNorm_6_0th_output", "output")
    assert (layer_norm.path, layer_norm.class_name, layer_norm.depth, layer_norm.parent) == ("", "LayerNorm", 4, "Block_5")
    # A ModuleList runs nothing, so nobody ever sees it: not a parent.
    assert recording.one("Block_5_0th_output", "output").parent == "Net_0"
    assert (recording.one("Net_0_0th_output", "output").depth, recording.refusals) == (1, [])


def test_gradients_come_outermost_module_first(subscribe: Subscribe, recording: Recording) -> None:
    """Net returns the tensor that its head returns: one tensor, two names."""
    net = seeded(Net)
    subscribe(net)
    train(net)
    assert recording.names("grad_output") == [
        "Net_0_0th_output", "Linear_8_0th_output", "Block_5_0th_output", "Linear_7_0th_output", "LayerNorm_6_0th_output",
        "Block_2_0th_output", "Linear_4_0th_output", "LayerNorm_3_0th_output",
    ]  # fmt: skip


def test_a_shared_module_is_numbered_once(subscribe: Subscribe, recording: Recording) -> None:
    fc = nn.Linear(8, 8)
    model = Calls(lambda self, x: self.last(self.b(self.a(x))), a=fc, b=fc, last=nn.Linear(8, 8))
    subscribe(model)
    train(model)
    assert seen(recording, "output", "Linear_1_0th_output") == [(0, 0), (0, 1)]
    assert seen(recording, "grad_output", "Linear_1_0th_output") == [(0, 1), (0, 0)]
    assert seen(recording, "output", "Linear_2_0th_output") == [(0, 0)]


def test_outputs_are_counted_by_sorted_key(subscribe: Subscribe, recording: Recording) -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return OrderedDict(z=x * 1, b=[x * 2, None, {"k": x * 3}], a="text", c=(x * 4, 7))

    model = Pair()
    subscribe(model)
    x = data()
    output = model(x)
    assert list(output) == ["z", "b", "a", "c"]
    recorded = {r.name: r.hash for r in recording.of("output")}
    for k, factor in enumerate((2, 3, 4, 1)):
        assert recorded[f"Pair_0_{k}th_output"] == statagent.compute(x * factor)["hash"]
    assert len(recorded) == 4


def test_outputs_stay_the_same_objects(subscribe: Subscribe) -> None:
    kept: list[Any] = []

    def forward(self: Any, x: torch.Tensor) -> Any:
        kept.append({"b": self.fc(x), "a": (x, [x])})
        return kept[-1]

    model = one_layer(forward)
    subscribe(model)
    assert model(data()) is kept[0]


def test_the_model_inside_an_ortmodule_is_the_root(subscribe: Subscribe, recording: Recording) -> None:
    class ORTModule(nn.Module):  # by its name: the real one may not be importable
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> Any:
            return self.module(x)

    wrapped = one_layer()
    subscribe(ORTModule(wrapped))
    wrapped(data())
    assert recording.names("output") == ["Linear_1_0th_output", "Calls_0_0th_output"]


# --- the model


def test_the_model_is_described_and_its_weights_are_recorded_once(subscribe: Subscribe, recording: Recording) -> None:
    block = nn.Sequential(OrderedDict(ln=nn.LayerNorm(8, eps=1e-3), bn=nn.BatchNorm1d(8)))
    model = nn.Sequential(OrderedDict(block=block, fc=nn.Linear(8, 8)))
    subscribe(model)
    subscribe(model)
    train(model)
    config = recording.config
    assert (config["module.block.ln.eps"], config["model.class"]) == ("0.001", "Sequential")
    assert {key: config[key] for key in config if key.startswith("module_of.")} == {
        "module_of.Sequential_0": "Sequential", "module_of.Sequential_1": "block", "module_of.LayerNorm_2": "block.ln",
        "module_of.BatchNorm1d_3": "block.bn", "module_of.Linear_4": "fc",
    }  # fmt: skip
    loaded = [(r.kind, r.name, r.step) for r in recording.records if r.mode == "init"]
    assert loaded == [
        ("weight", "block.ln.weight", 0), ("weight", "block.ln.bias", 0), ("weight", "block.bn.weight", 0),
        ("weight", "block.bn.bias", 0), ("weight", "fc.weight", 0), ("weight", "fc.bias", 0),
        ("buffer", "block.bn.running_mean", 0), ("buffer", "block.bn.running_var", 0),
    ]  # fmt: skip
    assert recording.refusals == []


def test_a_watch_beside_the_subscription_records_no_weight_twice(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    statagent.watch(model, kinds={"weight"})
    assert sorted(r.name for r in recording.records if r.mode == "init") == ["fc.bias", "fc.weight"]
    assert recording.refusals == []


def test_weights_are_left_out_of_a_window_that_begins_later(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model, start_step=1)
    train(model, 2)
    assert [r for r in recording.records if r.mode == "init"] == []
    assert recording.config["module_of.Linear_1"] == "fc"


# --- steps


def test_each_root_forward_is_a_step_without_an_optimizer(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    train(model, 2)
    model.eval()
    with torch.no_grad():
        model(data())
    model.train()
    train(model)
    assert seen(recording, "output") == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert seen(recording, "grad_output") == [(0, 0), (1, 0), (3, 0)]
    assert {r.mode for r in of_passes(recording)} == {"train"}
    assert GlobalSubscriberManager.get_run_context().global_states.execution_step == 4


def test_statagent_step_does_not_count_a_step_twice(agent: statagent.Agent, subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    for _ in range(3):
        train(model)
        statagent.step()
    assert seen(recording, "grad_output") == [(0, 0), (1, 0), (2, 0)]


def test_a_watched_optimizer_ends_the_steps(agent: statagent.Agent, subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer, kinds={"weight"})
    subscribe(model, start_step=1)
    for _ in range(2):
        train(model, 2)
        with torch.no_grad():
            model(data())  # an evaluation is not a step and not recorded
        optimizer.step()
    found = [(r.kind, r.step, r.micro_batch, r.call) for r in recording.records if r.name == FC]
    assert found == [("output", 1, 0, 0), ("grad_output", 1, 0, 0), ("output", 1, 1, 0), ("grad_output", 1, 1, 0)]
    assert recording.refusals == []


def test_gradients_of_an_earlier_pass_are_further_calls_of_the_step_that_computes_them(
    subscribe: Subscribe, recording: Recording
) -> None:
    model = one_layer()
    subscribe(model)
    (model(data()).sum() + model(data(seed=1)).square().sum()).backward()
    assert seen(recording, "output") == [(0, 0), (1, 0)]
    assert sorted(seen(recording, "grad_output")) == [(1, 0), (1, 1)]
    late = recording.one(FC, "grad_output", call=1)
    assert late.hash == statagent.compute(torch.ones(4, 8))["hash"]
    assert recording.refusals == []


def test_a_second_backward_is_not_another_observation(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    loss = model(data()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert seen(recording, "grad_output") == [(0, 0)]


def test_modules_called_without_the_root_begin_a_step_after_each_backward(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    for _ in range(2):
        model.fc(data()).sum().backward()  # type: ignore[operator]
    train(model)
    assert seen(recording, "grad_output") == [(0, 0), (1, 0), (2, 0)]


def test_a_forward_pass_that_fails_is_no_step(subscribe: Subscribe, recording: Recording) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        if fails:
            raise RuntimeError("out of memory")
        return x

    model = one_layer(forward)
    subscribe(model)
    fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        model(data())
    fails = False
    train(model, 2)
    assert seen(recording, "output") == [(0, 0), (0, 1), (1, 0)]
    assert recording.refusals == []


@pytest.mark.parametrize("checkpoints", ["reentrant", "non_reentrant"])
def test_recomputation_shifts_nothing(subscribe: Subscribe, recording: Recording, checkpoints: str) -> None:
    plain, checkpointed = seeded(Net), seeded(lambda: Net(checkpoints=checkpoints))
    found = []
    for model in (plain, checkpointed):
        recording.records.clear()
        subscribe(model)
        for _ in range(2):
            x = data().requires_grad_()
            model(x).square().mean().backward()
        first = min(r.step for r in of_passes(recording))
        found.append({(r.step - first, r.name, r.kind, r.call, r.hash) for r in of_passes(recording)})
        statagent.step()
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 16


def test_the_window_excludes_its_end(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer(lambda self, x: inspect_activation("mid", self.fc(x)))
    subscribe(model, start_step=1, end_step=3)
    train(model, 5)
    for kind, name in (("output", FC), ("grad_output", FC), ("inspect", "mid"), ("inspect_grad", "mid")):
        assert seen(recording, kind, name) == [(1, 0), (2, 0)]


# --- inspect_activation


def test_inspected_tensors_are_the_same_objects_and_may_have_any_name(subscribe: Subscribe, recording: Recording) -> None:
    same = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        mid = self.fc(x)
        found = inspect_activation("block/0 mid", mid)
        found2 = _InspectActivation.apply("older", None, GlobalSubscriberManager.get_run_context(), found)
        same.append(found is mid and found2 is mid)
        return found2.relu()

    model = one_layer(forward)
    subscribe(model)
    train(model)
    assert same == [True]
    assert recording.names("inspect") == ["block/0 mid", "older"]
    assert recording.names("grad_output") == ["Calls_0_0th_output", FC]
    assert recording.names("inspect_grad") == ["older", "block/0 mid"]  # what came last is nearest to the loss
    assert recording.one("older", "inspect").depth == -1


def test_what_is_inspected_around_the_model_belongs_to_its_pass(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model, start_step=1)
    for step in range(3):
        x = inspect_activation("x", data(seed=step))
        loss = inspect_activation("loss", model(x).square().mean())
        loss.backward()
    assert seen(recording, "inspect", "x") == [(1, 0), (2, 0)]
    assert seen(recording, "inspect", "loss") == [(1, 0), (2, 0)]
    assert recording.one("x", "inspect", step=2).hash == statagent.compute(data(seed=2))["hash"]


def test_a_module_index_makes_an_output_of_an_inspected_tensor(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    context = GlobalSubscriberManager.get_run_context()
    index = context.global_states.module_to_module_index[model.fc]
    _InspectActivation.apply("mine", index, context, data())
    assert recording.one("mine", "output").depth == 2


def test_inspect_without_a_statistics_subscriber_raises(agent: statagent.Agent) -> None:
    with pytest.raises(RuntimeError, match="StatisticsSubscriber is not registered"):
        inspect_activation("x", data())
    GlobalSubscriberManager.subscribe(one_layer(), [SubscriberBase()])
    with pytest.raises(RuntimeError, match="StatisticsSubscriber is not registered"):
        inspect_activation("x", data())


@pytest.mark.parametrize("odd", [None, 3.0, "text", [torch.ones(2)]])
def test_what_is_no_tensor_comes_back_and_is_counted(subscribe: Subscribe, agent: statagent.Agent, odd: Any) -> None:
    subscribe(one_layer())
    assert inspect_activation("odd", odd) is odd
    assert agent.counters()["dropped_refused"] == 1


# --- subscribing


def test_wrong_arguments_raise_as_there(subscribe: Subscribe, agent: statagent.Agent) -> None:
    statistics = StatisticsSubscriber("out")
    with pytest.raises(ValueError, match=r"module must be a torch\.nn\.Module instance; found a str"):
        GlobalSubscriberManager.subscribe("model", [statistics])
    with pytest.raises(ValueError, match="subscriber must be a SubscriberBase instance; found a function"):
        GlobalSubscriberManager.subscribe(one_layer(), [train])  # type: ignore[list-item]
    with pytest.raises(RuntimeError, match=r"^No subscribers are registered\.$"):
        GlobalSubscriberManager.subscribe(one_layer(), [])
    with pytest.raises(ValueError, match="at most one"):
        GlobalSubscriberManager.subscribe(one_layer(), [statistics, StatisticsSubscriber("b")])
    with pytest.raises(RuntimeError, match="is not registered"):
        GlobalSubscriberManager.get_subscriber(StatisticsSubscriber)
    made = subscribe(one_layer())
    assert GlobalSubscriberManager.get_subscriber(StatisticsSubscriber) is made


def test_a_wrong_subscription_leaves_the_former_one(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    with pytest.raises(RuntimeError):
        GlobalSubscriberManager.subscribe(model, [])
    train(model)
    assert seen(recording, "output") == [(0, 0)]


def test_subscribing_again_does_not_double_the_hooks(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    first = subscribe(model)
    subscribe(model)
    GlobalSubscriberManager.subscribe(model, [first])
    train(model, 2)
    assert seen(recording, "output") == [(0, 0), (1, 0)]
    assert seen(recording, "grad_output") == [(0, 0), (1, 0)]
    assert recording.refusals == []


def test_managers_are_independent(agent: statagent.Agent, recording: Recording) -> None:
    model, manager = one_layer(), SubscriberManager()
    manager.subscribe(model, [StatisticsSubscriber("out")])
    train(model)
    assert seen(recording, "output") == [(0, 0)]
    with pytest.raises(RuntimeError):
        inspect_activation("x", data())


def test_the_oldest_spelling(agent: statagent.Agent, recording: Recording) -> None:
    model = one_layer()
    summarizer = ActivationSummarizer("out", end_step_exclusive=1)
    summarizer.initialize(model)
    train(model, 2)
    assert seen(recording, "grad_output") == [(0, 0)]


def test_copies_have_no_subscribers(subscribe: Subscribe, recording: Recording) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    subscribe(model)
    copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    torch.save(model, io.BytesIO())
    train(copied)
    train(unpickled)
    assert of_passes(recording) == []
    train(model)
    assert len(recording.of("output")) == 3


def test_a_subscribed_model_is_not_kept_alive(subscribe: Subscribe) -> None:
    model = one_layer()
    subscribe(model)
    train(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_print_options_stay(subscribe: Subscribe) -> None:
    before = copy.copy(torch._tensor_str.PRINT_OPTS)
    model = one_layer()
    subscribe(model)
    train(model)
    assert torch._tensor_str.PRINT_OPTS == before


def test_training_is_bit_identical(agent: statagent.Agent) -> None:
    def weights(subscribed: bool) -> list[torch.Tensor]:
        model = seeded(Net)
        if subscribed:
            GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("out"), SubscriberBase()])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(5):
            model(data(seed=step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    for plain, observed in zip(weights(False), weights(True)):
        assert torch.equal(plain, observed)


# --- users' own subscribers


class Log(SubscriberBase):
    """Records its calls, in order; replaces every tensor of an output if `factor` is given."""

    def __init__(self, factor: float | None = None, **window: Any) -> None:
        super().__init__(**window)
        self.calls: list[tuple[Any, ...]] = []
        self.factor = factor

    def _log(self, what: str, context: RuntimeStates, module: nn.Module, *more: Any) -> None:
        states = context.global_states
        index = states.module_to_module_index[module]
        self.calls.append((states.execution_step, what, index, states.module_index_to_depth[index], *more))

    def pre_forward_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self._log("pre_module", run_rtx, module, len(args), sorted(kwargs))
        return args, kwargs

    def pre_forward_tensor_apply_impl(self, run_rtx: Any, module: Any, tensor_index: int, tensor: Any) -> Any:
        self._log("pre_tensor", run_rtx, module, tensor_index)
        return tensor

    def post_forward_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        self._log("post_module", run_rtx, module, type(output).__name__)
        return args, output

    def post_forward_tensor_apply_impl(self, run_rtx: Any, module: Any, tensor_index: int, tensor: Any) -> Any:
        self._log("post_tensor", run_rtx, module, tensor_index)
        return tensor if self.factor is None else tensor * self.factor

    def post_forward_outmost_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
        self._log("outmost", run_rtx, module)
        return args, output


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, scale: Any) -> Any:
        return {"b": self.fc(x), "a": x * scale["s"]}


def test_own_subscribers_need_no_agent_and_see_every_module() -> None:
    log = Log(start_step=1, end_step=2)
    model = Scaled()
    GlobalSubscriberManager.subscribe(model, [log])
    for _ in range(3):
        model(data(), scale={"s": torch.ones(())})
    assert log.calls == [
        (1, "pre_module", 0, 1, 1, ["scale"]), (1, "pre_tensor", 0, 1, 0), (1, "pre_tensor", 0, 1, 0),
        (1, "pre_module", 1, 2, 1, []), (1, "pre_tensor", 1, 2, 0),
        (1, "post_module", 1, 2, "Tensor"), (1, "post_tensor", 1, 2, 0),
        (1, "post_module", 0, 1, "dict"), (1, "post_tensor", 0, 1, 0), (1, "post_tensor", 0, 1, 1),
        (1, "outmost", 0, 1),
    ]  # fmt: skip
    assert GlobalSubscriberManager.get_run_context().global_states.execution_step == 3
    with pytest.raises(RuntimeError):
        GlobalSubscriberManager.get_subscriber(StatisticsSubscriber)


def test_a_tensor_that_a_subscriber_returns_takes_the_place_of_the_output(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    plain = model(data())
    subscribe(model, Log(factor=2.0))
    doubled = model(data())
    assert torch.equal(doubled, plain * 4)  # the layer's output, then the root's
    assert recording.one(FC, "output").hash == statagent.compute(plain)["hash"]  # recorded before: the order of the list
    assert recording.one("Calls_0_0th_output", "output").hash == statagent.compute(plain * 2)["hash"]


def test_inputs_and_whole_outputs_can_be_replaced() -> None:
    class Swap(SubscriberBase):
        def pre_forward_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, {**kwargs, "scale": {"s": torch.full((), 3.0)}} if kwargs else kwargs

        def pre_forward_tensor_apply_impl(self, run_rtx: Any, module: Any, tensor_index: int, tensor: Any) -> Any:
            return tensor * 0 if isinstance(module, nn.Linear) else tensor

        def post_forward_outmost_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, output: Any) -> tuple[Any, Any]:
            return args, [output["a"], output["b"]]

    model, x = Scaled(), data()
    GlobalSubscriberManager.subscribe(model, [Swap()])
    a, b = model(x, scale={"s": torch.ones(())})
    assert torch.equal(a, x * 3)
    assert torch.equal(b, model.fc.bias.expand(4, 8))


def test_exceptions_of_own_subscribers_go_through(subscribe: Subscribe, recording: Recording) -> None:
    class Fails(SubscriberBase):
        def post_forward_tensor_apply_impl(self, run_rtx: Any, module: Any, tensor_index: int, tensor: Any) -> Any:
            raise KeyError("theirs")

    model = one_layer()
    subscribe(model, Fails(end_step=1))
    with pytest.raises(KeyError, match="theirs"):
        model(data())


Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Frozen:
    t: torch.Tensor
    other: str = "kept"


def test_containers_keep_type_and_order_when_a_tensor_in_them_is_replaced() -> None:
    x = data()
    untouched = {"n": None}

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"z": Point(x, [x]), "a": Frozen(x), "u": untouched, "m": OrderedDict(q=x, p=x), "d": deque([x]), 3: x.max(1)}

    GlobalSubscriberManager.subscribe(model := Odd(), [Log(factor=2.0)])
    output = model(x)
    assert list(output) == ["z", "a", "u", "m", "d", 3]
    assert isinstance(output["z"], Point) and torch.equal(output["z"].y[0], x * 2)
    assert output["a"].other == "kept" and torch.equal(output["a"].t, x * 2)
    assert output["u"] is untouched
    assert list(output["m"]) == ["q", "p"] and torch.equal(output["m"]["p"], x * 2)
    assert torch.equal(output["d"][0], x * 2)
    assert torch.equal(output[3].values, x.max(1).values * 2)


def test_a_container_inside_itself_ends() -> None:
    ring: list[Any] = [data()]
    ring.append(ring)

    class Ring(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return ring

    log = Log()
    GlobalSubscriberManager.subscribe(model := Ring(), [log])
    assert model(data()) is ring
    assert [call[1] for call in log.calls].count("post_tensor") == 1


# --- output_dir and runs


@pytest.mark.parametrize(
    ("output_dir", "name"),
    [
        ("pt_out", "pt_out"), ("/dumps/today/pt_out/", "pt_out"), ("a b/ö?", "run__"), ("_out", "run_out"), (".", "folder"),
        ("/", "run"), (b"bytes", "bytes"), ("1.5-x", "1.5-x"),
    ],
)  # fmt: skip
def test_the_folder_names_the_run(output_dir: Any, name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert run_name(output_dir) == name
    assert run_name(tmp_path / "folder") == "folder"
    monkeypatch.setenv("STATAGENT_RUN", "base")
    assert run_name(output_dir) == "base"


def test_long_folder_names_are_cut_and_stay_different() -> None:
    first, second = run_name("x" * 200), run_name("x" * 201)
    assert len(first) == len(second) == 128 and first != second


def test_without_an_agent_one_is_started_for_the_run(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATAGENT_COLLECTOR", "127.0.0.1:1")
    monkeypatch.setenv("STATAGENT_CONNECT_TIMEOUT", "0")
    started: list[dict[str, Any]] = []
    agent_module: Any = sys.modules["statagent.agent"]
    init = agent_module.init

    def note(**arguments: Any) -> statagent.Agent:
        started.append(arguments)
        return init(**arguments)

    monkeypatch.setattr(agent_module, "init", note)
    monkeypatch.setattr(run_module, "CLOSE_SECONDS", 0.0)
    model = one_layer()
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("a/pt_out", 1, 3, False, True, 4096)])
    assert started == [{"run": "pt_out", "if_exists": None, "samples": 128}]
    assert "StatisticsSubscriber('a/pt_out') records run 'pt_out' and writes no files" in capfd.readouterr().err
    train(model, 4)
    assert seen(recording, "output") == [(1, 0), (2, 0)]
    monkeypatch.setenv("STATAGENT_SAMPLES", "4")
    StatisticsSubscriber("b")  # one run at a time: the first is closed
    assert started[1] == {"run": "b", "if_exists": None, "samples": None}
    train(model)
    assert len(seen(recording, "output")) == 2


def test_a_run_with_data_is_refused_or_replaced(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[str | None] = []
    agent_module: Any = sys.modules["statagent.agent"]

    def init(run: str, if_exists: str | None, samples: int | None) -> statagent.Agent:
        policies.append(if_exists)
        if if_exists != "replace":
            raise statagent.RunExistsError("the name is taken by a run of yesterday")
        return statagent.Agent(None)

    monkeypatch.setattr(agent_module, "init", init)
    with pytest.raises(
        FileExistsError, match=r"Output directory d/out already exists, as run 'out'.*override_output_dir=True"
    ) as error:
        StatisticsSubscriber("d/out")
    assert isinstance(error.value, OutputExistsError) and isinstance(error.value, statagent.RunExistsError)
    with pytest.warns(UserWarning, match="Output directory d/out already exists, as run 'out'; overriding it") as warned:
        StatisticsSubscriber("d/out", override_output_dir=True)
    assert warned[0].filename == __file__
    assert policies == [None, None, "replace"]


def test_disabled_means_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_DISABLE", "1")
    model = one_layer()
    x = data()
    assert inspect_activation("x", x) is x
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("out"), log := Log()])
    train(model, 2)
    assert inspect_activation("x", x) is x
    assert {call[0] for call in log.calls} == {0, 1}  # own subscribers go on
    assert statagent.counters()["produced"] == 0


def test_nothing_is_recorded_after_close(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    train(model)
    statagent.close(timeout=0)
    before = len(recording.records)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, 2)
        inspect_activation("x", data())
    assert len(recording.records) == before


def test_the_last_step_is_ended_at_exit() -> None:
    script = """
import torch, statagent
from statagent._native import library as _library
from statagent.compat.ort import *
real = _library.load()
class Spy:
    def __getattr__(self, name): return getattr(real, name)
    def statagent_end_step(self, agent): print("end", real.statagent_step(agent)); real.statagent_end_step(agent)
_library.load = lambda: Spy()
model = torch.nn.Linear(2, 2)
GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("out")])
for _ in range(2): model(torch.ones(1, 2)).sum().backward()
"""
    done = python(script, STATAGENT_COLLECTOR="127.0.0.1:1", STATAGENT_CONNECT_TIMEOUT="0")
    assert done.stdout.split() == ["end", "0", "end", "1"]


# --- odd models


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracing_is_no_step(subscribe: Subscribe, recording: Recording) -> None:
    model = one_layer()
    subscribe(model)
    torch.jit.trace(model, data(), check_trace=False)  # checking would run the model as it is
    torch.export.export(model, (data(),), strict=False)
    assert of_passes(recording) == [] and recording.refusals == []
    train(model)
    assert seen(recording, "output") == [(0, 0)]
    assert GlobalSubscriberManager.get_run_context().global_states.execution_step == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_left_out(subscribe: Subscribe, recording: Recording, capfd: pytest.CaptureFixture[str]) -> None:
    scripted = torch.jit.script(nn.Linear(8, 8))
    model = nn.Sequential(scripted, nn.Linear(8, 8))
    subscribe(model, Log())
    train(model)
    # Modules inside TorchScript call no hooks, but they are numbered.
    assert recording.names("output") == ["Linear_2_0th_output", "Sequential_0_0th_output"]
    assert "'RecursiveScriptModule_1' does not accept hooks" in capfd.readouterr().err


def test_a_replica_raises_nothing(subscribe: Subscribe, agent: statagent.Agent, recording: Recording) -> None:
    statistics = subscribe(one_layer())
    x = data()
    context = GlobalSubscriberManager.get_run_context()
    assert statistics.post_forward_tensor_apply(context, nn.Linear(8, 8), 0, x) is x
    assert of_passes(recording) == [] and agent.counters()["dropped_refused"] == 1


@pytest.mark.parametrize("odd", [None, "text", 3, (), {}, object(), [None, {"a": None}]])
def test_outputs_without_tensors_are_no_trouble(subscribe: Subscribe, recording: Recording, odd: Any) -> None:
    model = Calls(lambda self, x: odd)
    subscribe(model, Log(factor=2.0))
    assert model(data()) is odd
    assert of_passes(recording) == [] and recording.refusals == []


def test_in_place_operations_on_outputs_keep_their_gradients_apart(subscribe: Subscribe, recording: Recording) -> None:
    fc = nn.Linear(8, 8)
    model = Calls(lambda self, x: self.relu(self.fc(x)), fc=fc, relu=nn.ReLU(inplace=True))
    plain = Calls(lambda self, x: self.relu(self.fc(x)), fc=fc, relu=nn.ReLU())
    found = []
    for each in (model, plain):
        recording.records.clear()
        subscribe(each)
        train(each)
        found.append({(r.name, r.hash) for r in recording.of("grad_output")})
        statagent.step()
    assert found[0] == found[1] and len(found[0]) == 3


# --- torch.compile


@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_models_are_recorded_as_they_are_eager(
    agent: statagent.Agent, subscribe: Subscribe, recording: Recording, when: str
) -> None:
    """Compiled and run before subscribing, or after; with a window that begins later. A hook ends the graph."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        return self.last((inspect_activation("mid", x) if inspecting else x).relu())

    def records(compiled: bool) -> set[tuple[Any, ...]]:
        recording.records.clear()
        model: Any = seeded(lambda: Calls(forward, fc=nn.Linear(8, 8), last=nn.Linear(8, 3)))
        run: Any = torch.compile(model, backend="eager") if compiled else model
        if when == "before":
            run(data())
        first = agent.current_step()
        subscribe(model, start_step=first + 1)
        for _ in range(4):
            run(data()).square().mean().backward()
        statagent.step()
        GlobalSubscriberManager._unsubscribe()
        assert recording.refusals == []
        return {(r.step - first, r.name, r.kind, r.call, r.hash) for r in of_passes(recording)}

    inspecting = when == "after"
    eager = records(False)
    assert len(eager) == 3 * 2 * (4 if inspecting else 3)
    assert records(True) == eager
