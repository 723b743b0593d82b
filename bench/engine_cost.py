"""What recording the rows of all tokens adds to a decode step of vLLM, in one process. Two ways: turns with and without (the hooks are taken off
the model), whose difference is of processor and of wall time; and the processor time that hooks and the agent's threads take themselves, beside the
rest of the same step, which a busy machine disturbs less. A real collector stores the rows; its time does not count. Needs the environment of
`scripts/setup.sh --for engines`.

    .venv-engines/bin/python bench/engine_cost.py      # some minutes; writes results/<date>-engine-cost.json
    .venv-engines/bin/python bench/engine_cost.py --pairs 4 --output /tmp/engine-cost.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

sys.path.insert(0, str(machine.REPOSITORY / "agent" / "python"))
ROWS = 64  # requests that decode together: a row of each in a step
STEPS = 2  # of a turn; the last is timed: in the first, keys go on from tokens that were not seen
SIZES = {"Llama, 0.14 G parameters": (1024, 8), "Llama, 0.04 G parameters": (512, 8)}  # width and layers
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
OURS = ("statagent", "grpc", "event_engine", "timer_manager")  # names of the agent's threads begin so


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of turns for each model (default 60)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-engine-cost.json)")
    arguments = parser.parse_args()
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR", STATAGENT_QUIET="1", STATAGENT_LIBRARY=str(machine.BUILD / "lib" / "libstatagent.so"),
    )  # fmt: skip
    register = _register_alone()
    facts = machine.facts()
    rows = []
    with Collector() as collector:
        import statagent

        agent = statagent.init(run="cost", collector=collector.address, required=True)
        for name, (width, layers) in SIZES.items():
            rows.append({"model": name, "width": width, "layers": layers, **_measure(agent, width, layers, arguments.pairs)})
            print(json.dumps(rows[-1]), file=sys.stderr)
            agent.end_step()  # the next model's weights have the same names
        statagent.close(timeout=60)
    parameters = {"rows": ROWS, "steps": STEPS, "pairs": arguments.pairs, "register_without_a_run_us": register}
    path = result_files.write("engine_cost", parameters, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def render(result: dict[str, Any]) -> str:
    return result_files.table(
        ["a decode step of 64 rows", "ms without", "ms in hooks", "ms in threads", "share", "by difference", "of wall time"],
        [
            [row["model"], f"{row['cpu_off_ms']:.1f}", f"{row['hooks_ms']:.2f}", f"{row['threads_ms']:.2f}", f"{row['share']:.1%}",
             f"{row['cpu_share']:.1%}", f"{row['wall_share']:.1%}"]
            for row in result["rows"]
        ],
    )  # fmt: skip


def _register_alone() -> float:
    """Microseconds of the entry point where no run is named. Then nothing of vLLM is wrapped."""
    from vllm.v1.worker.worker_base import WorkerBase

    from statagent.integrations import vllm as plugin

    os.environ.pop("STATAGENT_RUN", None)
    made = WorkerBase.__init__
    begun = time.perf_counter_ns()
    plugin.register()
    took = time.perf_counter_ns() - begun
    assert WorkerBase.__init__ is made, "the plugin has wrapped the worker of an engine that names no run"
    return round(took / 1000, 1)


def _write_config(folder: str, width: int, layers: int) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": 4 * width,
        "num_attention_heads": width // 64, "num_key_value_heads": width // 64, "head_dim": 64, "num_hidden_layers": layers,
        "vocab_size": 8192, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")


@contextlib.contextmanager
def _engine(width: int, layers: int, steps: int) -> Iterator[tuple[Any, Any]]:
    """The engine, in which ROWS requests will decode for so many steps, and its worker's model runner."""
    from vllm import LLM, SamplingParams

    from statagent.integrations import vllm as plugin

    plugin.register()  # an agent runs: as with STATAGENT_RUN
    with tempfile.TemporaryDirectory() as folder:
        _write_config(folder, width, layers)
        llm = LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_num_seqs=ROWS,
            max_model_len=1024, enable_prefix_caching=False, async_scheduling=False, seed=1,
        )  # fmt: skip
        parameters = SamplingParams(max_tokens=steps + 8, ignore_eos=True, detokenize=False)
        for number in range(ROWS):
            llm.llm_engine.add_request(f"{number}", {"prompt_token_ids": [number + 1, *range(2, 9)]}, parameters)
        yield llm.llm_engine, llm.llm_engine.model_executor.driver_worker.worker.model_runner


