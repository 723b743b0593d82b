"""Tokens, with the real collector, statctl and agents that train: who may do what, and a token that is revoked in mid-training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from conftest import STATCOLLECTORD, STATCTL, Collector, Finished, run_command, start_python, wait_until

TRAIN = """
import numpy, statagent, sys, time
from pathlib import Path
statagent.init(run="trained", buffer_records_max=100_000, connect_timeout=5)
values = [numpy.full(16, float(i), dtype="float32") for i in range(20)]
steps = 0
while not Path(sys.argv[1]).exists():
    for i, value in enumerate(values):
        value[0] = steps
        statagent.inspect(f"layer.{i}", value)
    statagent.log_scalar("loss", 1.0)
    statagent.step()
    steps += 1
    print(steps, flush=True)
    time.sleep(0.02)
statagent.close(timeout=60)
import json
print(json.dumps({"steps": steps, **statagent.counters()}), flush=True)
"""


class Tokens:
    """The tokens of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.secrets: list[str] = []

    def command(self, *arguments: str) -> Finished:
        return run_command([str(STATCOLLECTORD), "token", *arguments, "--data-dir", str(self.data_dir)])

    def create(self, scope: str, *more: str) -> str:
        done = self.command("create", "--scope", scope, *more)
        assert done.code == 0, done.err
        token = done.out.strip()
        assert re.fullmatch(r"stc_[0-9a-f]{12}_[0-9a-f]{64}", token), "the token alone is on standard output"
        self.secrets.append(token.split("_")[2])
        return token

    def file(self, name: str, token: str, mode: int = 0o600) -> Path:
        path = self.data_dir.parent / name
        beside = path.with_suffix(".new")
        beside.write_text(token + "\n")
        beside.chmod(mode)
        beside.rename(path)
        return path

    def revoke(self, token: str) -> None:
        done = self.command("revoke", token.split("_")[1])
        assert done.code == 0, done.err


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "data")


@pytest.fixture
def guarded(tokens: Tokens) -> Iterator[Collector]:
    """A collector whose data directory has one token, for all."""
    tokens.file("all.token", tokens.create("ingest,read,capture,control,delete,admin"))
    collector = Collector(tokens.data_dir).start()
    yield collector
    collector.stop()


def statctl(collector: Collector, *arguments: str, **env: str) -> Finished:
    return run_command([str(STATCTL), "--collector", collector.address, *arguments], env={**os.environ, **env})


def http(collector: Collector, path: str, token: str = "") -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://{collector.http}{path}", headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def read_audit(collector: Collector) -> list[dict[str, Any]]:
    path = collector.data_dir / "audit.jsonl"  # made with its first line
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_statctl_and_http_need_a_token_with_the_right_scope(guarded: Collector, tokens: Tokens) -> None:
    everything = tokens.data_dir.parent / "all.token"
    reader = tokens.file("read.token", tokens.create("read", "--expires", "1h"))
    nobody = statctl(guarded, "runs")
    assert nobody.code == 2 and "no token was sent" in nobody.err and "STATCTL_TOKEN_FILE" in nobody.err
    assert statctl(guarded, "--token-file", str(reader), "runs").code == 0
    assert statctl(guarded, "runs", STATCTL_TOKEN_FILE=str(reader)).code == 0
    refused = statctl(guarded, "rm", "none", "--yes", STATCTL_TOKEN_FILE=str(reader))
    assert refused.code == 2
    keep = statctl(guarded, "keep", "none", STATCTL_TOKEN_FILE=str(reader))
    assert keep.code == 2 and "token create --scope control" in keep.err
    assert "no such run" in statctl(guarded, "keep", "none", STATCTL_TOKEN_FILE=str(everything)).err

    token = reader.read_text().strip()
    assert http(guarded, "/healthz")[0] == 200
    assert http(guarded, "/metrics")[0] == 401
    assert http(guarded, "/metrics", token)[0] == 200
    assert http(guarded, "/api/v1/runs")[0] == 401
    assert http(guarded, "/api/v1/runs", token)[0] == 200
    assert http(guarded, f"/api/v1/runs?token={token}")[0] == 400
    audited = [(line["method"].rsplit("/", 1)[1], line["outcome"].split(":")[0]) for line in read_audit(guarded)]
    assert ("KeepRun", "permission_denied") in audited and ("KeepRun", "error 5") in audited


def test_ten_thousand_bad_tokens_harm_nobody(guarded: Collector, tokens: Tokens) -> None:
    everything = str(tokens.data_dir.parent / "all.token")
    statuses: list[int] = []

    def guess(first: int) -> None:
        connection = HTTPConnection(guarded.http, timeout=60)
        for number in range(first, first + 5000):
            connection.request("GET", "/api/v1/runs", headers={"Authorization": f"Bearer stc_{number:012x}_{'0' * 64}"})
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)

    guesses = [threading.Thread(target=guess, args=(first,)) for first in (0, 5000)]
    for thread in guesses:
        thread.start()
    asked = 0
    while any(thread.is_alive() for thread in guesses) or asked < 3:
        assert statctl(guarded, "runs", STATCTL_TOKEN_FILE=everything).code == 0
        asked += 1
    for thread in guesses:
        thread.join()
    assert statuses == [401] * 10_000
    assert len(read_audit(guarded)) <= 20, "ten lines a minute from one address"
    status = statctl(guarded, "status", "--format", "json", STATCTL_TOKEN_FILE=everything).json()
    assert status["access"]["unauthenticated"] >= 10_000


