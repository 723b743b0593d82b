"""Scripts that call parts of the watched model instead of the model, as fused losses do: their outermost parts are its passes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import statagent
from statagent import Agent

from .models import Block, Calls, data, seeded
from .support import Recording
from .test_watch_threads import check, run_threads

MICRO_BATCHES = 2


class Body(nn.Module):
    """An embedding-like layer, two blocks, and a norm. `checkpoints`: None, "reentrant" or "non_reentrant"."""

    def __init__(self, checkpoints: str | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.norm = nn.BatchNorm1d(8)
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) if self.checkpoints is None else checkpoint(block, x, use_reentrant=self.checkpoints == "reentrant")
        return self.norm(x)


class Model(nn.Module):
    def __init__(self, checkpoints: str | None = None) -> None:
        super().__init__()
        self.body, self.head = Body(checkpoints), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def whole(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def body_and_head(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.head(model.body(x))


def every_part(model: Any, x: torch.Tensor) -> torch.Tensor:
    x = model.body.first(x)
    for block in model.body.blocks:
        x = block(x)
    return model.head(model.body.norm(x))


def checkpointed_parts(model: Any, x: torch.Tensor) -> torch.Tensor:
    x = model.body.first(x)
    for block in model.body.blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return model.head(model.body.norm(x))


def trained(
    agent: Agent, recording: Recording, model: nn.Module, run: Callable[[Any, torch.Tensor], torch.Tensor], **options: Any
) -> dict[tuple[Any, ...], int]:
    """Two steps with micro-batches; what was recorded, with hashes, except of the root and of the body, which not all scripts call."""
    start, first = len(recording.records), agent.current_step()
    with statagent.watch(model, **options):
        for step in range(2):
            for micro_batch in range(MICRO_BATCHES):
                x = data(seed=MICRO_BATCHES * step + micro_batch)
                statagent.log_batch(x=x)
                loss = run(model, x).square().mean()
                loss.backward()
                statagent.log_scalar("loss", loss)
            statagent.step()
    found = [r for r in recording.records[start:] if r.mode != "init" and r.name not in ("Model", "body")]
    keys = [(r.step - first, r.name, r.kind, r.path, r.micro_batch, r.call, r.mode) for r in found]
    assert len(keys) == len(set(keys)), "something was recorded twice"
    assert recording.refusals == []
    return {key: r.hash for key, r in zip(keys, found, strict=True)}


# --- the same records as of a script that calls the model -----------------------------------------------------------------


@pytest.mark.parametrize("run", [body_and_head, every_part, checkpointed_parts])
def test_parts_record_what_the_whole_model_records(agent: Agent, recording: Recording, run: Any) -> None:
    expected = trained(agent, recording, seeded(Model), whole, fingerprints=False)
    found = trained(agent, recording, seeded(Model), run, fingerprints=False)
    assert found == expected
    numbers = {(micro_batch, call) for _, _, kind, _, micro_batch, call, _ in found if kind in ("output", "grad_output")}
    assert numbers == {(micro_batch, 0) for micro_batch in range(MICRO_BATCHES)}


@pytest.mark.parametrize("checkpoints", ["reentrant", "non_reentrant"])
def test_checkpoint_inside_of_a_part_records_what_the_plain_part_records(
    agent: Agent, recording: Recording, checkpoints: str
) -> None:
    expected = trained(agent, recording, seeded(Model), body_and_head)
    found = trained(agent, recording, seeded(lambda: Model(checkpoints)), body_and_head)
    assert found == expected
    assert {kind for _, name, kind, *_ in found if name == "body.blocks.1.fc"} == {"output", "grad_output"}


def test_a_model_inside_of_a_reentrant_checkpoint_is_recorded(agent: Agent, recording: Recording) -> None:
    def checkpointed(model: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, x.clone().requires_grad_(), use_reentrant=True)

    kinds = {"output", "grad_output"}
    expected = trained(agent, recording, seeded(Model), whole, kinds=kinds)
    assert trained(agent, recording, seeded(Model), checkpointed, kinds=kinds) == expected


@pytest.mark.parametrize("run", [body_and_head, every_part])
def test_scalars_and_batches_of_parts_belong_to_their_micro_batch(agent: Agent, recording: Recording, run: Any) -> None:
    trained(agent, recording, seeded(Model), run)
    each = [(step, micro_batch) for step in range(2) for micro_batch in range(MICRO_BATCHES)]
    assert [(step, micro_batch) for step, name, _, micro_batch in recording.scalars if name == "loss"] == each
    assert [(r.step, r.micro_batch) for r in recording.of("batch")] == each
    assert [step for step, name, *_ in recording.scalars if name == "rng/cpu"] == [0, 1]


@pytest.mark.parametrize("kinds", [{"output"}, {"input"}, {"buffer"}])
@pytest.mark.parametrize("run", [whole, body_and_head])
def test_backward_passes_are_seen_where_no_gradient_is_recorded(
    agent: Agent, recording: Recording, kinds: set[str], run: Any
) -> None:
    found = trained(agent, recording, seeded(Model), run, kinds=kinds)
    assert {(kind, micro_batch, call) for _, name, kind, _, micro_batch, call, _ in found if name.startswith("body")} == {
        (kind, micro_batch, 0) for kind in kinds for micro_batch in range(MICRO_BATCHES)
    }


def test_the_root_and_a_part_of_one_forward_share_its_micro_batch(agent: Agent, recording: Recording) -> None:
    model = seeded(Model)
    statagent.watch(model)
    for seed in range(2):
        x = data(seed=seed)
        (model(x).sum() + model.head(x).sum()).backward()
    assert [(r.micro_batch, r.call) for r in recording.of("output") if r.name == "head"] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert recording.refusals == []


def test_a_frozen_part_inside_of_a_part_is_recorded_as_inside_of_the_model(agent: Agent, recording: Recording) -> None:
    def make() -> Model:
        model = Model()
        model.body.norm.eval()
        return model

    assert trained(agent, recording, seeded(make), body_and_head) == trained(agent, recording, seeded(make), whole)
    assert recording.names("output", 0).count("body.norm") == MICRO_BATCHES


@pytest.mark.parametrize("run", [body_and_head, every_part])
def test_micro_batches_count_in_steps_that_are_not_recorded_in_full(
    agent: Agent, recording: Recording, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose() -> None:
        agent.clock.inputs_wanted, agent.clock.wanted = True, False

    monkeypatch.setattr(agent.clock, "_choose_records", choose)
    choose()
    assert {kind for _, _, kind, *_ in trained(agent, recording, seeded(Model), run)} == {"batch"}
    each = [(step, micro_batch) for step in range(2) for micro_batch in range(MICRO_BATCHES)]
    assert [(step, micro_batch) for step, name, _, micro_batch in recording.scalars if name == "loss"] == each
    assert [(r.step, r.micro_batch) for r in recording.of("batch")] == each


def test_two_optimizers_and_parts_of_one_model_keep_each_backward_pass_apart(agent: Agent, recording: Recording) -> None:
    """A GAN in one module, of which a script calls the parts only."""
    gan = seeded(lambda: Calls(lambda self, x: x, make=Block(8), judge=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (gan.judge, gan.make)]
    statagent.watch(gan, optimizers)
    for step in range(2):
        real, noise = data(seed=step), data(seed=step + 10)
        for each in optimizers:
            each.zero_grad()
        (gan.judge(gan.make(noise).detach()).mean() - gan.judge(real).mean()).backward()
        optimizers[0].step()
        (-gan.judge(gan.make(noise)).mean()).backward()
        optimizers[1].step()
    assert recording.ended_steps == [0, 1]
    for step in range(2):
        numbers = {
            name: [(r.micro_batch, r.call) for r in recording.of("output", step) if r.name == name] for name in ("make", "judge")
        }
        assert numbers == {"make": [(0, 0), (1, 0)], "judge": [(0, 0), (0, 1), (1, 0)]}
    assert recording.refusals == []


def test_parts_of_a_wrapped_model_are_parts_of_the_model(agent: Agent, recording: Recording, tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        expected = trained(agent, recording, nn.parallel.DistributedDataParallel(seeded(Model)), whole, fingerprints=False)
        found = trained(
            agent, recording, nn.parallel.DistributedDataParallel(seeded(Model)), lambda m, x: body_and_head(m.module, x),
            fingerprints=False,
        )  # fmt: skip
    finally:
        torch.distributed.destroy_process_group()
    assert found == expected


@pytest.mark.parametrize("part", ["body", "blocks"])
def test_compiled_parts_count_micro_batches(agent: Agent, recording: Recording, part: str) -> None:
    def run(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.head(torch.compile(model.body, backend="eager")(x)) if part == "body" else body_and_head(model, x)

    model = seeded(Model)
    if part == "blocks":
        for block in model.body.blocks:
            block.compile(backend="eager")
    assert trained(agent, recording, model, run) == trained(agent, recording, seeded(Model), body_and_head)


# --- evaluation -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["no_grad", "eval"])
@pytest.mark.parametrize("checkpoints", [None, "reentrant"])
@pytest.mark.parametrize("run", [body_and_head, every_part])
def test_parts_in_evaluation_are_not_recorded_and_advance_nothing(
    agent: Agent, recording: Recording, mode: str, checkpoints: str | None, run: Any
) -> None:
    model = seeded(lambda: Model(checkpoints))
    statagent.watch(model)
    run(model, data()).sum().backward()
    before = len(recording.records)
    model.train(mode != "eval")
    with torch.set_grad_enabled(mode != "no_grad"):
        run(model, data())
    model.train()
    assert len(recording.records) == before
    statagent.log_scalar("loss", 1.0)
    run(model, data()).sum().backward()
    assert [micro_batch for _, name, _, micro_batch in recording.scalars if name == "loss"] == [0]
    assert [r.micro_batch for r in recording.of("output") if r.name == "head"] == [0, 1]


def test_parts_in_evaluation_on_request_are_marked(agent: Agent, recording: Recording) -> None:
    model = seeded(Model)
    statagent.watch(model, eval=True)
    body_and_head(model, data()).sum().backward()
    with torch.no_grad():
        body_and_head(model, data())
        body_and_head(model, data())
    body_and_head(model, data()).sum().backward()
    assert [(r.mode, r.micro_batch, r.call) for r in recording.of("output") if r.name == "body.blocks.1.fc"] == [
        ("train", 0, 0), ("eval", 0, 0), ("eval", 0, 1), ("train", 1, 0),
    ]  # fmt: skip
    assert recording.refusals == []


# --- passes inside of others ----------------------------------------------------------------------------------------------


def test_a_part_inside_of_another_models_pass_leaves_that_pass_as_it_was(agent: Agent, recording: Recording) -> None:
    """The outer model's evaluation stays unrecorded behind the part, and its micro-batch its own."""
    inner = seeded(Model)
    outer = Calls(lambda self, x: statagent.inspect("behind", self.fc(x + inner.body(x))), fc=nn.Linear(8, 8))
    statagent.watch(inner, name="inner")
    statagent.watch(outer, name="outer")
    for seed in range(2):
        outer(data(seed=seed)).sum().backward()
        inner.zero_grad()
    outer.eval()
    outer(data(seed=2))
    assert [r.micro_batch for r in recording.of("inspect")] == [0, 1]
    outer.train()
    statagent.watch(seeded(lambda: nn.Linear(8, 8)), name="other")
    outer(data(seed=3)).sum().backward()
    assert [r.micro_batch for r in recording.of("inspect")] == [0, 1, 2]
    assert [(r.micro_batch, r.call) for r in recording.of("output") if r.name == "inner.body"] == [
        (0, 0), (1, 0), (2, 0), (2, 1),
    ]  # fmt: skip


