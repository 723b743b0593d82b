"""Imported first: says which Python is expected, where an older one would fail with a syntax error. Must itself be readable by old ones."""

import sys

OLDEST = (3, 9)


def check(package, version):  # type: ignore[no-untyped-def]
    """Raises ImportError if a Python of this version cannot run the package."""
    if tuple(version[:2]) < OLDEST:
        raise ImportError(
            "import {}: found Python {}.{}; expected {}.{} or later; run it with a newer Python, which pip would have asked for, too".format(  # noqa: UP032
                package, version[0], version[1], OLDEST[0], OLDEST[1]
            )
        )


check("statagent", sys.version_info)
