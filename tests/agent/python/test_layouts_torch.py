"""Layouts of torch's wrappers on real ranks over gloo: known tensors are cut by torch, and the parts must merge to the whole."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

from . import layouts_ranks
from .layouts_ranks import Found
from .merged import by_tensor, merged

NAMES = (
    "distributed_tensors", "partial_sums", "tensor_parallel_styles", "foreign_hooks", "fsdp2", "fsdp2_over_tensor_parallel", "fsdp1",
    "fsdp1_flat", "ddp", "users", "samplers", "contexts",
)  # fmt: skip


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    return layouts_ranks.launch(tmp_path_factory.mktemp("torch"), "python.layouts_torch", request.param)


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_all_ranks_merge_to_the_whole(ranks: list[dict[str, Found]], name: str) -> None:
    layouts_ranks.check_merges(ranks, name)


def test_tensor_parallelism_says_nothing_where_nothing_is_wrong(ranks: list[dict[str, Found]]) -> None:
    found = [rank["tensor_parallel_watched"] for rank in ranks]
    assert [each.error for each in found] == [""] * len(ranks)
    for each in found:
        facts = each.facts["tensor parallel"]
        assert facts["refusals"] == []
        assert [kind for _, kind, *_ in facts["events"]] == ["graph_transition"]
    # What has no place is the same bits on all ranks, or a part that only the collector can tell from that.
    unplaced = [
        {(r.step, r.name, r.kind, r.path): r.hash for r in each.facts["tensor parallel"]["records"] if r.placement is None}
        for each in found
    ]
    same = [key for key, value in unplaced[0].items() if all(rank.get(key) == value for rank in unplaced)]
    assert {name for _, name, *_ in same} >= {"norm", "drop", "head", "_Parallel"}


def test_packed_sequences_are_placed_anew_in_each_pass(ranks: list[dict[str, Found]]) -> None:
    found = [rank["packed"] for rank in ranks]
    outputs = {key[0]: records for key, records in by_tensor(found, "packed").items() if key[2] == "output"}
    hashes = found[0].facts["hashes"]
    for step in range(3):
        shape, _, content = merged(outputs[step])
        assert shape == (1, 8 * len(ranks), 2) and content == hashes[step], step
    assert all(r.placement is None or r.placement.pieces > 1 for r in outputs[3])
    for each in found:
        texts = [str(event) for event in each.facts["packed"]["events"] if "layout_unknown" in str(event)]
        assert texts and "expected multiples of" in texts[0], each.facts["packed"]["events"]
