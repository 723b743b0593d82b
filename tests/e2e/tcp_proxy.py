"""A TCP proxy in user space between agents and their collector that can turn its connections half-open."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable


class _Connection:
    """Two sockets and a thread a direction."""

    def __init__(self, client: socket.socket, server: socket.socket, bytes_max: int | None) -> None:
        self.client, self.server = client, server
        self.black_hole_at: float | None = None
        self.bytes_left = bytes_max  # that are still forwarded; then it is a black hole; None: all
        self.closed: dict[str, float] = {}  # by which side, when
        self._lock = threading.Lock()
        for name, source, target in (("client", client, server), ("server", server, client)):
            threading.Thread(target=self._forward, args=(name, source, target), daemon=True).start()

    def _forward(self, name: str, source: socket.socket, target: socket.socket) -> None:
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            with self._lock:
                if self.bytes_left is not None:
                    data, self.bytes_left = data[: self.bytes_left], self.bytes_left - min(self.bytes_left, len(data))
                    if self.bytes_left == 0 and self.black_hole_at is None:
                        self.black_hole_at = time.monotonic()
            try:
                target.sendall(data)
            except OSError:
                break
        with self._lock:
            self.closed[name] = time.monotonic()
        if self.black_hole_at is None:  # else the other side must find out by itself
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.client.close()
        self.server.close()


class TcpProxy:
    """Listens on a port of its own, forwards to `target` ("host:port"). A half-open connection takes what either side sends, forwards
    nothing and closes nothing, as a peer that has lost its power; where it is cut, within a message or not, `seed` decides.
    `bytes_max`: each connection becomes half-open by itself after so many bytes, of both directions."""

    def __init__(self, target: str, seed: int, bytes_max: int | None = None) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self._bytes_max = bytes_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[_Connection] = []
        self._dead = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            connection = _Connection(client, server, self._bytes_max)
            if self._dead:
                connection.bytes_left, connection.black_hole_at = 0, time.monotonic()
            self.connections.append(connection)

    def half_open(self) -> list[_Connection]:
        """Turns the connections that there are, and those to come, into half-open ones; returns those that there were."""
        self._dead = True
        alive = [c for c in self.connections if not c.closed]
        for connection in alive:
            connection.bytes_left = self._random.randrange(1, 2000)
        return alive

    def heal(self) -> None:
        """Connections to come are forwarded again."""
        self._dead = False

    def turn_to(self, target: str) -> None:
        """Ends all connections; those to come are forwarded to another target, as an address that moves to another machine."""
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        for connection in self.connections:
            for end in (connection.client, connection.server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for connection in self.connections:
            connection.close()


def await_closed(connection: _Connection, side: str, timeout: float, sleep: Callable[[float], None] = time.sleep) -> float:
    """Seconds from the connection's death until `side` ("client", "server") gave it up; infinity if it did not in `timeout`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if side in connection.closed and connection.black_hole_at is not None:
            return connection.closed[side] - connection.black_hole_at
        sleep(0.05)
    return float("inf")
