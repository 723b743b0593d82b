"""Functions of the agent that stand in for one of torch's or the user's and call it: what runs inside of them is the program's own."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

passing_on: set[CodeType] = set()


def passes_on(function: F) -> F:
    """Marks the function as one of these."""
    passing_on.add(function.__code__)
    return function
