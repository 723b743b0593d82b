"""Errors of the package. Each message says what was attempted, what was found, what was expected and what to do next."""

from __future__ import annotations


class StatcollectError(Exception):
    """Base class of all others."""


class ProgramNotFoundError(StatcollectError):
    """A program of the wheel was not found."""


class ArgumentError(StatcollectError, ValueError):
    """An argument is wrong; nothing was sent, or the collector refused it."""


class CollectorUnavailableError(StatcollectError):
    """No collector answers at the address, or it stopped in the middle of an answer."""


class NotFoundError(StatcollectError, LookupError):
    """The run, activation, scalar or step does not exist in the collector."""


class NotAllowedError(StatcollectError):
    """The collector refused the token or the certificate."""


class QueryError(StatcollectError):
    """The collector could not answer. `status` is that of HTTP, `code` the collector's own, such as `resource_exhausted`."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class AnswerError(StatcollectError):
    """The answer is not what this version of the package expects."""
