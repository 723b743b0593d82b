"""Bugs of swept size: each changes one thing of a run, from one step on, and says where the verdict must name it.

A size is about the relative change of what the bug touches. Names are patterns of (activation, kind); `@root` stands for the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from verdict_bench.training import Batch, Training

SWEEP = (1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SWEEP_BFLOAT16 = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
FACTORS = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 100.0)  # of settings whose influence is small

Names = tuple[tuple[str, str], ...]
FORWARD, BACKWARD, GRAD, OPTIMIZER = ("forward",), ("backward",), ("grad",), ("optimizer",)


@dataclass(frozen=True)
class Bug:
    """`causes`: rules of which one may be named; none: no rule is expected to tell."""

    name: str
    plant: Callable[[Training, float], None]
    step: int  # the first that it changes
    stages: tuple[str, ...]
    names: Names
    causes: tuple[str, ...] = ()
    sizes: tuple[float, ...] = ()  # empty: the sweep of the family's precision
    later: Callable[[int], Bug] | None = None  # the same from another step on; only where that is another bug

    def swept(self, coarse: bool) -> tuple[float, ...]:
        return self.sizes or (SWEEP_BFLOAT16 if coarse else SWEEP)


# --- of modules


def wrap(module: nn.Module, function: Callable[..., Any]) -> None:
    """`function` is called with the module's forward and its arguments instead. A partial, which is not recorded as a setting of the module."""
    module.forward = partial(function, module.forward)


def _from(training: Training, step: int, action: Callable[[], None]) -> None:
    """Before that step; step 0: before the agent sees the model."""
    if step == 0:
        action()
    else:
        training.at(step, action)


def attribute(path: str, name: str, shown: Sequence[tuple[str, str]] = (), step: int = 0, add: float = 0.0) -> Bug:
    """A number of a module, times 1 + size; `add`: plus so many sizes instead."""

    def plant(training: Training, size: float) -> None:
        def change() -> None:
            module = training.module(path)
            value = getattr(module, name)
            setattr(module, name, value + add * size if add else value * (1 + size))

        _from(training, step, change)

    return Bug(f"{name}_of_{path or 'root'}", plant, step, FORWARD, tuple(shown) or ((path, "output"),), ("module_setting",))


def scaled_gradients(bug: Bug, names: Sequence[tuple[str, str]]) -> Bug:
    """The bug of a factor on what is zero at first: only gradients show it, of the tensors with these names."""
    return replace(bug, stages=(*BACKWARD, *GRAD), names=tuple(names))


def norm_eps(path: str, step: int = 0) -> Bug:
    return attribute(path, "eps", step=step, add=2.0)


def slope(path: str) -> Bug:
    return attribute(path, "negative_slope")


def dropout(path: str) -> Bug:
    return replace(attribute(path, "p", add=1.0), causes=("module_setting", "dropout"))


def residual(path: str, shown: Sequence[tuple[str, str]] = ()) -> Bug:
    return attribute(path, "residual", shown=shown)


def _before_projection(path: str) -> Names:
    return ((f"{path}.o", "output"), (f"{path}.o", "input"))


def attention_scale(path: str, step: int = 0) -> Bug:
    return attribute(path, "scale", shown=_before_projection(path), step=step)


def rope_base(path: str) -> Bug:
    """The base of 10,000 plus a million sizes: scores depend little on it."""
    return attribute(path, "rope", shown=_before_projection(path), add=1e6)


def mask_leak(path: str) -> Bug:
    """Positions hidden by the causal mask get a weight of `size`."""
    return attribute(path, "leak", shown=_before_projection(path), add=1.0)


def batch_norm_momentum(path: str) -> Bug:
    made = attribute(path, "momentum")
    names = ((f"{path}.running_mean", "*"), (f"{path}.running_var", "*"), (path, "buffer"))
    return Bug(made.name, made.plant, 0, ("*",), names, made.causes)


def module_output(path: str, step: int = 0) -> Bug:
    def plant(training: Training, size: float) -> None:
        def forward(original: Callable[..., Any], *args: Any) -> Any:
            return original(*args) * (1 + size) if training.step >= step else original(*args)

        wrap(training.module(path), forward)

    causes = ("tensor_scale",)
    return Bug(f"output_of_{path}", plant, step, FORWARD, ((path, "output"),), causes, later=lambda at: module_output(path, at))


def activation(path: str, step: int = 0) -> Bug:
    """f((1 + size) x) instead of f(x)."""

    def plant(training: Training, size: float) -> None:
        def forward(original: Callable[..., Any], x: torch.Tensor) -> Any:
            return original(x * (1 + size)) if training.step >= step else original(x)

        wrap(training.module(path), forward)

    return Bug(f"activation_{path}", plant, step, FORWARD, ((path, "output"),))


def feature(path: str, step: int, dim: int = -1) -> Bug:
    """The last feature of a module's output, and only that, times 1 - size."""

    def plant(training: Training, size: float) -> None:
        def forward(original: Callable[..., Any], x: torch.Tensor) -> Any:
            out = original(x)
            if training.step < step:
                return out
            last = out.narrow(dim, out.shape[dim] - 1, 1)
            return torch.cat([out.narrow(dim, 0, out.shape[dim] - 1), last * (1 - size)], dim)

        wrap(training.module(path), forward)

    return Bug(f"feature_of_{path}", plant, step, FORWARD, ((path, "output"),))


