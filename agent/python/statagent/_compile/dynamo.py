"""Tells torch.compile how to treat this package's own functions. Imports torch, so import it only after torch."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from .._torch.modules import Named

_sites = itertools.count(1)

exporting: Callable[[], bool] = torch.compiler.is_compiling  # outside of Dynamo, which does not run our hooks


def forget_graphs(modules: list[Named]) -> None:
    """Makes torch.compile compile graphs that begin in one of the modules again at their next call: graphs that were compiled before the
    hooks were attached do not contain them."""
    if "torch._dynamo" not in sys.modules:
        return
    from torch._dynamo.eval_frame import remove_from_cache

    for forward in {getattr(type(named.value), "forward", None) for named in modules}:  # TorchScript has none there
        if isinstance(forward, types.FunctionType):
            remove_from_cache(forward)


_kept_out = False


def keep_dynamo_out() -> None:
    """Keeps torch.compile from compiling this package's functions as graphs of their own. Inside of other graphs hooks are still traced."""
    global _kept_out
    if _kept_out:
        return
    _kept_out = True
    try:
        from torch._dynamo.eval_frame import skip_code
    except ImportError:
        return
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for code in _codes(module):
                skip_code(code)
    skip_code(contextlib.nullcontext.__exit__.__code__)  # what a hook becomes in a copy of its model


def _codes(module: Any) -> list[types.CodeType]:
    found: list[types.CodeType] = []

    def visit(code: types.CodeType) -> None:
        found.append(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                visit(constant)

    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                visit(function.__code__)
    return found


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def new_site() -> int:
    """A number for the place where a hook is being traced. Runs then; the result is a constant of the graph."""
    keep_dynamo_out()
    return next(_sites)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def gradients_can_be_hooked() -> bool:
    """False with compiled autograd: there, hooks need a compiled backward pass, and nothing shows in advance whether there will be one."""
    from torch._dynamo import compiled_autograd

    return not compiled_autograd.compiled_autograd_enabled
