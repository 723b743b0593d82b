"""What the frameworks' callbacks share: the agent of a training that may be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import agent as _agent
from ..agent import Agent

_TIMINGS = ("_runtime", "_per_second", "total_flos")  # of the machine, not of the training


def missing(module: str, package: str, error: ImportError) -> ImportError:
    return ImportError(
        f"import statagent.integrations.{module}: {error}; expected the package {package}; install it: python -m pip install {package}"
    )


def start(options: Mapping[str, Any], step: int) -> Agent:
    """The running agent, or one made with `init`'s arguments `options`. A training that goes on at `step` is appended to its run, unless
    `options` say otherwise. Raises what `init` raises."""
    agent = _agent.current()
    if agent is None or agent.closed:
        agent = _agent.init(**{**({"if_exists": "append"} if step > 0 else {}), **options})
    if step > agent.current_step():
        agent.set_step(step)
    return agent


def log_numbers(agent: Agent, numbers: Mapping[str, Any]) -> None:
    """Numbers that a framework knows once a step is over, in that step. Timings are left out: they differ between equal runs."""
    step = max(agent.current_step() - 1, 0)
    for name, value in numbers.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not name.endswith(_TIMINGS):
            agent.log_scalar_at(name, float(value), 0, step)
