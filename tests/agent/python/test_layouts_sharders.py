"""Layouts of DeepSpeed and Megatron-Core, by their own objects on ranks over gloo. Needs both packages: they are not installed by
scripts/setup.sh (docs/layouts.md)."""

from __future__ import annotations

import pytest

from . import layouts_ranks
from .layouts_ranks import Found

pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytest.importorskip("megatron.core")

NAMES = (
    "zero1", "zero2", "zero3", "linears", "strided_initialization", "context_parallel", "distributed_optimizer", "zigzag_of_hand",
)  # fmt: skip


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    return layouts_ranks.launch(tmp_path_factory.mktemp("sharders"), "python.layouts_sharders", request.param)


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_all_ranks_merge_to_the_whole(ranks: list[dict[str, Found]], name: str) -> None:
    layouts_ranks.check_merges(ranks, name)
