"""What `watch` records of models under FSDP1 and hybrid sharding adds up to what it records of the plain model."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from . import layouts_ranks
from .layouts_ranks import Found
from .merged import check_parameters

NAMES = {
    "fsdp1": "plain without decay",
    "fsdp1_flat": "plain without decay",
    "fsdp1_flat_grad": "plain without decay",
    "fsdp1_no_shard": "plain without decay",
}
HYBRID = {"fsdp1_hybrid": "plain without decay", "fsdp1_hybrid_flat": "plain without decay", "fsdp2_hybrid": "plain"}


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Found]]]:
    return {n: layouts_ranks.launch(tmp_path_factory.mktemp(f"zero{n}"), "python.layouts_zero", n) for n in (2, 4)}


@pytest.mark.parametrize(
    ("ranks", "name", "plain"),
    [(2, *each) for each in NAMES.items()] + [(4, *each) for each in (NAMES | HYBRID).items()],
)
def test_the_parts_of_all_ranks_add_up_to_the_plain_model(
    launches: dict[int, list[dict[str, Found]]], ranks: int, name: str, plain: str
) -> None:
    reference = launches[ranks][0][plain.replace(" ", "_")]
    check_parameters(reference, plain, [found[name] for found in launches[ranks]], name)


@pytest.mark.parametrize("name", HYBRID)
def test_replicas_of_hybrid_sharding_have_parts_of_the_batch_of_their_own(
    launches: dict[int, list[dict[str, Found]]], name: str
) -> None:
    for rank, found in enumerate(launches[4]):
        outputs = [r for r in found[name].facts[name]["records"] if r.kind == "output"]
        assert outputs and {(r.placement.piece, r.placement.pieces) for r in outputs} == {(rank, 4)}
