"""Shared by the frameworks' callbacks: the agent of a training that may be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import agent as _agent
from .._runtime.agent import Agent
from .._runtime.current import running_agent

_TIMINGS = ("_runtime", "_per_second", "total_flos")  # depend on the machine, not on the training


def missing(module: str, package: str, error: ImportError) -> ImportError:
    return ImportError(
        f"import statagent.integrations.{module}: {error}; expected the package {package}; install it: python -m pip install {package}"
    )


def start(options: Mapping[str, Any], step: int) -> Agent:
    """The running agent, or one that is started with `options`, the arguments of `init`. A training that resumes at `step` is appended to its
    run unless `options` specify something else. Raises the errors of `init`."""
    agent = running_agent()
    if agent is None:
        agent = _agent.init(**{**({"if_exists": "append"} if step > 0 else {}), **options})
    if step > agent.current_step():
        agent.set_step(step)
    return agent


def log_numbers(agent: Agent, numbers: Mapping[str, Any]) -> None:
    """Logs numbers that a framework reports after a step, in that step. Timings are left out, because they differ between equal runs."""
    step = max(agent.current_step() - 1, 0)
    for name, value in numbers.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not name.endswith(_TIMINGS):
            agent.log_scalar_at(name, float(value), 0, step)
