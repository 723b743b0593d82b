"""What `watch` records of Megatron-Core's GPT adds up to what it records on one rank. Needs megatron-core, which scripts/setup.sh does not
install (docs/layouts.md)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from . import layouts_ranks
from .layouts_ranks import Found
from .merged import by_tensor, check_parameters, merged

# Under each, activations that nothing places: they are heads, or what modules of torch make of parts.
BETWEEN = ("q_layernorm", "k_layernorm", "softmax", "attention_dropout", "cross_att", "bda", "activation_func")


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Found]]:
    found: dict[str, list[Found]] = {}
    for count in (1, 2, 4):
        launched = layouts_ranks.launch(tmp_path_factory.mktemp(f"megatron{count}"), "python.layouts_megatron", count)
        found |= {name: [rank[name] for rank in launched] for name in launched[0]}
    return found


def check_outputs(plain: Found, label: str, ranks: list[Found], cut: str) -> None:
    whole, parts = by_tensor([plain], label), by_tensor(ranks, cut)
    compared, unknown = 0, set()
    for key, (record,) in whole.items():
        if key[2] != "output":
            continue
        assert parts[key], f"{key} is missing"
        if any(r.placement is None for r in parts[key]):
            unknown.add(key[1])
            continue
        _, l2, _ = merged(parts[key])
        assert l2 == pytest.approx(record.l2, rel=1e-4), key
        compared += 1
    assert compared > 50
    assert not [name for name in unknown if not any(part in name for part in BETWEEN)]


@pytest.mark.parametrize(
    ("cut", "plain"),
    [
        ("tensor", "plain"), ("tensor_gated", "gated"), ("pipeline", "plain"), ("interleaved_pipeline", "plain"), ("tensor_data", "plain"), ("tensor_pipeline", "plain"),
        ("pipeline_data", "plain"),
    ],
)  # fmt: skip
def test_the_parts_of_all_ranks_add_up_to_the_model_on_one_rank(launches: dict[str, list[Found]], cut: str, plain: str) -> None:
    (reference,) = launches[plain]
    check_parameters(reference, plain, launches[cut], cut)
    check_outputs(reference, plain, launches[cut], cut)


def test_stages_of_a_pipeline_have_the_names_of_the_whole_model(launches: dict[str, list[Found]]) -> None:
    def layers(found: Found) -> set[str]:
        names = {r.name for r in found.facts["pipeline"]["records"] if r.kind == "weight" and ".layers." in r.name}
        return {name.split(".")[2] for name in names}

    assert [layers(found) for found in launches["pipeline"]] == [{"0", "1"}, {"2", "3"}]


def test_experts_have_their_numbers_among_those_of_all_ranks(launches: dict[str, list[Found]]) -> None:
    def experts(found: Found) -> set[str]:
        records: list[Any] = found.facts["expert_ranks"]["records"]
        return {
            r.name.split("local_experts.")[1].split(".")[0] for r in records if r.kind == "weight" and "local_experts." in r.name
        }

    assert [experts(found) for found in launches["expert_ranks"]] == [{"0", "1"}, {"2", "3"}]
    whole, parts = by_tensor(launches["experts"][:1], "experts"), by_tensor(launches["expert_ranks"], "expert_ranks")
    assert len(whole) > 20 and {key: merged(records)[2] for key, records in parts.items()} == {
        key: record.hash for key, (record,) in whole.items()
    }


def test_sizes_of_the_groups_are_settings(launches: dict[str, list[Found]]) -> None:
    config = launches["tensor_data"][3].facts["tensor_data"]["config"]
    sizes = {key: config[f"parallel.{key}"] for key in ("tp", "pp", "cp", "dp", "tp_rank", "dp_rank")}
    assert sizes == {"tp": "2", "pp": "1", "cp": "1", "dp": "2", "tp_rank": "1", "dp_rank": "1"}
