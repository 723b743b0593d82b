"""The tokens of one pass of a model, from the arguments that its root is called with: padding, packed sequences, cached prefixes."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_IDS, _EMBEDDINGS, _MASK, _POSITIONS = "input_ids", "inputs_embeds", "attention_mask", ("position_ids", "positions")
_LENGTHS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens", "cu_seq_lens")
_OTHERS = frozenset((_MASK, *_POSITIONS, *_LENGTHS, "labels", "token_type_ids", "cache_position", "seq_idx"))
_ALLOWED_FROM = -1.0  # an additive mask says 0 for what may be seen, and a very negative number for the rest


@dataclass(frozen=True)
class Tokens:
    """shape: leading dimensions of the ids. The arrays are [sequences, length]: ids, whether it is no padding, and whether it is the first
    of its sequence although another token stands before it. named: the ids are tokens, not hashes of embeddings. cache: what holds the
    tokens before these; None: nothing came before. labelled: whether the pass was given the token as a label; None: it has no labels."""

    shape: tuple[int, ...]
    ids: Any
    live: Any
    first: Any
    named: bool
    cache: Any
    labelled: Any = None


class Arguments:
    """Reads the arguments of one root. Not thread-safe."""

    def __init__(self, root: Any) -> None:
        self._signature: inspect.Signature | None = None
        with contextlib.suppress(TypeError, ValueError):
            self._signature = inspect.signature(root.forward)

    def named(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """By name. Positional ones without a known name are called "0", "1", ..."""
        if self._signature is None:
            return {**{f"{i}": value for i, value in enumerate(args)}, **kwargs}
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError:  # the call will fail, and say why
            return dict(kwargs)
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                found.update((f"{i}", each) for i, each in enumerate(value))
            else:
                found[name] = value
        return found


def find_tokens(arguments: Mapping[str, Any], cached: int) -> Tokens | None:
    """The tokens of a pass; None if no argument has ids or embeddings. cached: how many tokens the cache holds before these, with padding.

    Copies ids, mask, positions and labels to the CPU: one wait for a GPU."""
    ids = _ids(arguments)
    if ids is None:
        embeddings: Any = arguments.get(_EMBEDDINGS)
        if not _is_tensor(embeddings) or embeddings.dim() not in (2, 3):
            return None
        shape = tuple(embeddings.shape[:-1])
        there = _hashed(embeddings)
    else:
        shape = tuple(ids.shape)
        there = ids.detach().cpu().numpy().astype(np.int64)
    there = there.reshape(shape if len(shape) == 2 else (1, -1))
    live, first = _masked(arguments.get(_MASK), there.shape, cached)
    _divide(arguments, there.shape, live, first)
    labels: Any = arguments.get("labels")
    labelled = None
    if ids is not None and _is_tensor(labels) and labels.shape == ids.shape:
        labelled = labels.detach().cpu().numpy().reshape(there.shape) == there
    return Tokens(shape, there, live, first, ids is not None, find_cache(arguments), labelled)


def find_cache(arguments: Mapping[str, Any]) -> Any:
    """The object that keeps what earlier passes of the same sequences computed."""
    return next((value for value in arguments.values() if callable(getattr(value, "get_seq_length", None))), None)


def _ids(arguments: Mapping[str, Any]) -> Any:
    named = arguments.get(_IDS)
    if _is_tensor(named):
        return named
    for name, value in arguments.items():
        if name not in _OTHERS and _is_tensor(value) and value.dim() in (1, 2) and _is_whole(value):
            return value
    return None


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_whole(tensor: Any) -> bool:
    import torch

    return tensor.dtype in (torch.int64, torch.int32)


def _hashed(embeddings: Any) -> Any:
    """A number for each row of the embeddings, of its bits as f32, in the place of an id."""
    rows = embeddings.detach().reshape(-1, embeddings.shape[-1]).float().cpu().contiguous().numpy()
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def _masked(mask: Any, shape: tuple[int, int], cached: int) -> tuple[Any, Any]:
    """Which tokens are no padding, and which begin a sequence, as far as the mask says."""
    live, first = np.ones(shape, dtype=bool), np.zeros(shape, dtype=bool)
    if isinstance(mask, Mapping):
        mask = next((value for value in mask.values() if _is_tensor(value)), None)
    if not _is_tensor(mask):
        return live, first
    length = shape[1]
    if mask.dim() == 2 and mask.shape[0] == shape[0] and mask.shape[1] >= length:
        numbers = mask.detach()[:, mask.shape[1] - length :].cpu().numpy()
        live = numbers > 0  # numbers above 1 number the sequences of a row
        first[:, 1:] = (numbers[:, 1:] != numbers[:, :-1]) & live[:, 1:] & live[:, :-1]
    elif mask.dim() == 4 and mask.shape[0] in (1, shape[0]) and mask.shape[2] == length and mask.shape[3] >= cached + length:
        allowed = _allowed(mask.detach()[:, 0])
        live = np.broadcast_to(_diagonal(allowed, cached), shape).copy()
        if cached + length > 1:
            before = _diagonal(allowed[:, 1:] if not cached else allowed, cached - 1 if cached else 0)
            first[:, 0 if cached else 1 :] = ~before & live[:, 0 if cached else 1 :]
    return live, first


def _allowed(mask: Any) -> Any:
    import torch

    return mask if mask.dtype == torch.bool else mask > (_ALLOWED_FROM if mask.is_floating_point() else 0)


def _diagonal(allowed: Any, offset: int) -> Any:
    """Of [sequences, length, tokens seen]."""
    return allowed.diagonal(offset=offset, dim1=1, dim2=2)[:, : allowed.shape[1]].cpu().numpy()


def _divide(arguments: Mapping[str, Any], shape: tuple[int, int], live: Any, first: Any) -> None:
    """Where packed sequences begin: lengths added up, or positions that do not go on."""
    lengths = next((arguments[name] for name in _LENGTHS if _is_tensor(arguments.get(name))), None)
    if lengths is not None and lengths.dim() == 1:
        starts = lengths.detach().cpu().numpy()
        starts = starts[(starts >= 0) & (starts < live.size)]
        first.reshape(-1)[starts] = True
    positions = next((arguments[name] for name in _POSITIONS if _is_tensor(arguments.get(name))), None)
    if positions is None or positions.dim() > 2 or positions.shape[-1] != shape[1]:  # several numbers for each token
        return
    there = np.broadcast_to(positions.detach().cpu().numpy().reshape(-1, shape[1]), shape)
    falls = (there[:, 1:] < there[:, :-1]) | (there[:, 1:] == 0)
    first[:, 1:] |= falls & live[:, 1:] & live[:, :-1]
