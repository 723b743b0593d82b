"""What can go wrong. Each message says what was attempted, what was found, what was expected and what to do next."""

from __future__ import annotations


class StatcollectError(Exception):
    """The base of all others."""


class ProgramNotFoundError(StatcollectError):
    """A program of the wheel is not where it belongs."""
