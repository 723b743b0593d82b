"""What thousands of connections cost a collector, and the ranks that it serves meanwhile.

python bench/connections.py                             # 10,000 connections; writes results/<date>-connections.json
python bench/connections.py --connections 500 --output /tmp/connections.json

Three phases, each with the same eight ranks that send at a steady pace: alone; beside connections that made no call; beside as many that have
each sent 60 KB of a message that never ends."""

from __future__ import annotations

import argparse
import json
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

STREAMS, ACTIVATIONS, PACE = 8, 1000, 50_000
PHASE_SECONDS = 15.0
DESCRIPTORS_PER_CONNECTION = 1.6  # the collector keeps a quarter for its store
SENT_BYTES = 60_000
METHOD = "/statcollect.v1.Ingest/Stream"

# Of HTTP/2 (RFC 9113, 3.4 and 6).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_HEADERS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-connections.json)")
    arguments = parser.parse_args()
    wanted = int(arguments.connections * DESCRIPTORS_PER_CONNECTION) + 1000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < wanted:
        parser.error(f"--connections {arguments.connections}: this process may open {most} files; expected {wanted} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    facts = machine.facts()
    rows = [
        _phase(name, count, beginning)
        for name, count, beginning in (
            ("no others", 0, b""),
            ("idle connections", arguments.connections, _greeting()),
            ("unfinished messages", arguments.connections, _greeting() + _unfinished_call()),
        )
    ]
    path = result_files.write(
        "connections", {"connections": arguments.connections, "records_per_second": PACE}, facts, rows, arguments.output
    )
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def _phase(name: str, connections: int, beginning: bytes) -> dict[str, Any]:
    with Collector(options=["--connections-max", str(connections + 100)]) as collector:
        others = [_connect(collector.address, beginning) for _ in range(connections)]
        time.sleep(2)
        command = [machine.BUILD / "bin" / "statcollect-bench", "ingest", "--collector", collector.address, "--streams", STREAMS,
                   "--activations", ACTIVATIONS, "--seconds", PHASE_SECONDS, "--records-per-second", PACE]  # fmt: skip
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
        row = {
            "others": name, "connections": _open(others), "collector_mib": round(_resident_mib(collector.pid), 1),
            **{f"acknowledged_{which}_ms": round(value, 2) for which, value in json.loads(done.stdout)["ack_ms"].items()},
        }  # fmt: skip
        for other in others:
            other.close()
        return row


def _connect(address: str, beginning: bytes) -> socket.socket:
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(beginning)
    return connection


def _open(connections: list[socket.socket]) -> int:
    """How many the collector has not closed."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(65536):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def _greeting() -> bytes:
    return PREFACE + _frame(SETTINGS, 0, 0, b"")


def _unfinished_call() -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "bench",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    # HPACK (RFC 7541, 6.2.2): literal fields, not indexed.
    head = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields.items()
    )
    message = b"\0" + (1 << 20).to_bytes(4, "big") + bytes(SENT_BYTES - 5)  # of gRPC: not compressed, 1 MiB long
    frames = [message[at : at + 16_384] for at in range(0, len(message), 16_384)]
    return _frame(HEADERS, END_HEADERS, 1, head) + b"".join(_frame(DATA, 0, 1, part) for part in frames)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def render(result: dict[str, Any]) -> str:
    """The table in README.md."""
    return result_files.table(
        ["beside", "connections", "collector, MiB", "acknowledgement, p50 ms", "p99", "largest"],
        [[row["others"], f"{row['connections']:,}", f"{row['collector_mib']:,.0f}",
          *(f"{row[f'acknowledged_{which}_ms']:.1f}" for which in ("p50", "p99", "max"))] for row in result["rows"]],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
