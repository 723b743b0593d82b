"""`watch(tokens=...)`: rows of a language model under the keys of their tokens, whatever the layout of the batch."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, InvalidArgumentError, token_keys

from .support import ROOT, Recording
from .token_rows import Rows

transformers = pytest.importorskip("transformers", reason="scripts/setup.sh --for test installs transformers")

TAPS = [
    "model.layers.0.input",
    *(f"model.layers.{layer}{part}" for layer in range(2) for part in (".self_attn", ".mlp", "")),
    "model.norm",
    "logprob",
]
FIRST = [11, 3, 5, 9, 42, 7, 23]
SECOND = [11, 3, 5, 8, 4]  # shares a prefix of three


def llama(**options: Any) -> Any:
    torch.manual_seed(1)
    settings = {
        "hidden_size": 32, "head_dim": 16, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "vocab_size": 64, "pad_token_id": 0, "eos_token_id": 63, "initializer_range": 0.2,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**settings, **options})).eval()


def expect_same(base: Rows, other: Rows, taps: list[str] = TAPS, keys: set[int] | None = None) -> None:
    """Every row of `other` is the row that `base` has under its key."""
    for tap in taps:
        found = other.taps[tap]
        assert set(found) <= set(base.taps[tap]) and (keys is None or set(found) == keys), tap
        for key, recorded in found.items():
            position, row = base.taps[tap][key][0]
            for other_position, other_row in recorded:
                assert other_position == position
                torch.testing.assert_close(other_row, row, atol=1e-5, rtol=1e-4)


def alone(model: Any, rows: Rows, *sequences: list[int]) -> Rows:
    """Each sequence in a pass of its own: the plainest layout."""
    with torch.no_grad():
        for sequence in sequences:
            model(torch.tensor([sequence]), use_cache=False)
    return rows.take()


def padded(left: bool, *sequences: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(map(len, sequences))
    ids, mask = torch.zeros(len(sequences), length, dtype=torch.long), torch.zeros(len(sequences), length, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        at = slice(length - len(sequence), None) if left else slice(0, len(sequence))
        ids[row, at], mask[row, at] = torch.tensor(sequence), 1
    return ids, mask


def test_keys_are_those_of_token_keys_and_taps_come_in_the_models_order(rows: Rows) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    base = alone(model, rows, FIRST)
    assert list(base.taps) == TAPS
    keys = token_keys(np.array(FIRST)).tolist()
    for tap in TAPS[:-1]:
        assert list(base.taps[tap]) == keys and [found[0][0] for found in base.taps[tap].values()] == list(range(len(FIRST)))
    assert list(base.taps["logprob"]) == keys[1:]  # of the token itself, whose predecessor's logits say how likely it is
    logits = model(torch.tensor([FIRST])).logits[0].log_softmax(-1)
    said = [base.taps["logprob"][key][0][1].item() for key in keys[1:]]
    assert said == pytest.approx([logits[i, token].item() for i, token in enumerate(FIRST[1:])], abs=1e-5)


@pytest.mark.parametrize("left", [True, False])
def test_padding_on_either_side_changes_neither_keys_nor_rows_and_is_not_recorded(rows: Rows, left: bool) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    base = alone(model, rows, FIRST, SECOND)
    ids, mask = padded(left, FIRST, SECOND)
    with torch.no_grad():
        model(ids, attention_mask=mask)
    found = rows.take()
    expect_same(base, found)
    assert found.count("model.norm") == len(FIRST) + len(SECOND) and set(found.taps["model.norm"]) == set(base.taps["model.norm"])
    shared = token_keys(np.array(FIRST[:3])).tolist()
    assert all(len(found.taps["model.norm"][key]) == 2 for key in shared)


def test_packed_sequences_begin_where_positions_start_again(rows: Rows) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    base = alone(model, rows, FIRST, SECOND)
    positions = torch.tensor([[*range(len(FIRST)), *range(len(SECOND))]])
    with torch.no_grad():
        model(torch.tensor([FIRST + SECOND]), position_ids=positions, use_cache=False)
    expect_same(base, rows.take())


def test_packed_sequences_begin_where_a_block_mask_or_added_lengths_say(rows: Rows) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    base = alone(model, rows, FIRST, SECOND)
    packed, count = torch.tensor([FIRST + SECOND]), len(FIRST)
    allowed = torch.ones(1, 1, packed.shape[1], packed.shape[1]).tril().bool()
    allowed[..., count:, :count] = False
    positions = torch.tensor([[*range(count), *range(len(SECOND))]])
    for mask in (allowed, torch.where(allowed, 0.0, torch.finfo(torch.float32).min)):
        with torch.no_grad():
            model(packed, attention_mask=mask, position_ids=positions, use_cache=False)
        expect_same(base, rows.take())


class Packed(nn.Module):
    """A model of its own kind: names, layers and lengths as its author likes them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 8)
        self.h = nn.ModuleList(nn.ModuleDict({"ln": nn.LayerNorm(8), "mix": nn.Linear(8, 8)}) for _ in range(2))
        self.out = nn.Linear(8, 64)

    def forward(self, idx: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
        x = self.table(idx)
        for layer in self.h:
            assert isinstance(layer, nn.ModuleDict)
            x = x + layer["mix"](layer["ln"](x))
        return self.out(x)


def test_any_models_ids_are_found_and_lengths_divide_a_flat_batch(rows: Rows) -> None:
    model = Packed()
    statagent.watch(model, tokens=True)
    model(torch.tensor(FIRST + SECOND), cu_seqlens=torch.tensor([0, len(FIRST), len(FIRST) + len(SECOND)]))
    found = rows.take()
    assert list(found.taps) == ["h.0.mix", "h.1.mix", "logprob"]  # of layers that are not called, their parts are
    assert set(found.taps["h.0.mix"]) == {*token_keys(np.array(FIRST)).tolist(), *token_keys(np.array(SECOND)).tolist()}
    assert found.count("logprob") == len(FIRST) + len(SECOND) - 2


def test_generate_continues_the_keys_of_what_its_cache_holds(rows: Rows) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    ids, mask = padded(True, FIRST, SECOND)
    made = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
    found = rows.take()
    base = alone(model, rows, made[0].tolist(), made[1].tolist()[len(FIRST) - len(SECOND) :])
    expect_same(base, found)
    assert found.count("model.norm") == len(FIRST) + len(SECOND) + 2 * 4
    assert found.count("logprob") == 2 * 4  # generate computes the logits of the last token only


def test_beams_that_change_places_take_their_keys_with_them(rows: Rows) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    made = model.generate(torch.tensor([FIRST]), max_new_tokens=6, num_beams=4, num_return_sequences=4, do_sample=False)
    found = rows.take()
    base = alone(model, rows, *made.tolist())
    for tap in TAPS:
        shared = set(base.taps[tap]) & set(found.taps[tap])
        assert tap == "logprob" or len(shared) > len(FIRST) + 4
        for key in shared:
            for _, row in found.taps[tap][key]:
                torch.testing.assert_close(row, base.taps[tap][key][0][1], atol=1e-5, rtol=1e-4)


def test_a_cache_that_was_cut_goes_on_and_one_that_was_not_seen_is_said(rows: Rows, recording: Recording) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(torch.tensor([FIRST]), past_key_values=cache)
        rows.take()
        cache.crop(3 - len(FIRST))
        foreign = copy.deepcopy(cache)
        model(torch.tensor([SECOND[3:]]), past_key_values=cache)
        cut = rows.take()
        model(torch.tensor([SECOND[3:]]), past_key_values=foreign)
    assert rows.take().taps == {}
    assert any("filled by a pass that was not seen" in text for _, kind, text, _ in recording.events if kind == "not_recorded")
    expect_same(alone(model, rows, SECOND), cut, TAPS[:-1])


def test_embeddings_in_the_place_of_ids_have_keys_of_their_own(rows: Rows) -> None:
    model = llama()
    statagent.watch(model, tokens=True)
    given = model.get_input_embeddings()(torch.tensor([FIRST, [*FIRST[:4], 1, 2, 3]])).detach()
    with torch.no_grad():
        model(inputs_embeds=given)
        first = rows.take()
        model(inputs_embeds=given[1:, :4])
    second = rows.take()
    expect_same(first, second, TAPS[:-1])
    assert "logprob" not in first.taps  # of which id, nobody says
    assert len(first.taps["model.norm"]) == 4 + 3 + 3 and len(second.taps["model.norm"]) == 4


def test_training_has_the_same_values_and_checkpoints_record_once(rows: Rows) -> None:
    def train(watched: bool, checkpoints: bool) -> list[torch.Tensor]:
        model = llama().train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = statagent.watch(model, optimizer, tokens=True) if watched else None
        for _ in range(2):
            ids = torch.tensor([FIRST])
            model(ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if watch is not None:
            watch.remove()
        return [parameter.detach().clone() for parameter in model.parameters()]

    expected = train(False, False)
    assert all(torch.equal(*pair) for pair in zip(train(True, False), expected))
    found = rows.take()
    assert {step for _, step, _ in found.steps} == {0, 1} and found.count("model.norm") == 2 * len(FIRST)
    assert {call for _, _, call in found.steps} == {0}
    train(True, True)
    assert rows.take().count("model.layers.1.mlp") == 2 * len(FIRST)


def test_only_the_chosen_positions_are_recorded(rows: Rows) -> None:
    model = llama()
    statagent.watch(model, tokens="0-4,every=2")
    base = alone(model, rows, FIRST)
    assert [found[0][0] for found in base.taps["model.norm"].values()] == [0, 2, 4]
    assert [found[0][0] for found in base.taps["logprob"].values()] == [2, 4]


def test_log_probabilities_that_a_model_makes_itself_are_those_of_its_labels(rows: Rows) -> None:
    model = llama()
    forward = model.forward

    def fused(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        """As TRL's trainers patch a model's: no logits, and zero where there is no label."""
        logits = forward(input_ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1]
        scores = logits.log_softmax(-1).gather(2, input_ids[:, 1:, None])[..., 0]
        return SimpleNamespace(loss=-scores.mean(), log_probs=scores.masked_fill(labels[:, 1:] == -100, 0))

    statagent.watch(model, tokens=True)
    base = alone(model, rows, FIRST, SECOND)
    model.forward = fused
    ids, mask = padded(True, FIRST, SECOND)
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-3] = -100  # only the completion has some
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask, labels=labels)
    found = rows.take()
    expected = {key for text in (FIRST, SECOND) for key in token_keys(np.array(text))[-3:].tolist()}
    expect_same(base, found, ["logprob"], expected)
    expect_same(base, found, TAPS[:-1])


def test_a_residual_that_a_layer_returns_apart_is_added(rows: Rows) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.mlp(x), x + residual

    class Engine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layers = nn.Embedding(64, 8), nn.ModuleList([Layer()])

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(input_ids)
            added, residual = self.layers[0](x, x)
            return added + residual

    model = Engine()
    statagent.watch(model, tokens=True)
    expected = model(torch.tensor(FIRST))
    found = rows.take()
    assert torch.equal(torch.stack([each[0][1] for each in found.taps["layers.0"].values()]), expected)


def test_other_families_have_their_taps_without_a_list_of_names(rows: Rows) -> None:
    torch.manual_seed(2)
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=64, n_positions=32)
    ).eval()
    with statagent.watch(gpt2, tokens=True), torch.no_grad():
        gpt2(torch.tensor([FIRST, FIRST]))
    expected = [
        "transformer.h.0.input",
        "transformer.h.0.attn",
        "transformer.h.0.mlp",
        "transformer.h.0",
        "transformer.ln_f",
        "logprob",
    ]
    assert list(rows.take().taps) == expected
    settings = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(num_hidden_layers=1, vocab_size=64, num_local_experts=4, **settings)
    mixtral = transformers.MixtralForCausalLM(config).eval()
    with statagent.watch(mixtral, tokens=True), torch.no_grad():
        mixtral(torch.tensor([FIRST]))
    parts = [".input", ".self_attn", ".mlp.gate", ".mlp.gate:chosen", ".mlp", ""]
    assert list(rows.take().taps) == [*(f"model.layers.0{part}" for part in parts), "model.norm", "logprob"]


def test_what_cannot_be_recorded_is_said(agent: Agent, recording: Recording) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    statagent.watch(net, tokens=True)
    net(torch.ones(2, 4))
    said = [text for _, kind, text, _ in recording.events if kind == "not_recorded"]
    assert any("found no layers" in text for text in said) and any("neither token ids nor embeddings" in text for text in said)


@pytest.mark.parametrize(
    ("tokens", "message"), [(3, "found 3; expected True, or positions"), ("first", "found 'first'; expected True, or positions")]
)
def test_bad_arguments_are_named(agent: Agent, tokens: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        statagent.watch(nn.Linear(2, 2), tokens=tokens)


def test_the_lines_of_engines_md_run_as_printed(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_COLLECTOR", "127.0.0.1:1")
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/engines.md").read_text(encoding="utf-8"), re.DOTALL)
    model = llama()
    names: dict[str, Any] = {"statagent": statagent, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    exec(block, names)
    before = statagent.counters()["produced"]
    with torch.no_grad():
        model(torch.tensor([FIRST]))
    assert statagent.counters()["produced"] >= before + len(TAPS)
