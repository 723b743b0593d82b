"""What the agent's calls take beside a Python thread that never rests, and whether they let it run: rows of host_path.py.

A running thread gives up the global interpreter lock (GIL) in two ways. The interpreter takes it away after each switch interval (5 ms) if
another thread wants it: of calls that take microseconds, far fewer than one in a hundred are hit by that. Or the call releases it by itself;
then it may have to wait a switch interval to get it back. The percentiles and the number of calls of more than 1 ms show what both cost;
without a release, the interpreter interrupts (microseconds of a call / 5) calls in 1,000. The column "let another thread run" shows the
second alone: with a switch interval that never ends, a thread that waits for the GIL gets it only if the call releases it."""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

CALLS = 500  # in a timed loop
PROBED_CALLS = 200
_NEVER_SECONDS = 1000.0
_WAKING_SECONDS = 0.0002  # until a thread that may go on waits for the GIL
_LONG_MICROSECONDS = 1000  # of a call that was interrupted
_ELEMENTS = (1, 1 << 14, 1 << 16, 1 << 18)

# Calls the function with each argument.
Loop = Callable[[Callable[[Any], object], Sequence[Any]], None]
# Runs the calls of a row in this loop, and ends the step.
Run = Callable[[Loop, int], None]


class BusyThread:
    """A thread of pure Python. `turns` counts its rounds."""

    def __init__(self) -> None:
        self.turns = 0
        self._gate = threading.Semaphore(0)
        self._spins = self._over = False
        self._thread = threading.Thread(target=self._run, name="busy", daemon=True)

    def __enter__(self) -> BusyThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._gate.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._gate.acquire()
            if self._over:
                return
            self.turns += 1
            while self._spins:
                self.turns += 1

    def ask_once(self) -> None:
        """It waits for the GIL from now on, for one round."""
        self._gate.release()
        end = time.perf_counter() + _WAKING_SECONDS
        while time.perf_counter() < end:
            pass

    @contextlib.contextmanager
    def spinning(self) -> Iterator[None]:
        self._spins = True
        begin = self.turns
        self._gate.release()
        while self.turns == begin:
            time.sleep(0.0001)
        yield
        self._spins = False


def rows(torch: Any, agent: Any, rounds: int, end_step: Callable[[Any], None]) -> list[dict[str, Any]]:
    """Rows of the table. `end_step` ends the agent's step and waits until everything is stored."""
    with BusyThread() as other:
        return [_row(name, run, other, rounds) for name, run in _calls(torch, agent, end_step)]


def _row(name: str, run: Run, other: BusyThread, rounds: int) -> dict[str, Any]:
    alone: list[float] = []
    beside: list[float] = []
    run(_timing([]), CALLS)  # what is done once
    for _ in range(rounds):
        run(_timing(alone), CALLS)
        run(_beside(other, _timing(beside)), CALLS)
    lost = [0]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_NEVER_SECONDS)
    run(_probing(other, lost), PROBED_CALLS)
    sys.setswitchinterval(interval)
    row: dict[str, Any] = {"name": name, "let_run": round(lost[0] / PROBED_CALLS, 4)}
    for key, times in (("alone", alone), ("beside", beside)):
        percentiles = statistics.quantiles(times, n=100)
        row[key] = {f"p{p}": round(percentiles[p - 1], 3) for p in (50, 90, 99)}
        row[key]["long"] = round(1000 * sum(t > _LONG_MICROSECONDS for t in times) / len(times), 3)
    return row


def _timing(times: list[float]) -> Loop:
    """Appends the microseconds of each call."""

    def loop(function: Callable[[Any], object], arguments: Sequence[Any]) -> None:
        now = time.perf_counter_ns
        for argument in arguments:
            begin = now()
            function(argument)
            times.append((now() - begin) / 1000)

    return loop


def _beside(other: BusyThread, inner: Loop) -> Loop:
    def loop(function: Callable[[Any], object], arguments: Sequence[Any]) -> None:
        with other.spinning():
            inner(function, arguments)

    return loop


def _probing(other: BusyThread, lost: list[int]) -> Loop:
    """Counts the calls during which another thread, which waited for the GIL, has got it."""

    def loop(function: Callable[[Any], object], arguments: Sequence[Any]) -> None:
        for argument in arguments:
            turns = other.turns
            other.ask_once()
            function(argument)
            if other.turns > turns:
                lost[0] += 1
            while other.turns == turns:
                time.sleep(0.00001)

    return loop


def _calls(torch: Any, agent: Any, end_step: Callable[[Any], None]) -> Iterator[tuple[str, Run]]:
    handles = [agent.intern("tensor", "inspect", call=call) for call in range(CALLS)]
    names = [f"named.{index}" for index in range(CALLS)]
    for elements in _ELEMENTS:
        yield f"observe, {_size(elements * 4)}", _run_of(_observing(agent, torch.ones(elements)), handles, agent, end_step)
    one = torch.ones(1)
    yield "inspect, 4 B", _run_of(lambda name: agent.inspect(name, one), names, agent, end_step)
    yield "log_scalar", _run_of(lambda name: agent.log_scalar(name, 1.0), names, agent, end_step)
    yield "module hook, output and a hook for its gradient, 4 B", _module_run(torch, agent, end_step)


def _observing(agent: Any, tensor: Any) -> Callable[[Any], object]:
    return lambda handle: agent.observe_handle(handle, tensor)


def _run_of(function: Callable[[Any], object], arguments: Sequence[Any], agent: Any, end_step: Callable[[Any], None]) -> Run:
    def run(loop: Loop, calls: int) -> None:
        loop(function, arguments[:calls])
        end_step(agent)

    return run


def _module_run(torch: Any, agent: Any, end_step: Callable[[Any], None]) -> Run:
    """The modules compute nothing, because torch's own operators release the GIL."""
    import statagent

    class Same(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x

    class Each(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.modules_in_turn = torch.nn.ModuleList(Same() for _ in range(CALLS))
            self.loop: Loop = _timing([])
            self.calls = CALLS

        def forward(self, x: Any) -> Any:
            self.loop(lambda module: module(x), list(self.modules_in_turn)[: self.calls])
            return x

    model = Each()
    statagent.watch(
        model, kinds={"output", "grad_output"}, include=["*modules_in_turn.*"], name="beside", memory=False, density=False,
        random_states=False,
    )  # fmt: skip

    def run(loop: Loop, calls: int) -> None:
        model.loop, model.calls = loop, calls
        model(torch.ones(1, requires_grad=True) * 1.0)
        end_step(agent)

    return run


def _size(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size >> 10} KiB"
