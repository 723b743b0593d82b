"""Update rules that no other family has, on a model that is products and GELU only: torch's Muon, Lion, an Adam of a user's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from verdict_bench import bugs
from verdict_bench.blocks import Lion
from verdict_bench.bugs import Bug
from verdict_bench.training import Batch, Family, Training, generator

FEATURES, HIDDEN, CLASSES, BATCH = 24, 64, 8, 32


class OwnAdam(torch.optim.Optimizer):
    """Adam as written by hand. What a mistake changes are attributes, which are not recorded as settings."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-8})
        self.corrects_mean, self.eps_inside = True, 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                mean, square = (state.setdefault(name, torch.zeros_like(p)) for name in ("mean", "square"))
                state["steps"] = state.get("steps", 0) + 1
                mean.add_(p.grad - mean, alpha=1 - first)
                square.add_(p.grad.square() - square, alpha=1 - second)
                length = (square / (1 - second ** state["steps"]) + self.eps_inside).sqrt() + group["eps"]
                shift = mean / (1 - first ** state["steps"]) if self.corrects_mean else mean
                p.sub_(shift / length, alpha=group["lr"])


class OptimizersFamily(Family):
    kinds_of_legal = frozenset(("one_model", "linear", "batched_loss"))

    def __init__(self, rule: str) -> None:
        self.name, self.rule = f"optimizers_{rule}", rule
        if rule == "lion":
            self.kinds_of_legal |= {"lion"}

    def models(self) -> dict[str, nn.Module]:
        sizes = [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)]
        layers = [module for a, b in sizes for module in (nn.Linear(a, b, bias=False), nn.GELU())]
        return {"": nn.Sequential(*layers[:-1])}

    def optimizers(self, training: Training) -> dict[str, torch.optim.Optimizer]:
        parameters = training.models[""].parameters()
        if self.rule == "muon":
            return {"": torch.optim.Muon(parameters, lr=0.02)}
        if self.rule == "lion":
            options = {name: value for name, value in training.optimizer_options.items() if name == "interpolate"}
            return {"": Lion(parameters, lr=2e-3, **options)}
        return {"": OwnAdam(parameters, lr=2e-3)}

    def batch(self, step: int) -> Batch:
        random = generator(self, step)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=random)
        points = torch.randn(BATCH, FEATURES, generator=random) + torch.cos(labels[:, None] * torch.arange(FEATURES))
        return {"points": points, "labels": labels}

    def loss(self, training: Training, batch: Batch) -> torch.Tensor:
        return bugs.cross_entropy(training, training.trained[""](batch["points"]), batch["labels"])


def _without_row(update: torch.Tensor, _: float) -> torch.Tensor:
    return torch.cat([update[:-1], torch.zeros_like(update[-1:])])


def own(name: str, value: Any) -> Bug:
    def plant(training: Training, _: float) -> None:
        training.on_optimizers.append(lambda _: setattr(training.optimizers[""], name, value))

    return Bug(f"own_{name}", plant, 0, bugs.OPTIMIZER, (("*", "weight"),), (), (1.0,))


def orthogonal_in_halves() -> Bug:
    """Muon makes each half of a gradient's rows orthogonal by itself, as on two shards."""

    def plant(training: Training, _: float) -> None:
        rule: Any = torch.optim._muon
        whole = rule._zeropower_via_newtonschulz

        def halves(gradient: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
            return torch.cat([whole(half, *rest, **options) for half in gradient.chunk(2)])

        rule._zeropower_via_newtonschulz = halves
        training.at_end.append(lambda: setattr(rule, "_zeropower_via_newtonschulz", whole))

    return Bug("halves", plant, 0, bugs.OPTIMIZER, (("*", "weight"),), (), (1.0,))


def _bugs(rule: str) -> list[Bug]:
    mistakes = {"muon": [orthogonal_in_halves()], "lion": [], "adam": [own("corrects_mean", False), own("eps_inside", 1e-4)]}[
        rule
    ]
    return [
        bugs.update(lambda update, size: update * (1 + size), "update"),
        *mistakes,
        bugs.update(_without_row, "row_not_updated", first=1, sizes=(1.0,)),
        bugs.update(lambda update, _: -update, "update_reversed", first=2, sizes=(2.0,)),
        bugs.gradient("2.weight", step=1),
        bugs.learning_rate(step=2),
        bugs.module_output("2", step=3),
        bugs.weight("0"),
        bugs.activation("1"),
        bugs.loss_factor("4", step=2),
        bugs.zero_grad(step=3),
        bugs.batch_value("points", step=2),
        bugs.feature("2", step=2),
    ]


WAYS = {rule: partial(lambda rule, *_: (OptimizersFamily(rule), _bugs(rule)), rule) for rule in ("muon", "lion", "adam")}
FAMILY, BUGS = WAYS["adam"]()
