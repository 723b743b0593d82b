"""Logging a browser in with the link of statctl open, against a real collector with tokens; with raw requests, and in real Chromium."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, MISSING, launch
from conftest import ROOT, STATCOLLECTORD, STATCTL, Collector, Finished, run_command, wait_until

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
needs_browser = pytest.mark.skipif(not CHROMIUM, reason=MISSING)


def make_token(collector: Collector, scope: str, *more: str) -> Path:
    done = run_command([str(STATCOLLECTORD), "token", "create", "--data-dir", str(collector.data_dir), "--scope", scope, *more])
    assert done.code == 0, done.err
    file = collector.data_dir.parent / f"{scope}-{done.out[4:16]}.token"
    file.touch(0o600)
    file.write_text(done.out)
    return file


def revoke(collector: Collector, file: Path) -> None:
    done = run_command([str(STATCOLLECTORD), "token", "revoke", "--data-dir", str(collector.data_dir), file.read_text()[4:16]])
    assert done.code == 0, done.err


def open_link(collector: Collector, token: Path | None, *arguments: str) -> Finished:
    with_token = ["--token-file", str(token)] if token else []
    return run_command([str(STATCTL), "--collector", collector.address, *with_token, "open", *arguments])


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Collector, Path]]:
    """A collector with a run, that has tokens, and the file of one that may read."""
    collector = Collector(tmp_path / "data").start()
    for run in ("base", "ort"):
        collector.python(
            f"import array, statagent; statagent.init(run='{run}'); statagent.inspect('x', array.array('f', [1.0])); statagent.step(); statagent.close()"
        )
    reader = make_token(collector, "read")
    yield collector, reader
    collector.stop()


def ask(collector: Collector, method: str, path: str, body: Any = None, **fields: str) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(collector.http, timeout=20)
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if text.startswith("{") else text, answer.headers


def secret_of(link: str) -> str:
    found = re.search(r"#login=([0-9a-f]{64})$", link.strip())
    assert found, link
    return found[1]


def log_in(collector: Collector, token: Path) -> dict[str, str]:
    status, body, headers = ask(collector, "POST", "/session/login", {"link": secret_of(open_link(collector, token).out)})
    assert status == 200, body
    return {"Cookie": headers["Set-Cookie"].split(";")[0], "X_Statcollect_Session": body["page"]}


def test_the_link_says_what_to_look_at(guarded: tuple[Collector, Path]) -> None:
    collector, reader = guarded
    plain = open_link(collector, reader)
    assert re.fullmatch(rf"http://{collector.http}/#login=[0-9a-f]{{64}}\n", plain.out) and "once, within 5 minutes" in plain.err
    run = open_link(collector, reader, "--run-a", "base", "--quiet")
    assert run.out.startswith(f"http://{collector.http}/?view=run&a=base#login=") and run.err == ""
    both = open_link(collector, reader, "base", "ort", "--rank", "1", "--format", "json")
    assert "/?view=compare&a=base&b=ort&ranks=1#login=" in both.json()["url"] and both.json()["expires_unix_nanos"] > 0
    assert open_link(collector, reader, "--run-b", "ort").code == 2
    nobody = open_link(collector, None)
    assert nobody.code == 2 and "no token was sent" in nobody.err


def test_without_tokens_the_link_has_no_secret(collector: Collector) -> None:
    assert open_link(collector, None).out == f"http://{collector.http}/\n"


def test_without_http_there_is_no_link(tmp_path: Path) -> None:
    collector = Collector(tmp_path / "data", http="off")
    with pytest.raises(AssertionError, match="http off"):
        collector.start()
    address = re.search(r"grpc (\S+),", collector.ready_line)
    assert address
    done = run_command([str(STATCTL), "--collector", address[1], "open"])
    assert done.code == 2 and "--http off" in done.err
    collector.stop()


def test_the_cookie_stands_for_the_token_and_needs_its_field(guarded: tuple[Collector, Path]) -> None:
    collector, reader = guarded
    link = secret_of(open_link(collector, reader).out)
    status, body, headers = ask(collector, "POST", "/session/login", {"link": link})
    assert status == 200
    name, value, attributes = re.fullmatch(r"(\w+)=([0-9a-f]{64}); (.*)", headers["Set-Cookie"]).groups()  # type: ignore[union-attr]
    assert name == f"statcollect_{collector.http.split(':')[1]}"
    assert attributes == "Path=/; HttpOnly; SameSite=Strict; Max-Age=43200"
    assert ask(collector, "POST", "/session/login", {"link": link})[0] == 401, "used twice"
    assert ask(collector, "POST", "/session/login", {"link": "0" * 64})[0] == 401
    assert ask(collector, "POST", "/session/login", {"lnk": link})[0] == 400
    assert ask(collector, "GET", "/session/login")[0] == 405
    assert ask(collector, "POST", "/session/nothing", {})[0] == 404
    cookie, field = {"Cookie": f"a=b; {name}={value}"}, {"X_Statcollect_Session": body["page"]}
    assert ask(collector, "GET", "/api/v1/runs", **cookie, **field)[0] == 200
    for fields in (cookie, field, {**cookie, "X_Statcollect_Session": "0" * 64}, {"Cookie": f"{name}={'0' * 64}", **field}):
        assert ask(collector, "GET", "/api/v1/runs", **fields)[0] == 401, fields
    status, body, _ = ask(collector, "POST", "/api/v1/noise_rm", {"run": "base"}, **cookie, **field)
    assert status == 403 and "scope 'read'; expected 'control'" in body["error"]
    foreign = {"Origin": "http://evil.example", **cookie, **field}
    assert ask(collector, "GET", "/api/v1/runs", **foreign)[0] == 403
    assert ask(collector, "POST", "/session/login", {"link": link}, Origin="http://evil.example")[0] == 403
    secrets = [link, value, field["X_Statcollect_Session"]]
    stored = b"".join(path.read_bytes() for path in collector.data_dir.parent.rglob("*") if path.is_file())
    assert not any(secret.encode() in stored for secret in secrets)
    audit = [json.loads(line) for line in (collector.data_dir / "audit.jsonl").read_text().splitlines()]
    token = f"token {reader.read_text()[4:16]} (browser)"
    assert {(token, "/session/login", "ok"), (token, "/statcollect.v1.Query/DeleteNoise", "permission_denied")} <= {
        (line["principal"], line["method"], line["outcome"].split(":")[0]) for line in audit
    }


def test_a_revoked_or_expired_token_and_a_log_out_end_the_session(guarded: tuple[Collector, Path]) -> None:
    collector, reader = guarded
    first, second = log_in(collector, reader), log_in(collector, reader)
    short = log_in(collector, make_token(collector, "read", "--expires", "3s"))
    assert ask(collector, "GET", "/api/v1/runs", **short)[0] == 200
    status, _, headers = ask(collector, "POST", "/session/logout", {}, **first)
    assert status == 200 and "Max-Age=0" in headers["Set-Cookie"]
    assert ask(collector, "GET", "/api/v1/runs", **first)[0] == 401
    assert ask(collector, "GET", "/api/v1/runs", **second)[0] == 200
    revoke(collector, reader)
    assert ask(collector, "GET", "/api/v1/runs", **second)[0] == 401
    wait_until(lambda: ask(collector, "GET", "/api/v1/runs", **short)[0] == 401, what="the token to expire")


def test_under_tls_the_cookie_is_secure(tmp_path: Path) -> None:
    collector = Collector(tmp_path / "data", extra=["--tls-auto"]).start()
    files = collector.data_dir / "tls"
    arguments = ["--tls-ca", str(files / "ca.pem"), "--token-file", str(files / "statctl.token")]
    link = run_command([str(STATCTL), "--collector", collector.address, *arguments, "open"]).out
    assert link.startswith(f"https://{collector.http}/#login=")
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    connection = http.client.HTTPSConnection(collector.http, timeout=20, context=context)
    connection.request("POST", "/session/login", json.dumps({"link": secret_of(link)}))
    answer = connection.getresponse()
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-statcollect_") and cookie.endswith("; Secure")
    fields = {"Cookie": cookie.split(";")[0], "X-Statcollect-Session": json.loads(answer.read())["page"]}
    connection.request("GET", "/api/v1/runs", headers=fields)
    assert connection.getresponse().status == 200
    collector.stop()


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Python's playwright: scripts/setup.sh --for test")
    with playwright.sync_playwright() as running:
        started = launch(running)
        yield started
        started.close()


@needs_browser
def test_the_link_logs_a_browser_in_until_it_logs_out(guarded: tuple[Collector, Path], browser: Any) -> None:
    collector, reader = guarded
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(f"http://{collector.http}/")
    page.wait_for_selector("h1 >> text=Log in")
    if AXE.exists():
        page.evaluate(AXE.read_text())
        assert [violation["id"] for violation in page.evaluate("axe.run()")["violations"]] == []
    assert page.locator("text=statctl open").count() == 1 and page.locator("text=Log out").count() == 0
    link = open_link(collector, reader).out.strip()
    page.evaluate("(link) => { location.href = link }", link)  # as pasted into the address of the open page
    page.wait_for_selector("table >> text=base")
    assert page.url == f"http://{collector.http}/" and "login" not in page.evaluate(
        "JSON.stringify(history.state) + location.href"
    )
    assert not any(secret_of(link) in url.split("#")[0] for url in asked)
    assert page.evaluate("document.cookie") == "", "scripts cannot read it"
    cookie = context.cookies()[0]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    # Other tabs are logged in, too, also by a link of another site; the link itself is used up.
    other = context.new_page()
    other.goto(f"http://{collector.http}/?view=run&a=base")
    other.wait_for_selector("text=Log out")
    assert other.locator("h1 >> text=Log in").count() == 0
    stranger = browser.new_context().new_page()
    stranger.goto(link)
    stranger.wait_for_selector("text=the link is not valid")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_selector("h1 >> text=Log in")
    other.wait_for_selector("h1 >> text=Log in")
    assert context.cookies() == []


@needs_browser
def test_a_revoked_token_brings_the_log_in_back(guarded: tuple[Collector, Path], browser: Any) -> None:
    collector, reader = guarded
    page = browser.new_context().new_page()
    page.set_default_timeout(20_000)
    page.goto(open_link(collector, reader).out.strip())
    page.wait_for_selector("table >> text=base")
    revoke(collector, reader)
    page.wait_for_selector("h1 >> text=Log in")
    assert "was revoked" in page.inner_text(".log-in")