def test_a_token_file_that_is_open_to_others_or_damaged_is_refused(guarded: Collector, tokens: Tokens) -> None:
    token = tokens.create("read")
    cases = [
        (tokens.file("open.token", token, 0o644), "chmod 600"),
        (tokens.file("empty.token", ""), "empty"),
        (tokens.file("cut.token", token[:30]), "cut off after 30"),
        (Path("/nowhere/token"), "No such file"),
    ]
    for path, expected in cases:
        done = statctl(guarded, "--token-file", str(path), "runs")
        assert done.code == 2 and expected in done.err, done.err
        assert token[20:] not in done.err
    for arguments, env in (
        (["--token-file", token, "runs"], {}),
        (["runs", token], {}),
        (["runs"], {"STATCTL_TOKEN_FILE": token}),
    ):
        done = statctl(guarded, *arguments, **env)
        assert done.code == 2 and "revoke" in done.err and token not in done.err, done.err


def test_a_token_goes_into_a_new_file_of_its_owner(tokens: Tokens) -> None:
    path = tokens.data_dir.parent / "new.token"
    made = tokens.command("create", "--scope", "read", "--out", str(path))
    assert made.code == 0 and made.out == "" and "nowhere else" in made.err
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert re.fullmatch(r"stc_[0-9a-f]{12}_[0-9a-f]{64}\n", path.read_text())
    before = tokens.command("list").out
    assert path.read_text().split("_")[1] in before
    again = tokens.command("create", "--scope", "read", "--out", str(path))
    assert again.code == 2 and "File exists; expected a new file" in again.err
    nowhere = tokens.command("create", "--scope", "read", "--out", str(path.parent / "none" / "x"))
    assert nowhere.code == 2 and "expected a path where a file can be made" in nowhere.err
    assert tokens.command("list").out == before, "no token was made for nothing"


def test_tokens_are_listed_and_bad_requests_for_them_explained(tokens: Tokens) -> None:
    token = tokens.create("read")
    listed = tokens.command("list")
    assert token.split("_")[1] in listed.out and token.split("_")[2] not in listed.out
    assert tokens.command("create", "--scope", "root").code == 2
    assert tokens.command("create", "--scope", "read", "--expires", "soon").code == 2
    assert "no token" in tokens.command("revoke", "0" * 12).err
    tokens.revoke(token)
    assert "revoked" in tokens.command("list").out
    (tokens.data_dir / "tokens").chmod(0o644)
    refused = run_command([str(STATCOLLECTORD), "--data-dir", str(tokens.data_dir), "--listen", "127.0.0.1:0", "--http", "off"])
    assert refused.code == 2 and "chmod 600" in refused.err


class Training:
    """A training that goes on until it is told to end."""

    def __init__(self, collector: Collector, token_file: Path, folder: Path) -> None:
        self.end_file = folder / "end"
        env = collector.environment(STATAGENT_TOKEN_FILE=str(token_file), STATAGENT_SPILL_DIR=str(folder / "spill"))
        self.errors = folder / "train.err"
        with self.errors.open("w") as errors:
            self.process = start_python(
                ["-c", TRAIN, str(self.end_file)], env=env, text=True, stdout=subprocess.PIPE, stderr=errors
            )
        self.steps = 0

    def await_steps(self, more: int) -> None:
        assert self.process.stdout is not None
        for _ in range(more):
            line = self.process.stdout.readline()
            assert line, self.errors.read_text()
            self.steps = int(line)

    def end(self) -> dict[str, int]:
        self.end_file.touch()
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, self.errors.read_text()
        counters: dict[str, int] = json.loads(out.splitlines()[-1])
        return counters


def records_of(collector: Collector, token_file: Path) -> int:
    done = statctl(collector, "runs", "--format", "json", STATCTL_TOKEN_FILE=str(token_file))
    assert done.code == 0, done.err
    return sum(int(run["records"]) for run in done.json()["runs"])


