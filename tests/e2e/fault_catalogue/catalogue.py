"""Records the catalogue's runs against a collector and asks it about each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import Collector, Finished, run_command, torchrun

from fault_catalogue import noise
from fault_catalogue.clean import CLEAN, Clean
from fault_catalogue.fault import FAULTS

RECORD = Path(__file__).with_name("record.py")
WORLDS = (1, 2)


def record(collector: Collector, names: Iterable[str], world: int, timeout: float = 300, **env: str) -> Finished:
    """One launch that trains all of them, one after another, as `NAME.WORLD`."""
    arguments = [str(RECORD), *names]
    command = [sys.executable, *arguments] if world == 1 else torchrun(world, *arguments)
    done = run_command(command, env=collector.environment(**env), timeout=timeout)
    assert done.code == 0, f"recording on {world} rank(s) exited with {done.code}:\n{done.out}\n{done.err}"
    return done


def names_of(world: int, faults: Iterable[str] | None = None, clean: Iterable[str] | None = None) -> list[str]:
    """Baselines first, then faults (all that this number of ranks can show) and clean runs."""
    chosen = [name for name in (FAULTS if faults is None else faults) if world in FAULTS[name].worlds]
    repeats = list(CLEAN if clean is None else clean)
    bases = dict.fromkeys([*(FAULTS[name].base for name in chosen), *(CLEAN[name].base for name in repeats)])
    return [*(f"base-{base}" for base in bases), *chosen, *repeats]


def short_selection() -> tuple[list[str], list[str]]:
    """What a normal test run records on two ranks: faults of single ranks and of what only several ranks have, and one fault for each
    stage and reason; clean runs that differ in rounding or in how ranks work together."""
    seen: set[tuple[str, str]] = set()
    faults = []
    for name, fault in FAULTS.items():
        kind = (fault.expected.stage, fault.expected.reason)
        if fault.expected.ranks or 1 not in fault.worlds or kind not in seen:
            faults.append(name)
        seen.add(kind)
    return faults, ["repeat_plain", "repeat_resumed", "two_threads", "summed_in_2_parts", "checkpointed", "small_buckets"]


@dataclass
class Repeat:
    """diff's answer for a clean run: the verdict, and the largest distance of any record from the baseline's."""

    clean: Clean
    world: int
    verdict: str
    identical: int
    records: int
    largest: float


def ask_clean(collector: Collector, clean: Clean, world: int) -> Repeat:
    runs = ("--run-a", f"base-{clean.base}.{world}", "--run-b", f"{clean.name}.{world}")
    report = collector.json("diff", *runs, codes=(0, 1, 2))
    different = collector.json("diff", *runs, "--exact", "--all", codes=(0, 1))["diverged"]
    largest = max((_distance(row) for row in different), default=0.0)
    compared = report["compared"]
    return Repeat(clean, world, report["verdict"], compared["identical"], compared["records"], largest)


@dataclass
class Calibrated:
    """diff's answers for a run by default and with the noise of repeats; `times_noise` of the second answer."""

    clean: Clean
    default: dict[str, Any] | None
    calibrated: dict[str, Any] | None
    expected: tuple[int, str, str] | None

    def ok(self) -> bool:
        first = self.calibrated
        return (None if first is None else (first["step"], first["stage"], first["activation"])) == self.expected


def ask_with_noise(collector: Collector, name: str) -> Calibrated:
    runs = ("--run-a", f"base-{noise.BASE}.1", "--run-b", f"{name}.1")
    learned = ",".join(f"{repeat}.1" for repeat in noise.LEARNED)
    default, calibrated = (
        collector.json("diff", *runs, *options, codes=(0, 1))["first"] for options in ((), ("--noise", learned))
    )
    return Calibrated(noise.NOISE[name], default, calibrated, noise.ASKED[name])


def _distance(row: dict[str, Any]) -> float:
    return float("inf") if row["distance"] is None else float(row["distance"])
