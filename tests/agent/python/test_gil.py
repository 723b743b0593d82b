"""Which calls of the library hold Python's global interpreter lock (docs/decisions/0029-holding-the-gil.md), and that none of them deadlocks."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, compute
from statagent._native import library as _library
from statagent._native.tensors import Place
from statagent._watch.steps import Steps

from .support import python

NOWHERE = {"collector": "127.0.0.1:1", "connect_timeout": 0}
LONG_SECONDS = 1000.0  # far longer than a test takes
CALLING_SECONDS = 0.1
PATIENCE_SECONDS = 20.0


class OtherThread:
    """A thread that asks for the lock once for each `ask`, and counts how often it got it.

    With a long switch interval the interpreter never takes the lock from a running thread. So if `turns` grows while the main thread runs, a
    call of the main thread has released the lock."""

    def __init__(self) -> None:
        self.turns = 0
        self._gate = threading.Semaphore(0)
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._gate.acquire()
            if self._over:
                return
            self.turns += 1

    def ask(self) -> None:
        """Returns when the thread waits for the lock, on a machine that is not hopelessly busy."""
        self._gate.release()
        spin(0.02)

    def has_had_turn(self, turns: int) -> bool:
        """Releases the lock until the thread has had so many turns."""
        return wait_for(lambda: self.turns >= turns, lambda: time.sleep(0.001))

    def end(self) -> None:
        self._over = True
        self._gate.release()
        self._thread.join()


def spin(seconds: float) -> None:
    """Runs without releasing the lock."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def wait_for(done: Callable[[], bool], work: Callable[[], object]) -> bool:
    end = time.perf_counter() + PATIENCE_SECONDS
    while not done() and time.perf_counter() < end:
        work()
    return done()


@pytest.fixture
def other() -> Iterator[OtherThread]:
    interval = sys.getswitchinterval()
    gc.collect()
    gc.disable()  # what is collected may release the lock: another test's agent, for example
    thread = OtherThread()
    sys.setswitchinterval(LONG_SECONDS)
    yield thread
    sys.setswitchinterval(interval)
    gc.enable()
    thread.end()