def permuted(path: str, step: int, dim: int = -1) -> Bug:
    def plant(training: Training, _: float) -> None:
        def forward(original: Callable[..., Any], x: torch.Tensor) -> Any:
            out = original(x)
            if training.step < step:
                return out
            return out.index_select(dim, torch.randperm(out.shape[dim], generator=torch.Generator().manual_seed(3)))

        wrap(training.module(path), forward)

    return Bug(f"permuted_{path}", plant, step, FORWARD, ((path, "output"),), ("permuted",), (1.0,))


def cast(path: str, step: int = 0) -> Bug:
    """One module's input and output go through bfloat16."""

    def plant(training: Training, _: float) -> None:
        def forward(original: Callable[..., Any], x: torch.Tensor) -> Any:
            return original(x.bfloat16().float()).bfloat16().float() if training.step >= step else original(x)

        wrap(training.module(path), forward)

    return Bug(f"cast_{path}", plant, step, FORWARD, ((path, "output"), (path, "input")), ("cast",), (4e-3,))


def weight(path: str, step: int = 0) -> Bug:
    """A module's weight (or the parameter of that path) times 1 + size."""

    def plant(training: Training, size: float) -> None:
        def change() -> None:
            with torch.no_grad():
                _parameter(training, path).mul_(1 + size)

        _from(training, step, change)

    if step:
        return Bug(f"weight_of_{path}_late", plant, step, FORWARD, ((path, "output"),))
    name = path if path.rpartition(".")[2].startswith("weight") else f"{path}.weight"
    return Bug(f"weight_of_{path}", plant, 0, ("weights",), ((name, "weight"),), ("tensor_scale",))


def _parameter(training: Training, path: str) -> nn.Parameter:
    try:
        return training.parameter(path)
    except (AttributeError, AssertionError):
        return training.parameter(f"{path}.weight")


# --- of batches and losses


def batch_value(key: str, step: int) -> Bug:
    def plant(training: Training, size: float) -> None:
        original = training.batch

        def batch(at: int) -> Batch:
            found = original(at)
            return {**found, key: found[key] * (1 + size)} if step <= at < 1000 else found

        training.batch = batch

    return Bug(f"batch_{key}", plant, step, ("batch",), ((key, "batch"),), ("tensor_scale",))


def batch_order(step: int) -> Bug:
    """This batch and the next one change places."""

    def plant(training: Training, _: float) -> None:
        original, other = training.batch, {step: step + 1, step + 1: step}
        training.batch = lambda at: original(other.get(at, at))

    return Bug("batch_order", plant, step, ("batch",), (("*", "batch"),), ("batch_order",), (1.0,))


