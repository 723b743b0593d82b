"""What the ring of raw values costs the training thread, in turns: the ring keeps tensors of every other step, so that steps with and without it
alternate in one training. Processor time of the thread, so other work on the machine matters little. A real collector stores the records.

First it writes what it expects: the bytes that a step's share holds, at the speed of a copy that leaves the caches.

    python bench/ring_cost.py                       # three minutes; writes results/<date>-ring-cost.json
    python bench/ring_cost.py --steps 20 --output /tmp/ring-cost.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

sys.path[:0] = [str(machine.REPOSITORY / "agent" / "python"), str(machine.REPOSITORY / "examples" / "gpt_torch")]
# layers, width, heads, context, batch: one of overhead.py, and that of examples/gpt_torch.
SIZES = {"tiny": (2, 128, 4, 64, 4), "demo": (4, 128, 4, 64, 16)}
LIBRARY = machine.BUILD / "lib" / "libstatagent.so"
STEPS, MEBIBYTES = 3, 64  # of the ring
WARM_UP = 40  # steps: then the plan stands, and every page of the ring has been touched
SHARE = (MEBIBYTES << 20) // (STEPS + 3)  # of a step: agent/staging/tensor_ring.cc
RING = f"{STEPS},{MEBIBYTES}MiB;*@0-,every=2:kind=output,kind=weight_grad"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="timed steps of each training (default 120)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-ring-cost.json)")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)  # collector, size, folder: in a process of its own
    arguments = parser.parse_args()
    if arguments.part:
        address, size, folder = arguments.part
        print("\n" + json.dumps(_measure(address, size, folder, arguments.steps)))
        return 0
    import torch

    assert torch.__version__
    facts = machine.facts()
    rows = []
    with Collector() as collector:
        for size in SIZES:
            for where in ("memory", "file"):
                rows.append({"size": size, "ring": where, **_part(collector.address, size, where, arguments.steps)})
                print(json.dumps(rows[-1]), file=sys.stderr)
    path = result_files.write("ring_cost", {"steps": arguments.steps, "ring": RING}, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def render(result: dict[str, Any]) -> str:
    return result_files.table(
        ["model, ring", "bare step, ms", "recorded, ms", "MiB of a step", "kept, MiB", "expected, ms", "measured, ms", "of a bare step, %"],
        [
            [f"{row['size']}, {row['ring']}", f"{row['bare_step_ms']:.1f}", f"{row['step_ms']:.1f}", f"{row['step_mib']:.1f}", f"{row['kept_mib']:.1f}",
             f"{row['expected_ms']:.2f}", f"{row['added_ms']:.2f}", f"{row['share_percent']:.1f}"]
            for row in result["rows"]
        ],
    )  # fmt: skip


def _part(address: str, size: str, where: str, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="statcollect-ring-") as folder:
        command = [sys.executable, __file__, "--steps", str(steps), "--part", address, size, folder if where == "file" else ""]
        env = {**os.environ, "STATAGENT_LOG": "off", "STATAGENT_LIBRARY": str(LIBRARY)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        raise RuntimeError(f"a training of {size} failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(address: str, size: str, folder: str, steps: int) -> dict[str, Any]:
    import torch
    from data import Corpus
    from model import Config, Gpt
    from torch.nn import functional

    import statagent

    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers, width, heads, context, batch = SIZES[size]
    model = Gpt(Config(Corpus.vocabulary, layers, width, heads, context))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    corpus = Corpus(machine.REPOSITORY, bytes_max=1 << 20)

    def step(number: int) -> float:
        tokens, targets = corpus.batch(number, 0, batch, context, seed=1)
        begun = time.thread_time()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return 1000 * (time.thread_time() - begun)

    sizes = _sizes(torch, model, lambda: step(0))
    kept = min(sum(sizes), SHARE)
    expected = kept * _copy_ms_per_byte(torch)
    print(f"expected: {kept / 2**20:.1f} MiB, {expected:.2f} ms", file=sys.stderr)

    bare = _typical([step(number) for number in range(5 + steps // 2)][5:])
    statagent.init(run=f"ring-{size}-{os.getpid()}", collector=address, required=True, ring=RING, spill_dir=folder or None)
    statagent.watch(model, optimizer=optimizer, kinds={"output", "weight_grad"}, memory=False)
    for number in range(WARM_UP):
        step(number)
    times = [step(number) for number in range(WARM_UP, WARM_UP + steps)]
    counters = statagent.counters()
    statagent.close(timeout=30)
    with_ring, without = _typical(times[::2]), _typical(times[1::2])
    return {
        "tensors": len(sizes),
        "step_mib": round(sum(sizes) / 2**20, 2),
        "kept_mib": round(kept / 2**20, 2),
        "expected_ms": round(expected, 3),
        "bare_step_ms": round(bare, 2),
        "step_ms": round(without, 2),  # recorded, without the ring
        "added_ms": round(with_ring - without, 3),
        "share_percent": round(100 * (with_ring - without) / bare, 2),
        "dropped": sum(count for cause, count in counters.items() if cause.startswith("dropped")),
    }


def _typical(times: list[float]) -> float:
    """The mean of the faster half: what else the machine does only adds."""
    return statistics.fmean(sorted(times)[: len(times) // 2])


def _sizes(torch: Any, model: Any, step: Any) -> list[int]:
    """Bytes of each output and each weight's gradient of one step."""
    sizes: list[int] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.numel() * output.element_size()))
        for module in model.modules()
        if not isinstance(module, torch.nn.ModuleList)
    ]
    step()
    for hook in hooks:
        hook.remove()
    return sizes + [parameter.numel() * parameter.element_size() for parameter in model.parameters()]


def _copy_ms_per_byte(torch: Any) -> float:
    """Of 64 MiB into memory that has been written before."""
    source, target = torch.ones(64 << 20, dtype=torch.uint8), torch.zeros(64 << 20, dtype=torch.uint8)
    times = []
    for _ in range(5):
        begun = time.thread_time()
        target.copy_(source)
        times.append(1000 * (time.thread_time() - begun) / len(source))
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
