"""The agent of this process: `init` starts it, the other functions feed it."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ._compile import tracing
from ._native import host, library, session
from ._runtime import by_hand, failures, process, trackers, variables
from ._runtime.agent import Agent
from ._runtime.current import current_agent, running_agent, set_current_agent
from ._runtime.forking import SharedLock
from ._runtime.log import warn_once
from ._runtime.options import add_settings, join_requests, make_options
from ._runtime.overhead import find_budget
from ._runtime.perturbation import Perturbation, find_perturbation, report_unperturbed
from ._settings import configuration, environment
from .errors import StatagentError

T = TypeVar("T")

__all__ = [
    "Agent",
    "close",
    "counters",
    "current",
    "flush",
    "init",
    "inspect",
    "log_batch",
    "log_scalar",
    "rank",
    "step",
]

current = current_agent

_starting = SharedLock()


def init(
    run: str | None = None,
    collector: str | None = None,
    if_exists: str | None = None,
    config: Mapping[str, Any] | None = None,
    required: bool | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    launch: str | None = None,
    steps: str | None = None,
    sketch: int | None = None,
    samples: int | None = None,
    buffer_records_max: int | None = None,
    threads: int | None = None,
    connect_timeout: float | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    spill_limit: str | None = None,
    captures: str | Sequence[str] | None = None,
    exponents: str | Sequence[str] | None = None,
    overhead: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    project: str | None = None,
    ranks: str | None = None,
    perturb: str | None = None,
    ring: str | None = None,
) -> Agent:
    """Starts this process's agent. An argument that is None comes from the environment variable STATAGENT_<NAME>, else it has its default.

    run: the run's name. Without one here or in STATAGENT_RUN, that of an active run of W&B, MLflow or Trackio in this process.
    collector: HOST:PORT of statcollectord (default 127.0.0.1:7433).
    if_exists: "error" (default), "replace" or "append", for a run that has data.
    config: nested mapping, stored flattened with dots; merged over STATAGENT_CONFIG, which is a JSON object or @FILE with one.
    required: True raises an error if the collector cannot be reached; by default training continues.
    rank, local_rank, world_size, launch: default to the launcher's variables.
    ranks: the ranks that record, as "0,8-15" (default: all); in the others every call does nothing. The same in all ranks.
    steps: the steps to record, as "0-9,20,100-" (default: all).
    overhead: what recording may take of the step's time on average, as "2%": full statistics then only in every n-th step; n is measured.
    Default: every step in full. `steps` wins.
    sketch: signed sums for each tensor: 0, 16 (default), 32 or 64. samples: first elements of each tensor to keep (default 0).
    buffer_records_max: tensors that may wait for the sender (default 32768); more are dropped and counted.
    threads: threads that reduce large CPU tensors, including the training thread.
    connect_timeout: seconds to wait for the collector's first answer (default 3).
    spill_dir, spill_limit: folder and maximum size ("20GiB") of a file for records that do not fit in memory.
    captures: tensors whose raw values are kept, each as "NAME@STEPS" ("blocks.1.ln2@3-5:kind=grad_output", "*@0:kind=weight_grad"):
    up to 16 MiB of each (bytes_max=, up to 64 MiB), copied in the hook; docs/capture.md has the grammar.
    exponents: tensors whose binary exponents are counted, each as "PATTERN@STEPS" ("*@0-,every=100"), at the cost of an extra pass
    over each; docs/exponents.md.

    tls_ca: PEM file of the authority of the collector's certificate (its ca.pem); the connection then uses TLS.
    tls_cert, tls_key: PEM files of a certificate of this client, if the collector asks for one.
    project: project of the run, on a collector that several share (default: the token's, else "default").
    perturb: `"ULPS[,SEED][,once]"` records a twin of the run, as NAME.twin-ULPS-SEED: the same training with noise of up to that many units in
    the last place, from which a diff with NAME learns what rounding does to it; docs/twins.md.
    ring: `"STEPS,BYTES[;PATTERN[:kind=KIND];...]"`, such as "3,64MiB", keeps the tensors of the last steps in memory, which become captures
    when NaN, an overflow, a loss spike or an update of twice its median comes; docs/capture.md.

    Raises InvalidArgumentError for an argument that cannot be used, RunExistsError if the run has data and if_exists is "error",
    CollectorUnavailableError if `required` and no collector answers, StatagentError if an agent is already running."""
    if run is None and not os.environ.get("STATAGENT_RUN"):
        run = trackers.name_of(trackers.active())
    texts = {
        "run": run, "collector": collector, "if_exists": if_exists, "launch": launch, "steps": steps, "spill_limit": spill_limit,
        "project": project, "ranks": ranks, "ring": ring,
    }  # fmt: skip
    numbers = {
        "rank": rank, "local_rank": local_rank, "world_size": world_size, "sketch": sketch, "samples": samples,
        "buffer_records_max": buffer_records_max, "threads": threads,
    }  # fmt: skip
    by_hand.note()
    with _starting:
        if process.disabled():
            return _become_current(Agent(None))
        begun = _begun_for_the_program(run, config)
        if begun is not None:
            return begun
        _check_none_is_running(run)
        variables.warn_about_unknown()
        process.remove_kept_watches()
        for name, path in (("tls_ca", tls_ca), ("tls_cert", tls_cert), ("tls_key", tls_key)):
            texts[name] = None if path is None else os.fspath(path)
        texts["spill_dir"] = None if spill_dir is None else os.fspath(spill_dir)
        texts["captures"] = join_requests("captures", captures, "blocks.1.ln2@3")
        texts["exponents"] = join_requests("exponents", exponents, "*@0-,every=100")
        options = make_options(texts, numbers, connect_timeout, required)
        budget, perturbation = find_budget(overhead), find_perturbation(perturb, run)
        if perturbation is not None:
            run, options.run = perturbation.run, perturbation.run.encode()
        of_user, settings = _settings(config, steps, perturbation)
        add_settings(options, settings)
        loaded = library.load()
        host.use_library(loaded)
        started = session.start(loaded, options)
        recorded = started.recording_rank() is not None  # not left out by `ranks`
        agent = Agent(started) if recorded else Agent(None, (started.rank(), started.world_size()))
        agent.settings, agent.user_settings = settings, frozenset(of_user)
        agent.run, agent.watches.perturbation = run or os.environ.get("STATAGENT_RUN", ""), perturbation
        if agent.idle:
            return _become_current(agent)
        asked = _asked_steps(steps)
        if asked:
            agent.messages.steps = f"steps {asked}"
        elif budget is not None:
            agent.messages.steps = f"as many steps as {100 * budget:g}% of the time allow"
            agent.keep_to_budget(budget)
        _become_current(agent)
        if perturbation is not None:
            agent.clock.flush_listeners.append(report_unperturbed(agent))
        process.close_with_process(agent)
        failures.report_to(_note_exception)
        tracing.prepare_if_torch()
        return agent


def _become_current(agent: Agent) -> Agent:
    set_current_agent(agent)
    return agent


def _begun_for_the_program(run: str | None, config: Mapping[str, Any] | None) -> Agent | None:
    """The agent that has begun without a call of the program (statctl run), now the program's own; None if there is none."""
    agent = running_agent()
    if agent is None or not agent.automatic:
        return None
    agent.automatic = False
    agent.add_config(configuration.flatten_configuration(config))
    if run is not None and run != agent.run:
        warn_once(
            "begun", f"init(run={run!r}): this process records run '{agent.run}' already, from before this call; it goes on"
        )
    return agent


def _check_none_is_running(run: str | None) -> None:
    agent = running_agent()
    if agent is not None:
        raise StatagentError(
            f"init(run={run!r}): this process already has an agent, for run '{agent.run}'; expected none, because an agent serves one "
            "run; close it first with statagent.close()"
        )


def _settings(
    config: Mapping[str, Any] | None, steps: str | None, perturbation: Perturbation | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The user's settings, and all settings of the process, of which the user's override the checklist's. `steps`: of init."""
    of_user = {**configuration.environment_configuration(), **configuration.flatten_configuration(config)}
    recorded = _asked_steps(steps)
    asked = {"recording.agent_steps": recorded} if recorded else {}
    twin = {} if perturbation is None else perturbation.settings()
    room = max(0, configuration.SETTINGS_MAX - len(of_user) - len(asked) - len(twin))
    return of_user, {**environment.process_checklist(room), **asked, **of_user, **twin}


def _asked_steps(steps: str | None) -> str:
    """The steps that the program or the user wants recorded; empty: all."""
    return steps or os.environ.get("STATAGENT_STEPS", "")


def _expect_agent(function: str) -> Agent | None:
    agent = current_agent()
    if agent is None and not process.disabled():
        warn_once("init", f"{function}() before init(): nothing is recorded until statagent.init() is called")
    return agent


def inspect(name: str, tensor: T) -> T:
    """Records a named intermediate tensor and, if it requires one, its gradient; returns the same object.

    tensor: a torch tensor, a NumPy array, or anything with DLPack or the array interface; any shape. Repeated names in a micro-batch
    get call indexes 0, 1, ... Never raises: what cannot be recorded is counted as `dropped_refused`. Cost: one pass over the tensor."""
    if tracing.active():
        tracing.compiled.trace_inspect(name, tensor)
        return tensor
    agent = _expect_agent("inspect")
    return tensor if agent is None else agent.inspect(name, tensor)


def log_scalar(name: str, value: Any, micro_batch: int | None = None) -> None:
    """Records a number, such as the loss. `value`: a number, or a tensor or array with one element.

    Never waits for a GPU, and never raises. A tensor on a GPU is copied asynchronously. `micro_batch` defaults to the current one."""
    agent = _expect_agent("log_scalar")
    if agent is not None:
        agent.log_scalar(name, value, micro_batch)


def log_batch(**tensors: Any) -> None:
    """Records fingerprints of a batch's inputs, so that `statctl diff` can tell whether both runs were fed the same data.

    Each argument is a tensor, an array, or a nested value that contains some. Call it before the forward pass. Never raises."""
    agent = _expect_agent("log_batch")
    if agent is not None:
        agent.log_batch(**tensors)


def step() -> None:
    """Ends the step. With a watched optimizer the update ends it, and this call is ignored. Never raises."""
    agent = _expect_agent("step")
    if agent is not None:
        agent.step()


def flush(timeout: float = 5.0) -> bool:
    """Waits at most `timeout` seconds until everything so far is durable in the collector; False if something is still pending.

    Raises InvalidArgumentError for a timeout that is not a number from 0."""
    agent = _expect_agent("flush")
    return True if agent is None else agent.flush(timeout)


def close(timeout: float = process.EXIT_SECONDS) -> bool:
    """Flushes for at most `timeout` seconds and ends the agent; True if everything was delivered. `counters` still works afterwards.

    Called automatically at exit. Raises InvalidArgumentError for a timeout that is not a number from 0."""
    agent = current_agent()
    return True if agent is None else agent.close(timeout)


def counters() -> dict[str, int]:
    """Numbers of records: {"produced", "acked", "pending", "dropped_<cause>"...}, where produced == acked + pending + all dropped.

    "spilled", if present, is how many of the pending ones are in the spill file."""
    agent = current_agent()
    return {"produced": 0, "acked": 0, "pending": 0} if agent is None else agent.counters()


def rank() -> int:
    """This process's global rank, from 0."""
    agent = current_agent()
    return process.environment_rank() if agent is None else agent.rank()


def _note_exception(text: str, fields: Mapping[str, str], ends_process: bool) -> None:
    agent = running_agent()
    if agent is not None:
        agent.note_exception(text, fields, ends_process)


@atexit.register
def _close_at_exit() -> None:
    agent = current_agent()
    if agent is not None:
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: nobody wants to wait
            agent.close(process.EXIT_SECONDS)