def test_a_new_models_part_does_not_take_the_micro_batch_of_the_pass_around_it(agent: Agent, recording: Recording) -> None:
    inner = seeded(Model)
    use = [False]
    outer = Calls(lambda self, x: statagent.inspect("behind", self.fc(inner.body(x) if use[0] else x)), fc=nn.Linear(8, 8))
    statagent.watch(inner, name="inner")
    statagent.watch(outer, name="outer")
    for number in range(3):
        use[0] = number == 2
        outer(data(seed=number)).sum().backward()
    assert [r.micro_batch for r in recording.of("inspect")] == [0, 1, 2]


def test_a_part_that_calls_itself_is_one_pass(agent: Agent, recording: Recording) -> None:
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            below = self(x, depth - 1) if depth else x
            with torch.no_grad():
                shift = self.fc(below)
            return self.fc(below) + shift

    model: Any = Calls(lambda self, x: self.tree(x, 2), tree=seeded(Tree))
    statagent.watch(model)
    for seed in range(2):
        model.tree(data(seed=seed), 2).sum().backward()
    assert [(r.micro_batch, r.call) for r in recording.of("output") if r.name == "tree.fc"] == [
        (micro_batch, call) for micro_batch in range(2) for call in range(6)
    ]
    assert recording.refusals == []


