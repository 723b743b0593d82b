"""The arguments of `watch`: their types, and checks that raise InvalidArgumentError."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union

from .._layouts.sharded import Wrapper, wrapper_in, wrapper_of
from .._torch.modules import unwrap
from ..errors import InvalidArgumentError, StatagentError
from .steps import Steps

if TYPE_CHECKING:
    import torch

    class _WrapsOptimizer(Protocol):
        """An optimizer of Lightning or Accelerate, which contains the real one."""

        @property
        def optimizer(self) -> torch.optim.Optimizer: ...

    # torch.compile's result is annotated as a function.
    Model = Union[torch.nn.Module, Callable[..., Any]]
    OptimizerLike = Union[torch.optim.Optimizer, _WrapsOptimizer]

Kind = Literal["output", "input", "grad_output", "grad_input", "weight", "weight_grad", "optimizer_state", "buffer"]
MemoryChoice = Literal["phases", "modules", "peaks"]

FORWARD_KINDS: tuple[Kind, ...] = ("output", "input", "grad_output", "grad_input")
_OPTIMIZER_KINDS: tuple[Kind, ...] = ("weight_grad", "optimizer_state")
KINDS: tuple[Kind, ...] = (*FORWARD_KINDS, "weight", *_OPTIMIZER_KINDS, "buffer")
_DEFAULT_KINDS = frozenset(("output", "grad_output", "weight", "buffer"))
NAME_BYTES_MAX = 256  # of the prefix; a whole name may have 1,024
_WRAPPED_MAX = 4  # optimizers inside of each other


def check_model(model: Any, caller: str = "watch") -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"{caller}: found a {type(model).__name__} as model; expected a torch.nn.Module")
    if isinstance(unwrap(model), torch.jit.ScriptModule):
        raise InvalidArgumentError(
            f"{caller}: found a {type(model).__name__} as model, which does not accept hooks; expected a module that is not TorchScript; watch "
            "the module that was scripted or traced, or a module around it"
        )


def check_name(name: Any, caller: str = "watch") -> None:
    """Checks a watch's name: the library would refuse each record of a model with an invalid one."""
    good = isinstance(name, str) and name.isprintable() and len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX
    if not good:
        shown = f"{name!r:.100}"
        raise InvalidArgumentError(
            f"{caller}: name is {shown}; expected at most {NAME_BYTES_MAX} bytes of printable text, as 'teacher'"
        )


def check_optimizers(optimizer: Any, model: Any = None) -> tuple[list[Any], list[Wrapper]]:
    """The optimizers of torch that `watch` is given, each once; and those of DeepSpeed and Megatron-Core that contain some of them. `model`:
    may be an engine, which has made such a wrapper."""
    found: list[Any] = []
    wrappers: list[Wrapper] = []
    for each in [] if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
        wrapper = _find_wrapper(each, model)
        if wrapper is not None:
            wrappers.append(wrapper)
        found += [_unwrap_optimizer(each)] if wrapper is None else wrapper.inner
    found = list({id(each): each for each in found}.values())
    for each in found:
        if not hasattr(each, "register_step_post_hook") or not hasattr(each, "param_groups"):
            raise InvalidArgumentError(
                f"watch: found a {type(each).__name__} as optimizer; expected a torch.optim.Optimizer, or a list"
            )
    return found, list({id(each.outer): each for each in wrappers}.values())


def _find_wrapper(optimizer: Any, model: Any) -> Wrapper | None:
    """The wrapper that is given, inside of Accelerate's or Lightning's optimizer, or around the one that is given."""
    for _ in range(_WRAPPED_MAX):
        found = wrapper_of(optimizer) or wrapper_in(model, optimizer)
        if found is not None:
            return found
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def _unwrap_optimizer(optimizer: Any) -> Any:
    """The optimizer inside of Accelerate's and Lightning's: its hooks run only when it really makes an update."""
    real = sys.modules["torch"].optim.Optimizer
    for _ in range(_WRAPPED_MAX):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, real) or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def check_updates(updates: str | None, optimizer: bool) -> Steps | None:
    """The steps whose updates are recorded. `optimizer`: whether there is one."""
    if updates is None:
        return None
    if not optimizer:
        raise InvalidArgumentError("watch: updates needs the optimizer; found none; give optimizer=")
    return Steps(updates, "updates")


def check_tokens(tokens: Any, caller: str = "watch: tokens") -> Any:
    """The tokens whose rows are recorded; None: of none."""
    if tokens is None or tokens is False:
        return None
    chosen = None
    try:
        if tokens is not True:
            chosen = Steps(tokens, "tokens")
    except (StatagentError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f'{caller}: found {tokens!r:.60}; expected True, or positions of tokens as "0-63" or "0-1023,every=16"'
        ) from error
    if importlib.util.find_spec("numpy") is None:
        raise InvalidArgumentError(f"{caller}: found no NumPy, which it needs; pip install numpy")
    from .._tokens.choice import Choice

    return Choice(chosen)


def check_routers(routers: Any, tokens: Any) -> Mapping[str, int]:
    """By pattern of modules that are routers, how many experts they choose. `tokens`: of check_tokens."""
    if routers is None:
        return {}
    if not isinstance(routers, Mapping) or not all(
        isinstance(pattern, str) and isinstance(chosen, int) and not isinstance(chosen, bool) and chosen > 0
        for pattern, chosen in routers.items()
    ):
        raise InvalidArgumentError(f'watch: routers: found {routers!r:.60}; expected {{"*.gate": 2}}, the experts of each token')
    if tokens is None:
        raise InvalidArgumentError("watch: routers needs the tokens; found none; give tokens=True")
    return routers


def check_kinds(kinds: Iterable[str] | None, optimizer: bool) -> frozenset[str]:
    """The kinds to record. `optimizer`: whether there is one."""
    if kinds is None:
        return _DEFAULT_KINDS.union(_OPTIMIZER_KINDS if optimizer else ())
    if not isinstance(kinds, Iterable):
        raise InvalidArgumentError(f"watch: kinds is {kinds!r}; expected some of: {', '.join(KINDS)}")
    chosen = frozenset([kinds] if isinstance(kinds, str) else kinds)
    for kind in sorted(map(str, chosen)):
        if kind not in KINDS:
            raise InvalidArgumentError(f"watch: found '{kind}' in kinds; expected some of: {', '.join(KINDS)}")
        if kind in _OPTIMIZER_KINDS and not optimizer:
            raise InvalidArgumentError(f"watch: kind '{kind}' needs the optimizer; found none; give optimizer=")
    if not chosen:
        raise InvalidArgumentError(f"watch: kinds is empty; expected some of: {', '.join(KINDS)}")
    return chosen
