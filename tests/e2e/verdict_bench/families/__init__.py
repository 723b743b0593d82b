"""The families, in an order that also splits them: thresholds are fitted on every other one, and reported on the rest."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = ("cnn", "seq2seq", "lstm", "moe", "gan", "vit", "unet", "gpt", "llama", "recommender")
FITTED = NAMES[0::2]
REPORTED = NAMES[1::2]


def load(name: str) -> ModuleType:
    """Its module, with FAMILY and BUGS."""
    return import_module(f"verdict_bench.families.{name}")


def half(name: str) -> str:
    return "fitted" if name in FITTED else "reported"
