"""A trainer (Transformers) against vLLM: the same tokens, in two programs. Needs the environment that `scripts/setup.sh --for engines` makes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Collector, agent_environment

PROGRAMS = Path(__file__).parent / "engine_programs"
sys.path.insert(0, str(ROOT / "agent" / "python"))  # faulty_trainer imports statagent
sys.path.insert(0, str(PROGRAMS))
TRAINER = PROGRAMS / "faulty_trainer.py"
PYTHON = Path(os.environ.get("STATCOLLECT_ENGINES_VENV", ROOT / ".venv-engines")) / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"{PYTHON} is missing; scripts/setup.sh --for engines makes it, or STATCOLLECT_ENGINES_VENV names it",
)
FAMILIES = ["llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma2"]
CLEAN = ["padded", "packed", "alone", "decoded"]


@dataclass
class Pair:
    """An engine's run, and the sequences that it sampled."""

    collector: Collector
    model: Path
    family: str
    sequences: list[list[int]]
    cached: int

    @property
    def map(self) -> list[str]:
        """Layers of experts have other names in the two programs; all else has not."""
        return ["--map", "hf:vllm"] if self.family in ("mixtral", "qwen3_moe") else []

    def trainers(self, *faults: str) -> None:
        done = self.collector.python(
            TRAINER.read_text(), str(self.model), json.dumps(self.sequences), self.family, *faults, timeout=600
        )
        assert done.code == 0

    def tokens(self, trainer: str) -> Any:
        return self.collector.json("diff", f"{self.family}_{trainer}", self.family, "--tokens", *self.map, codes=(0, 1, 2))

    def weights(self, trainer: str, engine: str = "", *arguments: str) -> Any:
        return self.collector.json("weights", f"{self.family}_{trainer}", engine or self.family, *arguments, codes=(0, 1))


def plugin(folder: Path) -> Path:
    """The metadata of an installed wheel, by which vLLM finds the plugin."""
    made = folder / "statagent-0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: statagent\nVersion: 0\n")
    (made / "entry_points.txt").write_text("[vllm.general_plugins]\nstatagent = statagent.integrations.vllm:register\n")
    return folder


def engine_environment(folder: Path, **extra: str) -> dict[str, str]:
    environment = agent_environment(
        VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", TOKENIZERS_PARALLELISM="false", **extra
    )  # fmt: skip
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(plugin(folder))])
    return environment


