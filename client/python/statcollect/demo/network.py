"""A small network in plain Python, with its gradients written out: it trains wherever Python runs, the same bits everywhere.

Two blocks of LayerNorm, a linear layer and a tanh with a residual sum, then a linear head; the loss is the mean squared error.
A matrix is a list of rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Matrix = list[list[float]]
Observe = Callable[[str, Matrix, str], None]  # name, tensor, kind
WIDTH, BLOCKS, EPS = 16, 2, 1e-5


def product(a: Matrix, b: Matrix) -> Matrix:
    columns = list(zip(*b))
    return [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in a]


def transposed(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a)]


def added(a: Matrix, b: Matrix) -> Matrix:
    return [[x + y for x, y in zip(p, q)] for p, q in zip(a, b)]


def filled(generator: random.Random, rows: int, columns: int, scale: float) -> Matrix:
    return [[generator.gauss(0.0, scale) for _ in range(columns)] for _ in range(rows)]


def batch(step: int, rank: int, size: int = 8) -> tuple[Matrix, Matrix]:
    """Inputs and targets of a rank in a step."""
    x = filled(random.Random(1000 * step + rank), size, WIDTH, 1.0)
    return x, [[math.sin(sum(row))] for row in x]


class Network:
    """Keeps the values of the last forward pass that the backward pass needs."""

    def __init__(self, seed: int = 0) -> None:
        generator = random.Random(seed)
        scale = 1 / math.sqrt(WIDTH)
        self.weights: dict[str, Matrix] = {f"blocks.{b}.linear": filled(generator, WIDTH, WIDTH, scale) for b in range(BLOCKS)}
        self.weights["head"] = filled(generator, WIDTH, 1, scale)
        self.eps = [EPS] * BLOCKS
        self._saved: list[tuple[Matrix, Matrix, list[float]]] = []

    def forward(self, x: Matrix, observe: Observe) -> Matrix:
        self._saved = []
        for b in range(BLOCKS):
            normal, deviations = self._norm(x, self.eps[b])
            observe(f"blocks.{b}.norm", normal, "output")
            bent = [[math.tanh(v) for v in row] for row in product(normal, self.weights[f"blocks.{b}.linear"])]
            observe(f"blocks.{b}.linear", bent, "output")
            self._saved.append((normal, bent, deviations))
            x = added(x, bent)
        self._last = x
        y = product(x, self.weights["head"])
        observe("head", y, "output")
        return y

    def backward(self, d_y: Matrix, observe: Observe) -> dict[str, Matrix]:
        """The gradient of each weight, from that of the output."""
        gradients = {"head": product(transposed(self._last), d_y)}
        d_x = product(d_y, transposed(self.weights["head"]))
        for b in reversed(range(BLOCKS)):
            name = f"blocks.{b}.linear"
            normal, bent, deviations = self._saved[b]
            d_sum = [[g * (1 - v * v) for g, v in zip(p, q)] for p, q in zip(d_x, bent)]
            observe(name, d_sum, "grad_output")
            gradients[name] = product(transposed(normal), d_sum)
            d_normal = product(d_sum, transposed(self.weights[name]))
            observe(f"blocks.{b}.norm", d_normal, "grad_output")
            d_x = added(d_x, self._norm_backward(d_normal, normal, deviations))
        return gradients

    @staticmethod
    def _norm(x: Matrix, eps: float) -> tuple[Matrix, list[float]]:
        rows, deviations = [], []
        for row in x:
            mean = sum(row) / len(row)
            deviation = math.sqrt(sum((v - mean) ** 2 for v in row) / len(row) + eps)
            rows.append([(v - mean) / deviation for v in row])
            deviations.append(deviation)
        return rows, deviations

    @staticmethod
    def _norm_backward(d: Matrix, normal: Matrix, deviations: list[float]) -> Matrix:
        rows = []
        for g, n, deviation in zip(d, normal, deviations):
            mean_g = sum(g) / len(g)
            mean_gn = sum(x * y for x, y in zip(g, n)) / len(g)
            rows.append([(x - mean_g - y * mean_gn) / deviation for x, y in zip(g, n)])
        return rows
