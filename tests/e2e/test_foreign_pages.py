"""What other web pages may ask of a collector on loopback: nothing. With raw requests, and with pages in a real browser."""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, MISSING, launch
from conftest import Collector


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    extra = ["--http-allowed-host", "gpu7.example.org", "--http-allowed-host", "GPU8"]
    started = Collector(tmp_path_factory.mktemp("foreign") / "data", extra=extra).start()
    yield started
    assert started.stop() == 0


def ask(collector: Collector, path: str, host: str, method: str = "GET", **fields: str) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection(collector.http, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": host, **{name.replace("_", "-"): value for name, value in fields.items()}}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, answer.headers


def audited(collector: Collector) -> list[dict[str, Any]]:
    path = collector.data_dir / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_name_that_points_here_is_refused_unless_it_is_allowed(collector: Collector) -> None:
    port = collector.http.split(":")[1]
    for host in (
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"[::1]:{port}",
        "10.1.2.3",
        socket.gethostname(),
        "gpu7.example.org",
        "gpu8",
    ):
        assert ask(collector, "/api/v1/runs", host)[0] == 200, host
    for path in ("/", "/assets/app.js", "/api/v1/runs", "/api/v1/openapi.json", "/metrics", "/nothing"):
        status, body, headers = ask(collector, path, f"rebound.example:{port}")
        assert status == 421 and headers["Connection"] == "close", path
        assert "--http-allowed-host rebound.example" in json.loads(body)["error"]
    for path in ("/healthz", "/readyz"):  # of a probe with any name
        assert ask(collector, path, "collector.monitoring.svc")[0] == 200
    assert ask(collector, "/api/v1/runs", "a b")[0] == 400
    line = next(line for line in audited(collector) if line["method"] == "/api/v1/runs")
    assert line["principal"] == "nobody" and line["outcome"].startswith("permission_denied: Host: found 'rebound.example'")
    metrics = collector.get("/metrics")
    assert 'statcollect_http_refused_total{reason="host"} 7' in metrics


def test_pages_of_other_origins_are_refused_before_a_body_is_read(collector: Collector) -> None:
    own = f"http://{collector.http}"
    # The body is announced and never sent.
    post = {"Content_Type": "application/json", "Content_Length": "1000"}
    for fields in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        status, body, headers = ask(collector, "/api/v1/noise_rm", collector.http, "POST", **fields, **post)
        assert status == 403 and "other web pages may not ask it" in json.loads(body)["error"], fields
        assert not any(name.lower().startswith("access-control") for name in headers)
    status, _, headers = ask(collector, "/api/v1/runs", collector.http, "OPTIONS", Origin="https://evil.example")
    assert status == 403 and not any(name.lower().startswith("access-control") for name in headers)
    assert ask(collector, "/api/v1/runs", collector.http, Origin=own, Sec_Fetch_Site="same-origin")[0] == 200
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(collector, "/?view=compare&a=base&b=ort", collector.http, **link)[0] == 200
    assert ask(collector, "/api/v1/runs", collector.http, **link)[0] == 403
    assert 'statcollect_http_refused_total{reason="origin"} 6' in collector.get("/metrics")


def test_every_answer_forbids_scripts_frames_and_referrers(collector: Collector) -> None:
    answers = [
        ask(collector, path, host)
        for path in ("/", "/assets/app.js", "/api/v1/runs", "/metrics", "/healthz", "/nothing", "/api/v1/diff")
        for host in (collector.http, "rebound.example")
    ]
    for status, _, headers in answers:
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy, status
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Frame-Options"] == "DENY" and headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_oversized_headers_are_refused_and_others_served(collector: Collector) -> None:
    host, port = collector.http.split(":")
    for payload in (
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"a=b; " * 4_000 + b"\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(payload)
            assert connection.recv(100).startswith(b"HTTP/1.1 431"), payload[:20]
    assert ask(collector, "/healthz", "localhost")[0] == 200


class Evil(http.server.BaseHTTPRequestHandler):
    """A page of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><p>evil</p>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.skipif(not CHROMIUM, reason=MISSING)
def test_a_browser_gets_nothing_for_a_rebound_name_or_from_another_page(collector: Collector, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Python's playwright: scripts/setup.sh --for test")
    port = collector.http.split(":")[1]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as evil, playwright.sync_playwright() as running:
        threading.Thread(target=evil.serve_forever, daemon=True).start()
        # As an attacker's DNS would say after the page has been loaded from it.
        rules = "--host-resolver-rules=MAP rebound.example 127.0.0.1"
        browser = launch(running, rules)
        page = browser.new_page()
        answer = page.goto(f"http://rebound.example:{port}/")
        assert answer is not None and answer.status == 421 and "rebound.example" in page.inner_text("body")
        page.goto(f"http://127.0.0.1:{evil.server_address[1]}/")
        ask_other = """async (url) => {
          const read = await fetch(url).then(() => 'read', () => 'refused');
          const written = await fetch(url, {method: 'POST', mode: 'no-cors', body: '{}'}).then((a) => a.type, () => 'refused');
          const frame = document.createElement('iframe');
          const loaded = new Promise((done) => { frame.onload = () => done(frame.contentDocument === null); setTimeout(() => done('slow'), 5000); });
          frame.src = url; document.body.append(frame);
          return [read, written, await loaded];
        }"""
        before = collector.get("/metrics")
        read, written, framed = page.evaluate(ask_other, f"http://{collector.http}/api/v1/runs")
        assert read == "refused" and written in ("opaque", "refused") and framed is True
        refused = [line for line in audited(collector) if "other web pages may not ask it" in line["outcome"]]
        assert refused, before
        # A link is followed to the page, which then asks for itself.
        page.evaluate(f"location.href = 'http://{collector.http}/'")
        page.wait_for_selector("text=statcollect")
        page.wait_for_selector("main")
        browser.close()
        evil.shutdown()
