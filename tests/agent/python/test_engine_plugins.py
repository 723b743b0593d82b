"""Plugins of engines, without an engine: tests/e2e/test_engines.py runs vLLM. SGLang's is tested with stand-ins that have the attributes of SGLang
0.5.23 that it reads: a scheduler's batch, a forward batch whose residual stream lies beside it, a runner that calls the model's `forward` by its
name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent.integrations import sglang as plugin
from statagent.integrations import vllm

from .support import Recording
from .token_rows import Rows

WIDTH, VOCABULARY = 16, 32
TAPS = ["layers.0.input", *(f"layers.{layer}{part}" for layer in range(2) for part in (".attn", ".mlp", "")), "norm", "logprob"]
FIRST, SECOND = [3, 9, 4, 7, 21, 8, 8, 2], [3, 9, 4, 30, 6]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH))

    def forward(self, hidden: Any, batch: Any = None) -> Any:
        if batch is None:
            hidden = hidden + self.attn(hidden)
            return hidden + self.mlp(hidden)
        stream = batch.residual_stream
        stream.write(hidden if stream.pending is None else stream.residual + stream.pending.value)
        stream.write(stream.residual + self.attn(stream.residual))
        return stream.leave(self.mlp(stream.residual))


class Stream:
    """The residual, and what the next layer will add to it. owed: a sum over ranks that nobody has made yet."""

    def __init__(self, owed: Any = None) -> None:
        self.residual: Any = None
        self.pending: Any = None
        self._owed = owed

    def write(self, residual: Any) -> None:
        self.residual, self.pending = residual, None

    def leave(self, output: Any) -> Any:
        self.pending = SimpleNamespace(value=output, owed=self._owed, update=SimpleNamespace(is_plain_add=True))
        return output


class Model(nn.Module):
    """Each token for itself, so that no cache is needed. As a trainer's it is called with ids alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Any, positions: Any = None, batch: Any = None) -> Any:
        hidden = self.embed(input_ids)
        if batch is None:
            for layer in self.layers:
                hidden = layer(hidden)
            return SimpleNamespace(logits=self.head(self.norm(hidden)))
        batch.residual_stream = Stream(batch.owed)
        for layer in self.layers:
            hidden = layer(hidden, batch=batch)
        ends = torch.tensor(batch.ends)
        normed = self.norm(hidden + batch.residual_stream.residual)
        return SimpleNamespace(next_token_logits=self.head(normed[ends]))

    def load_weights(self, change: float) -> None:
        with torch.no_grad():
            self.norm.weight.add_(change)


class Sampler(nn.Module):
    def forward(self, logits: Any, forced: Any) -> Any:
        logits.next_token_logits.div_(0.5)  # a temperature, after which they are not the model's any more
        return forced


def request(name: str, ids: list[int]) -> Any:
    return SimpleNamespace(rid=name, origin_input_ids=ids, output_ids=[])


class Scheduler:
    """Classes of its own, since the plugin changes them; and their worker."""

    def __init__(self, overlap: bool = False, tp_size: int = 1, draft: bool = False) -> None:
        class Loader:
            @staticmethod
            def postprocess_weights(model: Any, device: Any) -> None:
                model.packed = True

        class Runner:
            def __init__(self, draft: bool) -> None:
                self.is_draft_worker, self.server_args = (
                    draft,
                    SimpleNamespace(tp_size=tp_size, dtype="float32", quantization=None),
                )
                self.sampler = Sampler()
                self.load_model()

            def load_model(self) -> None:
                self.model = Model()
                Loader.postprocess_weights(self.model, "cpu")

            def forward(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
                return self.model.forward(batch.input_ids, None, batch)

            def sample(self, logits: Any, batch: Any) -> Any:
                return self.sampler(logits, batch.forced)

        class Worker:
            def __init__(self, draft: bool = False) -> None:
                self.model_runner = Runner(draft)

            def forward_batch_generation(self, batch: Any) -> Any:
                logits = self.model_runner.forward(batch.forward, pp_proxy_tensors=None)
                return self.model_runner.sample(logits, batch.forward)

        plugin.follow(Worker, Runner, Loader)
        self.overlap, self.worker, self.owed = overlap, Worker(), None
        self.drafts = Worker(draft=True) if draft else None

    def run(self, *parts: tuple[Any, int, int], decode: bool = False, worker: Any = None) -> None:
        """A batch of so many tokens from here on of each request. Sampled is what its `text` has behind them, and 0 at its end."""
        texts = [each.text for each, _, _ in parts]
        ids = [token for text, (_, start, count) in zip(texts, parts) for token in text[start : start + count]]
        reach, ends = 0, []
        for _, _, count in parts:
            reach += count
            ends.append(reach - 1)
        forced = torch.tensor([[*text, 0][start + count] for text, (_, start, count) in zip(texts, parts)])
        forward = SimpleNamespace(
            input_ids=torch.tensor(ids), rids=[each.rid for each, _, _ in parts], spec_info=None, owed=self.owed, ends=ends, forced=forced,
            seq_lens=torch.tensor([start + count for _, start, count in parts]), seq_lens_cpu=None, residual_stream=None,
            extend_seq_lens_cpu=None if decode else [count for _, _, count in parts],
            extend_prefix_lens_cpu=None if decode else [start for _, start, _ in parts],
        )  # fmt: skip
        forward.seq_lens_cpu = forward.seq_lens
        schedule = SimpleNamespace(reqs=[each for each, _, _ in parts], enable_overlap=self.overlap, forward=forward)
        (worker or self.worker).forward_batch_generation(schedule)
        for each, start, count in parts:
            each.late.append((start + count, each.text))
            if not self.overlap:
                arrive(each)


def arrive(each: Any) -> None:
    """The results of a batch reach its request."""
    at, text = each.late.pop(0)
    if len(each.origin_input_ids) <= at < len(text):
        each.output_ids.append(text[at])


def sequence(name: str, text: list[int], prompt: int) -> Any:
    made = request(name, text[:prompt])
    made.text, made.late = text, []
    return made


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, rows: Rows) -> Callable[..., Scheduler]:
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.23"))
    return Scheduler