class _Timed:
    """A hook, and the processor time that all of them have taken."""

    spent = 0  # ns

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def __call__(self, *arguments: Any) -> Any:
        begun = time.thread_time_ns()
        result = self._hook(*arguments)
        _Timed.spent += time.thread_time_ns() - begun
        return result


def _threads() -> int:
    """Processor time of the agent's threads so far, in ns."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().startswith(OURS):
                total += int((task / "schedstat").read_text().split()[0])
    return total


def _measure(agent: Any, width: int, layers: int, pairs: int) -> dict[str, Any]:
    taps = 1 + 3 * layers + 1 + 1  # what the first layer gets; each layer, its attention and MLP; the norm; the log-probability
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    hooks_ms, threads_ms = [], []
    with _engine(width, layers, (2 * pairs + 4) * STEPS) as (engine, runner):
        parts = [*runner.get_model().modules(), runner.sampler]
        hooks = [
            (each, {key: {number: _Timed(hook) for number, hook in getattr(each, key).items()} for key in HOOKS})
            for each in parts
        ]
        for turn in range(-4, 2 * pairs):
            on = turn % 4 in (0, 3)  # with, without, without, with, ...
            for module, of in hooks:
                for key in HOOKS:
                    getattr(module, key).clear()
                    getattr(module, key).update(of[key] if on else {})
            for _ in range(STEPS - 1):
                engine.step()
            agent.flush(timeout=60)
            recorded, spent, threads = agent.counters()["produced"], _Timed.spent, _threads()
            found = _step(agent, engine)
            recorded = agent.counters()["produced"] - recorded
            if turn >= 0:  # those before warm up
                assert recorded == (taps if on else 0), f"{recorded} records in a step with {taps} taps"
                times[on].append(found)
            if turn >= 0 and on:
                hooks_ms.append((_Timed.spent - spent) / 1e6)
                threads_ms.append((_threads() - threads) / 1e6)
    own = [sum(each) for each in zip(hooks_ms, threads_ms)]  # of each step with hooks, beside what the same step takes without
    shares = sorted(ours / (step[0] - ours) for ours, step in zip(own, times[True]))
    return {
        "taps": taps, "hooks_ms": round(statistics.median(hooks_ms), 3), "threads_ms": round(statistics.median(threads_ms), 3),
        "share": round(statistics.median(shares), 4), "share_quartiles": _quartiles(shares),
        **_shares("cpu", times, 0), **_shares("wall", times, 1),
    }  # fmt: skip


def _quartiles(ascending: list[float]) -> list[float]:
    return [round(ascending[len(ascending) // 4], 4), round(ascending[3 * len(ascending) // 4], 4)]


def _step(agent: Any, engine: Any) -> tuple[float, float]:
    """Processor and wall time of a step, in ms; the former until its records are stored."""
    wall, cpu = time.perf_counter(), time.process_time()
    engine.step()
    stepped = time.perf_counter()
    agent.flush(timeout=60)  # the sending is work of this process, but nobody waits for it
    return (time.process_time() - cpu) * 1000, (stepped - wall) * 1000


def _shares(what: str, times: dict[bool, list[tuple[float, float]]], part: int) -> dict[str, Any]:
    on, off = ([each[part] for each in times[way]] for way in (True, False))
    added = [x - y for x, y in zip(on, off)]
    shares = sorted(x / y for x, y in zip(added, off))
    return {
        f"{what}_off_ms": round(statistics.median(off), 3),
        f"{what}_added_ms": round(statistics.median(added), 3),
        f"{what}_share": round(statistics.median(shares), 4),
        f"{what}_share_quartiles": _quartiles(shares),
        f"{what}_share_of_least": round(min(on) / min(off) - 1, 4),
    }


if __name__ == "__main__":
    sys.exit(main())
