"""A compiled model records what it records in eager mode, in graphs that are as many as without us."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import statagent
from statagent import Agent
from statagent.watch import KINDS, Kind

from .models import Calls, Nested, Net, data, seeded
from .support import Record, Recording, python

Compile = Callable[[nn.Module, str], Any]
Identity = tuple[Any, ...]

FORWARD_KINDS: set[Kind] = {"input", "output", "grad_output", "grad_input"}


def wrapped(model: nn.Module, backend: str) -> Any:
    return torch.compile(model, backend=backend, fullgraph=True)


def in_place(model: nn.Module, backend: str) -> Any:
    model.compile(backend=backend, fullgraph=True)
    return model


def inner(model: nn.Module, backend: str) -> Any:
    """The root's hooks inside of the graph, too."""
    return torch.compile(nn.Sequential(model), backend=backend, fullgraph=True)


def blocks(model: nn.Module, backend: str) -> Any:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend=backend, fullgraph=True)
    return model


def function(model: nn.Module, backend: str) -> Any:
    return torch.compile(lambda x: model(x), backend=backend, fullgraph=True)


def with_backend(way: Compile, backend: str, model: nn.Module) -> Any:
    return way(model, backend)


WAYS: dict[str, Compile] = {f.__name__: f for f in (wrapped, in_place, inner, blocks, function)}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No graphs of other tests; a graph that is compiled again without need is an error."""
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    assert not counters["graph_break"], dict(counters["graph_break"])
    torch._dynamo.reset()


def batch(step: int, micro_batch: int) -> torch.Tensor:
    return data(seed=100 * step + micro_batch).requires_grad_()


def train(model: Any, parameters: Any, steps: int, micro_batches: int = 2) -> list[torch.Tensor]:
    """Losses, gradients and weights on the way."""
    optimizer = parameters if isinstance(parameters, torch.optim.Optimizer) else torch.optim.AdamW(parameters, lr=0.05)
    results = []
    for step in range(steps):
        for micro_batch in range(micro_batches):
            loss = model(batch(step, micro_batch)).square().mean()
            loss.backward()
            results.append(loss.detach().clone())
        parameters_now = [p for group in optimizer.param_groups for p in group["params"]]
        results += [p.grad.clone() for p in parameters_now if p.grad is not None]
        optimizer.step()
        results += [p.detach().clone() for p in parameters_now]
        optimizer.zero_grad()
    return results


def found(records: list[Record]) -> list[tuple[Identity, int]]:
    first = min(r.step for r in records)
    return [((r.step - first, r.mode, r.kind, r.name, r.path, r.micro_batch, r.call, r.shape, r.dtype), r.hash) for r in records]


def trained(
    recording: Recording, make: Callable[[], nn.Module], compile_model: Callable[[nn.Module], Any], kinds: Any = None, steps: int = 3,
    **watching: Any,
) -> tuple[list[tuple[Identity, int]], list[torch.Tensor]]:  # fmt: skip
    """What a short training recorded, and its results."""
    start = len(recording.records)
    model = seeded(make)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with statagent.watch(model, optimizer, kinds=kinds or set(KINDS), **watching):
        torch.manual_seed(7)
        results = train(compile_model(model), optimizer, steps)
    assert recording.refusals == []
    assert statagent.counters().get("dropped_refused", 0) == 0
    return found(recording.records[start:]), results


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def once(records: list[tuple[Identity, int]]) -> dict[Identity, int]:
    assert len(records) == len(dict(records)), "something was recorded twice"
    return dict(records)


# --- the same recordings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "backend"), [*((way, "aot_eager") for way in WAYS), ("wrapped", "eager"), ("inner", "eager")])
def test_every_way_to_compile_records_what_eager_mode_records(agent: Agent, recording: Recording, way: str, backend: str) -> None:
    eager, expected = trained(recording, Net, lambda model: model)
    compiled, results = trained(recording, Net, lambda model: WAYS[way](model, backend))
    assert once(compiled) == once(eager)
    assert_same(results, expected)
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    outputs = [[identity for identity, _ in records if identity[2] == "output"] for records in (compiled, eager)]
    assert outputs[0] == outputs[1], "another order"


def test_no_more_graphs_than_without_us_in_and_outside_of_the_recorded_steps(agent: Agent, recording: Recording) -> None:
    def graphs(watched: bool) -> tuple[int, list[torch.Tensor]]:
        torch._dynamo.reset()
        counters.clear()
        model = seeded(Net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        made = statagent.watch(model, optimizer, kinds=set(KINDS), steps="2-4,8") if watched else None
        results = train(in_place(model, "aot_eager"), optimizer, 10)
        if made is not None:
            made.remove()
        return int(counters["stats"]["unique_graphs"]), results

    (with_us, watched), (without, plain) = graphs(True), graphs(False)
    assert with_us == without == 1
    assert_same(watched, plain)
    steps = {r.step for r in recording.records if r.mode == "train"}
    assert steps == {2, 3, 4, 8}
    assert len([r for r in recording.of("output") if r.name == "blocks.0.fc"]) == 4 * 2


def test_like_blocks_share_a_graph(agent: Agent, recording: Recording) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Net(8).block(0) for _ in range(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    eager, _ = trained(recording, Deep, lambda model: model, steps=1)
    compiled, _ = trained(recording, Deep, lambda model: blocks(model, "eager"), steps=1)
    assert once(compiled) == once(eager)
    assert counters["stats"]["unique_graphs"] == 1


# --- models with something special -------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A module called twice, another that returns its input, one with nested outputs and keyword inputs, an output changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.same, self.nested = nn.Linear(8, 8), nn.Identity(), Nested()
        self.scaled = Calls(lambda self, x: x)
        self.scaled.forward = self._scaled  # type: ignore[method-assign, assignment]

    @staticmethod
    def _scaled(x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
        return x * by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(self.fc(self.same(x)).tanh())
        y = y.mul_(2)
        found = self.nested(self.same(y))
        z = found["out"].hidden + found["last"][0]
        return z + self.scaled(z, by=torch.ones(8)) + found["out"].extra["pair"][0]


class Tail(nn.Module):
    """Ends in a module whose output is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(x)


