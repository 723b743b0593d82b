"""The end of a run: what the collector shows after an exception, and the message of a process that could not deliver its records."""

from __future__ import annotations

from typing import Any

from conftest import Collector, wait_until

DIES = """
import sys, threading
import statagent, torch
statagent.init(run=sys.argv[1], required=True)
for step in range(3):
    statagent.inspect("x", torch.arange(4.0))
    statagent.step()
def fail():
    raise ValueError("loss is NaN " + "x" * 1000)
if sys.argv[2] == "thread":
    thread = threading.Thread(target=fail, name="loader")
    thread.start()
    thread.join()
elif sys.argv[2] == "exception":
    fail()
elif sys.argv[2] == "handled":
    try:
        fail()
    except ValueError:
        pass
"""


def state(collector: Collector, run: str) -> str:
    found: str = collector.json("show", run)["summary"]["state"]
    return found


def exceptions(collector: Collector, run: str) -> list[Any]:
    events = collector.json("events", run)["records"]
    return [event for event in events if event["kind"] == "exception"]


def test_run_that_died_of_an_exception_is_interrupted_and_says_why(collector: Collector) -> None:
    done = collector.python(DIES, "died", "exception", code=1)
    assert "Traceback" in done.err and "ValueError: loss is NaN" in done.err, "Python's own message stays"
    wait_until(lambda: state(collector, "died") != "running", 10)
    assert state(collector, "died") == "interrupted"
    (event,) = exceptions(collector, "died")
    assert event["text"].startswith("ValueError: loss is NaN xxx")
    assert event["fields"]["type"] == "ValueError"
    assert len(event["fields"]["message"]) == 500
    assert len(collector.json("series", "died", "x")["records"]) == 3, "all records arrive all the same"


def test_exception_in_a_thread_is_an_event_and_the_run_finishes(collector: Collector) -> None:
    collector.python(DIES, "thread", "thread")
    assert state(collector, "thread") == "finished"
    (event,) = exceptions(collector, "thread")
    assert event["fields"]["thread"] == "loader" and event["text"].startswith("in thread 'loader': ValueError")


def test_handled_exception_is_no_event(collector: Collector) -> None:
    collector.python(DIES, "handled", "handled")
    assert state(collector, "handled") == "finished"
    assert exceptions(collector, "handled") == []
