"""The noise of agent/stats/cpu/noise.h in operators of torch, for tensors that are not in memory of the CPU; bit for bit the same, and no
random numbers. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

INDEX_FACTOR = 0x9E3779B1
FACTORS = (0x7FEB352D, 0x846CA68B)
NOISE_MAX = 0.25
STEP_FACTOR = 0x9E3779B97F4A7C15
_CHUNK_ELEMENTS = 1 << 22  # what is computed at once takes about 40 bytes an element
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1


def mixed(key: int, step: int) -> int:
    """MixBits of common/mix_bits.h, of a key and a step."""
    x = (key + step * STEP_FACTOR) & _MASK64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK64
    return x ^ (x >> 31)


def write_noise(
    source: Any, to: Any, key: int, step: int, ulps: float, difference: bool, strides: Sequence[int], first: int
) -> None:
    """Writes `source` with noise to `to`, or what that differs by. Both real, of one shape and dtype. `strides`: of the elements' index, whose
    first is `first`. Never waits for a device."""
    if source.numel() > _CHUNK_ELEMENTS and max(source.shape) > 1:
        dim = max(range(source.dim()), key=lambda d: source.shape[d])
        half = source.shape[dim] // 2
        for start, length in ((0, half), (half, source.shape[dim] - half)):
            parts = source.narrow(dim, start, length), to.narrow(dim, start, length)
            write_noise(*parts, key, step, ulps, difference, strides, first + start * strides[dim])
        return
    words = mixed(key, step)
    number = _numbers(_indexes(source, strides, first), _bits(source), words & _MASK32, words >> 32)
    wide = torch.float64 if source.dtype == torch.float64 else torch.float32
    scale = min(ulps * torch.finfo(source.dtype).eps, NOISE_MAX) / (1 << 24)
    value = source.to(wide)
    noise = number.to(wide).mul_(scale).mul_(value)
    total = value + noise
    if source.dtype == wide:
        finite = torch.isfinite(total)
        to.copy_(torch.where(finite, noise, 0) if difference else torch.where(finite, total, source))
        return
    rounded = total.to(source.dtype)
    finite = torch.isfinite(source) & torch.isfinite(rounded)
    if difference:
        to.copy_(torch.where(finite, rounded.to(wide) - value, 0))
    else:
        to.copy_(torch.where(finite, rounded, source))


def _signed(word: int) -> int:
    word &= _MASK32
    return word - (1 << 32) if word >> 31 else word


def _indexes(source: Any, strides: Sequence[int], first: int) -> Any:
    """The lower 32 bits of each element's index, as int32."""
    found = torch.full((), _signed(first), dtype=torch.int32, device=source.device)
    for dim, (size, stride) in enumerate(zip(source.shape, strides)):
        along = torch.arange(size, dtype=torch.int32, device=source.device).mul_(_signed(stride))
        found = found + along.view((-1,) + (1,) * (source.dim() - dim - 1))
    return found.expand(source.shape)


def _bits(source: Any) -> Any:
    """The elements' bits, folded into 32, as int32."""
    if source.element_size() == 8:
        bits = source.view(torch.int64)
        return ((bits << 32) >> 32).to(torch.int32).bitwise_xor_((bits >> 32).to(torch.int32))
    if source.element_size() == 4:
        return source.view(torch.int32)
    return source.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)


def _numbers(index: Any, bits: Any, lower: int, upper: int) -> Any:
    x = (index * _signed(INDEX_FACTOR)).bitwise_xor_(_signed(lower)).add_(bits)
    x.bitwise_xor_((x >> 16) & 0xFFFF).mul_(_signed(FACTORS[0]))
    x.bitwise_xor_((x >> 15) & 0x1FFFF).bitwise_xor_(_signed(upper)).mul_(_signed(FACTORS[1]))
    x.bitwise_xor_((x >> 16) & 0xFFFF)
    return (x >> 7).bitwise_or_(1)
