"""JAX: values inside of `jit` and their gradients, and trees of parameters.

>>> h = statagent.integrations.jax.inspect("hidden", h)      # inside of a jitted function
>>> statagent.integrations.jax.observe_tree("params", params)
>>> statagent.integrations.jax.step()

Arrays outside of `jit` can be passed to statagent.inspect, log_scalar and log_batch directly, through DLPack.
"""

from __future__ import annotations

import functools
from typing import Any

from .. import agent as _agent
from .._runtime.current import current_agent, running_agent
from ._training import missing

try:
    import jax
    import numpy
except ImportError as error:
    raise missing("jax", "jax", error) from error


def observe(name: str, value: Any, kind: str = "inspect") -> Any:
    """Records an array of any shape inside of a jitted function, in each of its calls, and returns it. Also works outside of `jit`.

    Further calls in a step get call indexes 1, 2, ... in order of execution. Needs jax.effects_barrier() before the step ends; `step` of this
    module calls it. Call `init` before JAX traces the function, because the agent is looked up then. Cost: the value is copied to the host.
    XLA does not fuse operations across it, with or without an agent, so that both compute the same bits. Never raises for a value."""
    value = jax.lax.optimization_barrier(value)
    if running_agent() is not None:
        jax.debug.callback(functools.partial(_record, name, kind), value, ordered=True)
    return value


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def inspect(name: str, value: Any) -> Any:
    """As `observe`; also records the gradient with respect to the value, if it is computed (kind inspect_grad)."""
    return observe(name, value)


def _forward(name: str, value: Any) -> tuple[Any, None]:
    return observe(name, value), None


def _backward(name: str, _: None, gradient: Any) -> tuple[Any]:
    return (observe(name, gradient, "inspect_grad"),)


inspect.defvjp(_forward, _backward)


def observe_tree(prefix: str, tree: Any, kind: str = "weight") -> None:
    """Records all arrays of a tree outside of `jit`, such as parameters after the update, or gradients with kind="weight_grad".

    With prefix "params", {"dense": {"w": ...}} is recorded as "params.dense.w"."""
    agent = running_agent()
    if agent is None or not agent.clock.wanted:
        return
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = ".".join([prefix, *map(_key, path)] if prefix else map(_key, path))
        agent.observe(name, leaf, kind)


def step() -> None:
    """Waits until JAX has executed this step's observations, and ends the step."""
    jax.effects_barrier()
    _agent.step()


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _record(name: str, kind: str, value: Any) -> None:
    agent = current_agent()
    if agent is not None:
        agent.observe(name, numpy.asarray(value), kind)
