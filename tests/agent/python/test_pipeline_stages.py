"""A pipeline's stages are not taken for data-parallel ranks (the whole: tests/e2e/test_layouts_micro_batches.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.pipelining.stage

import statagent
from statagent._layouts import layouts, pipeline
from statagent._layouts.experts import Experts
from statagent._layouts.rules import Rules

SOURCE = "class Stage:\n    def __init__(self, ranks): self.group_size = ranks\n    def run(self, call): return call()\n"


def stage(ranks: int) -> Any:
    scope: dict[str, Any] = {"__name__": "torch.distributed.pipelining.stage"}
    exec(SOURCE, scope)
    return scope["Stage"](ranks)


def test_a_stage_that_runs_the_model_is_seen() -> None:
    assert pipeline.stages_here() is None
    assert stage(4).run(lambda: [pipeline.stages_here() for _ in range(2)]) == [4, 4]


def placed(ranks: int, stages: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(layouts, "all_ranks", lambda: (1, ranks))
    rules = Rules({"*": statagent.batch(micro_batches=2)})
    model = layouts.ModelLayouts(torch.nn.Linear(3, 3), [], [], rules, Experts())
    return stage(stages).run(lambda: model.place("x", "batch", "0", 0, torch.ones(4, 3)))


def test_stages_have_the_same_samples_if_they_are_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert placed(2, 2, monkeypatch) is None  # where they are is not known


def test_ranks_without_a_pipeline_have_parts_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "stages_here", lambda: None)
    assert placed(2, 2, monkeypatch).global_shape == (16, 3)


def test_a_pipeline_over_some_ranks_needs_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match=r"a pipeline over 2 of 4 ranks.*expected group="):
        placed(4, 2, monkeypatch)
