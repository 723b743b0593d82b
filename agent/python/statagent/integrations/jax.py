"""JAX: values inside of `jit`, with their gradients, and trees of parameters.

>>> h = statagent.integrations.jax.inspect("hidden", h)      # inside of a jitted function
>>> statagent.integrations.jax.observe_tree("params", params)
>>> statagent.integrations.jax.step()

Arrays outside of `jit` go to statagent.inspect, log_scalar and log_batch as they are, through DLPack.
"""

from __future__ import annotations

import functools
from typing import Any

from .. import agent as _agent
from ._training import missing

try:
    import jax
    import numpy
except ImportError as error:
    raise missing("jax", "jax", error) from error


def observe(name: str, value: Any, kind: str = "inspect") -> Any:
    """Records an array inside of a jitted function, in each of its calls; returns it. Called again in one step it gets call index 1, and so
    on, in order of execution. Works outside of `jit`, too. Needs jax.effects_barrier() before the step ends, which `step` here does.

    Whether there is an agent is asked while JAX traces: call `init` before. The value goes to the host, which costs a copy on a GPU.
    XLA does not fuse operations across it, with or without an agent, so that both compute the same bits."""
    value = jax.lax.optimization_barrier(value)
    agent = _agent.current()
    if agent is not None and not agent.closed:
        jax.debug.callback(functools.partial(_record, name, kind), value, ordered=True)
    return value


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def inspect(name: str, value: Any) -> Any:
    """As `observe`, and the gradient of a loss with respect to the value, if one is computed (kind inspect_grad)."""
    return observe(name, value)


def _forward(name: str, value: Any) -> tuple[Any, None]:
    return observe(name, value), None


def _backward(name: str, _: None, gradient: Any) -> tuple[Any]:
    return (observe(name, gradient, "inspect_grad"),)


inspect.defvjp(_forward, _backward)


def observe_tree(prefix: str, tree: Any, kind: str = "weight") -> None:
    """Records all arrays of a tree, such as parameters after the update or their gradients (kind="weight_grad"), outside of `jit`:
    {"dense": {"w": ...}} as "params.dense.w" with prefix "params"."""
    agent = _agent.current()
    if agent is None or agent.closed or not agent.wanted:
        return
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = ".".join([prefix, *map(_key, path)] if prefix else map(_key, path))
        agent.observe(name, leaf, kind)


def step() -> None:
    """Waits until JAX has made the calls of this step's observations, and ends the step. Waits for nothing without any."""
    jax.effects_barrier()
    _agent.step()


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _record(name: str, kind: str, value: Any) -> None:
    agent = _agent.current()
    if agent is not None:
        agent.observe(name, numpy.asarray(value), kind)