@pytest.fixture
def agent() -> Agent:
    """Not recorded: a recording makes calls of its own."""
    return statagent.init(run="test", **NOWHERE)  # type: ignore[arg-type]


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def bytes_of(size: int) -> torch.Tensor:
    return torch.ones(size // 4)


def observing_at(agent: Agent, tensor: torch.Tensor) -> Callable[[], None]:
    handles = iter([agent.intern("at", "inspect", call=call) for call in range(50_000)])
    place = Place()
    return lambda: agent.observe_at(place, next(handles), tensor)


def inspecting(agent: Agent, tensor: torch.Tensor) -> Callable[[], object]:
    return lambda: agent.inspect("x", tensor)


def refused(agent: Agent) -> Callable[[], None]:
    tensor = torch.ones(1)
    return lambda: agent.observe_handle(999_999_999, tensor)


def computing(tensor: torch.Tensor) -> Callable[[], object]:
    return lambda: compute(tensor, exponents=True)


def hooked_module(agent: Agent, gradient: bool) -> Callable[[], object]:
    model = nn.Sequential(Same())
    statagent.watch(model, kinds={"output", "grad_output"}, memory=False, density=False, random_states=False, eval=True)
    x = torch.ones(4, requires_grad=True) * 1

    def call() -> None:
        model(x)
        x._backward_hooks = None

    def call_without() -> None:
        model(x)

    if gradient:
        return call
    x = x.detach()
    model.eval()
    return call_without


SHORT: dict[str, Callable[[Agent], Callable[[], object]]] = {
    "observe": lambda agent: observing_at(agent, torch.ones(1)),
    "observe at most as much as is held": lambda agent: observing_at(agent, bytes_of(_library.HELD_BYTES_MAX)),
    "inspect": lambda agent: inspecting(agent, torch.ones(1)),
    "inspect with a gradient": lambda agent: inspecting(agent, torch.ones(1, requires_grad=True)),
    "module hook": lambda agent: hooked_module(agent, gradient=False),
    "module hook with a gradient": lambda agent: hooked_module(agent, gradient=True),
    "refused observe": refused,
    "compute": lambda _: computing(torch.ones(16)),
    "log_scalar": lambda agent: lambda: agent.log_scalar("loss", 1.0),
    "log_scalar_at": lambda agent: lambda: agent.log_scalar_at("loss", 1.0, 0, 0),
    "log_event": lambda agent: lambda: agent.log_event("note", "text", {"a": "b"}),
    "log_memory": lambda agent: lambda: agent.log_memory("pre_forward", {"allocated": 1}, "cpu"),
    "log_density": lambda agent: lambda: agent.log_density("ids", "embed", 0, 1, 2, [1, 0], 0, 0),
    "intern": lambda agent: lambda: agent.session and agent.session.intern("x", "output", "", 0, 0, "train", "", "", 0),
    "current_step": lambda agent: agent.current_step,
    "step_wanted": lambda agent: lambda: agent.session and agent.session.step_wanted(),
    "rank": lambda agent: lambda: (agent.rank(), agent.world_size()),
    "steps": lambda _: lambda: 3 in Steps("0-9", "steps"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_short_call_holds_the_lock(name: str, agent: Agent, other: OtherThread, capfd: pytest.CaptureFixture[str]) -> None:
    call = SHORT[name](agent)
    call()  # what it does once, it has done
    turns = other.turns
    other.ask()
    end, calls = time.perf_counter() + CALLING_SECONDS, 0
    while time.perf_counter() < end and calls < 40_000:
        call()
        calls += 1
    assert calls >= 3
    assert other.turns == turns, f"{name} released the lock within {calls} calls"
    assert other.has_had_turn(turns + 1), "the thread did not want the lock, so this has shown nothing"


LARGE = 8 * _library.HELD_BYTES_MAX
LONG: dict[str, Callable[[Agent], Callable[[], object]]] = {
    "observe a large tensor": lambda agent: observing_at(agent, bytes_of(LARGE)),
    "more than is held": lambda agent: observing_at(agent, bytes_of(_library.HELD_BYTES_MAX + 4)),
    "a large bool tensor": lambda agent: observing_at(agent, torch.ones(LARGE, dtype=torch.bool)),
    "compute": lambda _: computing(bytes_of(LARGE)),
    "flush": lambda agent: lambda: agent.flush(0.01),
    "counters": lambda agent: agent.counters,
    "end of a step": lambda agent: agent.end_step,
}


@pytest.mark.parametrize("name", LONG)
def test_a_call_that_takes_long_or_waits_releases_the_lock(name: str, agent: Agent, other: OtherThread) -> None:
    agent.log_scalar("loss", 1.0)  # something to wait for
    call = LONG[name](agent)
    call()
    turns = other.turns
    other.ask()
    assert other.turns == turns
    assert wait_for(lambda: other.turns > turns, call), f"{name} holds the lock"


def test_starting_and_closing_release_the_lock(other: OtherThread) -> None:
    started = closed = False
    for _ in range(50):  # on a busy machine the thread may come to the lock only when it is held again
        turns = other.turns
        other.ask()
        agent = statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0.05)
        started = started or other.turns > turns
        agent.log_scalar("loss", 1.0)
        assert other.has_had_turn(turns + 1)
        turns = other.turns
        other.ask()
        agent.close(timeout=0.05)
        closed = closed or other.turns > turns
        assert other.has_had_turn(turns + 1)
        if started and closed:
            break
    assert started, "init holds the lock"
    assert closed, "close holds the lock"


def test_size_and_device_decide() -> None:
    from statagent._native.tensors import borrow

    limit = _library.HELD_BYTES_MAX
    for dtype in (torch.bool, torch.bfloat16, torch.float32, torch.complex128):
        elements = limit // dtype.itemsize
        assert borrow(torch.empty(elements, dtype=dtype))[0].held
        assert not borrow(torch.empty(elements + 1, dtype=dtype))[0].held
    assert not borrow(torch.ones(1).expand(limit))[0].held, "the elements are read, however few are stored"
    assert borrow(torch.empty(limit, 0))[0].held
    assert not _library.Tensor().held, "on a device, unless said otherwise"


def test_a_lazily_negated_tensor_has_an_odd_offset() -> None:
    """is_neg() would release the lock, so only tensors with an odd offset are asked."""
    z = torch.randn(3, 4, dtype=torch.complex64)
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x, lambda x: x[1:], lambda x: x.t(), lambda x: x.detach(), lambda x: x.data, lambda x: x[:, ::2],
        lambda x: x.diagonal(), lambda x: x.unsqueeze(0).expand(2, *x.shape), lambda x: x[0, 0], nn.Parameter,
    ]  # fmt: skip
    for whole in (z, z[1:], z.t(), z[:, 1:]):
        for view in views:
            found = view(whole.conj().imag)
            assert found.is_neg() and found.storage_offset() % 2 == 1
            assert compute(found) == compute(found.resolve_neg())
    copies: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.clone, torch.Tensor.contiguous, lambda x: x + 0, torch.sum]
    for copy in copies:
        assert not copy(z.conj().imag).is_neg()


