"""The collector that statctl starts for itself: when, for how long, and that it is never in the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import (
    STATCOLLECTORD,
    STATCTL,
    Collector,
    Finished,
    address_of,
    agent_environment,
    reserved_port,
    run_command,
    wait_until,
)

PROC = Path("/proc")


def statctl(folder: Path, *arguments: str, **options: object) -> Finished:
    return run_command([str(STATCTL), *arguments], cwd=folder, env=agent_environment(), **options)  # type: ignore[arg-type]


def daemons(folder: Path) -> list[int]:
    """Collectors that run on a folder."""
    found = []
    for process in PROC.iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"statcollectord") for word in words[:1]) and os.fsencode(folder) in words:
            found.append(int(process.name))
    return found


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    yield folder
    wait_until(lambda: not daemons(folder), what="its collector to end")


def test_it_lasts_as_long_as_the_command(data: Path, tmp_path: Path) -> None:
    done = statctl(tmp_path, "--data-dir", "data", "runs")
    assert done.code == 0 and "No runs yet" in done.out
    wait_until(lambda: not daemons(data), what="the collector to end")
    assert not (data / "statcollectord.address").exists()
    assert "drained" in (data / "statcollectord.messages").read_text()
    assert oct((data / "statcollectord.messages").stat().st_mode & 0o777) == "0o600"


def test_a_folder_that_it_makes_in_a_repository_is_no_change_of_it(tmp_path: Path) -> None:
    run_command(["git", "init", "--quiet", str(tmp_path)])
    assert statctl(tmp_path, "run", "base", "--", "true").code == 0
    assert (tmp_path / "statcollect-data").is_dir()
    assert run_command(["git", "-C", str(tmp_path), "status", "--porcelain"]).out == ""


def test_commands_at_the_same_time_share_it(data: Path, tmp_path: Path) -> None:
    command = [str(STATCTL), "--data-dir", str(data), "status"]
    started = [
        subprocess.Popen(command, env=agent_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and "ready" in out, err


def test_it_ends_when_its_user_is_killed(data: Path) -> None:
    command = [str(STATCTL), "--data-dir", str(data), "run", "base", "--watch", "off", "--", "sleep", "60"]
    with subprocess.Popen(command, env=agent_environment(), stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: daemons(data) and (data / "statcollectord.address").exists(), what="the collector")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        commands = lambda: [pid for pid in map(int, children.read_text().split()) if pid not in daemons(data)]  # noqa: E731
        (sleep,) = wait_until(commands, what="the command")
        process.kill()
    os.kill(sleep, signal.SIGKILL)
    wait_until(lambda: not daemons(data), what="the collector to end")


def test_it_waits_for_one_that_is_ending(data: Path, tmp_path: Path) -> None:
    """Again and again, so that starts meet ends."""
    for _ in range(8):
        assert statctl(tmp_path, "--data-dir", "data", "runs").code == 0


def test_a_collector_on_the_folder_is_found_wherever_it_listens(tmp_path: Path) -> None:
    with reserved_port() as port:
        collector = Collector(tmp_path / "data", address=address_of(port))
        collector.start()
        try:
            done = statctl(tmp_path, "--data-dir", "data", "status")
            assert collector.address in done.out, done.err
            assert len(daemons(tmp_path / "data")) == 1
        finally:
            assert collector.stop() == 0
    assert not (tmp_path / "data/statcollectord.address").exists()


def test_an_address_that_was_left_behind_is_no_obstacle(data: Path, tmp_path: Path) -> None:
    for text in ("127.0.0.1:1\n", "unix:/nowhere/grpc.sock\n", "", "\0\xff" * 100, "nonsense\n"):
        (data / "statcollectord.address").write_text(text, encoding="latin-1")
        done = statctl(tmp_path, "--data-dir", "data", "runs")
        assert done.code == 0, (text, done.err)


def test_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir(mode=0o700)
    done = statctl(tmp_path, "--data-dir", str(folder), "status")
    assert done.code == 0 and f"unix:/tmp/statcollect-{os.getuid()}/" in done.out, done.err
    wait_until(lambda: not daemons(folder), what="the collector to end")


def test_bad_folders(tmp_path: Path) -> None:
    missing = statctl(tmp_path, "--data-dir", "none", "runs")
    assert missing.code == 2 and "use the data folder 'none': there is none" in missing.err
    assert not (tmp_path / "none").exists(), "a query makes no folder"
    (tmp_path / "file").write_text("")
    for command in (["runs"], ["run", "base", "--", "true"]):
        done = statctl(tmp_path, "--data-dir", "file", *command)
        assert done.code == 2 and re.search("it is no folder|something else has that name", done.err), done.err
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "000012.sst").write_text("x")
    done = statctl(tmp_path, "--data-dir", "damaged", "runs")
    assert done.code == 2 and "start a collector: it ended at once" in done.err and "damaged" in done.err, done.err
    both = statctl(tmp_path, "--data-dir", "damaged", "--collector", "127.0.0.1:1", "runs")
    assert both.code == 2 and "--data-dir" in both.err


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = statctl(tmp_path, "--data-dir", "data", "run", "base", "--", "true")
    assert done.code == 2 and "expected a folder this user may write" in done.err


def test_a_folder_that_a_collector_holds_which_cannot_be_found(data: Path, tmp_path: Path) -> None:
    command = [str(STATCOLLECTORD), "--data-dir", str(data), "--listen", "127.0.0.1:0", "--http", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and " ready: " in holder.stdout.readline()
        (data / "statcollectord.address").unlink()
        asked = (["run", "base", "--", "touch", "ran"], ["diff", "base", "other"])
        with ThreadPoolExecutor() as pool:  # each waits for it to leave
            answers = list(pool.map(lambda words: statctl(tmp_path, "--data-dir", str(data), *words), asked))
        for done in answers:
            assert done.code == 2 and f"process {holder.pid} holds it" in done.err and "--data-dir" in done.err, done.err
            assert done.err.count("waiting up to 30 s for its end") == 1, done.err
        assert not (tmp_path / "ran").exists(), "nothing runs without a place for its records"
        assert holder.poll() is None
        holder.terminate()
        assert holder.wait(timeout=20) == 0
    assert statctl(tmp_path, "--data-dir", str(data), "runs").code == 0, "it is free again"


def test_a_collector_waits_for_the_end_of_one_that_statctl_has_started_for_itself(data: Path, tmp_path: Path) -> None:
    """Of `statcollectord & statctl runs` either may come first."""
    first = subprocess.Popen([str(STATCTL), "--data-dir", str(data), "run", "base", "--", "sleep", "2"], cwd=tmp_path)
    wait_until(lambda: daemons(data), what="statctl's collector")
    command = [str(STATCOLLECTORD), "--data-dir", str(data), "--listen", "127.0.0.1:0", "--http", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second:
        try:
            assert second.stdout is not None and " ready: " in second.stdout.readline()
        finally:
            second.terminate()
            _, said = second.communicate(timeout=20)
        assert second.returncode == 0 and said.count("holds it") == said.count("waiting up to 30 s for its end") == 1, said
    assert first.wait(timeout=20) == 0


OLDER = """
import grpc, sys
from concurrent import futures

