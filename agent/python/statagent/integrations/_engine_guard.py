"""Functions around those of an engine. Nothing that they raise reaches it."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from .._runtime import process
from .._runtime.current import running_agent
from .._runtime.log import warn_once


def recording_wanted() -> bool:
    """Whether an engine's plugin has anything to do in this process: a run is named in the environment, or an agent runs."""
    return not process.disabled() and bool(os.environ.get("STATAGENT_RUN") or running_agent())


def wrap(owner: Any, name: str, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None) -> None:
    """Calls functions around a method, with its positional arguments. What they raise is only reported."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def called(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            attempt(name, before, *args)
        result = inner(*args, **kwargs)
        if after is not None:
            attempt(name, after, *args)
        return result

    static = isinstance(owner, type) and isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(called) if static else called)


def attempt(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls the function. What it raises is reported."""
    try:
        function(*arguments)
    except Exception as error:
        reason = f"engine: {what}: {type(error).__name__}: {error}"
        warn_once(f"engine {what}", f"{reason}; some of the engine is not recorded")
        agent = running_agent()
        if agent is not None:
            agent.report_not_recorded("", "tokens", reason)