def run_engine(collector: Collector, folder: Path, run: str, model: Path, prompts: list[list[int]], **options: Any) -> Any:
    out = folder / f"{run}.json"
    environment = engine_environment(folder / f"plugin_{run}", STATAGENT_COLLECTOR=collector.address, STATAGENT_RUN=run)
    if "step" in options or "sent" in options:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if "tensor_parallel_size" in options:  # else vLLM wants a memory node for each rank
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    done = subprocess.run(
        [str(PYTHON), str(PROGRAMS / "vllm_sampling.py"), str(model), json.dumps(prompts), str(out), json.dumps(options)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: Any, shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, folder = request.param, tmp_path_factory.mktemp("engines")
    model = folder / family
    shared_collector.python(TRAINER.read_text(), "make", str(model), family)
    random = np.random.default_rng(0)
    shared = random.integers(1, 500, 40).tolist()
    prompts = [shared + random.integers(1, 500, more).tolist() for more in (5, 9)] + [random.integers(1, 500, 6).tolist()]
    found = run_engine(shared_collector, folder, family, model, prompts)
    return Pair(shared_collector, model, family, found["sequences"], found["cached"])


def test_clean_pairs_are_equal_in_every_layout_of_the_trainer(pair: Pair) -> None:
    assert pair.cached > 0  # a prefix that was not computed again
    pair.trainers(*CLEAN)
    for layout in CLEAN:
        answer = pair.tokens(layout)
        assert answer["verdict"] in ("identical", "within_tolerance"), answer
        assert [check for check in answer["comparable"] if not check["ok"]] == [], answer
        taps = next(check["detail"] for check in answer["comparable"] if check["check"] == "taps")
        alone = [name for names in re.findall(r" only in \S+ \((.*?)\)", taps) for name in names.split(", ")]
        # The plugin records no routers.
        assert all(name.endswith(".gate") or name == "..." for name in alone) and (
            alone == [] or pair.family in ("mixtral", "qwen3_moe")
        ), taps
    text = pair.collector.statctl("diff", f"{pair.family}_padded", pair.family, "--tokens", *pair.map)
    assert text.code == 0, text.out


def test_a_planted_fault_is_named_at_its_tap(pair: Pair) -> None:
    import faulty_trainer  # which imports torch

    faults = faulty_trainer.FAULTS[pair.family]
    pair.trainers(*faults)
    named: dict[str, tuple[Any, str]] = {}
    for fault, (_, tap) in faults.items():
        answer = pair.tokens(fault)
        first = answer["first"]
        named[fault] = (None if first is None else answer["taps"][first]["tap"], tap)
    wrong = {fault: taps for fault, taps in named.items() if taps[0] != taps[1]}
    print(wrong)
    assert len(wrong) <= len(named) // 10, wrong


def test_other_ids_are_not_comparable(pair: Pair) -> None:
    pair.trainers("other_tokenizer")
    answer = pair.tokens("other_tokenizer")
    assert answer["verdict"] == "incomparable", answer


def test_weights_arrived_bit_for_bit_also_in_merged_and_padded_layers(pair: Pair) -> None:
    pair.trainers("sent")
    answer = pair.weights("sent", "", *pair.map)
    assert (answer["records"], answer["equal"]) == ([], answer["compared"]), answer
    if pair.map:
        assert "--map hf:vllm" in str(pair.weights("sent")["notes"])


@pytest.mark.parametrize("pair", ["qwen2"], indirect=True)  # whose head is tied and whose vocabulary vLLM pads
def test_an_engine_of_another_dtype_has_the_trainers_weights_cast(pair: Pair, tmp_path: Path) -> None:
    run_engine(pair.collector, tmp_path, "bf16", pair.model, [[1, 2]], dtype="bfloat16")
    pair.trainers("sent_as_f32", "sent_as_bf16")
    cast, equal = pair.weights("sent_as_f32", "bf16"), pair.weights("sent_as_bf16", "bf16")
    assert {row["state"] for row in cast["records"]} == {"cast"} and cast["compared"] == equal["compared"] == equal["equal"] > 40


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
def test_what_did_not_arrive_is_said_weight_by_weight(pair: Pair, tmp_path: Path) -> None:
    pair.collector.python(TRAINER.read_text(), "send", "llama_sender", str(pair.model), str(tmp_path / "sent"))
    run_engine(pair.collector, tmp_path, "receiver", tmp_path / "sent", [[1, 2]], step=1)
    answer = pair.weights("sender", "receiver")
    assert answer["step"] == 1
    assert {row["name_a"] or row["name_b"]: row["state"] for row in answer["records"]} == {
        "model.layers.1.mlp.up_proj.weight": "stale",
        "model.layers.2.self_attn.o_proj.weight": "permuted",
        "model.layers.0.self_attn.q_proj.weight": "exchanged",
        "model.layers.0.self_attn.k_proj.weight": "exchanged",
        "model.norm.weight": "differs",
        "value.weight": "missing_in_b",
    }


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="scripts/setup.sh --for test installs trl")
def test_a_training_with_trl_is_compared_as_the_page_says(shared_collector: Collector, tmp_path: Path) -> None:
    model, to = tmp_path / "model", tmp_path / "to"
    shared_collector.python(TRAINER.read_text(), "make", str(model), "llama")
    shared_collector.python((PROGRAMS / "trl_training.py").read_text(), "trl", str(model), str(to), timeout=600)
    trained = json.loads((to / "sequences.json").read_text())
    # What the updates of steps 0 and 1 have left, with which step 2 is trained.
    run_engine(shared_collector, tmp_path, "trl_engine", to / "checkpoint-2", trained[2], sent=1)
    arrived = shared_collector.json("weights", "trl", "trl_engine")
    assert (arrived["step"], arrived["records"]) == (1, []) and arrived["compared"] == arrived["equal"] > 30, arrived
    answer = shared_collector.json("diff", "trl", "trl_engine", "--tokens")
    assert answer["verdict"] in ("identical", "within_tolerance"), answer
    assert [check for check in answer["comparable"] if not check["ok"]] == [], answer
    tokens = sum(map(len, trained[2]))
    logprob = next(tap for tap in answer["taps"] if tap["tap"] == "logprob")
    assert logprob["rows"] == len(trained[2]) and tokens // 2 < max(tap["rows"] for tap in answer["taps"]) <= tokens, answer


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="cores 0 and 1 are not there: vLLM gives each rank one")
@pytest.mark.parametrize("pair", ["mixtral"], indirect=True)  # matrices that are merged, cut or neither, and experts
def test_two_tensor_parallel_ranks_are_one_engine(pair: Pair, tmp_path: Path) -> None:
    run_engine(pair.collector, tmp_path, f"{pair.family}_ranks", pair.model, pair.sequences, tensor_parallel_size=2)
    assert pair.collector.json("show", f"{pair.family}_ranks")["summary"]["ranks"] == 2
    pair.trainers("alone_again")
    answer = pair.collector.json("diff", f"{pair.family}_alone_again", f"{pair.family}_ranks", "--tokens", *pair.map)
    assert answer["verdict"] in ("identical", "within_tolerance"), answer
    arrived = pair.weights("alone_again", f"{pair.family}_ranks", *pair.map)
    assert (arrived["records"], arrived["equal"]) == ([], arrived["compared"]) and arrived["compared"] > 30, arrived
