"""NumPy alone: a two-layer network with its gradients written out. statagent takes arrays as they are.

python examples/frameworks/numpy_loop.py --run-name numpy
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence

import numpy as np

import statagent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-name", "--run", dest="run", help="name of the run (default: STATAGENT_RUN)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-agent", action="store_true", help="train without statcollect: STATAGENT_DISABLE=1")
    parser.add_argument("--bug-step", type=int, default=-1, help="from this step on the hidden layer forgets its bias")
    options = parser.parse_args(arguments)
    os.environ["STATAGENT_DISABLE"] = "1" if options.no_agent else ""

    random = np.random.default_rng(1)
    weights = {
        "w1": random.normal(0, 0.3, (8, 16)), "b1": random.normal(0, 0.1, 16), "w2": random.normal(0, 0.3, (16, 1)), "b2": np.zeros(1),
    }  # fmt: skip
    statagent.init(run=options.run, config={"lr": 0.1})

    for step in range(options.steps):
        data = np.random.default_rng(1000 + step)
        x = data.normal(size=(32, 8))
        y = np.sin(x.sum(1, keepdims=True))
        statagent.log_batch(x=x, y=y)
        bias = 0.0 if 0 <= options.bug_step <= step else weights["b1"]
        hidden = statagent.inspect("hidden", np.tanh(x @ weights["w1"] + bias))
        error = statagent.inspect("output", hidden @ weights["w2"] + weights["b2"]) - y
        loss = float((error**2).mean())
        statagent.log_scalar("loss", loss)
        d_output = 2 * error / len(x)
        d_hidden = (d_output @ weights["w2"].T) * (1 - hidden**2)
        gradients = {"w1": x.T @ d_hidden, "b1": d_hidden.sum(0), "w2": hidden.T @ d_output, "b2": d_output.sum(0)}
        for name, gradient in gradients.items():
            statagent.inspect(f"grad.{name}", gradient)
            weights[name] -= 0.1 * gradient
            statagent.inspect(f"weight.{name}", weights[name])
        statagent.step()
        print(f"{options.run} rank 0 step {step} loss {loss!r}", flush=True)

    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights.values()))
    print(f"{options.run} rank 0 weights {digest.hexdigest()}")
    statagent.close(timeout=10)
    counts = statagent.counters()
    dropped = sum(number for name, number in counts.items() if name.startswith("dropped_"))
    print(f"{options.run} rank 0 records: {counts['produced']} produced, {counts['acked']} stored, {dropped} dropped")


if __name__ == "__main__":
    main()
