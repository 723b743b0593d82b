"""CUDA tensors through the Python package. Skipped, and counted as such, where torch sees no CUDA device."""

# ruff: noqa: PT009 - runs without pytest too, whose assertions explain themselves
from __future__ import annotations

import math
import unittest
from typing import Any

import torch

from . import places

import statagent  # isort: skip  # found through places

assert places.PACKAGE.is_dir()

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
EXACT = ("numel", "shape", "dtype", "nan", "pos_inf", "neg_inf", "zero", "neg", "pos", "min", "max", "hash", "samples")


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    if dtype.is_complex:
        return torch.complex(values, values.flip(0)).to(dtype)
    return values.to(dtype)


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestCompute(unittest.TestCase):
    def same(self, gpu: dict[str, Any], cpu: dict[str, Any]) -> None:
        """Counts, extremes, hash and samples equal; sums within 1e-6."""
        for name in EXACT:
            self.assertEqual(gpu[name], cpu[name], name)
        if cpu["l2"] is None:
            return
        for name in ("mean", "std", "l1", "l2"):
            self.assertTrue(math.isclose(gpu[name], cpu[name], rel_tol=1e-6, abs_tol=1e-6 * cpu["l2"]), name)
        for ours, theirs in zip(gpu["sketch"], cpu["sketch"]):
            self.assertLessEqual(abs(ours - theirs), 1e-6 * cpu["l2"])

    def test_agrees_with_the_cpu(self) -> None:
        for dtype in DTYPES:
            for shape in [(0,), (1,), (17,), (64, 129), (3, 5, 7, 11), (1000, 1000)]:
                with self.subTest(dtype=dtype, shape=shape):
                    tensor = filled(shape, dtype)
                    self.same(statagent.compute(tensor.cuda(), samples=4), statagent.compute(tensor, samples=4))

    def test_exponents_equal_those_of_the_cpu(self) -> None:
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                tensor = filled((300, 7), dtype).t()
                expected = statagent.compute(tensor, exponents=True)["exponents"]
                self.assertEqual(statagent.compute(tensor.cuda(), exponents=True)["exponents"], expected)

    def test_takes_any_view(self) -> None:
        views: list[Any] = [
            lambda t: t.transpose(0, 2),
            lambda t: t[1:, ::3, 5:],
            lambda t: t[3, 4].expand(6, 20),
            lambda t: t.flatten()[1:],
            lambda t: t.conj() if t.is_complex() else t,
        ]
        for dtype in (torch.float32, torch.bfloat16, torch.complex64):
            tensor = filled((40, 30, 20), dtype)
            on_gpu = tensor.cuda()
            for number, view in enumerate(views):
                with self.subTest(dtype=dtype, view=number):
                    self.same(statagent.compute(view(on_gpu)), statagent.compute(view(tensor)))

    def test_follows_the_current_stream(self) -> None:
        tensor = filled((2000, 2000), torch.float32)
        with torch.cuda.stream(torch.cuda.Stream()):
            on_gpu = torch.empty_like(tensor, device="cuda")
            torch.cuda._sleep(50_000_000)
            on_gpu.copy_(tensor)
            found = statagent.compute(on_gpu)
        self.same(found, statagent.compute(tensor))

    def test_reads_the_cuda_array_interface(self) -> None:
        tensor = filled((100,), torch.float32).cuda()

        class Foreign:
            __cuda_array_interface__ = tensor.__cuda_array_interface__

        self.same(statagent.compute(Foreign()), statagent.compute(tensor.cpu()))

    def test_repeats_its_bits(self) -> None:
        tensor = filled((3_000_001,), torch.bfloat16).cuda()
        first = statagent.compute(tensor)
        for _ in range(5):
            self.assertEqual(statagent.compute(tensor), first)


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestRows(unittest.TestCase):
    def same(self, gpu: list[dict[str, Any]], cpu: list[dict[str, Any]]) -> None:
        self.assertEqual([row["hash"] for row in gpu], [row["hash"] for row in cpu])
        for ours, theirs in zip(gpu, cpu):
            self.assertTrue(math.isclose(ours["l2"], theirs["l2"], rel_tol=1e-6))
            for x, y in zip(ours["sketch"], theirs["sketch"]):
                self.assertLessEqual(abs(x - y), 1e-6 * theirs["l2"])

    def test_agree_with_the_cpu(self) -> None:
        for dtype in DTYPES:
            for shape in [(0, 5), (4, 0), (5000, 1), (7, 33), (40, 4096)]:
                with self.subTest(dtype=dtype, shape=shape):
                    rows = filled(shape, dtype)
                    self.same(statagent.compute_rows(rows.cuda()), statagent.compute_rows(rows))

    def test_take_any_view_and_part(self) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            rows = filled((60, 70), dtype)
            for number, view in enumerate((lambda t: t.t(), lambda t: t[::3, 5:], lambda t: t[2].expand(9, 70))):
                with self.subTest(dtype=dtype, view=number):
                    found = statagent.compute_rows(view(rows.cuda()), first_column=100)
                    self.same(found, statagent.compute_rows(view(rows), first_column=100))

    def test_follow_the_current_stream(self) -> None:
        rows = filled((2000, 2000), torch.float32)
        with torch.cuda.stream(torch.cuda.Stream()):
            on_gpu = torch.empty_like(rows, device="cuda")
            torch.cuda._sleep(50_000_000)
            on_gpu.copy_(rows)
            found = statagent.compute_rows(on_gpu)
        self.same(found, statagent.compute_rows(rows))
