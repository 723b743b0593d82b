"""One training run of a family, with the pieces that legal changes and bugs replace."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed, nn

import statagent

Batch = dict[str, torch.Tensor]
STEPS = 8


class Family:
    """A model, its data, its loss and its optimizer: a training script. Subclasses override what differs."""

    name = ""
    steps = STEPS
    seed = 17
    bfloat16 = False  # autocast of forward passes and losses
    float16 = False  # the family's own autocast
    clip: float | None = None
    summed_loss = False  # the loss of a part of a batch is a summand of the whole's, not a mean
    kinds_of_legal: frozenset[str] = frozenset()  # "attention", "convolution", ...: what legal changes apply to
    ranks = 1  # processes, each with its part of every batch
    wrap: Callable[[nn.Module], nn.Module] | None = None  # of each model, before the optimizers are built

    @property
    def precision(self) -> str:
        return "bf16" if self.bfloat16 else "f16" if self.float16 else "f32"

    def models(self) -> dict[str, nn.Module]:
        """By name of the watch; "" for the only one."""
        raise NotImplementedError

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        """By name of the watch."""
        raise NotImplementedError

    def batch(self, step: int) -> Batch:
        """A function of the step only."""
        raise NotImplementedError

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        raise NotImplementedError

    def evaluated(self, training: Training) -> dict[str, nn.Module]:
        """Models that are only evaluated, by name of the watch."""
        return {}

    def watch_options(self) -> dict[str, Any]:
        """For the watch of what is trained."""
        return {}

    def schedulers(self, training: Training) -> list[Any]:
        return []

    def after_step(self, training: Training) -> None:
        """After the update: an evaluation, for instance."""

    def step(self, training: Training, batch: Batch) -> None:
        """Forward, loss, backward, update."""
        (model,), (optimizer,) = training.models.values(), training.optimizers.values()
        if training.step not in training.keep_gradients:
            optimizer.zero_grad()
        for part in training.micro_batches(batch):
            with training.autocast():
                loss = training.compute_loss(training, part)
                if training.micro > 1 and not self.summed_loss:
                    loss = loss / training.micro
            (loss * training.loss_factor()).backward()
            statagent.log_scalar("loss", loss)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip * training.clip_factor())
        optimizer.step()


@dataclass
class Training:
    """One run. A legal change or bug is a function of this, called after the models are built and before the optimizers are."""

    family: Family
    threads: int = 1
    channels_last: bool = False
    mkldnn: bool = True
    micro: int = 1  # micro-batches a step
    steps: int = 0
    optimizer_options: dict[str, Any] = field(default_factory=dict)  # of every optimizer: fused, foreach
    on_optimizers: list[Callable[[Training], None]] = field(default_factory=list)
    at_step: dict[int, list[Callable[[], None]]] = field(default_factory=dict)  # before the step's forward pass
    keep_gradients: set[int] = field(default_factory=set)  # steps in which zero_grad is forgotten

    models: dict[str, nn.Module] = field(init=False)
    trained: dict[str, nn.Module] = field(init=False)  # the same, wrapped
    optimizers: dict[str, torch.optim.Optimizer] = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        self.steps = self.steps or self.family.steps
        self.compute_loss: Callable[[Training, Batch], torch.Tensor] = self.family.loss
        self.batch: Callable[[int], Batch] = self.family.batch
        self.loss_factor: Callable[[], float] = lambda: 1.0
        self.clip_factor: Callable[[], float] = lambda: 1.0
        self.label_smoothing: Callable[[], float] = lambda: 0.0
        self.scheduler_offset = 0
        self.wrap: Callable[[nn.Module], nn.Module] = self.family.wrap or (lambda model: model)
        self.at_end: list[Callable[[], None]] = []

    def autocast(self) -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16) if self.family.bfloat16 else nullcontext()

    def at(self, step: int, action: Callable[[], None]) -> None:
        self.at_step.setdefault(step, []).append(action)

    def modules(self, kind: type[nn.Module] | tuple[type[nn.Module], ...]) -> list[Any]:
        return [module for model in self.models.values() for module in model.modules() if isinstance(module, kind)]

    def module(self, path: str) -> Any:
        """By the name under which it is watched."""
        if "" in self.models:
            return self.models[""].get_submodule(path)
        watch, _, rest = path.partition(".")
        return self.models[watch].get_submodule(rest)

    def parameter(self, path: str) -> nn.Parameter:
        owner, _, key = path.rpartition(".")
        found = getattr(self.module(owner), key)
        assert isinstance(found, nn.Parameter)
        return found

    def build(self, changes: list[Callable[[Training], None]]) -> None:
        torch.manual_seed(self.family.seed)
        self.models = self.family.models()
        for change in changes:
            change(self)
        if self.channels_last:
            for model in self.models.values():
                model.to(memory_format=torch.channels_last)
        self.trained = {watch: self.wrap(model) for watch, model in self.models.items()}
        self.optimizers = self.family.optimizers(self)
        self.evaluated = self.family.evaluated(self)
        for after in self.on_optimizers:
            after(self)
        self.schedules = self.family.schedulers(self)
        torch.manual_seed(1000 + self.family.seed)  # dropout

    def run(self, name: str, changes: list[Callable[[Training], None]], stored_as: str = "") -> dict[str, int]:
        """Trains under this name and waits until every record is stored. Returns the agent's counters. `stored_as`: the name of the run, if it
        is a twin of the named one."""
        self.build(changes)
        torch.set_num_threads(self.threads)
        torch.backends.mkldnn.set_flags(self.mkldnn)
        agent = statagent.init(run=name, required=True, connect_timeout=20)
        assert agent.run == (stored_as or name), f"stored as {agent.run}; expected {stored_as or name}: this agent makes no twins"
        watches = [
            statagent.watch(model, optimizer=self.optimizers[watch], name=watch, **self.family.watch_options())
            for watch, model in self.trained.items()
        ]
        watches += [statagent.watch(model, eval=True, name=watch) for watch, model in self.evaluated.items()]
        for step in range(self.steps):
            self.step = step
            self.train_step()
        for watch in watches:
            watch.remove()
        stored = statagent.close(timeout=60)
        counts = statagent.counters()
        assert stored and counts["produced"] == counts["acked"] > 0, f"records of {name} were not stored: {counts}"
        for action in self.at_end:
            action()
        torch.backends.mkldnn.set_flags(True)
        torch.set_num_threads(1)
        gc.collect()
        return counts

    def train_step(self) -> None:
        for action in self.at_step.get(self.step, []):
            action()
        batch = {key: self.laid_out(self.part_of(value)) for key, value in self.batch(self.step).items()}
        if self.micro == 1:
            statagent.log_batch(**batch)
        self.family.step(self, batch)
        self.family.after_step(self)
        if self.step + self.scheduler_offset >= 0:
            for schedule in self.schedules:
                schedule.step()

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """One after the other, each logged before it is trained on."""
        if self.micro == 1:
            yield batch
            return
        for index in range(self.micro):
            part = {key: value.chunk(self.micro)[index] for key, value in batch.items()}
            statagent.log_batch(**part)
            yield part

    def part_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's."""
        return tensor.chunk(self.family.ranks)[distributed.get_rank()] if self.family.ranks > 1 else tensor

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if self.channels_last and tensor.dim() == 4 else tensor


def generator(family: Family, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(family.seed * 1009 + step)