# --- nothing deadlocks ---


def test_standard_error_that_this_process_reads_itself() -> None:
    """A notebook reads what is written to standard error in a Python thread, which needs the lock. The library must not write with it held,
    and no short call may wait for a thread that writes."""
    script = """
import os, sys, threading, time
reading, writing = os.pipe()
real = os.dup(2)
os.dup2(writing, 2)
os.set_blocking(writing, False)
try:
    while True: os.write(writing, b"." * 4096)
except BlockingIOError:
    pass
os.set_blocking(writing, True)
said = bytearray()
trained = threading.Event()
def read():
    trained.wait()
    while chunk := os.read(reading, 4096):
        said.extend(chunk)
import statagent, torch
threading.Thread(target=read, daemon=True).start()
agent = statagent.init(run="stderr", collector="127.0.0.1:1", connect_timeout=0)  # says that nobody answers
for i in range(100):
    agent.inspect("x", torch.ones(4))
    agent.log_scalar("loss", i)
    agent.step()
agent.counters()
trained.set()  # all of the above was done with nobody reading
while not said:
    time.sleep(0.01)
agent.close(0)
for _ in range(500):  # the reader has the bytes only after it got the lock
    if b"were not stored within" in said: break
    time.sleep(0.01)
os.dup2(real, 2)
print(b"training continues" in said, b"were not stored within" in said)
"""
    assert python(script, timeout=60).stdout.split() == ["True", "True"]


def test_closing_and_counting_beside_threads_that_observe() -> None:
    script = """
import sys, threading, time, statagent, torch
sys.setswitchinterval(1e-5)
tensors = [torch.ones(n) for n in (1, 64, 4096, 1 << 20)]
for round in range(5):
    agent = statagent.init(run=f"threads{round}", collector="127.0.0.1:1", connect_timeout=0, buffer_records_max=256)
    over = threading.Event()
    def observe(index):
        while not over.is_set():
            agent.inspect(f"x{index}", tensors[index])
            agent.log_scalar("loss", 1.0)
            agent.log_event("note", "text")
    def count():
        while not over.is_set():
            found = agent.counters()
            assert found["produced"] == found["acked"] + found["pending"] + sum(n for k, n in found.items() if k.startswith("dropped_"))
    def step():
        while not over.is_set():
            agent.step()
            agent.flush(0.001)
    threads = [threading.Thread(target=observe, args=(i,)) for i in range(4)] + [threading.Thread(target=f) for f in (count, step)]
    for thread in threads: thread.start()
    time.sleep(0.2)
    closing = threading.Thread(target=agent.close, args=(0.05,))
    closing.start()
    closing.join()
    time.sleep(0.05)
    over.set()
    for thread in threads: thread.join()
    found = agent.counters()
    assert found["pending"] == 0 and found["produced"] > 0
print("ok")
"""
    assert python(script, timeout=120).stdout.split() == ["ok"]


def test_fork_beside_threads_that_observe() -> None:
    script = """
import os, threading, statagent, torch
agent = statagent.init(run="fork", collector="127.0.0.1:1", connect_timeout=0, buffer_records_max=256)
tensors = [torch.ones(n) for n in (1, 1 << 18)]
over = threading.Event()
def observe(index):
    while not over.is_set():
        agent.inspect(f"x{index}", tensors[index])
        agent.log_scalar("loss", 1.0)
threads = [threading.Thread(target=observe, args=(i,)) for i in range(2)]
for thread in threads: thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        agent.inspect("x", torch.ones(4))
        agent.log_scalar("loss", 1.0)
        agent.step()
        agent.counters()
        agent.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
over.set()
for thread in threads: thread.join()
print("ok", flush=True)
os._exit(0)
"""
    assert python(script, timeout=60).stdout.split() == ["ok"]


def test_arguments_of_the_call_without_declared_types(agent: Agent) -> None:
    """statagent_observe_held converts none: a handle of more than 31 bits arrives whole, and what is not a number raises."""
    reports: list[Any] = []
    agent.refuse = lambda message, *_: reports.append(message)  # type: ignore[method-assign]
    agent.observe_handle(2**32 - 5, torch.ones(1))
    assert reports and f"handle {2**32 - 5} was never given out" in reports[0]
    agent.observe_handle(2.5, torch.ones(1))  # type: ignore[arg-type]
    assert "Don't know how to convert" in reports[1]
