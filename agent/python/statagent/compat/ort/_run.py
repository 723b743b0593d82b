"""The run that `output_dir` names, and the agent that records it."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from typing import Any

from ... import agent as _agent
from ..._runtime.agent import Agent
from ..._runtime.current import running_agent
from ..._runtime.log import warn, warn_once
from ..._runtime.process import EXIT_SECONDS
from ...errors import RunExistsError

NAME_MAX = 128
SAMPLES = 128  # first elements of each tensor, as many as ONNX Runtime writes
CLOSE_SECONDS = EXIT_SECONDS

_own: Agent | None = None  # started here, not by the script


class OutputExistsError(RunExistsError, FileExistsError):
    """The run that output_dir names has data, and override_output_dir is False."""


def run_name(output_dir: Any) -> str:
    """STATAGENT_RUN if it is set, else the last part of the folder's path ("pt_out" of "dumps/pt_out"). Characters that a run's name cannot
    contain become "_". A name that does not begin with a letter or digit is prefixed with "run". A long one is cut and ends in a hash."""
    named = os.environ.get("STATAGENT_RUN", "")
    if named:
        return named
    base = os.path.basename(os.path.abspath(os.fsdecode(output_dir)))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", base)
    if not name[:1].isalnum():
        name = "run" + name
    if len(name) > NAME_MAX:
        name = name[: NAME_MAX - 9] + "-" + hashlib.sha256(base.encode("utf-8", "replace")).hexdigest()[:8]
    return name


def agent_for(output_dir: Any, override: bool) -> Agent:
    """The agent that the script has started. Otherwise starts one for the run of output_dir, after closing the one of an earlier call.

    Raises OutputExistsError if the run has data and `override` is False, and the errors of statagent.init."""
    global _own
    current = running_agent()
    if current is not None:
        if current is not _own:
            return current
        warn(
            "second output_dir",
            f"StatisticsSubscriber('{output_dir}'): a process has one run at a time; the earlier one is closed",
        )
        current.close(CLOSE_SECONDS)
    name = run_name(output_dir)
    try:
        _own = _start(name, None)
    except RunExistsError as error:
        if not override:
            raise OutputExistsError(
                f"Output directory {output_dir} already exists, as run '{name}' in the collector. Set override_output_dir=True for "
                f"StatisticsSubscriber to replace it; or name another directory; or set STATAGENT_RUN ({error})"
            ) from error
        warnings.warn(f"Output directory {output_dir} already exists, as run '{name}'; overriding it.", stacklevel=3)
        _own = _start(name, "replace")
    if _own.rank() == 0:
        warn_once(
            f"run {name}",
            f"StatisticsSubscriber('{output_dir}') records run '{name}' and writes no files; statctl move export ort {name} DIR writes them",
        )
    return _own


def _start(name: str, if_exists: str | None) -> Agent:
    samples = None if os.environ.get("STATAGENT_SAMPLES") else SAMPLES
    return _agent.init(run=name, if_exists=if_exists, samples=samples)
