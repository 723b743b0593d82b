"""The agent of this process. One at a time; a closed one stays, so that its counters can be read."""

from __future__ import annotations

from .agent import Agent

_current: Agent | None = None


def current_agent() -> Agent | None:
    """This process's agent, running or closed."""
    return _current


def running_agent() -> Agent | None:
    """This process's agent unless it is closed."""
    return None if _current is None or not _current.running else _current


def set_current_agent(agent: Agent | None) -> None:
    global _current
    _current = agent