def test_a_token_revoked_in_mid_training_costs_no_record_once_it_is_replaced(
    guarded: Collector, tokens: Tokens, tmp_path: Path
) -> None:
    everything = tokens.data_dir.parent / "all.token"
    first = tokens.create("ingest")
    agents = tokens.file("agent.token", first)
    training = Training(guarded, agents, tmp_path)
    try:
        training.await_steps(30)
        tokens.revoke(first)
        deadline = time.monotonic() + 20
        while not any("was revoked" in line["outcome"] for line in read_audit(guarded)):
            assert time.monotonic() < deadline, "the agent was not cut off"
            training.await_steps(1)
        refused_at = records_of(guarded, everything)
        training.await_steps(100)
        assert records_of(guarded, everything) <= refused_at + 23 * 2, "records arrive with a revoked token"
        tokens.file("agent.token", first[:40])  # half-written: as bad as the revoked one
        training.await_steps(20)
        tokens.file("agent.token", tokens.create("ingest"))
        training.await_steps(20)
        counters = training.end()
    finally:
        training.process.kill()
        training.process.communicate()
    dropped = {name: count for name, count in counters.items() if name.startswith("dropped_") and count}
    assert not dropped and counters["pending"] == 0
    assert counters["produced"] == counters["acked"]
    stored = statctl(
        guarded, "series", "trained", "layer.7", "--stat", "max", "--format", "json", STATCTL_TOKEN_FILE=str(everything)
    )
    assert stored.code == 0, stored.err
    text = training.errors.read_text()
    assert "was revoked" in text and "keeps trying" in text
    find_secrets(tokens, tmp_path, text)


def find_secrets(tokens: Tokens, folder: Path, text: str) -> None:
    """No secret is anywhere but in the clients' files."""
    for secret in tokens.secrets:
        assert secret not in text
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in (".token", ".new"):
            content = path.read_bytes()
            for secret in tokens.secrets:
                assert secret.encode() not in content, path


def test_an_agent_without_a_token_says_at_its_start_what_to_do(guarded: Collector, tokens: Tokens) -> None:
    code = "import statagent; statagent.init(run='r', required=True)"
    refused = run_command([sys.executable, "-c", code], env=guarded.environment())
    assert refused.code != 0 and "STATAGENT_TOKEN_FILE" in refused.err
    token = tokens.create("read")
    wrong = run_command(
        [sys.executable, "-c", code], env=guarded.environment(STATAGENT_TOKEN_FILE=str(tokens.file("r.token", token)))
    )
    assert wrong.code != 0 and "token create --scope ingest" in wrong.err
    itself = run_command([sys.executable, "-c", code], env=guarded.environment(STATAGENT_TOKEN_FILE=token))
    assert itself.code != 0 and "is a token" in itself.err and token not in itself.err


def test_the_first_token_turns_authorization_on_in_a_running_collector(tokens: Tokens) -> None:
    collector = Collector(tokens.data_dir).start()
    try:
        assert statctl(collector, "runs").code == 0
        reader = tokens.file("read.token", tokens.create("read"))
        wait_until(lambda: statctl(collector, "runs").code == 2, what="the collector to know of the token")
        assert statctl(collector, "--token-file", str(reader), "runs").code == 0
    finally:
        collector.stop()


def start_fails(data_dir: Path, *extra: str) -> str:
    """What a collector says that does not start."""
    arguments = [str(STATCOLLECTORD), "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--http", "off", *extra]
    done = run_command(arguments, timeout=60)
    assert done.code == 2, done.out
    return done.err


def test_a_store_that_had_tokens_is_not_served_without_them(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "data")
    (tmp_path / "backup").mkdir()
    collector = Collector(tokens.data_dir, extra=["--checkpoint-root", str(tmp_path / "backup")]).start()
    assert statctl(collector, "runs").code == 0
    admin = tokens.file("admin.token", tokens.create("admin,read"))  # while it runs
    wait_until(lambda: statctl(collector, "runs").code == 2, what="the collector to know of the token")
    assert statctl(collector, "--token-file", str(admin), "checkpoint", "monday").code == 0
    collector.stop()

    saved = (tokens.data_dir / "tokens").read_bytes()
    (tokens.data_dir / "tokens").unlink()
    said = start_fails(tokens.data_dir)
    for word in (str(tokens.data_dir / "tokens"), "was used with tokens", "token create", "--token-file", "--no-tokens"):
        assert word in said, said

    restored = tmp_path / "restored"
    said = start_fails(restored, "--restore-from", str(tmp_path / "backup" / "monday"))
    assert "was used with tokens" in said and "without --restore-from" in said, said
    again = Tokens(restored)
    reader = again.file("reader.token", again.create("read"))
    collector = Collector(restored).start()
    assert statctl(collector, "runs").code == 2
    assert statctl(collector, "--token-file", str(reader), "runs").code == 0
    collector.stop()

    # A file elsewhere serves in one go, and is missed as well.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(saved)
    elsewhere.chmod(0o600)
    collector = Collector(tmp_path / "second", extra=["--restore-from", str(tmp_path / "backup" / "monday")])
    collector.extra += ["--token-file", str(elsewhere)]
    collector.start()
    assert statctl(collector, "--token-file", str(admin), "runs").code == 0
    collector.stop()
    assert "was used with tokens" in start_fails(tmp_path / "second")

    # Whoever wants it, says so once.
    collector = Collector(tmp_path / "second", extra=["--no-tokens"]).start()
    assert statctl(collector, "runs").code == 0
    collector.stop()
    collector.extra = []
    collector.start()
    assert statctl(collector, "runs").code == 0
    collector.stop()
    assert "--no-tokens: found tokens" in start_fails(restored, "--no-tokens")
