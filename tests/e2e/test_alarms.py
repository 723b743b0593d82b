"""Alarms, `statctl show RUN --events --follow` and `statctl watch` around real training with a planted NaN."""

from __future__ import annotations

import http.server
import json
import os
import re
import select
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest
from conftest import STATCTL, Collector, Gates

TRAINING = """
import os, sys, time
import torch, statagent

torch.manual_seed(0)
steps, nan_step, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.Linear(8, 1))
agent = statagent.init(required=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
statagent.watch(model, optimizer=optimizer)

class Spoil:
    step = 0
    def __call__(self, module, inputs, output):
        if self.step == nan_step:
            output = output.clone()
            output[0, :3] = float("nan")
        return output

spoil = Spoil()
model[2].register_forward_hook(spoil, prepend=True)
gates = os.environ.get("GATES")
for step in range(steps):
    while gates and os.path.exists(f"{gates}/{step}"):
        time.sleep(0.01)
    spoil.step = step
    loss = model(torch.randn(4, 8)).square().mean()
    statagent.log_scalar("loss", loss.detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if pause:
        time.sleep(pause)
assert statagent.flush(timeout=20)
statagent.close()
"""


def alarms(collector: Collector, run: str) -> list[dict[str, Any]]:
    events = collector.json("events", run)["records"]
    return [e for e in events if e["fields"].get("severity") == "alarm"]


def eventually(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """The first answer that is true."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


class Following:
    """A statctl that runs until it is stopped; its lines are read as they arrive."""

    def __init__(self, collector: Collector, *arguments: str) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [str(STATCTL), "--collector", collector.address, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.threads = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _read(stream: IO[str] | None, into: list[str]) -> None:
        assert stream is not None
        for line in stream:
            into.append(line.rstrip("\n"))

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(timeout=20)
        for thread in self.threads:
            thread.join(timeout=5)
        return code


@pytest.fixture
def follow(collector: Collector) -> Iterator[Callable[..., Following]]:
    started: list[Following] = []

    def start(*arguments: str) -> Following:
        started.append(Following(collector, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(timeout=10)


def train(
    collector: Collector, run: str, steps: int = 6, nan_step: int = 3, pause: float = 0, gates: Gates | None = None
) -> None:
    env = {"STATAGENT_RUN": run, **(gates.environment() if gates else {})}
    collector.python(TRAINING, str(steps), str(nan_step), str(pause), env=env)


def train_past(collector: Collector, folder: Path, seen: dict[int, Callable[[], Any]]) -> None:
    """Trains run "live" for 30 steps; waits before each step of `seen` until its condition is true."""
    gates = Gates(folder, *seen)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train, collector, "live", 30, 12, 0.01, gates)
        unseen = []
        for step, condition in seen.items():
            if not eventually(condition):
                unseen.append(step)
            gates.open(step)
        training.result()
    assert not unseen, "steps before which the training waited in vain"


def test_a_planted_nan_is_told_with_its_place(collector: Collector) -> None:
    train(collector, "spoiled")
    assert eventually(lambda: len(alarms(collector, "spoiled")) == 2), collector.json("events", "spoiled")
    assert {e["kind"] for e in alarms(collector, "spoiled")} == {"nan_first_seen", "loss_not_finite"}
    nan = next(e for e in alarms(collector, "spoiled") if e["kind"] == "nan_first_seen")
    assert (nan["step"], nan["rank"], nan["origin"]) == (3, 0, "collector")
    fields = nan["fields"]
    assert (fields["activation"], fields["kind"], fields["nan"]) == ("2", "output", "3")

    metrics = collector.get("/metrics")
    assert 'statcollect_alarms_total{rule="nan_first_seen"} 1\n' in metrics
    assert 'statcollect_alarms_total{rule="norm_explosion"} 0\n' in metrics
    status = collector.json("status")["alarms"]
    assert status["raised"]["nan_first_seen"] == 1
    assert status["skipped_records"] == 0
    assert status["evaluated_records"] > 50
    shown = collector.statctl("show", "spoiled").out
    assert "nan_first_seen" in shown
    assert "nan_first_seen" in collector.statctl("status").out

    train(collector, "clean", nan_step=-1)
    notes = collector.diff("clean", "spoiled")["notes"]
    assert "first NaN or Inf in spoiled: step 3, rank 0, output 2[0]" in notes
    assert alarms(collector, "clean") == []
    assert collector.statctl("rm", "spoiled", "--yes").code == 0
    assert collector.statctl("events", "spoiled").code == 2


MIXED_PRECISION = """
import sys
import torch, statagent

overflowing = [int(step) for step in sys.argv[1].split(",")]
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=float(sys.argv[2]), growth_interval=2)
statagent.init(required=True)
statagent.watch(model, optimizer=optimizer, scaler=scaler)
for attempt in range(12):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).square().mean()
    scaled = scaler.scale(loss) * (float("inf") if attempt in overflowing else 1.0)
    optimizer.zero_grad()
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
assert statagent.flush(timeout=20)
statagent.close()
"""


def test_a_loss_scale_at_its_minimum_is_told_and_cleared_when_it_rises(collector: Collector) -> None:
    collector.python(MIXED_PRECISION, "2,3,4,5", "8", env={"STATAGENT_RUN": "low"})
    told = eventually(lambda: [e for e in collector.json("events", "low")["records"] if e["kind"] == "alarm_cleared"])
    scales = {
        (r["step"], r["micro_batch"]): r["value"]
        for r in collector.json("scalars", "low")["records"]
        if r["name"] == "loss_scale"
    }
    reached = next(place for place, scale in scales.items() if scale == 1)
    (alarm,) = [e for e in alarms(collector, "low") if e["kind"] == "loss_scale_min"]
    assert (alarm["step"], alarm["fields"]["scalar"], alarm["fields"]["value"]) == (reached[0], "loss_scale", "1")
    assert f"the loss scale is at its minimum: 1 at step {reached[0]}" in alarm["text"]
    assert [e["fields"]["rule"] for e in told] == ["loss_scale_min"]
    assert [e["kind"] for e in alarms(collector, "low")] == ["loss_scale_min"], "an overflow is none"


def test_a_loss_scale_that_only_falls_is_told_though_no_step_ends(collector: Collector) -> None:
    collector.python(MIXED_PRECISION, ",".join(map(str, range(3, 12))), "1024", env={"STATAGENT_RUN": "falling"})
    assert eventually(lambda: alarms(collector, "falling"))
    (alarm,) = alarms(collector, "falling")
    assert (alarm["kind"], alarm["step"]) == ("loss_scale_min", 3)
    assert "the loss scale fell 6 times in a row" in alarm["text"]


DYING = """
import sys
import torch, statagent

