"""The set-ups of docs/security.md and README.md, typed as printed into shells whose folder is empty.

They use the default ports, so each test has a network namespace of its own; where this user may not make one, they need the ports to be free."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, STATCTL, WARM, Finished, agent_environment, run_command, wait_until
from network import Machines, two_machines
from test_readme_snippets import snippet

NOBODY = 65534  # a user without any rights
# What the reader has already: a model, an optimizer, batches.
TRAINING = """
import os, sys, torch
from torch import distributed
if "WORLD_SIZE" in os.environ:
    distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
if "--backend" in sys.argv:
    model[1].eps = 0.1
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randn(2, 4) for _ in range(3)]
def compute_loss(model, batch):
    return model(batch).square().mean()
"""
# The loop of somebody who does not know of statcollect.
PLAIN = """
for batch in batches:
    compute_loss(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Terminal:
    """A shell on a machine. Its background jobs end with it."""

    def __init__(self, folder: Path, enter: list[str], **variables: str) -> None:
        env = agent_environment(**variables)
        env["PATH"] = f"{BUILD / 'bin'}:{Path(sys.executable).parent}:{env['PATH']}"
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            env.pop(name, None)
        env = WARM.on_path(env)
        self.shell = subprocess.Popen(
            [*enter, "bash", "--noprofile", "--norc"], cwd=folder, env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def type(self, text: str) -> Finished:
        """Waits for what does not run in the background; the output has that of background jobs in it, too."""
        assert self.shell.stdin is not None and self.shell.stdout is not None
        self.shell.stdin.write(text.rstrip() + "\nprintf '\\n[exit %d]\\n' $?\n")
        self.shell.stdin.flush()
        shown = ""
        for line in self.shell.stdout:
            if found := re.fullmatch(r"\[exit (\d+)\]\n", line):
                return Finished(int(found[1]), shown, "")
            shown += line
        raise AssertionError(f"the shell ended at {text!r}: {shown}")

    def type_ok(self, text: str) -> str:
        done = self.type(text)
        assert done.code == 0, f"{text}: {done.out}"
        return done.out

    def start(self, command: str) -> str:
        """Runs a collector in the background; what it has said once it is ready."""
        shown = self.type_ok(f"{command} &")
        deadline = time.monotonic() + 60
        while "ready" not in shown:
            assert time.monotonic() < deadline, shown
            shown += self.type_ok("sleep 0.1")
        return shown

    def close(self) -> None:
        os.killpg(self.shell.pid, signal.SIGTERM)  # the shell itself ignores that
        self.shell.communicate(timeout=60)


@pytest.fixture
def machines() -> Iterator[Machines]:
    with two_machines() as found:
        if not found.separate:
            for port in (7433, 7434):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        pytest.skip(f"port {port} is taken, and this user may make no network namespace")
        yield found


@contextmanager
def terminal(folder: Path, enter: list[str], **variables: str) -> Iterator[Terminal]:
    folder.mkdir(exist_ok=True)
    opened = Terminal(folder, enter, **variables)
    try:
        yield opened
    finally:
        opened.close()


def block(start: str) -> str:
    """The first indented block of docs/security.md behind these words."""
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    found = re.search(r"^(?:    .*\n)+", text[text.index(start) :], re.MULTILINE)
    assert found
    return re.sub(r"^    ", "", found[0], flags=re.MULTILINE)


def script(folder: Path, loop: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAINING + (loop or snippet("README.md", "python", "statagent.watch")))


def as_nobody(machines: Machines, folder: Path, *command: str) -> Finished:
    """As another user of the collector's machine, with a copy of statctl that this user may run."""
    enter = [*machines.here, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    return run_command([*enter, *command], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"})


@pytest.fixture
def neighbour() -> Iterator[Path]:
    """A folder of another user, with statctl in it."""
    if os.getuid() != 0:
        pytest.skip("acting as another user needs root")
    folder = Path(tempfile.mkdtemp(prefix="neighbour-"))
    folder.chmod(0o755)
    shutil.copy(STATCTL, folder / "statctl")
    os.chown(folder, NOBODY, NOBODY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def test_a_laptop(machines: Machines, tmp_path: Path) -> None:
    start = block("**A laptop.**")
    assert start == "statcollectord\n"
    train_and_compare = snippet("README.md", "bash", "statctl run base").replace("--nproc_per_node=8", "--nproc_per_node=2")
    base, ort, diff = train_and_compare.splitlines()
    work = tmp_path / "work"
    script(work, PLAIN)
    with terminal(tmp_path / "empty", machines.here) as collector, terminal(work, machines.here) as shell:
        collector.type_ok(f"{start.strip()} &")  # stays in the foreground as printed; here the terminal is needed to end it
        wait_until(lambda: shell.type("statctl --collector 127.0.0.1:7433 status").code == 0, what="the collector")
        shell.type_ok(base)
        shell.type_ok(ort)
        found = shell.type(diff)
        assert found.code == 1 and "DIVERGED at step 0" in found.out, found.out
        assert shell.type("statctl runs").out.count("finished") >= 2
        assert "statcollect" in shell.type_ok("curl -s --noproxy '*' http://127.0.0.1:7434/")
        assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == ["statcollect-data"]
        assert not (set(os.listdir(work)) - {"train.py", "__pycache__"}), "where a collector answers, nothing is written here"


def test_without_a_collector(machines: Machines, tmp_path: Path) -> None:
    """The README's first command, at the default address, where nothing listens."""
    work = tmp_path / "work"
    script(work, PLAIN)
    with terminal(work, machines.here) as shell:
        nothing = shell.type("statctl runs")
        assert nothing.code == 2 and "no collector at 127.0.0.1:7433, and no folder ./statcollect-data here" in nothing.out
        found = shell.type(snippet("README.md", "bash", "statctl ab").replace("--steps 20", "--steps 3 --quick"))
        assert found.code == 1 and "DIVERGED at step 0, rank 0, forward, 1 (LayerNorm)" in found.out, found.out
        assert "Cause: eps is 1e-05 in ab-a and 0.1 in ab-b" in found.out
        assert found.out.count("no collector runs at 127.0.0.1:7433; this command uses its own, on ./statcollect-data") == 1
        assert "ab-a (+2 twins)" in shell.type_ok("statctl runs")
        wait_until(lambda: not (work / "statcollect-data/statcollectord.address").exists(), what="its collector to end")


def test_a_shared_host(machines: Machines, neighbour: Path, tmp_path: Path) -> None:
    start = block("**A shared host.**")
    home = tmp_path / "home"
    script(home)
    with terminal(home, machines.here) as shell:
        shell.type_ok(start)
        wait_until(lambda: shell.type("statctl --collector 127.0.0.1:7433 status").code == 0, what="the collector")
        shell.type_ok("STATAGENT_RUN=base torchrun --nproc_per_node=2 train.py")
        assert "base" in shell.type_ok("statctl runs")
        assert "scope" in shell.type("statctl admin audit").out, "the second token cannot do everything"
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in home.iterdir()}
        assert modes["agents.token"] == modes["me.token"] == "0o600" and modes["statcollect-data"] == "0o700"
        os.chmod(tmp_path, 0o755)  # pytest's folders keep others out; the files are to do that alone
        for command in (
            ("statctl", "runs"), ("statctl", "rm", "base", "--yes"), ("statctl", "--token-file", str(home / "me.token"), "runs"),
        ):  # fmt: skip
            refused = as_nobody(machines, neighbour, *command)
            assert refused.code == 2 and re.search("no token was sent|token file .*denied", refused.err), refused.err
        web = as_nobody(machines, neighbour, "curl", "-s", "--noproxy", "*", "http://127.0.0.1:7434/api/v1/runs")
        assert "no token was sent" in web.out and "base" not in web.out
        assert "base" in shell.type_ok("statctl runs")


def test_a_unix_socket(machines: Machines, neighbour: Path, tmp_path: Path) -> None:
    runtime = Path(tempfile.mkdtemp(prefix="run-"))  # in place of /run/user/1000, which keeps others out by itself
    runtime.chmod(0o755)
    lines = block("## Unix socket").replace("/run/user/1000", str(runtime)).splitlines()
    collector, clients = lines
    script(tmp_path / "home")
    try:
        with terminal(tmp_path / "home", machines.here) as shell:
            shell.type_ok(f"{collector} &")
            shell.type_ok(clients)
            wait_until(lambda: shell.type("statctl runs").code == 0, what="the collector")
            shell.type_ok("STATAGENT_RUN=base torchrun --nproc_per_node=1 train.py")
            assert "finished" in shell.type_ok("statctl runs")
            refused = as_nobody(machines, neighbour, "sh", "-c", f"{clients}; statctl runs")
            assert refused.code == 2 and "no access to the socket" in refused.err, refused.err
    finally:
        shutil.rmtree(runtime)


def variables(shown: str, kind: str) -> str:
    """The lines that set a client's variables, as the collector prints them."""
    found = re.findall(rf"^ +(export {kind}_.*)$", shown, re.MULTILINE)
    assert found, shown
    return "\n".join(found)


def train_on_both(machines: Machines, ours: Terminal, theirs: Terminal) -> None:
    """One rank on each machine."""
    launch = (
        "STATAGENT_RUN=base torchrun --nnodes=2 --node_rank=%d --nproc_per_node=1 --master_addr={} --master_port=29511 train.py"
    )
    first, second = (launch.format(machines.host) % rank for rank in (0, 1))
    ours.type_ok(f"{first} &")
    theirs.type_ok(second)
    wait_until(lambda: "2" in theirs.type("statctl --format json show base | jq .summary.ranks").out, what="both ranks")


def copies(files: Path, target: Path, *names: str) -> None:
    """What the other machine gets."""
    target.mkdir()
    for name in names:
        shutil.copy(files / name, target / name)  # and its mode


@pytest.mark.parametrize("kind", ["one command", "client certificates"])
def test_a_cluster(machines: Machines, tmp_path: Path, kind: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        script(folder)
    with ExitStack() as stack:
        collector = stack.enter_context(terminal(tmp_path / "empty", machines.here))
        here = stack.enter_context(terminal(ours, machines.here, **machines.variables))
        there = stack.enter_context(terminal(theirs, machines.there, **machines.variables))
        if kind == "one command":
            start = block("**A cluster.**")
            assert start == "statcollectord --listen 0.0.0.0:7433 --tls-auto\n"
            shown = collector.start(start.strip())
            files = tmp_path / "empty/statcollect-data/tls"
            copies(files, theirs / "certs", "ca.pem", "agents.token", "statctl.token")
        else:
            shown = collector.type_ok("statcollectord tls init certs")
            (start,) = re.findall(r"^  (statcollectord .*)$", shown, re.MULTILINE)
            collector.start(start)
            files = tmp_path / "empty/certs"
            copies(files, theirs / "certs", "ca.pem", "client.pem", "client.key")
        for client in ("STATAGENT", "STATCTL"):
            here.type_ok(variables(shown, client))
            there.type_ok(variables(shown, client).replace(str(files), str(theirs / "certs")))
        wait_until(lambda: there.type("statctl status").code == 0, what="the collector")
        train_on_both(machines, here, there)
        stranger = stack.enter_context(terminal(tmp_path / "stranger", machines.there))
        plain = stranger.type(f"statctl --collector {machines.host}:7433 runs")
        assert plain.code == 2 and "this client does not" in plain.out
        known = stranger.type(f"statctl --collector {machines.host}:7433 --tls-ca {theirs / 'certs/ca.pem'} runs")
        assert known.code == 2 and re.search("no token was sent|requires a client certificate", known.out), known.out
        assert "base" in there.type_ok("statctl runs")


def test_without_tls_and_tokens_the_collector_stays_at_home(machines: Machines, tmp_path: Path) -> None:
    with terminal(tmp_path / "empty", machines.here) as shell:
        refused = shell.type("statcollectord --listen 0.0.0.0:7433")
        assert refused.code == 2 and "found neither TLS nor tokens; expected both; add --tls-auto" in refused.out
        assert not any((tmp_path / "empty").iterdir()), "nothing was made"


def test_a_secret_that_kubernetes_mounts(machines: Machines, neighbour: Path, tmp_path: Path) -> None:
    """Files of root that the group of a pod (fsGroup) may read, behind links: for the collector's tokens as for a client's."""
    mounted = neighbour / "secrets"
    (mounted / "..data").mkdir(parents=True)
    with terminal(tmp_path / "empty", machines.here) as shell:
        shell.type_ok("statcollectord token create --scope read --out me.token")
        for name, source in (("tokens", "statcollect-data/tokens"), ("me.token", "me.token")):
            shutil.copy(tmp_path / "empty" / source, mounted / "..data" / name)
            os.chown(mounted / "..data" / name, 0, NOBODY)
            os.chmod(mounted / "..data" / name, 0o440)
            (mounted / name).symlink_to(f"..data/{name}")
        enter = f"setpriv --reuid=10001 --regid={NOBODY} --clear-groups --"
        shell.type_ok(f"mkdir {neighbour}/data && chown 10001 {neighbour}/data && cp {BUILD}/bin/statcollectord {neighbour}")
        shell.type_ok(f"cd {neighbour}")
        shell.start(f"{enter} ./statcollectord --data-dir data --token-file {mounted}/tokens")
        ask = f"{enter} ./statctl --token-file {mounted}/me.token runs"
        shell.type_ok(ask)
        os.chmod(mounted / "..data/me.token", 0o444)
        refused = shell.type(ask)
        assert refused.code == 2 and "others may read or change it" in refused.out
