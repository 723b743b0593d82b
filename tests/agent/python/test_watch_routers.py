"""`watch(tokens=True)`: what routers of mixtures of experts choose, however they are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, InvalidArgumentError, token_keys

WIDTH, EXPERTS, VOCABULARY = 16, 6, 32
IDS = [[3, 5, 9, 4, 7], [8, 1, 2, 6, 30]]


@pytest.fixture
def parts(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[tuple[int, Any, torch.Tensor]]]]:
    """What was recorded, by tap: first columns, keys and rows."""
    found: dict[str, list[tuple[int, Any, torch.Tensor]]] = {}
    record = Agent.record_rows

    def recorded(self: Agent, tap: str, values: Any, keys: Any, positions: Any, *, index: Any, **where: int) -> None:
        rows = values if index is None else values[torch.from_numpy(index)]
        found.setdefault(tap, []).append((where["first_column"], keys.copy(), rows.clone()))
        record(self, tap, values, keys, positions, index=index, **where)

    monkeypatch.setattr(Agent, "record_rows", recorded)
    yield found
    assert "dropped_refused" not in agent.counters()


class Listed(nn.Module):
    """Experts in a list, beside a linear layer."""

    def __init__(self, **attributes: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)) for _ in range(EXPERTS)])
        self.shared = nn.Sequential(nn.Linear(WIDTH, EXPERTS), nn.Linear(EXPERTS, WIDTH))
        self.attributes = attributes
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        outputs = torch.stack([expert(tokens) for expert in self.experts], 1)
        return (outputs.gather(1, chosen[..., None].expand(-1, -1, WIDTH)) * weights[..., None]).sum(1).view_as(x) + self.shared(
            x
        )


class Router(nn.Module):
    """Returns its choice, which a bias shifts that is not among the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.bias = nn.Linear(WIDTH, EXPERTS, bias=False), torch.tensor([0.0, 0, 0, 9, 0, 0])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.gate(x)
        chosen = (logits + self.bias).topk(2, -1).indices
        return logits.gather(1, chosen), chosen


class Fused(nn.Module):
    """Experts in one tensor, beside a module that has the linear layer and returns what it chose."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = Router(), nn.ParameterDict({"weight": torch.randn(EXPERTS, WIDTH, WIDTH)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = self.router(tokens)
        return (torch.einsum("td,tkde->tke", tokens, self.experts["weight"][chosen]) * weights[..., None]).sum(1).view_as(x)


class Plain(nn.Module):
    """A router that no structure tells."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Linear(WIDTH, 12, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.choice(x).topk(9, -1).values.sum(-1, keepdim=True)


class Model(nn.Module):
    def __init__(self, mixture: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers: Any = nn.ModuleList([nn.ModuleDict({"mlp": mixture})])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids)
        return x + self.layers[0]["mlp"](x)


def run(mixture: nn.Module, **options: Any) -> torch.Tensor:
    """The model's pass over IDS; returns the router's logits as they should be."""
    torch.manual_seed(2)
    model = Model(mixture)
    watch = statagent.watch(model, kinds="output", tokens=True, **options)
    with torch.no_grad():
        model(torch.tensor(IDS))
        watch.remove()
        matrix = next(module for name, module in model.named_modules() if name.endswith(("gate", "choice")))
        return matrix(model.embedding(torch.tensor(IDS)).flatten(0, 1)).detach()


def expect_choice(parts: Any, name: str, logits: torch.Tensor, scores: torch.Tensor, chosen: int) -> torch.Tensor:
    """The records of the router are these; returns the margins. `scores`: by which it chooses."""
    keys = token_keys(np.array(IDS)).reshape(-1).tolist()
    (first, found, rows), *_ = parts[name]
    assert first == 0 and found.tolist() == keys
    torch.testing.assert_close(rows, logits, atol=1e-5, rtol=1e-5)
    columns = [first for first, _, _ in parts[f"{name}:chosen"]]
    assert columns == list(range(0, chosen + 1, 8))
    whole = torch.cat([rows for _, _, rows in parts[f"{name}:chosen"]], 1)
    assert torch.equal(whole[:, 1:].long(), scores.topk(chosen, -1).indices.sort(-1).values)
    return whole[:, 0]


def test_a_linear_layer_beside_a_list_of_experts_is_a_router(parts: Any) -> None:
    logits = run(Listed(top_k=2))
    margins = expect_choice(parts, "layers.0.mlp.gate", logits, logits, 2)
    ordered = logits.sort(-1, descending=True).values
    torch.testing.assert_close(margins, ordered[:, 1] - ordered[:, 2], atol=1e-5, rtol=1e-4)
    assert sum(tap.endswith(":chosen") for tap in parts) == 1, "the shared expert is none"


def test_what_a_router_returns_is_its_choice_even_if_its_logits_say_otherwise(parts: Any) -> None:
    mixture = Fused()
    logits = run(mixture)
    margins = expect_choice(parts, "layers.0.mlp.router.gate", logits, logits + mixture.router.bias, 2)
    assert (margins < 0).any()


def test_a_router_without_a_number_is_named_and_takes_one_from_the_user(parts: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run(Listed())
    assert not any(tap.endswith(":chosen") for tap in parts)
    assert 'pass routers={"layers.0.mlp.gate": 2}' in capfd.readouterr().err
    parts.clear()
    logits = run(Listed(), routers={"*.gate": 3})
    expect_choice(parts, "layers.0.mlp.gate", logits, logits, 3)


def test_a_pattern_names_a_router_and_many_experts_come_in_parts(parts: Any) -> None:
    logits = run(Plain(), routers={"*.choice": 9})
    expect_choice(parts, "layers.0.mlp.choice", logits, logits, 9)


@pytest.mark.parametrize("routers", [2, ["*.gate"], {"*.gate": 0}, {"*.gate": True}, {3: 2}])
def test_routers_that_are_no_numbers_by_pattern_are_refused(agent: Agent, routers: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"watch: routers: found .*; expected"):
        statagent.watch(Model(Listed()), tokens=True, routers=routers)


def test_routers_need_tokens(agent: Agent) -> None:
    with pytest.raises(InvalidArgumentError, match="give tokens=True"):
        statagent.watch(Model(Listed()), routers={"*.gate": 2})