dies, revives = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
statagent.init(required=True)
statagent.watch(model, optimizer=optimizer)
for step in range(26):
    if step in (dies, revives):
        model[2].bias.data.fill_(-100.0 if step == dies else 1.0)
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert statagent.flush(timeout=20)
statagent.close()
"""


def test_a_dead_relu_is_told_with_its_module_and_cleared_when_it_lives(collector: Collector) -> None:
    collector.python(DYING, "5", "20", env={"STATAGENT_RUN": "dead"})

    def told(kind: str) -> list[dict[str, Any]]:
        events = collector.json("events", "dead")["records"]
        return [e for e in events if e["fields"].get("rule") == "dead_relu" and e["kind"] == kind]

    assert eventually(lambda: told("alarm_cleared"))
    (alarm,), (cleared,) = told("dead_relu"), told("alarm_cleared")
    assert (alarm["step"], alarm["fields"]["activation"], alarm["fields"]["value"]) == (14, "3", "1"), "the tenth step in a row"
    assert "has 1 of its elements at zero for 10 steps by step 14" in alarm["text"]
    assert cleared["step"] == 20
    collector.python(DYING, "-1", "-1", env={"STATAGENT_RUN": "alive"})
    assert eventually(lambda: collector.json("runs")["runs"][0]["state"] == "finished")
    assert alarms(collector, "alive") == []


BREAKING = """
import sys
import torch, statagent

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
statagent.init(required=True)
statagent.watch(model, optimizer=optimizer)
for step in range(22):
    if step == 14 and sys.argv[1] == "explode":
        model[2].weight.data.mul_(1e4)
    if step == 14 and sys.argv[1] == "vanish":
        model[2].weight.register_hook(lambda gradient: gradient * 1e-9)
    loss = model(torch.randn(4, 8)).square().mean()
    statagent.log_scalar("loss", loss.detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert statagent.flush(timeout=20)
statagent.close()
"""


def test_norms_that_explode_and_gradients_that_vanish_are_told_with_their_place(collector: Collector) -> None:
    for what in ("explode", "vanish", "neither"):
        collector.python(BREAKING, what, env={"STATAGENT_RUN": what})
    exploded = eventually(lambda: [e for e in alarms(collector, "explode") if e["kind"] == "norm_explosion"])
    assert (exploded[0]["step"], exploded[0]["fields"]["activation"], exploded[0]["fields"]["kind"]) == (14, "2", "output")
    assert "loss_spike" in {e["kind"] for e in alarms(collector, "explode")}
    vanished = eventually(lambda: alarms(collector, "vanish"))
    assert [(e["kind"], e["step"]) for e in vanished] == [("vanishing_gradient", 18)], "the fifth step in a row"
    assert (vanished[0]["fields"]["activation"], vanished[0]["fields"]["kind"]) == ("2.weight", "weight_grad")
    assert alarms(collector, "neither") == []


def test_a_restart_or_a_crash_neither_repeats_nor_loses_an_alarm(collector: Collector) -> None:
    train(collector, "before")
    eventually(lambda: len(alarms(collector, "before")) == 2)
    before = alarms(collector, "before")
    collector.stop()
    collector.start()
    assert alarms(collector, "before") == before
    train(collector, "killed")
    collector.kill()  # perhaps before the records were judged
    collector.start()
    assert eventually(lambda: len(alarms(collector, "killed")) == 2)
    collector.kill()
    collector.start()
    time.sleep(0.5)
    assert len(alarms(collector, "killed")) == 2
    assert alarms(collector, "before") == before


def test_follow_prints_past_and_new_events_through_a_restart(collector: Collector, follow: Callable[..., Following]) -> None:
    waiting = follow("--format", "json", "events", "late", "--follow", "--kind", "nan_first_seen")
    text = follow("events", "late", "--follow")
    train(collector, "late")
    assert eventually(lambda: waiting.lines), waiting.errors
    assert json.loads(waiting.lines[0])["step"] == 3
    collector.stop()
    assert eventually(lambda: any("waiting for it" in line for line in waiting.errors))
    collector.start()
    assert eventually(lambda: any("connected again" in line for line in waiting.errors)), waiting.errors
    collector.python(
        "import statagent\na = statagent.init(if_exists='append')\na.log_event('nan_first_seen', 'by hand')\na.end_step()\nstatagent.close(timeout=10)",
        env={"STATAGENT_RUN": "late"},
    )
    assert eventually(lambda: len(waiting.lines) == 2), (waiting.lines, waiting.errors)
    assert json.loads(waiting.lines[1])["origin"] == "agent"
    assert waiting.interrupt() == 0
    assert len(waiting.lines) == 2, "nothing twice"
    assert eventually(lambda: any("loss_not_finite" in line for line in text.lines)), (text.lines, text.errors)
    assert text.interrupt() == 0
    since = collector.json("events", "late", "--since-step", "4")["records"]
    assert all(e["step"] >= 4 for e in since)
    assert len(since) < len(collector.json("events", "late")["records"])


def test_followers_do_not_keep_the_collector_from_stopping(collector: Collector, follow: Callable[..., Following]) -> None:
    collector.python(
        "import statagent\nstatagent.init().log_event('note', 'here')\nstatagent.close()", env={"STATAGENT_RUN": "noted"}
    )
    one = follow("events", "noted", "--follow")
    assert eventually(lambda: one.lines), one.errors
    begin = time.monotonic()
    assert collector.stop() == 0
    assert time.monotonic() - begin < 4
    assert eventually(lambda: one.errors)
    assert one.interrupt() == 0
    collector.start()


def test_watch_follows_a_run_from_before_its_start_to_its_end(
    collector: Collector, follow: Callable[..., Following], tmp_path: Path
) -> None:
    train(collector, "base", steps=30, nan_step=-1)
    watching = follow("watch", "live", "--interval", "0.3", "--against", "base")
    assert eventually(lambda: watching.lines)
    assert "waiting for run live" in watching.lines[0]
    train_past(collector, tmp_path / "gates", {10: lambda: any(": identical" in line for line in watching.lines)})
    assert watching.wait() == 0, watching.errors
    text = "\n".join(watching.lines)
    assert " live running step " in text
    assert "finished step 29" in watching.lines[-1]
    assert ": identical" in text
    assert "root so far (" in watching.lines[-1]
    assert "last alarm: " in watching.lines[-1]


def test_watch_against_says_at_every_look_what_diff_says(
    collector: Collector, follow: Callable[..., Following], tmp_path: Path
) -> None:
    train(collector, "base", steps=30, nan_step=-1)
    watching = follow("--format", "json", "watch", "live", "--interval", "0.3", "--against", "base")

    def looks() -> list[Any]:
        return [look["against"] for look in map(json.loads, watching.lines[:]) if "step" in look["against"]]

    def looked_at(step: int) -> Callable[[], bool]:
        return lambda: any(int(look["step"]) >= step for look in looks())

    train_past(collector, tmp_path / "gates", {step: looked_at(step - 2) for step in (4, 10, 14, 21)})
    assert watching.wait() == 0, watching.errors
    assert len({look["step"] for look in looks()}) > 4
    assert {look["verdict"] for look in looks() if look["step"] < 10} == {"identical"}
    for step, look in {look["step"]: look for look in looks()}.items():
        report = collector.diff("base", "live", "--steps", f"0-{step}")
        assert (look["verdict"], look.get("explained", "")) == (report["verdict"], report["explained"] or ""), step
        assert look.get("root") == report["root"], step


def test_watch_once_is_for_scripts(collector: Collector) -> None:
    train(collector, "done", nan_step=-1)
    look = collector.json("watch", "done", "--once")
    assert look["summary"]["state"] == "finished"
    assert look["alarms"] == 0
    assert look["lag"] == 0
    assert "is finished: step 5" in collector.statctl("watch", "done", "--once").out
    missing = collector.statctl("watch", "nobody", "--once")
    assert missing.code == 2
    assert "nobody" in missing.err


def test_watch_redraws_a_terminal_and_ctrl_c_ends_it(collector: Collector) -> None:
    train(collector, "shown", nan_step=3)
    collector.python(
        "import statagent\nstatagent.init(if_exists='append')\nimport os\nos._exit(1)", env={"STATAGENT_RUN": "shown"}, code=None
    )
    main, second = os.openpty()
    process = subprocess.Popen(
        [str(STATCTL), "--collector", collector.address, "watch", "shown", "--interval", "0.2"],
        stdout=second, stderr=second, stdin=second, env={**os.environ, "TERM": "xterm"}, close_fds=True,
    )  # fmt: skip
    os.close(second)
    shown, interrupted = b"", False
    while select.select([main], [], [], 20)[0]:
        try:
            chunk = os.read(main, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
        if not interrupted and shown.count(b"\x1b[H") >= 3:
            interrupted = True
            process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0
    os.close(main)
    assert shown.count(b"\x1b[H") >= 3
    assert b"Latest events" in shown
    assert b"statctl:" not in shown


class Hook(http.server.BaseHTTPRequestHandler):
    """Remembers what was posted; fails the first time."""

    posted: list[Any] = []
    received: list[tuple[dict[str, str], bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).posted.append(json.loads(body))
        type(self).received.append((dict(self.headers), body))
        self.send_response(503 if len(type(self).posted) == 1 else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def documented_check() -> Any:
    """The function of docs/alarms.md that checks a signature."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "alarms.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    return names["verify"]


def test_the_webhook_is_posted_each_alarm_with_the_keys_of_the_configuration_file(tmp_path: Path) -> None:
    Hook.posted, Hook.received = [], []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    secret = tmp_path / "webhook.secret"
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o600)
    configuration = tmp_path / "statcollectord.toml"
    configuration.write_text(
        f'alarms = "nan_first_seen"\nalarm-webhook = "http://127.0.0.1:{server.server_port}/alarms"\nalarm-explosion-factor = 50\n'
        f'alarm-webhook-secret-file = "{secret}"\n'
    )
    data = tmp_path / "data"
    data.mkdir()
    collector = Collector(data, extra=["--config", str(configuration)]).start()
    try:
        train(collector, "posted")
        assert eventually(lambda: len(Hook.posted) == 2)
        assert Hook.posted[0] == Hook.posted[1], "sent again after the failure"
        verify = documented_check()
        for headers, body in Hook.received:
            assert verify(headers, body, b"0123456789abcdef")
            assert not verify(headers, body, b"0123456789abcdeF") and not verify(headers, body + b" ", b"0123456789abcdef")
        assert (Hook.posted[0]["run"], Hook.posted[0]["kind"], Hook.posted[0]["step"]) == ("posted", "nan_first_seen", 3)
        assert [e["kind"] for e in alarms(collector, "posted")] == ["nan_first_seen"], "the others are off"
        assert eventually(lambda: collector.json("status")["alarms"]["webhook_sent"] == 1)
        assert collector.json("status")["alarms"]["webhook_failed"] == 1
    finally:
        collector.stop()
        server.shutdown()
        server.server_close()


