"""A trainer (Transformers) against vLLM: the same tokens, in two programs. Needs the environment that `scripts/setup.sh --for engines` makes."""

from __future__ import annotations

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
PYTHON = Path(os.environ.get("STATCOLLECT_ENGINES_VENV", ROOT / ".venv-engines")) / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"{PYTHON} is missing; scripts/setup.sh --for engines makes it, or STATCOLLECT_ENGINES_VENV names it",
)
CLEAN = ["padded", "packed", "alone"]


@dataclass
class Pair:
    """An engine's run, and the sequences that it sampled."""

    collector: Collector
    model: Path
    family: str
    sequences: list[list[int]]
    cached: int
    err: str

    def trainers(self, *faults: str) -> None:
        prefix = f"{self.family}_"
        done = self.collector.python(
            (PROGRAMS / "faulty_trainer.py").read_text(),
            str(self.model),
            json.dumps(self.sequences),
            prefix,
            *faults,
            timeout=600,
        )
        assert done.code == 0

    def tokens(self, trainer: str, *arguments: str) -> Any:
        return self.collector.json("diff", f"{self.family}_{trainer}", self.family, "--tokens", *arguments, codes=(0, 1, 2))


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


def sample(collector: Collector, folder: Path, family: str) -> Pair:
    model, out = folder / family, folder / f"{family}.json"
    collector.python((PROGRAMS / "faulty_trainer.py").read_text(), "make", str(model), family)
    random = np.random.default_rng(0)
    shared = random.integers(1, 500, 40).tolist()
    prompts = [shared + random.integers(1, 500, more).tolist() for more in (5, 9)] + [random.integers(1, 500, 6).tolist()]
    environment = engine_environment(folder / "plugin", STATAGENT_COLLECTOR=collector.address, STATAGENT_RUN=family)
    done = subprocess.run(
        [str(PYTHON), str(PROGRAMS / "vllm_sampling.py"), str(model), json.dumps(prompts), str(out)], env=environment, cwd=folder,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    return Pair(collector, model, family, found["sequences"], found["cached"], done.stderr)


@pytest.fixture(scope="module", params=["llama"])
def pair(request: Any, shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return sample(shared_collector, tmp_path_factory.mktemp("engines"), request.param)


def test_clean_pairs_are_equal_in_every_layout_of_the_trainer(pair: Pair) -> None:
    assert pair.cached > 0  # a prefix that was not computed again
    pair.trainers(*CLEAN)
    for layout in CLEAN:
        answer = pair.tokens(layout)
        assert answer["verdict"] in ("identical", "within_tolerance"), answer
    text = pair.collector.statctl("diff", f"{pair.family}_padded", pair.family, "--tokens")
    assert text.code == 0, text.out


def test_a_planted_fault_is_named_at_its_tap(pair: Pair) -> None:
    import faulty_trainer

    pair.trainers(*faulty_trainer.FAULTS)
    named: dict[str, tuple[Any, str]] = {}
    for fault, (_, tap) in faulty_trainer.FAULTS.items():
        answer = pair.tokens(fault)
        first = answer["first"]
        named[fault] = (None if first is None else answer["taps"][first]["tap"], tap)
    wrong = {fault: pair for fault, pair in named.items() if pair[0] != pair[1]}
    print(wrong)
    assert len(wrong) <= len(named) // 10, wrong


def test_other_ids_are_not_comparable(pair: Pair) -> None:
    pair.trainers("other_tokenizer")
    answer = pair.tokens("other_tokenizer")
    assert answer["verdict"] == "incomparable", answer


def test_fused_weights_arrived_by_the_map_of_engines_md(pair: Pair, tmp_path: Path) -> None:
    pair.trainers("weights")
    (names,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs/engines.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "names.txt").write_text(names)
    done = pair.collector.statctl("weights", f"{pair.family}_weights", pair.family, "--map", str(tmp_path / "names.txt"))
    assert done.code == 0, done.out + done.err
