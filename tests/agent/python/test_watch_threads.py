"""Models that are trained in threads of one process: each thread's passes belong to the watch of its own model, whoever ends the step."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent
from statagent.watch import KINDS

from .models import data, seeded
from .support import Recording

THREADS, STEPS = 4, 30


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 8, padding_idx=0)
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.embedding(torch.arange(len(x)) % 8)
        return self.last(statagent.inspect("hidden", torch.relu(self.norm(self.first(x)))))


def run_threads(work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def check(recording: Recording) -> None:
    """Nothing was refused, and nothing was recorded twice under one name."""
    assert recording.refusals == []
    assert statagent.counters().get("dropped_refused", 0) == 0
    keys = Counter((r.step, r.name, r.kind, r.path, r.micro_batch, r.call, r.mode) for r in recording.records)
    assert [key for key, count in keys.items() if count > 1] == []


@pytest.mark.parametrize("steps", ["in step", "at their own pace"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_four_models_in_four_threads_lose_no_record(agent: Agent, recording: Recording, steps: str, accumulate: int) -> None:
    models = [seeded(Model, seed=number) for number in range(THREADS)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        statagent.watch(models[number], optimizers[number], name=f"m{number}", kinds=set(KINDS))
        if steps == "in step":
            together.wait(60)
        for step in range(STEPS):
            for part in range(accumulate):
                batch = data(seed=step * accumulate + part)
                statagent.log_batch(**{f"x{number}": batch})
                models[number](batch).square().mean().backward()
            optimizers[number].step()
            optimizers[number].zero_grad()
            if steps == "in step":
                together.wait(60)

    run_threads(work)
    check(recording)
    outputs = Counter((r.name.split(".")[0], r.step) for r in recording.of("output") if r.name.endswith(".last"))
    for number in range(THREADS):
        assert sum(count for (name, _), count in outputs.items() if name == f"m{number}") == STEPS * accumulate
    if steps == "in step":
        assert recording.ended_steps == list(range(STEPS))
        assert set(outputs.values()) == {accumulate}
        numbers = {(r.micro_batch, r.call) for r in recording.of("output") if r.name.endswith(".last")}
        assert numbers == {(part, 0) for part in range(accumulate)}, "micro-batches count from 0 in each step"
        batches = {(r.micro_batch, r.call) for r in recording.of("batch")}
        assert batches == {(part, 0) for part in range(accumulate)}


def test_numbers_stay_small_where_threads_never_meet(agent: Agent, recording: Recording) -> None:
    """Each new number is a new identity, of which a session may define a million."""
    models = [seeded(Model, seed=number) for number in range(THREADS)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        statagent.watch(model, optimizer, name=f"m{number}")
    done = threading.Event()

    def work(number: int) -> None:
        while not done.is_set():
            models[number](data(seed=number)).square().mean().backward()
            optimizers[number].step()
            if agent.current_step() >= 60:
                done.set()

    run_threads(work)
    check(recording)
    most = Counter((r.name, r.step) for r in recording.of("output") if r.name.endswith(".last"))
    assert max(r.micro_batch for r in recording.of("output")) <= max(most.values()) + 1


def test_the_main_thread_ends_the_steps_of_threads(agent: Agent, recording: Recording) -> None:
    models = [seeded(Model, seed=number) for number in range(THREADS)]
    for number, model in enumerate(models):
        statagent.watch(model, name=f"m{number}")
    for step in range(STEPS):
        run_threads(lambda number, step=step: models[number](data(seed=step)).square().mean().backward())  # type: ignore[misc]
        statagent.step()
    check(recording)
    assert {(r.micro_batch, r.call) for r in recording.of("grad_output")} == {(0, 0)}
    assert len({(r.name, r.step) for r in recording.of("output")}) == THREADS * STEPS * 5


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_steps_that_end_in_the_middle_of_passes_lose_no_record(agent: Agent, recording: Recording, mode: str) -> None:
    models = [seeded(Model, seed=number) for number in range(THREADS)]
    for number, model in enumerate(models):
        model.train(mode == "train")
        statagent.watch(model, name=f"m{number}", eval=True)
    running = threading.Event()
    running.set()

    def end_steps() -> None:
        while running.is_set():
            statagent.step()
            time.sleep(0.002)

    ender = threading.Thread(target=end_steps)
    ender.start()

    def work(number: int) -> None:
        for step in range(STEPS):
            loss = models[number](data(seed=step)).square().mean()
            if mode == "train":
                loss.backward()

    try:
        run_threads(work)
    finally:
        running.clear()
        ender.join()
    check(recording)
    passes = Counter((r.name, r.step) for r in recording.of("output") if r.name.endswith(".last"))
    most = max(passes.values(), default=0) + 1 if mode == "train" else 1
    assert max((r.micro_batch for r in recording.of("output")), default=0) <= most


def test_the_densities_of_a_thread_are_those_of_its_own_model(agent: Agent, recording: Recording) -> None:
    models = [seeded(Model, seed=number) for number in range(THREADS)]
    for number, model in enumerate(models):
        statagent.watch(model, name=f"m{number}")
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        together.wait(60)
        models[number](data(seed=number)).square().mean().backward()

    run_threads(work)
    assert sorted(name for _, name, *_ in recording.densities) == [f"m{number}.embedding" for number in range(THREADS)]
