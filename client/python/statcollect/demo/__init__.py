"""`python -m statcollect demo`: two training runs, one subtle mistake, one verdict."""

from .show import main

__all__ = ["main"]
