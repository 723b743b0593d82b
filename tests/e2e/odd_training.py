"""Trains models that cannot be recorded like others, each without and then with the agent, and prints what came of it: run as a program by
test_odd_models.py. A case is a function that makes the model, and a step; most of them give both by `Plan`.

    python odd_training.py CASE...    a line of JSON for each: {"case", "plain", "watched", "said"}
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import statagent

STEPS = 5
WIDTH = 8


class Calls(nn.Module):
    """Any function of (self, x) as forward, over the submodules given."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._forward = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward(self, x)


def through(odd: Callable[[torch.Tensor], Any], back: Callable[[Any, torch.Tensor], torch.Tensor]) -> nn.Module:
    """first -> odd -> last, where `back` makes a plain tensor of what `odd` returned and of what it was given."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.last(back(self.odd(hidden), hidden))

    return Calls(forward, first=nn.Linear(WIDTH, WIDTH), odd=Calls(lambda self, x: odd(x)), last=nn.Linear(WIDTH, 1))


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    return [x[:1], x[1:]]


def strided(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor(halves(x))


def jagged(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor(halves(x), layout=torch.jagged)


def joined(nested: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.cat(nested.unbind())


def beside(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x


def writes_into_view(x: torch.Tensor) -> torch.Tensor:
    view = x[:, : WIDTH // 2]
    view.add_(1)
    return view


# name: what the module in the middle returns, and what the next one is given
OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    "nested_strided": (strided, joined),
    "nested_jagged": (jagged, joined),
    "none": (lambda x: None, beside),
    "generator": (lambda x: (part for part in halves(x)), lambda parts, _: torch.cat(list(parts))),
    "quantised": (lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8), lambda q, x: x + q.dequantize()),
    "meta": (lambda x: x.detach().to("meta"), beside),
    "sparse": (lambda x: x.detach().to_sparse(), lambda sparse, x: x + sparse.to_dense()),
    "view": (writes_into_view, beside),
}


@dataclass
class Plan:
    """A case: the model, what happens after `watch`, and what happens in each step besides training."""

    make: Callable[[], nn.Module]
    prepare: Callable[[nn.Module, torch.optim.Optimizer, bool], None] = lambda *_: None
    during: Callable[[nn.Module, int], Any] = lambda *_: None


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def to_bfloat16(model: nn.Module, step: int) -> None:
    if step == 2:
        model.to(torch.bfloat16)


def evaluate_a_copy(model: nn.Module, step: int) -> float:
    with torch.no_grad():
        return float(copy.deepcopy(model)(torch.ones(2, WIDTH)).sum())


said: list[str] = []  # errors that the case met where it expects them


def watch_again(model: nn.Module, optimizer: torch.optim.Optimizer, watched: bool) -> None:
    if watched:
        try:
            statagent.watch(model, optimizer=optimizer)
        except statagent.InvalidArgumentError as error:
            said.append(str(error))


def halved(module: nn.Module, gradient: Any) -> Any:
    return (gradient[0] * 0.5,)


def hooks_of_others(model: nn.Module, optimizer: torch.optim.Optimizer, watched: bool) -> None:
    model.get_submodule("0").register_forward_hook(lambda module, args, output: output * 3)
    model.get_submodule("0").register_full_backward_pre_hook(halved)


def raising() -> nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if float(x.detach()[0, 0]) == float(batch(2)[0, 0]) and not self.raised:
            self.raised = True
            raise RuntimeError("out of luck")
        return self.last(hidden)

    model = Calls(forward, first=nn.Linear(WIDTH, WIDTH), last=nn.Linear(WIDTH, 1))
    model.raised = False  # type: ignore[assignment]
    return model


PLANS: dict[str, Plan] = {
    **{name: Plan(lambda odd=odd, back=back: through(odd, back)) for name, (odd, back) in OUTPUTS.items()},  # type: ignore[misc]
    "moved": Plan(linear, during=to_bfloat16),
    "copied": Plan(linear, during=evaluate_a_copy),
    "watched_twice": Plan(linear, prepare=watch_again),
    "others_hooks": Plan(linear, prepare=hooks_of_others),
    "raising": Plan(raising),
    "no_parameters": Plan(lambda: Calls(lambda self, x: self.twice(x), twice=Calls(lambda self, x: x * 2))),
    "copy_trained": Plan(linear),
}


def batch(step: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> str:
    optimizer.zero_grad()
    parameter = next(model.parameters(), None)
    x = batch(step).to(torch.float32 if parameter is None else parameter.dtype)
    if parameter is None:
        x.requires_grad_()
    try:
        loss = model(x).float().square().mean()
    except RuntimeError as error:
        return str(error)
    loss.backward()
    optimizer.step()
    return float(loss).hex()


def train(case: str, watched: bool) -> list[str]:
    """The losses, and a hash of the final weights."""
    plan = PLANS[case]
    torch.manual_seed(1)
    model = plan.make()
    spare = [nn.Parameter(torch.zeros(1))]  # for models without parameters
    optimizer = torch.optim.SGD([*model.parameters(), *spare], lr=0.1)
    if watched:
        statagent.init(run=case, required=True)
        statagent.watch(model, optimizer=optimizer)
    plan.prepare(model, optimizer, watched)
    if case == "copy_trained":
        model = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for step in range(STEPS):
        results.append(f"{plan.during(model, step)} {one_step(model, optimizer, step)}")
    if watched:
        statagent.close(timeout=20)
        counts = statagent.counters()
        assert counts["produced"] == counts["acked"] + counts.get("dropped_refused", 0), counts
    weights = [parameter.detach().float().numpy().tobytes() for parameter in model.parameters()]
    return [*results, hashlib.sha256(b"".join(weights)).hexdigest()]


def main() -> None:
    warnings.simplefilter("ignore")
    for case in sys.argv[1:]:
        said.clear()
        print(json.dumps({"case": case, "plain": train(case, False), "watched": train(case, True), "said": said}))


if __name__ == "__main__":
    main()
