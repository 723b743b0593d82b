"""statcollect for Python: query a collector, with dataclasses and tables as answers.

>>> import statcollect
>>> collector = statcollect.connect("127.0.0.1:7433")
>>> report = collector.diff("base", "ort")
>>> report.verdict, report.root.activation
('diverged', 'blocks.1.ln2')
>>> collector.scalars("base", "loss").to_pandas()

The commands `statcollectord` and `statctl` are in the same wheel; training scripts `import statagent`.
"""

from . import _python  # noqa: F401  # isort: skip - first of all
from .client import Collector, connect
from .errors import (
    AnswerError,
    ArgumentError,
    CollectorUnavailableError,
    NotAllowedError,
    NotFoundError,
    ProgramNotFoundError,
    QueryError,
    StatcollectError,
)
from .golden import assert_matches
from .records import Observation
from .rows import Rows

__all__ = [
    "AnswerError",
    "ArgumentError",
    "Collector",
    "CollectorUnavailableError",
    "NotAllowedError",
    "NotFoundError",
    "Observation",
    "ProgramNotFoundError",
    "QueryError",
    "Rows",
    "StatcollectError",
    "assert_matches",
    "connect",
]