def trained(rows: Rows) -> Rows:
    """What a trainer with the same weights records of the same tokens."""
    model = Model()
    watch = statagent.watch(model, tokens=True)
    with torch.no_grad():
        for text in (FIRST, SECOND):
            model(torch.tensor([[*text, 0]]))
    watch.remove()
    return rows.take()


def expect_same(found: Rows, base: Rows, taps: list[str] = TAPS) -> None:
    assert list(found.taps) == taps
    for tap in taps:
        assert found.taps[tap], tap
        for key, recorded in found.taps[tap].items():
            position, row = base.taps[tap][key][0]
            for at, other in recorded:
                assert at == position
                torch.testing.assert_close(other, row, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("overlap", [False, True])
def test_chunks_of_a_prefill_a_cached_prefix_mixed_batches_and_decoding_have_the_keys_and_rows_of_a_trainer(
    engine: Any, rows: Rows, overlap: bool
) -> None:
    made = engine(overlap)
    first, second = sequence("a", FIRST, 5), sequence("b", SECOND, 4)
    made.run((first, 0, 2))  # the middle of a prefill: what is sampled is thrown away
    made.run((first, 2, 3), (second, 3, 1))  # the second's prefix is in a cache
    made.run((second, 4, 1), (first, 5, 1), decode=True)  # requests change places
    if overlap:
        for each in (first, first, second):
            arrive(each)
    made.run((first, 6, 1), decode=True)
    made.run((first, 7, 1), decode=True)
    found = rows.take()
    base = trained(rows)
    expect_same(found, base)
    assert {tap: found.count(tap) for tap in TAPS} == {**dict.fromkeys(TAPS, 8 + 2), "logprob": 4 + 2}
    assert len(found.taps["norm"]) == 8 + 2  # of the prefix that both have only what was computed


def test_positions_are_chosen_by_the_variable(engine: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_TOKENS", "5-6")
    made, first = engine(), sequence("a", FIRST, 5)
    made.run((first, 0, 5))
    for at in (5, 6, 7):
        made.run((first, at, 1), decode=True)
    assert rows.positions("norm") == rows.positions("logprob") == {5, 6}


def test_a_prefix_that_nobody_knows_is_not_recorded(engine: Any, rows: Rows) -> None:
    made, first = engine(overlap=True), sequence("a", FIRST, 5)
    made.run((first, 6, 1), decode=True)  # its batch before was another worker's, and its requests' ids have not arrived
    assert rows.taps == {}


def test_warm_ups_drafts_and_parts_of_sums_are_not_recorded(engine: Any, rows: Rows) -> None:
    made, first = engine(draft=True), sequence("a", FIRST, 5)
    made.run((first, 0, 5), worker=made.drafts)
    runner = made.worker.model_runner
    ids = torch.tensor(FIRST)
    runner.forward(SimpleNamespace(input_ids=ids, rids=None, spec_info=None, owed=None, ends=[7]))  # no schedule's
    assert rows.taps == {}
    made.owed = object()
    made.run((first, 0, 5))
    assert {"layers.0", "layers.1"} & set(rows.taps) == set() and "layers.0.input" in rows.taps


def test_ranks_whose_layers_return_parts_of_sums_record_log_probabilities(engine: Any, rows: Rows) -> None:
    made, first = engine(tp_size=2), sequence("a", FIRST, 5)
    made.run((first, 0, 5))
    assert list(rows.taps) == ["logprob"]


def test_weights_are_recorded_before_kernels_pack_them_and_after_each_update(engine: Any, recording: Recording) -> None:
    made, first = engine(), sequence("a", FIRST, 5)
    names = {name for name, _ in Model().named_parameters()}
    assert {record.name for record in recording.of("weight", 0)} == names
    model = made.worker.model_runner.model
    model.load_weights(1.0)  # in two buckets
    model.load_weights(2.0)
    made.run((first, 0, 5))
    changed = [record for record in recording.of("weight", 1) if record.name == "norm.weight"]
    assert [record.hash for record in changed] == [statagent.compute(model.norm.weight.detach())["hash"]]
    made.run((first, 5, 1), decode=True)
    assert recording.of("weight", 2) == []


@pytest.mark.parametrize("each", [vllm, plugin])
def test_without_a_run_a_plugin_does_not_even_import_its_engine(
    each: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("vllm", "vllm.v1.worker.worker_base", "sglang", "sglang.srt.managers.tp_worker"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    each.register()
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("STATAGENT_RUN", "engine")
    each.register()
    assert "nothing of the engine is recorded" in capfd.readouterr().err
