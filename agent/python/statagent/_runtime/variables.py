"""Environment variables of the package. Misspelled ones have no effect, so they are reported."""

from __future__ import annotations

import difflib
import os

from .log import warn_once

_PREFIX = "STATAGENT_"
# The arguments of init, and variables without an argument. The library reads CONNECT_TIMEOUT_MS.
KNOWN = frozenset(
    _PREFIX + name
    for name in (
        "AUTO", "AUTO_NOTES", "BUFFER_RECORDS_MAX", "CAPTURES", "COLLECTOR", "CONFIG", "CONNECT_TIMEOUT", "CONNECT_TIMEOUT_MS", "DISABLE", "EXPONENTS", "EXTENSION",
        "IF_EXISTS", "LAUNCH", "LIBRARY", "LOCAL_RANK", "LOG", "OVERHEAD", "PAGE", "PERTURB", "PROJECT", "QUIET", "RANK", "RANKS", "REQUIRED", "RING", "RUN", "SAMPLES", "SKETCH", "SPILL_DIR", "SPILL_LIMIT",
        "STEPS", "STOP_AFTER", "THREADS", "TLS_CA", "TLS_CERT", "TLS_KEY", "TOKENS", "TOKEN_FILE", "WORLD_SIZE", "ZOOM",
    )
)  # fmt: skip


def warn_about_unknown() -> None:
    """One line on standard error for each unknown variable that begins with STATAGENT_, once a process."""
    for name in sorted(name for name in os.environ if name.startswith(_PREFIX) and name not in KNOWN):
        nearest = difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.75)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known are: {', '.join(sorted(KNOWN))}"
        warn_once(name, f"environment variable {name!r:.80} is unknown and has no effect; {hint}")
