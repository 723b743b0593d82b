"""Host time of hooks in C and of hooks through ctypes, in turns: the training thread's processor time, in microseconds, of which the fastest of
many rounds counts. So other work on the machine matters little. A real collector stores the records.

    python bench/host_turns.py                      # two minutes; writes results/<date>-host-turns.json
    python bench/host_turns.py --turns 1 --rounds 50 --output /tmp/host-turns.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

sys.path.insert(0, str(machine.REPOSITORY / "agent" / "python"))
MODULES = 100  # in the chain that is timed
PARAMETERS = 50  # of the optimizer that is timed: with their gradients and two states each
FLUSHED_EVERY = 20  # rounds
NAMES = {
    "forward": "module hook, output and a hook for its gradient",
    "empty": "of which PyTorch's own, for any hook",
    "hooked": "and with its register_hook of the output",
    "backward": "gradient hook",
    "hooked_backward": "of which PyTorch's own",
    "update": "weight, gradient and two states of a parameter",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="processes of each way (default 5)")
    parser.add_argument("--rounds", type=int, default=200, help="timed rounds in each (default 200)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-host-turns.json)")
    parser.add_argument("--collector", help=argparse.SUPPRESS)  # in a process of one turn
    arguments = parser.parse_args()
    if arguments.collector:
        print(json.dumps(_measure(arguments.collector, arguments.rounds)))
        return 0
    import torch

    assert torch.__version__
    facts = machine.facts()
    best: dict[str, dict[str, float]] = {"C": {}, "ctypes": {}}
    with Collector() as collector:
        for _ in range(arguments.turns):
            for way, found in best.items():
                for name, value in _turn(way, collector.address, arguments.rounds).items():
                    found[name] = min(value, found.get(name, value))
    rows = [{"name": NAMES[key], **{way: round(found[key], 2) for way, found in best.items()}} for key in NAMES]
    path = result_files.write("host_turns", {"turns": arguments.turns, "rounds": arguments.rounds}, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def render(result: dict[str, Any]) -> str:
    return result_files.table(
        ["microseconds of processor time, fastest round", "in C", "through ctypes"],
        [[row["name"], f"{row['C']:.2f}", f"{row['ctypes']:.2f}"] for row in result["rows"]],
    )


def _turn(way: str, address: str, rounds: int) -> dict[str, float]:
    env = {
        **os.environ,
        "STATAGENT_EXTENSION": "1" if way == "C" else "0",
        "STATAGENT_QUIET": "1",
        "STATAGENT_LIBRARY": str(machine.BUILD / "lib" / "libstatagent.so"),
    }
    command = [sys.executable, __file__, "--collector", address, "--rounds", str(rounds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        raise RuntimeError(f"a turn of {way} failed: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure(address: str, rounds: int) -> dict[str, float]:
    """The fastest of each, less the same without an observer."""
    import torch

    import statagent
    from statagent._native import host

    assert (host.extension is None) == (os.environ["STATAGENT_EXTENSION"] == "0"), "build statagent_host first"
    torch.set_num_threads(1)
    agent = statagent.init(run=f"turns-{os.getpid()}", collector=address, required=True)

    class Scale(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 1.0

    plain, empty, hooked, watched = (torch.nn.Sequential(*(Scale() for _ in range(MODULES))) for _ in range(4))
    for module in empty:
        module.register_forward_hook(_nothing)
    for module in hooked:
        module.register_forward_hook(_hook_output)
    statagent.watch(watched, kinds={"output", "grad_output"}, include=["*"], name="on", memory=False)
    models = {"plain": plain, "empty": empty, "hooked": hooked, "watched": watched}
    least: dict[tuple[str, int], float] = {}

    def note(name: str, part: int, value: float) -> None:
        least[name, part] = min(value, least.get((name, part), value))

    for index in range(rounds):
        for name, model in models.items():
            for part, value in enumerate(_pass(torch, model)):
                note(name, part, value)
        agent.end_step()
        if index % FLUSHED_EVERY == 0:
            agent.flush(timeout=30)
    update = _update(torch, statagent, agent, rounds)
    statagent.close(timeout=30)
    return {
        "forward": least["watched", 0] - least["plain", 0],
        "empty": least["empty", 0] - least["plain", 0],
        "hooked": least["hooked", 0] - least["plain", 0],
        "backward": least["watched", 1] - least["plain", 1],
        "hooked_backward": least["hooked", 1] - least["plain", 1],
        "update": update,
    }


def _nothing(*_: Any) -> None:
    pass


def _hook_output(module: Any, args: Any, output: Any) -> None:
    output.register_hook(_nothing)


def _pass(torch: Any, model: Any) -> tuple[float, float]:
    """Microseconds per module of one forward and one backward pass."""
    x = torch.ones(1, requires_grad=True)
    begun = time.thread_time_ns()
    y = model(x)
    forward = time.thread_time_ns()
    y.backward()
    return (forward - begun) / MODULES / 1000, (time.thread_time_ns() - forward) / MODULES / 1000


def _update(torch: Any, statagent: Any, agent: Any, rounds: int) -> float:
    """Microseconds per parameter of what an optimizer's hooks record."""

    def layers() -> Any:
        return torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(PARAMETERS))

    least = []
    for watched in (False, True):
        model = layers()
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if watched:
            kinds = {"weight", "weight_grad", "optimizer_state"}
            statagent.watch(model, optimizer=optimizer, kinds=kinds, name="updated", memory=False)
        times = []
        for index in range(rounds):
            begun = time.thread_time_ns()
            optimizer.step()
            times.append((time.thread_time_ns() - begun) / PARAMETERS / 1000)
            if index % FLUSHED_EVERY == 0:
                agent.flush(timeout=30)
        least.append(min(times))
    return least[1] - least[0]


if __name__ == "__main__":
    sys.exit(main())
