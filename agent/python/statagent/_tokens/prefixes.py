"""The keys of a pass's tokens, which go on from what a cache holds."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native.rows import token_keys
from .inputs import Tokens

_COMPARED = 8  # numbers of the last value in a cache, by which its rows are told apart


@dataclass
class _Held:
    """Of each token in a cache, [sequences, tokens]."""

    keys: Any
    positions: Any
    live: Any
    values: Any = None  # of the last token in the last layer, after the pass
    logits: Any = None  # of the last token


@dataclass(frozen=True)
class Keyed:
    """keys, positions: of the tokens of a pass, [sequences, length]. before: the token before each within the pass, by its number in
    the row; -1: in the cache; -2: none. logits: what the last pass of the cache predicted, [sequences, vocabulary]; or None."""

    tokens: Tokens
    keys: Any
    positions: Any
    before: Any
    logits: Any
    held: Any


class Prefixes:
    """Keys of everything that passes with a cache have computed. Keeps no cache alive."""

    def __init__(self) -> None:
        self._held: Any = weakref.WeakKeyDictionary()

    def key(self, tokens: Tokens, cached: int) -> Keyed | str:
        """Keys of the tokens; or why they are not known."""
        held = None
        if cached and tokens.cache is not None:
            found = self._find(tokens.cache, cached, len(tokens.ids))
            if isinstance(found, str):
                return found
            held = found
        keys, positions = np.zeros(tokens.ids.shape, np.uint64), np.zeros(tokens.ids.shape, np.uint32)
        before = np.full(tokens.ids.shape, -2, np.int64)
        for row in range(len(tokens.ids)):
            _key_row(tokens, row, held, keys, positions, before)
        return Keyed(tokens, keys, positions, before, None if held is None else held.logits, held)

    def _find(self, cache: Any, cached: int, sequences: int) -> _Held | str:
        held = self._held.get(cache)
        if held is None:
            return "the cache was filled by a pass that was not seen"
        if held.keys.shape[1] < cached or len(held.keys) != sequences:
            return "the cache was changed outside of the model"
        order = None if held.values is None else _order(held.values, _last_values(cache, held.keys.shape[1], cached))
        if isinstance(order, str):
            return order
        return _taken(held, order, cached)

    def keep(self, cache: Any, keyed: Keyed, logits: Any) -> None:
        """After the pass: the cache holds its tokens too. logits: of each sequence's last token; None if not known."""
        held, tokens = keyed.held, keyed.tokens
        keys, positions, live = keyed.keys, keyed.positions, tokens.live
        if held is not None:
            pairs = ((held.keys, keys), (held.positions, positions), (held.live, live))
            keys, positions, live = (np.concatenate(pair, axis=1) for pair in pairs)
        found = _Held(keys, positions, live, logits=logits)
        count = found.keys.shape[1]
        found.values = _last_values(cache, count, count)
        self._held[cache] = found


def _key_row(tokens: Tokens, row: int, held: _Held | None, keys: Any, positions: Any, before: Any) -> None:
    places = np.flatnonzero(tokens.live[row])
    if not len(places):
        return
    starts = np.flatnonzero(tokens.first[row, places])
    starts = starts[starts > 0]
    for number, piece in enumerate(np.split(places, starts)):
        last, offset = None, 0
        if number == 0 and held is not None and held.live[row].any() and not tokens.first[row, piece[0]]:
            at = np.flatnonzero(held.live[row])[-1]
            last, offset = held.keys[row, at], int(held.positions[row, at]) + 1
        keys[row, piece] = token_keys(tokens.ids[row, piece], last)
        positions[row, piece] = np.arange(offset, offset + len(piece))
        before[row, piece[1:]] = piece[:-1]
        before[row, piece[0]] = -2 if last is None else -1


def _taken(held: _Held, order: Any, count: int) -> _Held:
    rows = slice(None) if order is None else order
    cut = count < held.keys.shape[1]
    logits = None if held.logits is None or cut else held.logits if order is None else held.logits[order]
    return _Held(held.keys[rows, :count], held.positions[rows, :count], held.live[rows, :count], None, logits)


def _order(was: Any, now: Any) -> Any:
    """Which row of the cache stands where since the last pass (beam search); None: all where they were."""
    if now is None or was.shape != now.shape or np.array_equal(was, now, equal_nan=True):
        return None
    same = (was[None] == now[:, None]).all(axis=2)
    if not same.any(axis=1).all():
        return "the cache was changed outside of the model"
    return same.argmax(axis=1)


def _last_values(cache: Any, slots: int, count: int) -> Any:
    """Some numbers of each row's last value in the last layer, which depend on the whole prefix; None if the cache has none, or was cut."""
    try:
        values = cache.layers[-1].values
        if slots != count or values.dim() != 4:
            return None
        last = values[:, 0, min(count, values.shape[2]) - 1, :_COMPARED]
        return last.detach().float().cpu().numpy()
    except Exception:  # a cache of another kind
        return None
