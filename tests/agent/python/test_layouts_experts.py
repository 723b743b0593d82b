"""Experts are found by their structure, with their numbers among all ranks; their rows have no order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent._layouts import experts, layouts
from statagent._layouts.placement import Placement, whole
from statagent._layouts.rules import Rules
from statagent._torch.modules import name_modules, name_parameters

WIDTH = 12


class Mixture(nn.Module):
    def __init__(self, here: int, total: int, router: bool = True) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, total if router else 3, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)) for _ in range(here)])


class Fused(nn.Module):
    def __init__(self, here: int, total: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, total, bias=False)
        self.experts = nn.Module()
        self.experts.up = nn.Parameter(torch.zeros(here, 20, WIDTH))
        self.experts.bias = nn.Parameter(torch.zeros(here, 20))


def model_of(mixture: nn.Module, classes: int = 15) -> nn.ModuleDict:
    """Blocks, too, are a list of modules of one class beside a matrix."""
    block = nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "mlp": mixture})
    return nn.ModuleDict(
        {"tokens": nn.Embedding(16, WIDTH), "blocks": nn.ModuleList([block, block]), "head": nn.Linear(WIDTH, classes)}
    )


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(rank: int, size: int) -> None:
        for module in (experts, layouts):
            monkeypatch.setattr(module, "all_ranks", lambda: None if size == 1 else (rank, size))

    return put


def named(model: nn.Module) -> Any:
    found = experts.find(model)
    modules = name_modules(model, "", found.keys)
    return layouts.ModelLayouts(model, modules, name_parameters(modules), Rules(None), found)


def expert_names(model: nn.Module) -> set[str]:
    return {each.name for each in name_modules(model, "", experts.find(model).keys) if ".experts." in each.name}


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2), (3, 4)])
def test_experts_have_the_numbers_that_they_have_among_all_ranks(on_rank: Any, rank: int, size: int) -> None:
    on_rank(rank, size)
    here = 4 // size
    model = model_of(Mixture(here, 4))
    first = rank * here
    numbers = {name.split(".experts.")[1].split(".")[0] for name in expert_names(model)}
    assert numbers == {f"{n}" for n in range(first, first + here)}
    assert len(experts.find(model).inside) == 3 * here
    assert experts.find(model).settings() == ({} if size == 1 else {"parallel.ep": f"{size}"})


def test_rows_of_an_expert_are_a_set_that_ranks_share(on_rank: Any) -> None:
    on_rank(1, 2)
    places = named(model_of(Mixture(2, 4)))
    expected = Placement((1, 8), boxes=(((0, 0), (1, 8)),), piece=1, pieces=2, unordered=0)
    for kind, path in (("output", ""), ("grad_output", ""), ("input", "0")):
        name = "blocks.0.mlp.experts.2.0"
        assert places.place(name, kind, path, 0, torch.zeros(5, 8)) == expected
        assert places.place(name, kind, path, 0, torch.zeros(0, 8)) == expected
    assert places.place("blocks.0.mlp.experts.2.0.weight", "weight", "", 0, torch.zeros(8, WIDTH)) is None
    assert places.place("blocks.0.mlp", "output", "", 0, torch.zeros(5, 8)) is None


@pytest.mark.parametrize("mixture", [Mixture(4, 4, router=False), Mixture(2, 6), nn.ModuleList([nn.Linear(WIDTH, WIDTH)] * 2)])
def test_lists_without_a_router_of_their_own_are_no_experts(on_rank: Any, mixture: nn.Module) -> None:
    on_rank(0, 2)
    model = model_of(mixture)
    assert experts.find(model) == experts.Experts()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_blocks_are_no_experts_of_a_head_with_as_many_rows(on_rank: Any, size: int) -> None:
    on_rank(0, size)
    dense = nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH))
    assert experts.find(model_of(dense, classes=2 * size)) == experts.Experts()
    patches = model_of(dense, classes=2 * size)
    patches["tokens"] = nn.Conv2d(3, WIDTH, 4)
    assert experts.find(patches) == experts.Experts() and experts.routers(patches) == []
    mixture = Mixture(4 // size, 4)
    model = model_of(mixture, classes=2 * size)
    assert len(experts.find(model).inside) == 3 * 4 // size
    assert [router.matrix for router in experts.routers(model)] == [mixture.router]
    outer = nn.ModuleDict({"model": model_of(dense, classes=3), "score": nn.Linear(WIDTH, 2 * size)})
    assert experts.find(outer) == experts.Experts()


def test_experts_whose_number_is_not_known_are_left_out(on_rank: Any) -> None:
    on_rank(2, 4)  # over two of four ranks: which ones, nothing shows
    model = model_of(Mixture(2, 4))
    found = experts.find(model)
    assert found.inside == set() and found.keys == {}
    assert named(model).place("blocks.0.mlp.experts.0", "output", "", 0, torch.zeros(5, WIDTH)) is None


def test_fused_experts_are_cut_along_their_first_dimension(on_rank: Any) -> None:
    on_rank(1, 2)
    places = named(model_of(Fused(2, 4)))
    up, bias = torch.zeros(2, 20, WIDTH), torch.zeros(2, 20)
    assert places.place("blocks.0.mlp.experts.up", "weight", "", 0, up) == Placement(
        (4, 20, WIDTH), boxes=(((2, 0, 0), (2, 20, WIDTH)),)
    )
    assert places.place("blocks.0.mlp.experts.bias", "weight_grad", "", 0, bias) == Placement((4, 20), boxes=(((2, 0), (2, 20)),))
    assert named(model_of(Fused(4, 4))).place("blocks.0.mlp.experts.up", "weight", "", 0, torch.zeros(4, 20, WIDTH)) is None


def test_rows_declared_by_the_user_go_with_a_shard_of_another_dimension() -> None:
    said = {"*.up": statagent.shard(-1, (1, 2)), "*.experts*": statagent.rows(1, group=(2, 3))}
    rules = Rules(said)
    assert rules.find("a.experts.up") == said["*.up"] and rules.rows("a.experts.up") == said["*.experts*"]
    sharded = statagent.shard(-1, (1, 2)).place((2, 5, 8))
    rows = rules.rows("a.experts.up")
    assert rows is not None
    assert rows.place(sharded, (2, 3)) == Placement((2, 1, 16), boxes=(((0, 0, 8), (2, 1, 8)),), piece=2, pieces=3, unordered=1)
    assert rows.place(whole((4,)), (0, 1)) is None, "no second dimension"
    assert rows.place(Placement((2, 9, 8), boxes=(((0, 3, 0), (2, 4, 8)),)), (0, 1)) is None, "rows with places"
    with pytest.raises(statagent.InvalidArgumentError, match="rows: dim is 'x'; expected a whole number"):
        statagent.rows("x")  # type: ignore[arg-type]
