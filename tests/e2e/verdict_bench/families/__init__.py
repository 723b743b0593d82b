"""The families, in an order that also splits them: the constants of the verdict without twins are fitted on every other one, and reported on the
rest. Nothing was ever fitted on the unseen ones. A name such as `gpt_ddp2` is a family trained in another way (setups.py), and `hf_llama` one of
several in a module (WAYS). The cases are about mistakes and changes that users reported."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from verdict_bench import setups
from verdict_bench.bugs import Bug, late
from verdict_bench.training import Family

NAMES = ("cnn", "seq2seq", "lstm", "moe", "gan", "vit", "unet", "gpt", "llama", "recommender", "vgg")
FITTED = NAMES[0::2]
REPORTED = NAMES[1::2]
UNSEEN = ("flow", "vqvae", "ode", "mdn", "dlrm", "moecap")
HF = ("llama", "mistral", "qwen2", "qwen3", "granite", "olmo2", "smollm3", "gemma2", "mixtral")  # of Transformers
SET_UP = (
    "gpt_bf16", "moe_bf16", "gpt_50steps", "flow_50steps", "gpt_ddp2", "cnn_ddp2", "gpt_fsdp2", "flow_fsdp2",
)  # fmt: skip
CASES = (
    "lora",
    "optimizers_muon",
    "optimizers_lion",
    "optimizers_adam",
    "mobile",
    "dpo",
    "grpo",
    "scaled",
    *(f"hf_{each}" for each in HF),
)
ALL = (*NAMES, *UNSEEN, *SET_UP, *CASES)
LONG = 48  # steps of a run that shows how rounding grows
LATE = 32  # the step in which bugs of such a run begin


@dataclass(frozen=True)
class Loaded:
    FAMILY: Family
    BUGS: list[Bug]


def load(name: str) -> Loaded:
    plain, _, setup = name.partition("_")
    module = import_module(f"verdict_bench.families.{plain}")
    if not setup:
        return Loaded(module.FAMILY, module.BUGS)
    ways = {**setups.SETUPS, **getattr(module, "WAYS", {})}
    return Loaded(*ways[setup](module.FAMILY, module.BUGS))


def chosen(text: str) -> list[str]:
    """Families by name or by half, separated by commas."""
    halves = {half(name) for name in ALL}
    return [
        name for word in text.split(",") for name in (filter(lambda name: half(name) == word, ALL) if word in halves else [word])
    ]


def missing(name: str) -> str:
    """The package that this family needs and that is not installed, if any."""
    needed = getattr(import_module(f"verdict_bench.families.{name.partition('_')[0]}"), "NEEDS", "")
    return needed if needed and find_spec(needed) is None else ""


def bugs_of(name: str) -> list[Bug]:
    """Its bugs, and those of them that also begin late in a long run."""
    found = load(name).BUGS
    return [*found, *late(found, LATE)]


def half(name: str) -> str:
    return (
        "case"
        if name in CASES
        else "unseen"
        if name in UNSEEN
        else "set-up"
        if name in SET_UP
        else "fitted"
        if name in FITTED
        else "reported"
    )
