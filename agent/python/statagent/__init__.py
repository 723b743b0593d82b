"""statagent: statistics of a training run's tensors, streamed to a statcollect collector.

>>> import statagent
>>> agent = statagent.init(run="base")                 # or STATAGENT_RUN=base
>>> watch = statagent.watch(model, optimizer=optimizer)
>>> for batch in batches:
...     statagent.log_batch(inputs=batch)
...     loss = compute_loss(model, batch)
...     loss.backward()
...     statagent.log_scalar("loss", loss)
...     optimizer.step()                               # also ends the step
"""

from . import _python  # noqa: F401  # isort: skip - first of all
from ._layouts.rows import rows
from ._layouts.samples import batch
from ._layouts.sequences import sequence
from ._layouts.user import replicate, shard
from .agent import Agent, close, counters, flush, init, inspect, log_batch, log_scalar, rank, step
from .compute import compute
from .errors import (
    CollectorUnavailableError,
    FlushTimeoutError,
    InvalidArgumentError,
    LibraryNotFoundError,
    RunExistsError,
    StatagentError,
    TensorTypeError,
)
from .fingerprint import fingerprint
from .flatten import flatten
from .merge import merge
from .tokens import compute_rows, token_keys
from .watch import Watch, watch

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "CollectorUnavailableError",
    "FlushTimeoutError",
    "InvalidArgumentError",
    "LibraryNotFoundError",
    "RunExistsError",
    "StatagentError",
    "TensorTypeError",
    "Watch",
    "batch",
    "close",
    "compute",
    "compute_rows",
    "counters",
    "fingerprint",
    "flatten",
    "flush",
    "init",
    "inspect",
    "log_batch",
    "log_scalar",
    "merge",
    "rank",
    "replicate",
    "rows",
    "sequence",
    "shard",
    "step",
    "token_keys",
    "watch",
]
