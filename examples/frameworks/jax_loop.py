"""JAX: a jitted training step with values recorded inside of it, arrays through DLPack outside.

python examples/frameworks/jax_loop.py --run-name jax
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import statagent
from statagent.integrations import jax as statagent_jax

Params = dict[str, dict[str, jax.Array]]


def network(params: Params, x: jax.Array, slope: jax.Array) -> jax.Array:
    hidden = jnp.tanh(slope * (x @ params["first"]["w"] + params["first"]["b"]))
    hidden = statagent_jax.inspect("hidden", hidden)  # its value and its gradient
    return statagent_jax.inspect("output", hidden @ params["second"]["w"] + params["second"]["b"])


@jax.jit
def train_step(params: Params, x: jax.Array, y: jax.Array, slope: jax.Array) -> Any:
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean((network(p, x, slope) - y) ** 2))(params)
    return loss, gradients, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-name", "--run", dest="run", help="name of the run (default: STATAGENT_RUN)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-agent", action="store_true", help="train without statcollect: STATAGENT_DISABLE=1")
    parser.add_argument("--bug-step", type=int, default=-1, help="from this step on tanh is given 1.01 times its argument")
    options = parser.parse_args(arguments)
    os.environ["STATAGENT_DISABLE"] = "1" if options.no_agent else ""
    jax.clear_caches()  # whether an agent runs is decided when a function is traced

    keys = jax.random.split(jax.random.key(1), 2)
    params: Params = {
        "first": {"w": 0.3 * jax.random.normal(keys[0], (8, 16)), "b": jnp.zeros(16)},
        "second": {"w": 0.3 * jax.random.normal(keys[1], (16, 1)), "b": jnp.zeros(1)},
    }
    statagent.init(run=options.run, config={"lr": 0.1})

    for step in range(options.steps):
        x = jax.random.normal(jax.random.key(1000 + step), (32, 8))
        y = jnp.sin(x.sum(1, keepdims=True))
        statagent.log_batch(x=x, y=y)
        slope = jnp.float32(1.01 if 0 <= options.bug_step <= step else 1.0)
        loss, gradients, params = train_step(params, x, y, slope)
        statagent.log_scalar("loss", loss)
        statagent_jax.observe_tree("", gradients, kind="weight_grad")
        statagent_jax.observe_tree("", params, kind="weight")
        statagent_jax.step()
        print(f"{options.run} rank 0 step {step} loss {float(loss)!r}", flush=True)

    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(f"{options.run} rank 0 weights {digest.hexdigest()}")
    statagent.close(timeout=10)
    counts = statagent.counters()
    dropped = sum(number for name, number in counts.items() if name.startswith("dropped_"))
    print(f"{options.run} rank 0 records: {counts['produced']} produced, {counts['acked']} stored, {dropped} dropped")


if __name__ == "__main__":
    main()