def test_a_part_that_raises_leaves_the_watch_usable(agent: Agent, recording: Recording) -> None:
    fail = [True]

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        if fail.pop() if fail else False:
            raise RuntimeError("out of luck")
        return y

    model: Any = Calls(lambda self, x: self.part(x), part=Calls(forward, fc=nn.Linear(8, 8)))
    statagent.watch(model)
    with pytest.raises(RuntimeError, match="out of luck"):
        model.part(data())
    with torch.no_grad():
        model.part(data())
    model.part(data()).sum().backward()
    model(data()).sum().backward()
    assert [(r.name, r.micro_batch, r.call) for r in recording.of("output")] == [
        ("part.fc", 0, 0), ("part.fc", 0, 1), ("part", 0, 0), ("part.fc", 1, 0), ("part", 1, 0), ("Calls", 1, 0),
    ]  # fmt: skip


def test_remove_takes_the_hooks_of_parts_off(agent: Agent, recording: Recording) -> None:
    model = seeded(Model)
    made = statagent.watch(model)
    body_and_head(model, data()).sum().backward()
    made.remove()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called


def test_watching_parts_changes_no_bit_of_the_training(agent: Agent, recording: Recording) -> None:
    def weights(watched: bool) -> list[torch.Tensor]:
        model = seeded(lambda: Model("reentrant"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        made = statagent.watch(model, optimizer) if watched else None
        for step in range(3):
            body_and_head(model, data(seed=step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if made is not None:
            made.remove()
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(False), weights(True), strict=True))


# --- threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [body_and_head, every_part])
def test_parts_of_four_models_in_four_threads_lose_no_record(agent: Agent, recording: Recording, run: Any) -> None:
    models = [seeded(Model, seed=number) for number in range(4)]
    together = threading.Barrier(4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    def work(number: int) -> None:
        statagent.watch(models[number], optimizers[number], name=f"m{number}")
        together.wait(60)
        for step in range(10):
            for part in range(MICRO_BATCHES):
                run(models[number], data(seed=step * MICRO_BATCHES + part)).square().mean().backward()
            optimizers[number].step()
            optimizers[number].zero_grad()
            together.wait(60)

    run_threads(work)
    check(recording)
    assert recording.ended_steps == list(range(10))
    numbers = {(r.micro_batch, r.call) for r in recording.of("output") if r.name.endswith(".head")}
    assert numbers == {(part, 0) for part in range(MICRO_BATCHES)}
