"""Output paths of nested values."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from statagent import flatten


def paths(value: Any) -> list[str]:
    return [path for path, _ in flatten(value)]


def tensor() -> torch.Tensor:
    return torch.zeros(1)


@dataclass
class Pair:
    hidden: Any
    note: str
    past: Any = None


class ModelOutput(collections.OrderedDict):  # type: ignore[type-arg]
    """In the manner of Hugging Face: a mapping of the fields that are set, with attributes beside."""


Named = collections.namedtuple("Named", "first second")


def test_bare_tensor_is_path_0() -> None:
    t = tensor()
    ((path, found),) = flatten(t)
    assert path == "0"
    assert found is t


def test_parameter_is_a_tensor() -> None:
    assert paths(torch.nn.Parameter(tensor())) == ["0"]


@pytest.mark.parametrize("kind", [list, tuple, collections.deque])
def test_sequences_count_from_0_with_places_of_other_values_kept(kind: Any) -> None:
    assert paths(kind([tensor(), None, "text", tensor()])) == ["0", "3"]


def test_mapping_goes_in_insertion_order() -> None:
    assert paths({"z": tensor(), "a": tensor(), 3: tensor()}) == ["z", "a", "3"]


def test_nested_key_and_values_are_joined_by_dots() -> None:
    value = {"logits": tensor(), "past_key_values": tuple((tensor(), tensor()) for _ in range(2))}
    assert paths(value) == ["logits", "past_key_values.0.0", "past_key_values.0.1", "past_key_values.1.0", "past_key_values.1.1"]


def test_dataclass_goes_by_field() -> None:
    assert paths(Pair(hidden=[tensor()], note="x", past={"k": tensor()})) == ["hidden.0", "past.k"]


def test_model_output_goes_by_the_fields_that_are_set() -> None:
    assert paths(ModelOutput(loss=tensor(), logits=tensor())) == ["loss", "logits"]


def test_named_tuple_is_a_sequence() -> None:
    assert paths(Named(tensor(), tensor())) == ["0", "1"]


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", b"bytes", object(), torch.float32, Pair, {1, 2}, [], {}])
def test_values_without_tensors_have_no_paths(value: Any) -> None:
    assert paths(value) == []


def test_cycles_end() -> None:
    loop: list[Any] = [tensor()]
    loop.append(loop)
    loop.append({"again": loop, "other": tensor()})
    assert paths(loop) == ["0", "2.other"]


def test_one_container_in_two_places_is_found_in_both() -> None:
    shared = [tensor()]
    assert paths([shared, shared]) == ["0.0", "1.0"]


def test_depth_is_bounded() -> None:
    deep: Any = tensor()
    for _ in range(10_000):
        deep = [deep]
    assert paths(deep) == []


def test_width_is_bounded() -> None:
    assert len(flatten([[0] * 1000 for _ in range(1000)] + [tensor()])) <= 1
