"""The baseline training script. A fault replaces one piece of it; everything else stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import statagent
from fault_catalogue.model import Gpt, Sizes

PAD = 0
# Most faults act from the first of these on; alarms.py asks for later ones, behind what alarms need to learn.
FAULT_STEP = int(os.environ.get("FAULT_CATALOGUE_STEP", "3"))
STEPS = int(os.environ.get("FAULT_CATALOGUE_STEPS", "6"))
NO_DECAY = ("bias", "ln1.weight", "ln2.weight", "ln_f.weight")


@dataclass(frozen=True)
class Recipe:
    """The settings of a training; a fault or a baseline may change them."""

    sizes: Sizes = field(default_factory=Sizes)
    steps: int = STEPS
    batch: int = 4  # sequences a rank and micro-batch
    micro_batches: int = 1
    seed: int = 11
    data_seed: int = 5
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.99)
    decay: float = 0.1
    momentum: float | None = None  # set: SGD with it, instead of AdamW
    max_norm: float | None = None
    loss_scale: float = 1.0
    evaluations: bool = False  # after every update, recorded as well
    resume_at: int | None = None  # the run ends before this step and is launched again from a checkpoint
    threads: int = 1
    agent: Mapping[str, Any] = field(default_factory=dict)  # further arguments of statagent.init
    watch: Mapping[str, Any] = field(default_factory=dict)  # and of statagent.watch


@dataclass
class Training:
    """One run. Fields that are functions are the pieces of the script; `at_step` and `on_model` are where a fault gets in."""

    recipe: Recipe
    rank: int = 0
    world: int = 1
    on_model: list[Callable[[Gpt], object]] = field(default_factory=list)  # built and initialised, not watched yet
    at_step: dict[int, list[Callable[[], object]]] = field(default_factory=dict)  # before the step's first micro-batch

    model: Gpt = field(init=False)
    trained: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        self.batch: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]] = self.data
        self.compute_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = self.cross_entropy
        self.groups: Callable[[Gpt], list[dict[str, Any]]] = self.decay_groups
        self.finish_gradients: Callable[[], object] = self.unscale_and_clip
        self.update: Callable[[], None] = self.step_optimizer
        self.before_micro_batch: Callable[[int], None] = lambda micro: None
        self.evaluation: Callable[[], None] = self.evaluate
        self.restore: Callable[[dict[str, Any]], object] = self.load_checkpoint
        self.synchronised: Callable[[], bool] = lambda: True
        self.micro_batches: Callable[[], int] = lambda: self.recipe.micro_batches
        self.wrap: Callable[[Gpt], nn.Module] = DistributedDataParallel
        self.adam: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
        self.optimizer_options: dict[str, Any] = {}

    def at(self, step: int, action: Callable[[], object]) -> None:
        self.at_step.setdefault(step, []).append(action)

    def change(self, **changes: Any) -> None:
        """Another recipe."""
        self.recipe = replace(self.recipe, **changes)

    def change_sizes(self, **changes: Any) -> None:
        self.change(sizes=replace(self.recipe.sizes, **changes))

    # --- the pieces -------------------------------------------------------------------------------------------------------

    def data(self, step: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets [batch, context]: counting with a stride a sequence, padded at the end; a function of the place only."""
        return self.data_of(step, micro, self.rank)

    def data_of(self, step: int, micro: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        recipe, sizes = self.recipe, self.recipe.sizes
        generator = torch.Generator().manual_seed(((recipe.data_seed * 101 + step) * 11 + micro) * 7 + rank)
        first = torch.randint(1, sizes.vocabulary, (recipe.batch, 1), generator=generator)
        stride = torch.randint(1, 6, (recipe.batch, 1), generator=generator)
        noise = torch.randint(0, 2, (recipe.batch, sizes.context + 1), generator=generator)
        text = 1 + (first + stride * torch.arange(sizes.context + 1) + noise) % (sizes.vocabulary - 1)
        lengths = torch.randint(sizes.context // 2, sizes.context + 2, (recipe.batch, 1), generator=generator)
        text = text.where(torch.arange(sizes.context + 1) < lengths, PAD)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def cross_entropy(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)

    def decay_groups(self, model: Gpt) -> list[dict[str, Any]]:
        named = list(model.named_parameters())
        return [
            {"params": [p for name, p in named if not name.endswith(NO_DECAY)], "weight_decay": self.recipe.decay},
            {"params": [p for name, p in named if name.endswith(NO_DECAY)], "weight_decay": 0.0},
        ]

    def unscale_and_clip(self) -> None:
        self.unscale()
        self.clip(self.recipe.max_norm)

    def unscale(self) -> None:
        if self.recipe.loss_scale != 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self.recipe.loss_scale

    def clip(self, max_norm: float | None) -> None:
        if max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def step_optimizer(self) -> None:
        self.optimizer.step()

    def evaluate(self) -> None:
        """A pass over a held-out batch, without dropout."""
        tokens, targets = self.data_of(1000, 0, self.rank)
        self.trained.eval()
        with torch.no_grad():
            statagent.log_scalar("eval_loss", self.compute_loss(self.trained(tokens), targets))
        self.trained.train()

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    # --- the script -------------------------------------------------------------------------------------------------------

    def run(self, name: str) -> None:
        """Trains under this name, to the end, and waits until every record is stored."""
        torch.set_num_threads(self.recipe.threads)
        self.build()
        self.start_agent(name, {"if_exists": "error"})
        for step in range(self.recipe.steps):
            self.step = step
            if self.step == self.recipe.resume_at:
                self.resume(name)
            for action in self.at_step.get(self.step, []):
                action()
            self.train_step()
        self.stop_agent()

    def build(self) -> None:
        recipe = self.recipe
        torch.manual_seed(recipe.seed)
        self.model = Gpt(recipe.sizes)
        for change in self.on_model:
            change(self.model)
        self.trained = self.wrap(self.model) if self.world > 1 else self.model
        torch.manual_seed(1_000 * recipe.seed + self.rank)  # dropout
        if recipe.momentum is None:
            self.optimizer = torch.optim.AdamW(
                self.groups(self.model), lr=recipe.lr, betas=recipe.betas, **self.optimizer_options
            )
        else:
            self.optimizer = torch.optim.SGD(self.groups(self.model), lr=recipe.lr, momentum=recipe.momentum)

    def start_agent(self, name: str, options: dict[str, Any]) -> None:
        statagent.init(
            run=name, required=True, connect_timeout=20, config={"recipe": self.recipe}, **self.recipe.agent, **options
        )
        if self.step:
            agent = statagent.agent.current()
            assert agent is not None
            agent.set_step(self.step)
        self.watch = statagent.watch(self.trained, optimizer=self.optimizer, eval=self.recipe.evaluations, **self.recipe.watch)

    def stop_agent(self) -> None:
        self.watch.remove()
        assert statagent.close(timeout=60), f"records were not stored: {statagent.counters()}"
        counts = statagent.counters()
        lost = sum(n for cause, n in counts.items() if cause.startswith("dropped_"))
        assert counts["produced"] == counts["acked"] > 0 and lost == 0, counts

    def resume(self, name: str) -> None:
        """Ends here and begins again from a checkpoint, as a new launch does."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        random = torch.get_rng_state()
        self.stop_agent()
        self.build()
        self.restore(state)
        torch.set_rng_state(random)
        self.start_agent(name, {"if_exists": "append", "launch": "second"})

    def train_step(self) -> None:
        micro_batches = self.micro_batches()
        for micro in range(micro_batches):
            tokens, targets = self.batch(self.step, micro)
            statagent.log_batch(tokens=tokens, targets=targets)
            self.before_micro_batch(micro)
            last = micro + 1 == micro_batches
            with nullcontext() if last and self.synchronised() else self.unsynchronised():
                loss = self.compute_loss(self.trained(tokens), targets)
                (loss / self.recipe.micro_batches * self.recipe.loss_scale).backward()
            statagent.log_scalar("loss", loss)
        self.finish_gradients()
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.recipe.evaluations:
            self.evaluation()

    def unsynchronised(self) -> Any:
        return self.trained.no_sync() if isinstance(self.trained, DistributedDataParallel) else nullcontext()


def connect_ranks(world: int) -> None:
    if world > 1 and not distributed.is_initialized():
        distributed.init_process_group("gloo")
