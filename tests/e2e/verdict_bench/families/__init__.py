"""The families, in an order that also splits them: the constants of the verdict without twins are fitted on every other one, and reported on the
rest. Nothing was ever fitted on the unseen ones."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from verdict_bench.bugs import Bug, late

NAMES = ("cnn", "seq2seq", "lstm", "moe", "gan", "vit", "unet", "gpt", "llama", "recommender", "vgg")
FITTED = NAMES[0::2]
REPORTED = NAMES[1::2]
UNSEEN = ("flow", "vqvae", "ode", "mdn", "dlrm", "moecap")
ALL = (*NAMES, *UNSEEN)
LONG = 48  # steps of a run that shows how rounding grows
LATE = 32  # the step in which bugs of such a run begin


def load(name: str) -> ModuleType:
    """Its module, with FAMILY and BUGS."""
    return import_module(f"verdict_bench.families.{name}")


def bugs_of(name: str) -> list[Bug]:
    """Its bugs, and those of them that also begin late in a long run."""
    found: list[Bug] = load(name).BUGS
    return [*found, *late(found, LATE)]


def half(name: str) -> str:
    return "unseen" if name in UNSEEN else "fitted" if name in FITTED else "reported"