class Handlers(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method == "/statcollect.v1.Admin/GetStatus":
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"\\x0a\\x050.0.9")

server = grpc.server(futures.ThreadPoolExecutor(), handlers=[Handlers()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
"""


def test_a_collector_of_another_version_is_an_error_with_both(tmp_path: Path) -> None:
    """One of a release that knew no query of today."""
    pytest.importorskip("grpc")
    mine = statctl(tmp_path, "--version").out.split()[-1]
    with subprocess.Popen([sys.executable, "-c", OLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as older:
        assert older.stdout is not None
        address = f"127.0.0.1:{older.stdout.readline().strip()}"
        for asked in (["runs"], ["diff", "base", "other"], ["run", "base", "--", "touch", "ran"]):
            done = statctl(tmp_path, "--collector", address, *asked)
            assert done.code == 2 and f"the collector at {address} is of version 0.0.9, which does not support" in done.err, (
                done.err
            )
            assert f"expected {mine}, the version of this statctl; use both of one release" in done.err
        assert not (tmp_path / "ran").exists(), "nothing runs without a place for its records"


def test_ctrl_c_while_a_command_runs_leaves_nothing(data: Path) -> None:
    command = [str(STATCTL), "--data-dir", str(data), "open"]
    with subprocess.Popen(command, env=agent_environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        time.sleep(0.3)
        assert process.poll() is None, "the page is served until Ctrl-C"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    wait_until(lambda: not daemons(data), what="the collector to end")
