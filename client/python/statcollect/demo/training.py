"""One rank of the demo's training: python -m statcollect.demo.training STEPS.

Rank and world size come from RANK and WORLD_SIZE, the run and the collector from STATAGENT_RUN and STATAGENT_COLLECTOR. The ranks
average their gradients through a socket, as data-parallel trainers do through NCCL. What differs between the demo's runs is not on the
command line, which is part of the recorded configuration: DEMO_BUG_STEP, the first step with the mistake, and DEMO_SOCKET.
"""

from __future__ import annotations

import array
import os
import sys
import time
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import statagent

from .network import Matrix, Network, added, batch

LEARNING_RATE = 0.05
WRONG_BLOCK, WRONG_EPS = 1, 1e-3


def numbers(matrix: Matrix) -> Any:
    """In the form that the agent accepts: a two-dimensional memoryview of doubles."""
    flat = array.array("d", [value for row in matrix for value in row])
    return memoryview(flat).cast("B").cast("d", (len(matrix), len(matrix[0])))


def meet(rank: int, place: str) -> Any:
    """The connection to the other rank."""
    if rank == 0:
        with Listener(place, family="AF_UNIX") as listener:
            return listener.accept()
    for _ in range(300):
        try:
            return Client(place, family="AF_UNIX")
        except OSError:  # not there yet
            time.sleep(0.1)
    raise TimeoutError(f"meet rank 0 at {place}: it did not come within 30 s")


def averaged(gradients: dict[str, Matrix], rank: int, other: Connection) -> dict[str, Matrix]:
    """The mean over both ranks, added in the same order on both."""
    other.send(gradients)
    received: dict[str, Matrix] = other.recv()
    first, second = (gradients, received) if rank == 0 else (received, gradients)
    return {name: [[value / 2 for value in row] for row in added(first[name], second[name])] for name in gradients}


def settings(network: Network) -> dict[str, str]:
    """Those of the modules, under the keys that statagent.watch gives them in PyTorch."""
    return {f"module.blocks.{block}.norm.eps": str(eps) for block, eps in enumerate(network.eps)}


def note_changes(agent: Any, before: dict[str, str], now: dict[str, str]) -> None:
    """What statagent.watch does of itself."""
    changed = {key: value for key, value in now.items() if before[key] != value}
    for key, value in changed.items():
        agent.log_event(
            "setting_changed", f"{key} was {before[key]} and is {value}", {"key": key, "from": before[key], "to": value}
        )
    agent.add_config(changed)


def train(steps: int, bug_step: int, place: str) -> None:
    network = Network()
    agent = statagent.init(required=True, config={"lr": LEARNING_RATE, **settings(network)})
    rank = statagent.rank()

    def observe(name: str, matrix: Matrix, kind: str) -> None:
        agent.observe(name, numbers(matrix), kind)

    with meet(rank, place) as other:
        for step in range(steps):
            if step == bug_step:
                before = settings(network)
                network.eps[WRONG_BLOCK] = WRONG_EPS  # the mistake
                note_changes(agent, before, settings(network))
            x, target = batch(step, rank)
            statagent.log_batch(x=numbers(x), target=numbers(target))
            if step == 0:
                for name, weight in network.weights.items():
                    agent.observe(name, numbers(weight), "weight")
            y = network.forward(x, observe)
            error = [[p - q for p, q in zip(a, b)] for a, b in zip(y, target)]
            loss = sum(row[0] ** 2 for row in error) / len(error)
            statagent.log_scalar("loss", loss)
            gradients = averaged(network.backward([[2 * row[0] / len(error)] for row in error], observe), rank, other)
            for name, gradient in gradients.items():
                agent.observe(name, numbers(gradient), "weight_grad")
                rows = zip(network.weights[name], gradient)
                network.weights[name] = [[w - LEARNING_RATE * g for w, g in zip(p, q)] for p, q in rows]
                agent.observe(name, numbers(network.weights[name]), "weight")
            statagent.step()
            if rank == 0 and step % 10 == 0:
                print(f"  step {step:2} loss {loss:.3f}", flush=True)
    statagent.close(timeout=20)
    counts = statagent.counters()
    if counts["acked"] != counts["produced"]:
        raise RuntimeError(f"record the run: {counts}; expected every record stored")
    if rank == 0:
        print(f"  {counts['produced']} records of rank 0, all stored", flush=True)


if __name__ == "__main__":
    train(int(sys.argv[1]), int(os.environ.get("DEMO_BUG_STEP", "-1")), os.environ["DEMO_SOCKET"])
