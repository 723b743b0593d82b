"""Statistics against a float64 reference, for every element type and every way in which memory may lie."""

from __future__ import annotations

import array
import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from statagent import StatagentError, TensorTypeError, compute

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "u8", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip
NUMPY_DTYPES = ["f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "every_second_column": lambda t: t[:, ::2],
    "every_third_row": lambda t: t[::3],
    "inner_block": lambda t: t[3:-2, 5:-1],
    "one_column": lambda t: t[:, 1],
    "three_dimensions_permuted": lambda t: t.reshape(8, -1, t.shape[1]).permute(2, 0, 1),
    "expanded_rows": lambda t: t[:1].expand(7, -1),
    "expanded_scalar": lambda t: t[0, 0].expand(5, 4),
    "element": lambda t: t[2, 3],
    "empty": lambda t: t[:0],
    "size_one_dimensions": lambda t: t[:, None, :, None],
}


def components(array: Any) -> np.ndarray:
    """All real components in row-major order as float64."""
    array = np.asarray(array)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.float64).ravel()


def torch_components(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype in FLOATS:
        return components(tensor.detach().to(torch.float64).numpy())
    return components(tensor.detach().numpy())


def expect_statistics(found: dict[str, Any], x: np.ndarray) -> None:
    """`found` against the two-pass float64 reference over the components x."""
    finite = x[np.isfinite(x)]
    counts = {
        "nan": np.isnan(x), "pos_inf": x == np.inf, "neg_inf": x == -np.inf, "zero": x == 0,
        "neg": (x < 0) & np.isfinite(x), "pos": (x > 0) & np.isfinite(x),
    }  # fmt: skip
    assert {k: found[k] for k in counts} == {k: int(v.sum()) for k, v in counts.items()}
    if finite.size == 0:
        assert [found[k] for k in ("min", "max", "mean", "std", "l1", "l2")] == [None] * 6
        return
    assert found["min"] == finite.min()
    assert found["max"] == finite.max()
    scale = np.abs(finite).max() or 1.0  # squares of huge values must not overflow the reference
    rms = math.sqrt(np.mean((finite / scale) ** 2)) * scale
    assert found["mean"] == pytest.approx(np.mean(finite), rel=0, abs=1e-6 * rms)
    assert found["std"] == pytest.approx(np.std(finite / scale) * scale, rel=1e-6, abs=1e-12 * rms)
    assert found["l1"] == pytest.approx(np.sum(np.abs(finite)), rel=1e-6)
    assert found["l2"] == pytest.approx(rms * math.sqrt(finite.size), rel=1e-6)


def filled(dtype: torch.dtype, rows: int = 48, columns: int = 37, seed: int = 0) -> torch.Tensor:
    """Random content that uses the type's range, zeros included; floats without non-finite values."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(rows, columns, generator=generator) < 0.3
    if dtype in COMPLEX:
        real = torch.float32 if dtype is torch.complex64 else torch.float64
        return torch.complex(*(torch.randn(rows, columns, generator=generator, dtype=real) for _ in range(2)))
    if dtype in INTEGERS:
        info = torch.iinfo(dtype)
        low, high = max(info.min, -(2**40)), min(info.max, 2**40)
        return torch.randint(low, high, (rows, columns), generator=generator, dtype=torch.int64).to(dtype)
    values = torch.randn(rows, columns, generator=generator, dtype=torch.float64) * 3
    values[torch.rand(rows, columns, generator=generator) < 0.05] = 0
    return values.to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_equals_the_reference(dtype: torch.dtype, layout: str) -> None:
    tensor = LAYOUTS[layout](filled(dtype))
    found = compute(tensor)
    assert found["dtype"] == NAMES[dtype]
    assert found["shape"] == list(tensor.shape)
    assert found["numel"] == tensor.numel()
    expect_statistics(found, torch_components(tensor))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_layout_changes_no_bit_of_the_result(dtype: torch.dtype, layout: str) -> None:
    tensor = LAYOUTS[layout](filled(dtype))
    assert compute(tensor, samples=20) == compute(tensor.clone(memory_format=torch.contiguous_format), samples=20)


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX, ids=NAMES.get)
def test_counts_what_is_not_finite(dtype: torch.dtype) -> None:
    tensor = filled(dtype)
    specials = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, math.nan], dtype=torch.float64).to(dtype)
    tensor[1, :6] = specials
    tensor[40, 30:36] = specials
    expect_statistics(compute(tensor), torch_components(tensor))
    assert compute(tensor)["nan"] >= 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=NAMES.get)
def test_large_mean_beside_a_small_spread_keeps_its_accuracy(dtype: torch.dtype) -> None:
    tensor = (torch.randn(100_003, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1000).to(dtype)
    expect_statistics(compute(tensor), torch_components(tensor))


def test_half_precision_sums_do_not_overflow() -> None:
    found = compute(torch.full((70_000,), 65504.0, dtype=torch.float16))
    assert found["l1"] == 65504.0 * 70_000
    assert (found["mean"], found["std"]) == (65504.0, 0.0)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 255, 4095, 4096, 4097, 65_537, 300_001])
def test_sizes_around_blocks_and_chunks(size: int) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size))
    expect_statistics(compute(tensor), torch_components(tensor))


def test_empty_0d_and_all_nan() -> None:
    empty = compute(torch.empty(0, 5))
    assert (empty["numel"], empty["shape"], empty["mean"], empty["std"]) == (0, [0, 5], None, None)
    scalar = compute(torch.tensor(2.5))
    assert (scalar["numel"], scalar["shape"], scalar["mean"], scalar["std"], scalar["l2"]) == (1, [], 2.5, 0.0, 2.5)
    nothing = compute(torch.full((4,), math.nan))
    assert (nothing["nan"], nothing["min"], nothing["l2"]) == (4, None, None)


# --- NumPy ---


NUMPY_LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": lambda a: a,
    "fortran": np.asfortranarray,
    "backwards": lambda a: a[::-1],
    "backwards_both": lambda a: a[::-1, ::-2],
    "backwards_transposed": lambda a: a[:, ::-1].T,
    "broadcast": lambda a: np.broadcast_to(a[0], (6, a.shape[1])),
    "read_only": lambda a: a,
    "window": lambda a: np.lib.stride_tricks.sliding_window_view(a[0], 5),
}


@pytest.mark.parametrize("layout", NUMPY_LAYOUTS)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_arrays_equal_the_reference(dtype: str, layout: str) -> None:
    generator = np.random.default_rng(3)
    base = generator.integers(0, 100, (40, 24)).astype(dtype)
    if np.dtype(dtype).kind in "fc":
        base = (base - 50) / np.array(7, dtype)
    array = NUMPY_LAYOUTS[layout](base)
    if layout == "read_only":
        array.flags.writeable = False
    found = compute(array)
    assert found["shape"] == list(array.shape)
    expect_statistics(found, components(array))
    assert found == compute(np.ascontiguousarray(array)), "the layout changed the result"


def test_numpy_scalar_is_a_0d_array() -> None:
    assert compute(np.float32(1.5))["shape"] == []
    assert compute(np.float32(1.5))["max"] == 1.5


def test_unaligned_arrays_are_read_right() -> None:
    raw = np.zeros(8 * 10 + 1, np.uint8)
    shifted = raw[1:].view(np.float64)
    shifted[:] = np.arange(10)
    expect_statistics(compute(shifted), np.arange(10.0))
    field = np.zeros(10, dtype=[("flag", "u1"), ("value", "f8")])["value"]
    field[:] = np.arange(10)
    expect_statistics(compute(field), np.arange(10.0))


def test_numpy_and_torch_agree_to_the_bit() -> None:
    array = np.random.default_rng(0).normal(size=(33, 65)).astype(np.float32)
    assert compute(array, samples=8) == compute(torch.from_numpy(array), samples=8)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4, dtype=">f4"),
        np.array(["a", "b"]),
        np.array([object()]),
        np.arange(4, dtype=np.longdouble),
        np.array(["2024-01-01"], dtype="datetime64[D]"),
        np.zeros(2, dtype=[("a", "f4")]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
    ],
    ids=["big_endian", "text", "object", "longdouble", "datetime", "record", "masked"],
)
def test_arrays_without_statistics_are_refused(array: Any) -> None:
    with pytest.raises(TypeError, match=r"found .*; expected "):
        compute(array)


# --- other sources ---


class OnlyArrayInterface:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__


class OnlyDlpack:
    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@pytest.mark.parametrize("wrap", [OnlyArrayInterface, OnlyDlpack])
def test_arrays_of_other_libraries_are_read(wrap: Any) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert compute(wrap(array)) == compute(array)


def test_memory_that_cannot_be_read_is_refused_with_a_way_on() -> None:
    class OnGpu:
        __cuda_array_interface__ = {"shape": (1,)}

    with pytest.raises(TypeError, match="OnGpu that cannot be read"):
        compute(OnGpu())
    with pytest.raises(TypeError, match=r"CPU.*copy it there first"):
        compute(OnlyDlpack(np.zeros(1), device=(10, 0)))


@pytest.mark.parametrize("value", [[1.0, 2.0], 1.0, None, "text", torch.Tensor, {"a": torch.zeros(1)}])
def test_values_that_are_no_tensors_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="expected a torch tensor, a NumPy array"):
        compute(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    ],
    ids=["meta", "sparse", "csr", "quantized"],
)
def test_torch_tensors_without_plain_memory_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(TensorTypeError, match=r"found .*; expected "):
        compute(tensor)


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_arrays_of_the_standard_library_are_read(code: Any) -> None:
    values = array.array(code, [3, 0, 7, 1, 2, 5])
    expected = compute(np.asarray(values))
    assert compute(values) == compute(memoryview(values)) == expected
    rows = memoryview(values).cast("B").cast(code, (2, 3))
    assert compute(rows) == compute(np.asarray(values).reshape(2, 3))
    # Memory that may not be written, and with gaps.
    assert compute(memoryview(values.tobytes()).cast(code)) == expected
    assert compute(memoryview(values)[::2]) == compute(np.asarray(values)[::2].copy())
    assert compute(memoryview(array.array(code)))["numel"] == 0


@pytest.mark.parametrize(
    "value", [memoryview(b"text").cast("c"), memoryview((ctypes.c_char_p * 2)()), b"text", bytearray(4), [1.0, 2.0]]
)
def test_memory_that_is_not_numbers_is_refused(value: Any) -> None:
    with pytest.raises(TensorTypeError, match=r"expected (one of|a torch tensor)"):
        compute(value)


def test_gradients_conjugates_and_negative_views_are_resolved() -> None:
    tensor = filled(torch.complex64)
    assert compute(tensor.conj()) == compute(tensor.conj().resolve_conj())
    assert compute(tensor.conj().imag) == compute(tensor.conj().imag.resolve_neg())
    tracked = torch.randn(5, requires_grad=True)
    assert compute(tracked) == compute(tracked.detach())
    assert compute(tracked * 2) == compute((tracked * 2).detach())
    assert compute(torch.nn.Parameter(torch.ones(3)))["l1"] == 3


# --- hash, sketch, samples ---


def test_hash_sees_what_moments_cannot() -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    swapped = tensor.clone()
    swapped[[3, 700]] = swapped[[700, 3]]
    signed_zero = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    assert compute(tensor)["hash"] == compute(tensor.clone())["hash"]
    assert compute(tensor)["hash"] != compute(swapped)["hash"]
    assert compute(signed_zero[0])["hash"] != compute(signed_zero[1])["hash"]
    assert 0 <= compute(tensor)["hash"] < 2**64


@pytest.mark.parametrize("width", [0, 16, 32, 64])
def test_sketch_has_the_width_asked_for(width: int) -> None:
    assert len(compute(torch.ones(100), sketch=width)["sketch"]) == width


def test_difference_of_sketches_estimates_the_norm_of_the_difference() -> None:
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(512, 256, generator=generator)
    noise = torch.randn(512, 256, generator=generator) * 0.01
    difference = np.subtract(compute(a, sketch=64)["sketch"], compute(a + noise, sketch=64)["sketch"])
    assert np.linalg.norm(difference) == pytest.approx(noise.norm().item(), rel=0.4)


def test_sketch_of_a_permutation_differs_although_its_moments_agree() -> None:
    a = torch.randn(4096, generator=torch.Generator().manual_seed(6))
    b = a.flip(0)
    difference = np.subtract(compute(a)["sketch"], compute(b)["sketch"])
    assert compute(a)["l2"] == pytest.approx(compute(b)["l2"])
    assert np.linalg.norm(difference) > 0.5 * (a - b).norm().item()


def test_samples_are_the_first_elements_in_row_major_order() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert compute(tensor, samples=5)["samples"] == [0.0, 4.0, 8.0, 1.0, 5.0]
    assert compute(torch.ones(2), samples=5)["samples"] == [1.0, 1.0]
    assert compute(torch.ones(2))["samples"] == []


@pytest.mark.parametrize("wrong", [{"sketch": 5}, {"sketch": "16"}, {"sketch": -16}, {"samples": -1}, {"samples": 4000}])
def test_wrong_widths_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        compute(torch.ones(2), **wrong)
    assert isinstance(caught.value, StatagentError)


def test_content_is_left_as_it_was() -> None:
    tensor = torch.randn(100, requires_grad=True)
    before, version = tensor.detach().clone(), tensor._version
    compute(tensor)
    assert torch.equal(tensor, before)
    assert tensor._version == version


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_exponents_equal_frexp(dtype: torch.dtype) -> None:
    tensor = filled(dtype)[:, ::2]
    x = torch_components(tensor)
    x = x[np.isfinite(x) & (x != 0)]
    exponents, counts = np.unique(np.frexp(x)[1] - 1, return_counts=True)
    assert compute(tensor, exponents=True)["exponents"] == dict(zip(exponents.tolist(), counts.tolist(), strict=True))


def test_exponents_of_subnormal_and_odd_values_and_only_on_request() -> None:
    tensor = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.0, 1e-45, 2.0**-149, math.inf, math.nan], dtype=torch.float32)
    torch.set_flush_denormal(True)
    try:
        assert compute(tensor, exponents=True)["exponents"] == {-149: 2, 0: 2, 1: 1}
    finally:
        torch.set_flush_denormal(False)
    assert compute(torch.tensor([5e-324, 1e308], dtype=torch.float64), exponents=True)["exponents"] == {-1074: 1, 1023: 1}
    assert compute(torch.zeros(0), exponents=True)["exponents"] == {}
    assert "exponents" not in compute(tensor)
