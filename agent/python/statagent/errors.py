"""Errors of the package. Each message says what was attempted, what was found, what was expected and what to do next."""

from __future__ import annotations


class StatagentError(Exception):
    """Base class of everything that this package raises on purpose."""


class InvalidArgumentError(StatagentError, ValueError):
    """An argument, an environment variable or a file that cannot be used as it is."""


class TensorTypeError(StatagentError, TypeError):
    """A tensor or array that has no statistics here: its type, element type, layout or device."""


class RunExistsError(StatagentError):
    """The run has data in the collector and if_exists is "error"."""


class CollectorUnavailableError(StatagentError):
    """No collector answered in time, and required=True."""


class FlushTimeoutError(StatagentError, TimeoutError):
    """Something was still pending when the time was over."""


class LibraryNotFoundError(StatagentError, ImportError):
    """libstatagent.so is nowhere, or cannot be loaded."""


# gRPC status codes, as the C interface returns them.
_BY_CODE: dict[int, type[StatagentError]] = {
    3: InvalidArgumentError,
    4: FlushTimeoutError,
    6: RunExistsError,
    14: CollectorUnavailableError,
}


def from_code(code: int, message: str) -> StatagentError:
    """The error of a failed call of the library."""
    text = message or f"the library failed with code {code} and said nothing more"
    return _BY_CODE.get(code, StatagentError)(text)
