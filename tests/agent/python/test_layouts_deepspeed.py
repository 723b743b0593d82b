"""What `watch` records of models under DeepSpeed ZeRO adds up to what it records of the plain model. Needs DeepSpeed, which
scripts/setup.sh does not install (docs/layouts.md)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytest.importorskip("accelerate")

from . import layouts_ranks
from .layouts_ranks import Found
from .merged import check_parameters


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    return layouts_ranks.launch(tmp_path_factory.mktemp("deepspeed"), "python.layouts_deepspeed", request.param)


@pytest.mark.parametrize("given", ["outer", "inner", "accelerate"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_parts_of_all_ranks_add_up_to_the_plain_model(ranks: list[dict[str, Found]], stage: int, given: str) -> None:
    found = [rank[f"zero{stage}_{given}"] for rank in ranks]
    check_parameters(ranks[0]["plain"], "plain", found, f"zero{stage} {given}")
    for number, rank in enumerate(found):
        assert rank.facts[f"zero{stage} {given}"]["config"]["parallel.zero_stage"] == str(stage)
        outputs = [r for r in rank.facts[f"zero{stage} {given}"]["records"] if r.kind == "output"]
        assert outputs and {(r.placement.piece, r.placement.pieces) for r in outputs} == {(number, len(ranks))}
        assert not [e for e in rank.facts[f"zero{stage} {given}"]["events"] if e[1] in ("layout_unknown", "not_recorded")]
