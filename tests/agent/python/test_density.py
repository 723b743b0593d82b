"""Density of inputs: what counts as padding, under which name, and that nothing changes."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch.nn.functional import cross_entropy as imported_before

import statagent
from statagent import Agent

from .support import Recording

EMBED, LABEL = 1, 2
IDS = torch.tensor([[3, 4, 5, 1, 1, 1], [7, 8, 9, 1, 1, 1]])
LABELS = torch.tensor([-100, 1, 2, -100, 0, 3, 2, -100, 1, 0, -100, -100])


class Tagger(nn.Module):
    def __init__(self, padding: int | None = 1, embed: bool = True) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(10, 8, padding_idx=padding), nn.Linear(8, 4)
        self.functional = not embed
        self.padding = padding

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.functional:
            x = functional.embedding(input_ids, self.tokens.weight, self.padding)
        else:
            x = self.tokens(input_ids)
        return self.head(x)


def densities(recording: Recording, step: int | None = None) -> list[tuple[Any, ...]]:
    """(input, type, pad index, valid, total, valid a sample)"""
    return [found[1:] for found in recording.densities if step is None or found[0] == step]


@pytest.mark.parametrize("embed", [True, False], ids=["module", "functional"])
def test_embedding_says_the_padding_and_the_model_the_name(agent: Agent, recording: Recording, embed: bool) -> None:
    model = Tagger(embed=embed)
    statagent.watch(model)
    model(IDS).sum().backward()
    assert densities(recording) == [("input_ids", EMBED, 1, 6, 12, (3, 3))]


def cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, LABELS)


def module(logits: torch.Tensor) -> torch.Tensor:
    return nn.CrossEntropyLoss()(logits, LABELS)


def nll(logits: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(logits.log_softmax(1), LABELS)


def nll_module(logits: torch.Tensor) -> torch.Tensor:
    return nn.NLLLoss(ignore_index=-100)(logits.log_softmax(1), LABELS)


def by_name(logits: torch.Tensor) -> torch.Tensor:
    return imported_before(logits, LABELS)


@pytest.mark.parametrize("loss", [cross_entropy, module, nll, nll_module, by_name])
def test_loss_says_what_it_ignores(agent: Agent, recording: Recording, loss: Any) -> None:
    model = Tagger(padding=None)
    statagent.watch(model)
    loss(model(IDS).view(12, 4)).backward()
    assert densities(recording) == [("labels", LABEL, -100, 7, 12, ())]


def test_another_ignore_index_and_class_probabilities(agent: Agent, recording: Recording) -> None:
    model = Tagger(padding=None)
    statagent.watch(model)
    logits = model(IDS).view(12, 4)
    functional.cross_entropy(logits, torch.full((12,), 2), ignore_index=2, reduction="sum").backward(retain_graph=True)
    functional.cross_entropy(logits, torch.rand(12, 4)).backward()
    assert densities(recording) == [("labels", LABEL, 2, 0, 12, ())]


def test_names_come_from_log_batch_and_views_of_it(agent: Agent, recording: Recording) -> None:
    model = Tagger()
    statagent.watch(model)
    batch = {"ids": IDS.clone(), "targets": LABELS.clone().view(2, 6)}
    statagent.log_batch(**batch)
    functional.cross_entropy(model(batch["ids"]).view(12, 4), batch["targets"].view(-1)).backward()
    assert [found[:5] for found in densities(recording)] == [("ids", EMBED, 1, 6, 12), ("targets", LABEL, -100, 7, 12)]


def test_inputs_may_be_given_with_their_padding(agent: Agent, recording: Recording) -> None:
    model = Tagger(padding=None)
    statagent.watch(model, density={"input_ids": 5, "my_labels": 0})
    statagent.log_batch(my_labels=LABELS)
    model(IDS).sum().backward()
    assert densities(recording) == [("my_labels", LABEL, 0, 10, 12, ()), ("input_ids", EMBED, 5, 11, 12, (5, 6))]


def test_each_micro_batch_and_step_once(agent: Agent, recording: Recording) -> None:
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer, steps="1-")
    for _ in range(3):
        for _ in range(2):
            model(IDS).sum().backward()
        optimizer.step()
    assert [found[0] for found in recording.densities] == [1, 1, 2, 2]


def test_evaluation_and_recomputation_count_nothing(agent: Agent, recording: Recording) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Tagger):
        def forward(self, input_ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return checkpoint(super().forward, input_ids, use_reentrant=False)

    model = Checkpointed()
    statagent.watch(model)
    with torch.no_grad():
        functional.cross_entropy(model(IDS).view(12, 4), LABELS)
    model.eval()
    functional.cross_entropy(model(IDS).view(12, 4), LABELS)
    model.train()
    assert densities(recording) == []
    model(IDS).sum().backward()
    assert len(densities(recording)) == 1


def test_embedding_of_another_model_is_none_of_ours(agent: Agent, recording: Recording) -> None:
    model, other = Tagger(padding=None), nn.Embedding(10, 4, padding_idx=1)
    statagent.watch(model)
    (model(IDS).sum() + other(torch.tensor([[1, 2]])).sum()).backward()
    assert densities(recording) == []


@pytest.mark.parametrize("shape", [(0, 6), (2, 0)])
def test_empty_inputs_are_left_out(agent: Agent, recording: Recording, shape: tuple[int, int]) -> None:
    model = Tagger()
    statagent.watch(model)
    model(torch.zeros(shape, dtype=torch.long)).sum().backward()
    assert densities(recording) == []
    assert statagent.counters().get("dropped_refused", 0) == 0


def test_a_batch_of_very_many_samples_is_told_as_a_whole(agent: Agent, recording: Recording) -> None:
    model = Tagger()
    statagent.watch(model)
    model(torch.ones(5000, 2, dtype=torch.long)).sum().backward()
    assert densities(recording) == [("input_ids", EMBED, 1, 0, 10000, ())]


def test_training_is_the_same_bit_for_bit(agent: Agent) -> None:
    def train(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Tagger()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        made = statagent.watch(model, optimizer, memory=["modules"]) if watched else None
        for _ in range(5):
            functional.cross_entropy(model(IDS).view(12, 4), LABELS).backward()
            optimizer.step()
            optimizer.zero_grad()
        if made is not None:
            made.remove()
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True)))


def test_what_is_wrapped_is_given_back(agent: Agent) -> None:
    before = torch.embedding, torch._C._nn.cross_entropy_loss, torch._C._nn.nll_loss_nd
    one, two = statagent.watch(Tagger()), statagent.watch(Tagger(), name="two")
    assert torch.embedding is not before[0]
    one.remove()
    assert torch.embedding is not before[0], "the other one still needs it"
    two.remove()
    assert (torch.embedding, torch._C._nn.cross_entropy_loss, torch._C._nn.nll_loss_nd) == before
    statagent.watch(Tagger())
    statagent.close(timeout=0)
    assert torch.embedding is before[0], "closing the agent ends it, too"


def test_torchscript_pickle_compile_and_fx_see_through_it(agent: Agent, recording: Recording) -> None:
    model = Tagger()
    model.loss = imported_before  # type: ignore[assignment]
    statagent.watch(model)

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(10, 4, padding_idx=1)

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.tokens(ids), labels) + functional.nll_loss(self.tokens(ids), labels)

    scripted = torch.jit.script(Scripted())
    assert scripted(torch.tensor([3, 1]), torch.tensor([0, -100])).dim() == 0
    torch.save(model, io.BytesIO())
    traced = torch.fx.symbolic_trace(Scripted())
    assert traced(torch.tensor([3, 1]), torch.tensor([0, -100])).dim() == 0
    batched = torch.vmap(lambda ids: functional.embedding(ids, model.tokens.weight, 1))(IDS)
    assert batched.shape == (2, 6, 8)
    assert statagent.counters().get("dropped_refused", 0) == 0


@pytest.mark.parametrize("density", [3, "input_ids", {"a": 1.5}, {"": 1}, {1: 1}, {"a": True}, {"a": 2**70}])
def test_what_it_does_not_know_is_an_error(agent: Agent, density: Any) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="padding indexes by the name"):
        statagent.watch(nn.Linear(2, 2), density=density)


def test_it_can_be_switched_off(agent: Agent, recording: Recording) -> None:
    model = Tagger()
    before = torch.embedding
    statagent.watch(model, density=False)
    assert torch.embedding is before
    model(IDS).sum().backward()
    assert densities(recording) == []


def test_counts_that_come_late_are_of_their_own_step(agent: Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a GPU: the counts arrive steps later."""
    waiting: list[tuple[Any, Any]] = []
    monkeypatch.setattr(agent.deferred, "add", lambda what, tensor, done: waiting.append((tensor, done)))
    model = Tagger()
    statagent.watch(model)
    for _ in range(2):
        model(IDS).sum().backward()
        statagent.step()
    assert recording.densities == []
    for tensor, done in waiting:
        done(tensor)
    assert [found[0] for found in recording.densities] == [0, 1]
    assert densities(recording, 1) == [("input_ids", EMBED, 1, 6, 12, (3, 3))]
