"""One observer on one model, alternating with the bare model in one process. Started by overhead.py; prints one line of JSON.

A round is a block of steps without the observer and a block with it, in alternating order. The first step of a block is not counted (caches,
first use of hooks). All records are durable before a block without the observer begins, so that their processing is not measured there."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import torch
from torch.nn import functional

sys.path[:0] = [str(machine.REPOSITORY / "agent" / "python"), str(machine.REPOSITORY / "examples" / "gpt_torch")]

import observers  # noqa: E402
from data import Corpus  # noqa: E402
from model import Config, Gpt  # noqa: E402


@dataclass(frozen=True)
class Work:
    """The settings of a worker."""

    observer: str
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    device: str  # "cpu" or "cuda"
    autocast: bool  # to bfloat16
    threads: int
    rounds: int
    block_steps: int  # measured ones
    seconds: float  # no round begins after this time
    collector: str
    folder: str


class Trainer:
    """The demo's model and training step."""

    def __init__(self, work: Work) -> None:
        torch.manual_seed(1)
        self._work = work
        self.model = Gpt(Config(Corpus.vocabulary, work.layers, work.width, work.heads, work.context)).to(work.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._corpus = Corpus(machine.REPOSITORY, bytes_max=1 << 20)
        self._step = 0

    def step(self, observer: observers.Observer) -> tuple[float, float]:
        """Wall time of one training step and processor time of this thread in it, both in milliseconds. Excludes reading the batch."""
        work = self._work
        tokens, targets = (part.to(work.device) for part in self._corpus.batch(self._step, 0, work.batch, work.context, seed=1))
        self._step += 1
        self._synchronize()
        started, busy = time.perf_counter(), time.thread_time()
        observer.before_step()
        with torch.autocast(work.device, dtype=torch.bfloat16, enabled=work.autocast):
            loss = functional.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        observer.after_step()
        self._synchronize()
        return 1000 * (time.perf_counter() - started), 1000 * (time.thread_time() - busy)

    def _synchronize(self) -> None:
        if self._work.device == "cuda":
            torch.cuda.synchronize()


def block(trainer: Trainer, observer: observers.Observer, steps: int) -> dict[str, float]:
    """A block of steps: median and mean wall time of a step, median processor time of the training thread, mean of the process; all in
    milliseconds."""
    trainer.step(observer)
    before = time.process_time()
    times = [trainer.step(observer) for _ in range(steps)]
    cpu = 1000 * (time.process_time() - before) / steps
    return {
        "median": statistics.median(wall for wall, _ in times),
        "mean": statistics.fmean(wall for wall, _ in times),
        "thread": statistics.median(busy for _, busy in times),
        "process": cpu,
    }


def alternate(trainer: Trainer, observer: observers.Observer, work: Work) -> list[dict[str, dict[str, float]]]:
    """Rounds of one block without and one with the observer."""
    nothing = observers.Nothing()
    for each in (nothing, observer):  # first use of everything
        each.attach()
        trainer.step(each)
        each.detach()
    deadline, rounds = time.monotonic() + work.seconds, list[dict[str, dict[str, float]]]()
    while len(rounds) < 2 or (len(rounds) < work.rounds and time.monotonic() < deadline):
        found = {}
        order = ("without", "with") if len(rounds) % 2 == 0 else ("with", "without")
        for which in order:
            each = observer if which == "with" else nothing
            each.attach()
            found[which] = block(trainer, each, work.block_steps)
            each.detach()
        rounds.append(found)
    return rounds


def calls(trainer: Trainer, observer: observers.Statagent) -> float:
    """Milliseconds per step in the library's observe calls, measured during training."""
    observer.attach()
    trainer.step(observer)
    times = [observer.time_calls(lambda: trainer.step(observer)) for _ in range(9)]
    observer.detach()
    return statistics.median(times)


def reduction(trainer: Trainer) -> dict[str, Any]:
    """The tensors of one step, and the engine's time for them alone: outputs and gradients of one step are kept, and go through the C interface
    five times, one after another."""
    kept: list[torch.Tensor] = []

    def seen(_module: Any, _arguments: Any, output: torch.Tensor) -> None:
        kept.append(output.detach())
        output.register_hook(lambda gradient: kept.append(gradient.detach()))

    hooks = [
        module.register_forward_hook(seen) for module in trainer.model.modules() if not isinstance(module, torch.nn.ModuleList)
    ]
    trainer.step(observers.Nothing())
    for hook in hooks:
        hook.remove()

    size = {"tensors": len(kept), "bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept)}
    if any(not tensor.is_cpu for tensor in kept):
        return {**size, "engine_ms": None}  # their engine is asynchronous; scripts/gpu_check.sh measures it

    from statagent._native import library as _library
    from statagent._native import tensors as _tensors

    library, found, sums = _library.load(), _library.Statistics(), (ctypes.c_double * 16)()
    structures = [_tensors.borrow(tensor) for tensor in kept]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for structure, *_ in structures:
            _library.check(library.statagent_compute(structure, 16, 0, found, sums, None))
        times.append(1000 * (time.perf_counter() - started))
    return {**size, "engine_ms": statistics.median(times)}


def run(work: Work) -> dict[str, Any]:
    torch.set_num_threads(work.threads)
    trainer = Trainer(work)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    found: dict[str, Any] = {"parameters": parameters, "work": asdict(work)}
    if work.observer.startswith("statagent"):
        found["reduction"] = reduction(trainer)
    observer = observers.make(work.observer, trainer.model, trainer.optimizer, work.collector, Path(work.folder))
    found["rounds"] = alternate(trainer, observer, work)
    if isinstance(observer, observers.Statagent):
        found["calls_ms"] = calls(trainer, observer)
    found["observer"] = observer.close()
    found["memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return found


if __name__ == "__main__":
    os.environ.setdefault("STATAGENT_LIBRARY", str(machine.BUILD / "lib" / "libstatagent.so"))
    print("\n" + json.dumps(run(Work(**json.loads(sys.argv[1])))))