class Aside(nn.Module):
    """A part of it runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.aside = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.aside(x)
        return self.fc(x) + y


SPECIAL: dict[str, Callable[[], nn.Module]] = {
    "odd": Odd,
    "tail": Tail,
    "sequential": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4))),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "checkpoint": lambda: Net(checkpoints="non_reentrant"),
    "bfloat16": lambda: Calls(lambda self, x: self.fc(x.bfloat16()).float(), fc=nn.Linear(8, 8).bfloat16()),
    "complex": lambda: Calls(lambda self, x: self.fft(self.fc(x)).abs(), fc=nn.Linear(8, 8), fft=Calls(lambda self, x: torch.fft.fft(x))),
    "views": lambda: Calls(
        lambda self, x: torch.cat(self.split(self.fc(x).t()), 1), fc=nn.Linear(8, 8), split=Calls(lambda self, x: x.chunk(2, dim=1))
    ),
    "no_grad part": Aside,
}  # fmt: skip


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_models_record_what_eager_mode_records(agent: Agent, recording: Recording, kind: str) -> None:
    eager, expected = trained(recording, SPECIAL[kind], lambda model: model, steps=2)
    compiled, results = trained(recording, SPECIAL[kind], lambda model: wrapped(model, "aot_eager"), steps=2)
    assert once(compiled) == once(eager)
    assert_same(results, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_around_compiled_blocks_record_once(
    agent: Agent, recording: Recording, reentrant: bool, backend: str
) -> None:
    kind = "reentrant" if reentrant else "non_reentrant"
    kinds = {"output", "grad_output"}
    eager, expected = trained(recording, Net, lambda model: model, kinds=kinds)
    with torch._dynamo.config.patch(error_on_recompile=False):  # a block is run without and with gradients
        compiled, results = trained(
            recording, lambda: Net(checkpoints=kind), lambda model: blocks(model, "aot_eager"), kinds=kinds
        )
    assert once(compiled) == once(eager)
    assert_same(results, expected)


# --- calls and gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_gradients_find_the_call_that_they_belong_to(agent: Agent, recording: Recording, order: tuple[int, int]) -> None:
    def observed(compile_model: Callable[[nn.Module], Any]) -> dict[Identity, int]:
        start, model = len(recording.records), seeded(Net)
        with statagent.watch(model):
            compiled = compile_model(model)
            losses = [compiled(batch(0, i)).square().mean() for i in range(2)]
            for i in order:
                losses[i].backward()
            statagent.step()
        return once(found(recording.records[start:]))

    assert observed(lambda model: wrapped(model, "aot_eager")) == observed(lambda model: model)


def test_a_second_backward_through_one_graph_is_no_second_observation(agent: Agent, recording: Recording) -> None:
    model = Calls(lambda self, x: self.fc(x) * 2, fc=nn.Linear(8, 8))
    statagent.watch(model)
    loss = wrapped(model, "eager")(data()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert recording.names("grad_output").count("fc") == 1


@pytest.mark.parametrize("kinds", [{"output"}, {"grad_output"}, {"input"}])
def test_micro_batches_are_counted_whatever_is_recorded(agent: Agent, recording: Recording, kinds: set[str]) -> None:
    for way in ("wrapped", "inner"):
        eager, _ = trained(recording, Tail, lambda model: model, kinds=kinds, steps=2)
        compiled, _ = trained(recording, Tail, partial(with_backend, WAYS[way], "eager"), kinds=kinds, steps=2)
        assert once(compiled) == once(eager)
        assert {identity[5] for identity, _ in compiled} == {0, 1}
        torch._dynamo.reset()


def test_evaluation_on_request_is_marked_and_else_not_recorded(agent: Agent, recording: Recording) -> None:
    def observed(compile_model: Callable[[nn.Module], Any], evaluations: bool) -> dict[Identity, int]:
        start, model = len(recording.records), seeded(Net)
        with statagent.watch(model, eval=evaluations, kinds={"output", "grad_output"}):
            compiled = compile_model(model)
            for _ in range(2):
                compiled(batch(0, 0)).sum().backward()
                model.eval()
                with torch.no_grad():
                    compiled(data(seed=1))
                compiled(batch(0, 2))
                model.train()
            statagent.step()
        return once(found(recording.records[start:]))

    with torch._dynamo.config.patch(error_on_recompile=False):  # without gradients it is another graph, with and without us
        for evaluations, way in ((True, "inner"), (False, "wrapped")):
            expected = observed(lambda model: model, evaluations)
            assert observed(partial(with_backend, WAYS[way], "eager"), evaluations) == expected
            torch._dynamo.reset()


def test_shapes_may_be_dynamic(agent: Agent, recording: Recording) -> None:
    def observed(compile_model: Callable[[nn.Module], Any]) -> dict[Identity, int]:
        start, model = len(recording.records), seeded(Net)
        with statagent.watch(model, kinds=FORWARD_KINDS):
            compiled = compile_model(model)
            for rows in (4, 7, 3, 9):
                compiled(data(rows=rows)).square().mean().backward()
                statagent.step()
        return once(found(recording.records[start:]))

    expected = observed(lambda model: model)
    assert observed(lambda model: torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)) == expected
    assert counters["stats"]["unique_graphs"] == 1


def test_inspect_is_an_operator_too(agent: Agent, recording: Recording) -> None:
    def make() -> nn.Module:
        inner_model = Calls(lambda self, x: statagent.inspect("middle", self.fc(x)).tanh(), fc=nn.Linear(8, 8))
        return Calls(lambda self, x: self.inner(statagent.inspect("start", self.inner(x))), inner=inner_model)

    eager, expected = trained(recording, make, lambda model: model)
    for backend in ("eager", "aot_eager"):
        compiled, results = trained(recording, make, partial(with_backend, wrapped, backend))
        assert once(compiled) == once(eager)
        assert_same(results, expected)
        torch._dynamo.reset()
    assert {(identity[2], identity[3]) for identity, _ in eager} >= {("inspect", "middle"), ("inspect_grad", "start")}


def test_inspect_without_a_watch_or_an_agent(recording: Recording) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return statagent.inspect("y", x * 2)

    statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    compiled(data())
    assert recording.names("inspect") == ["y"]
    statagent.close(timeout=0)
    assert torch.equal(compiled(data()), data() * 2)
    assert recording.names("inspect") == ["y"]


# --- life of the hooks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["wrapped", "blocks"])
def test_a_model_may_be_compiled_before_it_is_watched_and_run(agent: Agent, recording: Recording, way: str) -> None:
    model = seeded(Net)
    compiled = WAYS[way](model, "aot_eager")
    for _ in range(2):
        compiled(batch(0, 0)).sum().backward()
    with torch._dynamo.config.patch(error_on_recompile=False):
        statagent.watch(model)
        compiled(batch(0, 0)).sum().backward()
    assert recording.names("output").count("blocks.1.fc") == 1
    assert recording.names("grad_output").count("blocks.1.fc") == 1


def test_after_remove_graphs_go_on_without_recording(agent: Agent, recording: Recording) -> None:
    model = seeded(Net)
    plain = seeded(Net)(batch(0, 0)).sum()
    made = statagent.watch(model)
    compiled = wrapped(model, "aot_eager")
    compiled(batch(0, 0)).sum().backward()
    late = compiled(batch(0, 0)).sum()
    made.remove()
    before = len(recording.records)
    late.backward()
    with torch._dynamo.config.patch(error_on_recompile=False):  # hooks are gone: graphs without operators
        loss = compiled(batch(0, 0)).sum()
    loss.backward()
    assert torch.equal(loss, plain)
    assert len(recording.records) == before
    assert statagent.counters().get("dropped_refused", 0) == 0


def test_after_close_graphs_go_on_without_recording(agent: Agent, recording: Recording) -> None:
    model = seeded(Net)
    statagent.watch(model)
    compiled = wrapped(model, "aot_eager")
    compiled(batch(0, 0)).sum().backward()
    statagent.close(timeout=0)
    before = len(recording.records)
    compiled(batch(0, 0)).sum().backward()
    assert len(recording.records) == before


def test_copies_of_a_watched_model_are_compiled_without_being_watched(agent: Agent, recording: Recording) -> None:
    model = seeded(Net)
    statagent.watch(model)
    other = copy.deepcopy(model)
    before = len(recording.records)
    wrapped(other, "aot_eager")(batch(0, 0)).sum().backward()
    assert len(recording.records) == before


@pytest.mark.parametrize("strict", [True, False])
def test_a_watched_model_can_be_exported_and_the_program_is_free_of_us(agent: Agent, recording: Recording, strict: bool) -> None:
    model = seeded(Net)
    statagent.watch(model, kinds={"input", "output", "grad_output"})
    before = len(recording.records)
    program = torch.export.export(model, (data(),), strict=strict)
    assert "statagent" not in str(program.graph)
    assert torch.allclose(program.module()(data()), model(data()))
    assert len([r for r in recording.records[before:] if r.name == "head" and r.kind == "output"]) == 1, "export was recorded"
    assert statagent.counters().get("dropped_refused", 0) == 0


def test_an_error_inside_of_an_operator_is_counted_not_raised(
    agent: Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = seeded(Net)
    statagent.watch(model)

    def explode(*_: Any) -> int:
        raise MemoryError("no memory left")

    monkeypatch.setattr(agent, "native_observe", explode)
    compiled = wrapped(model, "aot_eager")
    for _ in range(2):
        compiled(batch(0, 0)).sum().backward()
    assert statagent.counters()["dropped_refused"] > 20
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_tensor_subclass_in_a_graph_is_counted(agent: Agent, recording: Recording) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    model = Calls(lambda self, x: self.inner(x) * 2, inner=Calls(lambda self, x: x + 1))
    statagent.watch(model, include=["inner"])
    x = data()
    expected: Any = TwoTensor(x, x) * 2 + 2
    y: Any = wrapped(model, "aot_eager")(TwoTensor(x, x))
    assert torch.allclose(y.a, expected.a)
    assert recording.names("output") == []
    assert statagent.counters()["dropped_refused"] == 2, "the model's input and the output"


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_functional_transforms_in_a_graph_give_what_they_give_without_us(
    agent: Agent, recording: Recording, transform: str
) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh()))
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "vmap": lambda x: torch.vmap(model)(x),
        "grad": lambda x: torch.func.grad(lambda y: model(y).sum())(x),
    }
    expected = functions[transform](data())
    statagent.watch(model)
    compiled = torch.compile(functions[transform], backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(data()), expected)


# --- a torch that lacks what we need ---------------------------------------------------------------------------


def test_a_torch_without_effectful_operators_is_said_once_and_recorded_with_graph_breaks() -> None:
    done = python(
        """
        import sys, torch, statagent
        from torch import nn
        sys.modules["torch._higher_order_ops.register_hook"] = None  # as in an older torch
        import torch._higher_order_ops as ops
        if hasattr(ops, "register_hook"): del ops.register_hook
        statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0, buffer_records_max=100)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        for _ in range(2):
            statagent.watch(model, kinds={"output"}).remove()
        statagent.watch(model, kinds={"output"})
        compiled = torch.compile(model, backend="eager")
        before = statagent.counters()["produced"]
        for _ in range(3):
            compiled(torch.ones(2, 4))
        print(statagent.counters()["produced"] - before >= 9)
        """.replace("\n        ", "\n")
    )
    assert done.stdout.split() == ["True"]
    assert [line for line in done.stderr.splitlines() if "lacks" in line and "torch 2.13" in line and "breaks the graph" in line]
    assert done.stderr.count("lacks") == 1


# --- what else a watch records -----------------------------------------------------------------------------------------------


class Language(nn.Module):
    """An embedding with a padding index, and a loss that ignores labels, within the model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8, padding_idx=0), nn.Linear(8, 10)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("within", [False, True])
def test_inputs_and_densities_are_those_of_eager_mode(
    agent: Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch, within: bool
) -> None:
    densities: list[Any] = []
    monkeypatch.setattr(agent, "log_density", lambda *args, **kwargs: densities.append((args, sorted(kwargs))))
    tokens, labels = torch.tensor([[1, 2, 0], [3, 0, 0]]), torch.tensor([[2, -100, -100], [4, 5, -100]])

    def observed(compiled: bool) -> tuple[list[Any], list[Any]]:
        start, model = len(recording.records), seeded(Language)
        densities.clear()
        with statagent.watch(model, kinds={"output"}):
            function: Any = (lambda *args: model(*args)) if within else model
            if compiled:
                function = torch.compile(function, backend="aot_eager", fullgraph=True)
            for _ in range(2):
                function(tokens, labels).backward()
                statagent.step()
        return found(recording.records[start:]), [(args[:5], names) for args, names in densities]

    eager, compiled = observed(False), observed(True)
    assert compiled == eager
    assert [identity[3] for identity, _ in eager[0] if identity[2] == "batch"] == ["tokens", "labels"] * 2
    assert len(eager[1]) == 4
