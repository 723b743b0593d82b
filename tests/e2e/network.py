"""Machines of a test: network namespaces, each with its own ports and addresses."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Machines:
    """Prefixes of commands on the collector's machine and on another one, and the collector's address there."""

    here: list[str]
    there: list[str]
    host: str
    listen: str
    variables: dict[str, str] = field(default_factory=dict)  # that ranks on several machines need to find each other

    @property
    def separate(self) -> bool:
        return self.here != self.there


@contextmanager
def two_machines() -> Iterator[Machines]:
    """Two network namespaces with a cable, each knowing this machine's name as the first one's; where this user may not make them, a second
    loopback address."""
    here, there = (f"sc-{os.getpid()}-{name}" for name in ("a", "b"))
    setup = f"""
      ip netns add {here} && ip netns add {there} && ip link add veth0 netns {here} type veth peer name veth0 netns {there}
      ip -n {here} addr add 10.211.0.1/24 dev veth0 && ip -n {there} addr add 10.211.0.2/24 dev veth0
      for n in {here} {there}; do
        ip -n $n link set lo up && ip -n $n link set veth0 up
        mkdir -p /etc/netns/$n && printf '127.0.0.1 localhost\\n10.211.0.1 {socket.gethostname()}\\n' >/etc/netns/$n/hosts
      done
    """
    try:
        if subprocess.run(["sh", "-ec", setup], capture_output=True, check=False).returncode == 0:
            enter = ["ip", "netns", "exec"]
            yield Machines([*enter, here], [*enter, there], "10.211.0.1", "0.0.0.0:0", {"GLOO_SOCKET_IFNAME": "veth0"})
        else:
            yield Machines([], [], "127.0.0.2", "127.0.0.2:0")
    finally:
        for name in (here, there):
            subprocess.run(["sh", "-c", f"ip netns del {name}"], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
