"""Forty and more planted secrets: none of them is in what the collector, the agent and statctl store, log, answer or show as arguments."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import STATCTL, Collector, run_command, wait_until
from test_tokens import Tokens

P = "Zq7Rw2Lk9Xv4"  # in every secret
CONFIG = {
    "password": P, "db": {"password": P, "dsn": f"host=db password={P} port=1", "url": f"postgres://me:{P}@db/x"}, "dbPassword": P,
    "smtp_passwd": P, "key_passphrase": P, "client_secret": P, "secrets": [P, P], "aws": {"credentials": P}, "apikey": P, "api_key": P,
    "api_keys": [P], "wandb": {"apiKey": P}, "auth": P, "http_auth": P, "authorization": f"Bearer {P}", "hf_token": P, "hub": {"token": P},
    "access_tokens": P, "note1": f"hf_{P}", "note2": f"sk-{P}", "note3": f"use ghp_{P} here", "note4": f"glpat-{P}", "note5": f"xoxb-{P}",
    "note6": f"stc_0123456789ab_{P}", "note7": f"eyJhbGciOiJIUzI1NiJ9.{P}.sig", "data": f"https://user:{P}@host/path",
    "bucket": f"s3://{P}@bucket/path", "blob": f"https://host/blob?sv=1&sig={P}&se=2", "link": f"https://host/x?access_token={P}",
    "headers": {"Authorization": f"Bearer {P}"}, "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{P}\n-----END RSA PRIVATE KEY-----",
    "seed_phrase": f"{P}aB3dE6gH9j", "smtp_pass": P, "hftoken": P, "privatekey": P, "argv": ["--password", P, "--authtoken", P],
    "note8": f"['--password', '{P}']", "note9": f'{{"api_key": "{P}"}}', "note10": f"bearer {P}", "note11": f"X-Api-Key: {P}",
    "hook": f"https://hooks.slack.com/services/T0/B0/{P}", "chat": f"https://discord.com/api/webhooks/1/{P}",
    "dsn": f"postgres://u:pa/{P}@h", "env": [{"name": "DB_PASSWORD", "value": P}],
}  # fmt: skip
TRAIN = """
import json, numpy, statagent, sys
agent = statagent.init(run=sys.argv[1], required=sys.argv[1] == "planted", connect_timeout=5, config=json.load(open(sys.argv[2])))
for step in range(6):
    value = numpy.full(16, float(step), dtype="float32")
    if step == 3:
        value[0] = float("nan")
    statagent.inspect("layer", value)
    statagent.step()
agent.log_event("note", "token=" + sys.argv[4], {"api_key": sys.argv[4], "text": "Authorization: Basic " + sys.argv[4]})
statagent.flush(10)
if sys.argv[1] == "failed":
    raise ConnectionError(f"cannot log in at postgres://me:{sys.argv[4]}@db with password='{sys.argv[4]}', " + "x" * 400 + f" token={sys.argv[4]}")
statagent.close(timeout=10)
"""


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)  # so that the collector has something to log about it
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else [value]


def arguments_of(process: subprocess.Popen[Any]) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_text()


def test_planted_secrets_are_nowhere(tmp_path: Path, hook: int) -> None:
    assert len(leaves(CONFIG)) >= 30
    tokens = Tokens(tmp_path / "data")
    token_file = tokens.file("all.token", tokens.create("ingest,read,capture,control,delete,admin"))
    secret = tmp_path / "hook.secret"
    secret.write_text(f"{P}{P}\n")
    secret.chmod(0o600)
    toml = tmp_path / "statcollectord.toml"
    toml.write_text(
        f'alarm-webhook = "http://127.0.0.1:{hook}/services/{P}?key={P}"\nalarm-webhook-secret-file = "{secret}"\nlog-level = "debug"\n'
    )
    collector = Collector(tokens.data_dir, extra=["--config", str(toml)]).start()
    seen: dict[str, str] = {}
    try:
        given = tmp_path / "given.json"
        given.write_text(json.dumps(CONFIG))
        variables = {
            "STATAGENT_TOKEN_FILE": str(token_file), "STATCTL_TOKEN_FILE": str(token_file), "DB_PASSWORD": P, "WANDB_API_KEY": P,
            "STATAGENT_SPILL_DIR": str(tmp_path / "spill"), "TORCH_PASS": P, "VLLM_API_KEY": P, "NCCL_NET": f"http://u:{P}@proxy",
        }  # fmt: skip
        env = collector.environment(**variables)
        arguments = [
            str(given), "--password", P, f"--api-key={P}", f"wandb.api_key={P}", f"https://u:{P}@host/x", "--db-pass", f"a 'b' {P}",
            "--header", f"Authorization: Basic {P}", "--header", f"X-Api-Key: {P}", "--extra", f'{{"api_key": "{P}"}}',
        ]  # fmt: skip
        done = run_command([sys.executable, "-c", TRAIN, "planted", *arguments], env=env, cold=True)
        seen["training"] = done.out + done.err
        assert done.code == 0, done.err
        failed = run_command([sys.executable, "-c", TRAIN, "failed", *arguments], env=env, cold=True)
        assert failed.code == 1 and "ConnectionError: cannot log in" in failed.err, "what the program itself prints is its own"
        away = {**env, "STATAGENT_COLLECTOR": "127.0.0.1:1"}
        lost = run_command([sys.executable, "-c", TRAIN, "spilled", *arguments], env=away, cold=True)
        seen["training without a collector"] = lost.out + lost.err
        assert any((tmp_path / "spill").rglob("*")), lost.err

        def ask(*words: str) -> str:
            asked = subprocess.Popen([str(STATCTL), *words], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            seen[f"arguments of {words}"] = arguments_of(asked)
            return asked.communicate(timeout=60)[0]

        wait_until(lambda: json.loads(ask("status", "--format", "json"))["alarms"]["webhook_failed"] > 0, what="a failed webhook")
        for words in (
            ("events", "failed"), ("show", "failed"), ("config", "failed", "--all"), ("show", "planted"), ("config", "planted"), ("config", "planted", "--all"), ("events", "planted"), ("status",), ("audit",), ("runs",),
        ):  # fmt: skip
            for form in ("table", "json", "csv"):
                seen[f"{words} {form}"] = ask(*words, "--format", form)
        assert "(redacted)" in seen["('config', 'planted', '--all') json"], "the configuration is there"
        assert "ConnectionError: cannot log in at postgres://(redacted)@db" in seen["('events', 'failed') json"], (
            "the exception is there"
        )
        assert f"http://127.0.0.1:{hook}/..." in seen["('status',) json"], "the webhook is there, without its path"
        for path in ("/metrics", "/api/v1/status", "/api/v1/show?run=planted", "/api/v1/config?run_a=planted", "/api/v1/audit"):
            curl = ["curl", "-s", "-H", f"@{tmp_path / 'header.token'}", f"http://{collector.http}{path}"]
            (tmp_path / "header.token").write_text(f"Authorization: Bearer {token_file.read_text().strip()}")
            seen[path] = run_command(curl).out
            assert seen[path], path
        assert collector.process is not None
        seen["arguments of the collector"] = arguments_of(collector.process)
    finally:
        collector.stop()
    seen["log"] = (tmp_path / "collector.err").read_text()
    assert "/...: got HTTP status 503" in seen["log"]
    planted = [P, *tokens.secrets]
    for where, text in seen.items():
        assert not [one for one in planted if one in text], where
    for file in tmp_path.rglob("*"):
        if file.is_file() and file not in (secret, toml, given) and file.suffix != ".token":
            content = file.read_bytes()
            assert not [one for one in planted if one.encode() in content], file
