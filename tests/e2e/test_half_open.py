"""A connection whose peer is gone without a word is found within 30 s by both ends, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess

from conftest import Collector, start_python, wait_until
from tcp_proxy import TcpProxy, await_closed

FOUND_WITHIN_SECONDS = 30.0

TRAINING = """
import json, numpy, select, statagent, sys, time
statagent.init(run="half-open", required=True)
end = time.monotonic() + 300
step = 0
while time.monotonic() < end and not sys.stdin in select.select([sys.stdin], [], [], 0)[0]:
    for i in range(20):
        statagent.inspect(f"layer.{i}", numpy.full(16, float(step * 100 + i), dtype="float32"))
    statagent.step()
    step += 1
    time.sleep(0.05)
statagent.close(timeout=60)
print(json.dumps([step, statagent.counters()]))
"""


def test_both_ends_find_a_half_open_connection_and_nothing_is_lost(collector: Collector) -> None:
    seed = int(os.environ.get("STATCOLLECT_FAULT_SEED", random.randrange(1 << 30)))
    print(f"STATCOLLECT_FAULT_SEED={seed}")
    proxy = TcpProxy(collector.address, seed)
    environment = collector.environment()
    environment["STATAGENT_COLLECTOR"] = proxy.address
    trainer = start_python(["-c", TRAINING], env=environment, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        wait_until(lambda: any(r["records"] > 200 for r in collector.json("runs")["runs"]), timeout=60, what="records")
        (dead,) = proxy.half_open()
        agent = await_closed(dead, "client", FOUND_WITHIN_SECONDS + 30)
        daemon = await_closed(dead, "server", FOUND_WITHIN_SECONDS + 30)
        print(f"found by the agent after {agent:.1f} s, by the collector after {daemon:.1f} s")
        assert agent <= FOUND_WITHIN_SECONDS
        assert daemon <= FOUND_WITHIN_SECONDS
        wait_until(lambda: collector.json("status")["streams_open"] == 0, what="the stream to be freed")
        before = collector.json("runs")["runs"][0]["records"]
        proxy.heal()
        wait_until(lambda: collector.json("runs")["runs"][0]["records"] > before, timeout=60, what="the agent to be back")
        out, err = trainer.communicate("stop\n", timeout=90)
    finally:
        if trainer.poll() is None:
            trainer.kill()
            trainer.communicate()
        proxy.close()
    assert trainer.returncode == 0, err
    steps, counters = json.loads(out)
    assert counters == {"produced": steps * 21, "acked": steps * 21, "pending": 0}
    for i in (0, 19):
        points = collector.json("series", "half-open", f"layer.{i}")["records"]
        assert [(p["step"], p["stats"]["max"]) for p in points] == [(s, s * 100 + i) for s in range(steps)]
