"""The run of an experiment tracker that is active in this process: Weights & Biases, MLflow or Trackio.

Only looks at what the program has imported already, and only in memory: no tracker is imported, asked over a network or waited for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_NAME_MAX = 120


class Tracked(NamedTuple):
    """A tracker's run."""

    tracker: str  # "wandb", "mlflow", "trackio"
    name: str  # as a run's name may be; empty: it has none that can be used
    id: str  # with which the tracker finds it again


def _wandb(module: Any) -> tuple[str, str] | None:
    run = module.run
    return None if run is None else (run.name or run.id, "/".join(str(p) for p in (run.entity, run.project, run.id) if p))


def _mlflow(module: Any) -> tuple[str, str] | None:
    run = module.active_run()
    return None if run is None else (run.info.run_name or run.info.run_id, run.info.run_id)


def _trackio(module: Any) -> tuple[str, str] | None:
    run = module.context_vars.current_run.get()
    return None if run is None else (run.name, f"{run.project}/{run.name}")


_TRACKERS: dict[str, Callable[[Any], tuple[str, str] | None]] = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def active() -> list[Tracked]:
    """The active runs, at most one of each tracker. Never raises: a tracker of another version is as one that is not there."""
    found = []
    for tracker, look in _TRACKERS.items():
        module = sys.modules.get(tracker)
        try:
            run = look(module) if module is not None else None
        except Exception:
            continue
        if run is not None and all(isinstance(text, str) and text for text in run):
            found.append(Tracked(tracker, _usable(run[0]), run[1][:400]))
    return found


def _usable(name: str) -> str:
    """The name with '-' for what no run's name may have: "Fine run #7" is Fine-run-7."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:_NAME_MAX]


def name_of(found: list[Tracked]) -> str | None:
    """The name for a run that was given none; None without a tracker."""
    return next((run.name for run in found if run.name), None)


def settings_of(found: list[Tracked]) -> dict[str, str]:
    """`tracker.wandb.run` and so on: where `python -m statcollect publish` writes the verdict. No comparison counts a key `run`."""
    return {f"tracker.{run.tracker}.run": run.id for run in found}