def test_an_https_webhook_is_posted_only_if_its_certificate_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    Hook.posted = [{}]  # the next answer is 204
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flags = ["--alarms", "nan_first_seen", "--alarm-webhook", f"https://127.0.0.1:{server.server_port}/alarms"]
    data = tmp_path / "data"
    data.mkdir()
    collector = Collector(data, extra=flags).start()
    try:
        train(collector, "not_trusted")
        assert eventually(lambda: collector.json("status")["alarms"]["webhook_failed"] >= 1)
        assert collector.json("status")["alarms"]["webhook_sent"] == 0
        collector.stop()
        log = (tmp_path / "collector.err").read_text()
        assert "certificate problem" in log and "--alarm-webhook-ca names" in log
        assert Hook.posted == [{}], "nothing is sent to a server that is not trusted"
        collector.extra = [*flags, "--alarm-webhook-ca", str(certificate)]
        collector.start()
        train(collector, "trusted")
        assert eventually(lambda: collector.json("status")["alarms"]["webhook_sent"] == 1)
        assert [alarm["run"] for alarm in Hook.posted[1:]] == ["trusted"]
        collector.stop()
        collector.extra = flags
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        collector.start()
        train(collector, "by_variable")
        assert eventually(lambda: collector.json("status")["alarms"]["webhook_sent"] == 1)
    finally:
        collector.stop()
        server.shutdown()
        server.server_close()