def cross_entropy(training: Training, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of the families that classify; what a legal change replaces is its sum."""
    return functional.cross_entropy(logits, targets, label_smoothing=training.label_smoothing())


def _gradients_of(path: str) -> Names:
    parts = path.split(".")
    return (*((".".join(parts[:n]), "grad_output") for n in range(len(parts), 0, -1)), ("@root", "grad_output"))


def label_smoothing(last: str) -> Bug:
    """`last`: the module that computes the logits."""

    def plant(training: Training, size: float) -> None:
        training.label_smoothing = lambda: size

    return Bug("label_smoothing", plant, 0, ("loss", "backward"), (("loss", "*"), *_gradients_of(last)))


def loss_factor(*last: str, step: int) -> Bug:
    """The backward pass starts from the logged loss times 1 + size. `last`: the modules whose outputs enter the loss."""

    def plant(training: Training, size: float) -> None:
        training.loss_factor = lambda: 1 + size if training.step >= step else 1.0

    names = tuple(name for path in last for name in _gradients_of(path))
    return Bug("loss_factor", plant, step, BACKWARD, names, ("gradient_scale", "loss_scale"))


# --- of gradients


def gradient(path: str, step: int) -> Bug:
    def plant(training: Training, size: float) -> None:
        training.parameter(path).register_hook(lambda grad: grad * (1 + size) if training.step >= step else grad)

    causes = ("tensor_scale",)
    return Bug(f"gradient_of_{path}", plant, step, GRAD, ((path, "weight_grad"),), causes, later=lambda at: gradient(path, at))


def gradient_term(path: str, step: int) -> Bug:
    """A gradient plus size times the weight, as long as the gradient is: a term too many."""

    def plant(training: Training, size: float) -> None:
        weight = training.parameter(path)

        def more(grad: torch.Tensor) -> torch.Tensor:
            held = weight.detach()
            return grad + size * grad.norm() / held.norm() * held if training.step >= step else grad

        weight.register_hook(more)

    return Bug(f"term_of_{path}", plant, step, GRAD, ((path, "weight_grad"),))


def sign_flip(path: str, step: int) -> Bug:
    def plant(training: Training, _: float) -> None:
        training.parameter(path).register_hook(lambda grad: -grad if training.step >= step else grad)

    return Bug(f"sign_of_{path}", plant, step, GRAD, ((path, "weight_grad"),), ("sign_flip",), (2.0,))


def zero_grad(step: int, optimizer: str = "") -> Bug:
    def plant(training: Training, _: float) -> None:
        training.keep_gradients.add(step)

    return Bug("zero_grad", plant, step, GRAD, ((_of(optimizer), "weight_grad"),), ("zero_grad",), (1.0,))


def clip(step: int) -> Bug:
    def plant(training: Training, size: float) -> None:
        training.clip_factor = lambda: 1 + size if training.step >= step else 1.0

    return Bug("clip", plant, step, GRAD, (("*", "weight_grad"),), ("clip_norm", "gradient_scale"))


# --- of optimizers


def _of(optimizer: str) -> str:
    return f"{optimizer}.*" if optimizer else "*"


def _setting(
    rule: str,
    change: Callable[[dict[str, Any], float], None],
    step: int,
    first: int,
    optimizer: str,
    sizes: tuple[float, ...] = (),
) -> Bug:
    """Changes every parameter group before `step`; `first`: the step in which it shows."""

    def plant(training: Training, size: float) -> None:
        def act() -> None:
            for group in training.optimizers[optimizer].param_groups:
                change(group, size)

        if step == 0:
            training.on_optimizers.append(lambda _: act())
        else:
            training.at(step, act)

    named = f"{rule}_{optimizer}".rstrip("_")
    return Bug(named, plant, first, OPTIMIZER, ((_of(optimizer), "*"),), (rule,), sizes)


def learning_rate(step: int, optimizer: str = "") -> Bug:
    def change(group: dict[str, Any], size: float) -> None:
        group["lr"] *= 1 + size

    made = _setting("learning_rate", change, step, step, optimizer)
    return replace(made, later=lambda at: learning_rate(at, optimizer))


def update(
    change: Callable[[torch.Tensor, float], torch.Tensor], name: str, first: int = 0, sizes: tuple[float, ...] = ()
) -> Bug:
    """What every update adds to a weight is replaced, while all gradients and states agree."""

    def plant(training: Training, size: float) -> None:
        def after(_: Training) -> None:
            for optimizer in training.optimizers.values():
                held: dict[nn.Parameter, torch.Tensor] = {}
                parameters = [p for group in optimizer.param_groups for p in group["params"]]

                def remember(*_: Any, held: Any = held, parameters: Any = parameters) -> None:
                    held.update((p, p.detach().clone()) for p in parameters)

                def replace_update(*_: Any, held: Any = held, parameters: Any = parameters) -> None:
                    with torch.no_grad():
                        for p in parameters:
                            if training.step >= first:
                                p.copy_(held[p] + change(p - held[p], size))

                optimizer.register_step_pre_hook(remember)
                optimizer.register_step_post_hook(replace_update)

        training.on_optimizers.append(after)

    return Bug(name, plant, first, OPTIMIZER, (("*", "weight"),), (), sizes)


def late(bugs: Sequence[Bug], step: int) -> list[Bug]:
    """The bugs that can begin at a later step, beginning there, under their own names."""
    moved = [bug.later(step) for bug in bugs if bug.later is not None]
    return [replace(bug, name=f"{bug.name}_at{step}", later=None) for bug in moved]


def beta(index: int, optimizer: str = "") -> Bug:
    """1 - beta times 1 + size."""

    def change(group: dict[str, Any], size: float) -> None:
        betas = list(group["betas"])
        betas[index] = 1 - (1 - betas[index]) * (1 + size)
        group["betas"] = tuple(betas)

    return _setting("betas", change, 0, 0, optimizer)


def momentum(optimizer: str = "", first: int = 1) -> Bug:
    """`first`: the step in which it shows; the first momentum is the gradient itself."""

    def change(group: dict[str, Any], size: float) -> None:
        group["momentum"] *= 1 - size

    return _setting("momentum", change, 0, first, optimizer)


def smoothing(optimizer: str = "") -> Bug:
    """RMSprop's 1 - alpha times 1 + size."""

    def change(group: dict[str, Any], size: float) -> None:
        group["alpha"] = 1 - (1 - group["alpha"]) * (1 + size)

    return _setting("alpha", change, 0, 0, optimizer)


def weight_decay(optimizer: str = "") -> Bug:
    def change(group: dict[str, Any], size: float) -> None:
        group["weight_decay"] *= 1 + size

    return _setting("weight_decay", change, 0, 0, optimizer, FACTORS)


def epsilon(optimizer: str = "") -> Bug:
    def change(group: dict[str, Any], size: float) -> None:
        group["eps"] *= 1 + size

    return replace(_setting("optimizer_eps", change, 0, 0, optimizer, FACTORS), causes=("adam_eps",))


def scheduler_off_by_one(step: int) -> Bug:
    """The schedulers lag by one step; `step`: the first whose learning rate differs."""

    def plant(training: Training, _: float) -> None:
        training.scheduler_offset = -1

    return Bug("scheduler", plant, step, OPTIMIZER, (("*", "*"),), ("learning_rate",), (1.0,))
