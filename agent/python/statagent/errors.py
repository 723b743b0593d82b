"""Errors of the package. Each message says what was attempted, what was found, what was expected, and what to do next."""

from __future__ import annotations


class StatagentError(Exception):
    """Base class of the package's errors."""


class InvalidArgumentError(StatagentError, ValueError):
    """An argument, environment variable or file cannot be used."""


class TensorTypeError(StatagentError, TypeError):
    """A tensor or array is not supported because of its type, element type, layout or device."""


class RunExistsError(StatagentError):
    """The run has data in the collector and if_exists is "error"."""


class CollectorUnavailableError(StatagentError):
    """No collector answered in time, although required=True."""


class FlushTimeoutError(StatagentError, TimeoutError):
    """Records were still pending at the end of the timeout."""


class LibraryNotFoundError(StatagentError, ImportError):
    """libstatagent.so was not found, or cannot be loaded."""


# gRPC status codes, as the C interface returns them.
_BY_CODE: dict[int, type[StatagentError]] = {
    3: InvalidArgumentError,
    4: FlushTimeoutError,
    6: RunExistsError,
    14: CollectorUnavailableError,
}


def from_code(code: int, message: str) -> StatagentError:
    """The error of a failed call of the library."""
    text = message or f"the library failed with code {code} and gave no message"
    return _BY_CODE.get(code, StatagentError)(text)
