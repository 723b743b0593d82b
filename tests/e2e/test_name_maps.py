"""One model in two implementations, compared by a map of their names; and maps proposed by what the tensors hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Collector, run_command

HERE = Path(__file__).resolve().parent
RUNS: list[dict[str, Any]] = [
    {"run": "hf"},
    {"run": "mcore", "of": "megatron"},
    {"run": "interleaving", "of": "megatron", "bug": "interleaving"},
    {"run": "gate", "of": "megatron", "bug": "gate"},
    {"run": "embedding", "of": "megatron", "bug": "embedding"},
    {"run": "renamed", "renamed": True},
    {"run": "frozen", "frozen": True},
    {"run": "frozen_renamed", "frozen": True, "renamed": True},
]


@pytest.fixture(scope="module")
def runs(shared_collector: Collector) -> Collector:
    environment = shared_collector.environment()
    environment["PYTHONPATH"] += f":{HERE}"
    done = run_command([sys.executable, "-m", "two_implementations", json.dumps(RUNS)], env=environment)
    assert done.code == 0, done.out + done.err
    return shared_collector


@pytest.mark.parametrize(("a", "b", "name"), [("hf", "mcore", "hf:megatron"), ("mcore", "hf", "megatron:hf")])
def test_two_implementations_of_one_model_agree(runs: Collector, a: str, b: str, name: str) -> None:
    report = runs.diff(a, b, "--map", name, "--no-alignment")
    assert report["verdict"] in ("identical", "within_tolerance"), report.get("first")
    assert report["unmatched"]["only_a"] == [] and report["unmatched"]["only_b"] == []
    assert {pair["method"] for pair in report["aligned"]} == {"map"}
    pairs = {pair["a"]: pair["b"] for pair in report["aligned"]}
    if a == "hf":
        q, k, v = (f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv")
        assert pairs[f"{q}, {k}, {v}"] == "decoder.layers.1.self_attention.linear_qkv.weight"
        assert pairs["model.embed_tokens"] == "embedding.word_embeddings"
    compared = report["compared"]
    assert compared["diverged"] == 0 and compared["records"] > 300


@pytest.mark.parametrize(
    ("run", "stage", "tensor"),
    [  # A permutation of rows is seen in the first tensor that is computed from them.
        ("interleaving", "forward", "model.layers.1.self_attn.o_proj"),
        ("gate", "forward", "model.layers.1.mlp.down_proj"),
        ("embedding", "weights", "model.embed_tokens.weight"),
    ],
)
def test_a_wrong_conversion_is_named(runs: Collector, run: str, stage: str, tensor: str) -> None:
    report = runs.diff("hf", run, "--map", "hf:megatron")
    assert report["verdict"] == "diverged"
    root = report["root"]
    assert (root["step"], root["stage"], root["activation"]) == (0, stage, tensor)
    assert (report["first"]["activation"], report["first"]["origin"]) == (tensor, True)


def test_without_a_map_they_are_not_the_same_model(runs: Collector) -> None:
    report = runs.diff("hf", "mcore", "--no-alignment")
    assert report["verdict"] == "incomparable" and "statctl map propose hf mcore" in report["message"]


def test_the_rules_of_a_built_in_map_can_be_changed(runs: Collector, tmp_path: Path) -> None:
    rules = tmp_path / "names.txt"
    shown = runs.statctl("map", "show", "hf:megatron")
    assert shown.code == 0
    rules.write_text("".join(line + "\n" for line in shown.out.splitlines() if "down_proj" not in line))
    report = runs.diff("hf", "mcore", "--map", str(rules), "--no-alignment")
    assert report["verdict"] == "diverged"
    assert all("down_proj" in name for name in report["unmatched"]["only_a"]) and report["unmatched"]["only_a"]


def test_a_renamed_copy_is_paired_by_value(runs: Collector, tmp_path: Path) -> None:
    done = runs.statctl("map", "propose", "hf", "renamed")
    rules = [line for line in done.out.splitlines() if not line.startswith("#")]
    names = {line.split(" -> ")[0]: line.split(" -> ")[1].split("  # ")[0] for line in rules}
    assert done.code == 0 and len(rules) == len(names) == len(set(names.values()))
    assert names["model.layers.1.self_attn.k_proj.weight"] == "Za.Zb.Zb.Za.Zb.weight"
    # The output of a module and that of its last part are the same tensor.
    assert names["model.layers.1.self_attn.o_proj"] == "Za.Zb.Zb.Za.Zd"
    assert all("1.00 equal bits" in line or "told apart by the order of definition and the class" in line for line in rules)
    file = tmp_path / "names.txt"
    file.write_text(done.out)
    report = runs.diff("hf", "renamed", "--map", str(file), "--no-alignment")
    assert report["verdict"] == "identical" and report["compared"]["diverged"] == 0
    assert report["unmatched"] == {"only_a": [], "only_b": []}


def test_constants_that_cannot_be_told_apart_are_left_to_the_user(runs: Collector) -> None:
    report = runs.json("map", "propose", "frozen", "frozen_renamed", codes=(1,))
    ambiguous = [pair for pair in report["records"] if pair.get("ambiguous")]
    assert len(ambiguous) == 4 and all(pair["a"].endswith("layernorm.weight") for pair in ambiguous)
    assert {pair["a"]: pair["b"] for pair in report["records"]}["model.norm.weight"] == "Za.Zc.weight"  # at another depth
    assert all(pair["reason"].startswith("ambiguous: constant, all 1: the same bits as 4 others") for pair in ambiguous)
    shown = runs.statctl("map", "propose", "frozen", "frozen_renamed").out
    assert sum(line.startswith("# ") and "ambiguous: constant" in line for line in shown.splitlines()) == 4


def test_two_implementations_are_paired_where_a_tensor_is_one_in_both(runs: Collector) -> None:
    report = runs.json("map", "propose", "hf", "mcore", codes=(1,))
    pairs = {pair["a"]: pair["b"] for pair in report["records"] if not pair.get("ambiguous")}
    assert pairs["model.layers.1.self_attn.o_proj.weight"] == "decoder.layers.1.self_attention.linear_proj.weight"
    assert pairs["model.layers.0.mlp.down_proj.weight"] == "decoder.layers.0.mlp.linear_fc2.weight"
    assert "model.layers.0.self_attn.q_proj.weight" in report["only_a"]


def test_http_proposes_the_same(runs: Collector) -> None:
    over_http = json.loads(runs.get("/api/v1/map?run_a=hf&run_b=renamed"))
    assert over_http["map"] == runs.json("map", "propose", "hf", "renamed", codes=(0, 1))["map"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["diff", "hf", "mcore", "--map", "hf:jax"],
            "no built-in map 'hf:jax'; known are hf:megatron, hf:torchtitan, hf:vllm, megatron:hf",
        ),
        (["diff", "hf", "mcore", "--map", "nowhere.txt"], "expected a file of lines PATTERN -> NAME, or a built-in map"),
        (["map", "show", "hf"], "did you mean 'hf:megatron'?"),
        (["map", "propose", "hf", "nobody"], "nobody"),
        (["map", "propose", "hf"], "run_b is required"),
        (["map"], "subcommand is required"),
    ],
)
def test_what_does_not_exist_is_said(runs: Collector, arguments: list[str], message: str) -> None:
    done = runs.statctl(*arguments)
    assert done.code >= 2 and message in done.err, done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(((((", "no '->'"),
        ("a -> b [any odor]", "expected any order, sequence first or padded"),
        ("(a{1000}){1000} -> b", "is not a pattern"),
        ("a -> b\n\x00\xff -> ", "line 2 is not text"),
        ("\x00 -> ", "empty name"),
        ("a -> b\n" * 400_000, "bytes"),
    ],
)
def test_a_hostile_file_is_refused(runs: Collector, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "names.txt"
    file.write_bytes(text.encode("latin-1"))
    done = runs.statctl("diff", "hf", "mcore", "--map", str(file))
    assert done.code >= 2 and message in done.err, done.err


def test_a_map_that_matches_nothing_says_so(runs: Collector, tmp_path: Path) -> None:
    report = runs.diff("hf", "mcore", "--map", "torchtitan:hf", "--no-alignment")
    assert report["verdict"] == "incomparable"
    assert any("map torchtitan:hf has no effect" in note for note in report["notes"])


def test_two_names_for_one_and_a_cycle_are_noted(runs: Collector, tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("model.norm -> Za.Zc\nlm_head -> Za.Zc\nloss -> loss2\nloss2 -> loss\n")
    report = runs.diff("hf", "renamed", "--map", str(file), "--no-alignment")
    assert any("'Za.Zc' of renamed has been matched with another name of hf" in note for note in report["notes"])
    assert any("map line 3" in note for note in report["notes"])
