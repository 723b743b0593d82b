"""statcollect: the collector and its command line as a Python package.

`statcollectord` and `statctl` are commands; training scripts `import statagent`.
"""

from .errors import ProgramNotFoundError, StatcollectError

__all__ = ["ProgramNotFoundError", "StatcollectError"]
