"""statcollect for Python against a real collector: the same answers as statctl, typed, as tables, over TLS, and clear errors."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import http.server
import json
import math
import os
import re
import runpy
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conftest import ROOT, Collector

sys.path.insert(0, str(ROOT / "client/python"))
import statcollect
from statcollect import answers

PAGE = ROOT / "docs/python-client.md"
WRITE = """
import statagent, torch
for run, wrong in (("base", 0.0), ("ort", 0.5)):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.init(run=run, config={"lr": 0.1, "seed": int(wrong)})
    watch = statagent.watch(net, optimizer=optimizer)
    for step in range(5):
        x = torch.randn(4, 8) + (wrong if step > 2 else 0)
        statagent.log_batch(x=x)
        statagent.inspect("odd", torch.tensor([float("nan"), float("inf"), 1.0]))
        statagent.inspect("none", torch.full((2, 0), 1.0))
        loss = net(x).square().mean()
        loss.backward()
        statagent.log_scalar("loss", loss)
        statagent.log_scalar("nothing", float("nan"))
        optimizer.step()
        optimizer.zero_grad()
    watch.remove()
    statagent.close()
"""


@pytest.fixture(scope="module")
def collector(shared_collector: Collector) -> Collector:
    shared_collector.python(WRITE)
    return shared_collector


@pytest.fixture(scope="module")
def client(collector: Collector) -> statcollect.Collector:
    return statcollect.connect(collector.http)


def plain(value: Any) -> Any:
    """As JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


ASKED: list[tuple[str, Callable[[statcollect.Collector], Any], dict[str, Any], str]] = [
    ("runs", lambda c: c.runs(), {}, "runs"),
    ("show", lambda c: c.show("base"), {"run": "base"}, ""),
    ("diff", lambda c: c.diff("base", "ort"), {"run_a": "base", "run_b": "ort"}, ""),
    ("diff", lambda c: c.diff("base", "ort", ranks=[0], steps="3-", kinds=["output", "batch"], all=True, exact=True),
     {"run_a": "base", "run_b": "ort", "ranks": 0, "steps": "3-", "kinds": "output,batch", "all": "true", "exact": "true"}, ""),
    ("diff", lambda c: c.diff("base", "base"), {"run_a": "base", "run_b": "base"}, ""),
    ("series", lambda c: c.series("base", "0", kind="output"), {"run": "base", "activation": "0", "kind": "output"}, "records"),
    ("scalars", lambda c: c.scalars("base"), {"run": "base"}, "records"),
    ("scalars", lambda c: c.scalars("base", "nothing", steps="1-2"), {"run": "base", "name": "nothing", "steps": "1-2"}, "records"),
    ("top", lambda c: c.top("base", "absmax", count=3), {"run": "base", "by": "absmax", "count": 3}, ""),
    ("events", lambda c: c.events("base"), {"run": "base"}, "records"),
    ("config", lambda c: c.config("base", "ort", all=True), {"run_a": "base", "run_b": "ort", "all": 1}, ""),
    ("ranks", lambda c: c.ranks("base"), {"run": "base"}, ""),
    ("memory", lambda c: c.memory("base"), {"run": "base"}, "records"),
    ("density", lambda c: c.density("base"), {"run": "base"}, "records"),
    ("weights", lambda c: c.weights("base", "ort", step=1), {"run_a": "base", "run_b": "ort", "step": 1}, ""),
    ("captures", lambda c: c.captures("base", "0"), {"run": "base", "activation": "0"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ask", "parameters", "rows"), ASKED, ids=[f"{number}-{each[0]}" for number, each in enumerate(ASKED)]
)
def test_answers_are_those_of_http(
    collector: Collector,
    client: statcollect.Collector,
    name: str,
    ask: Callable[[Any], Any],
    parameters: dict[str, Any],
    rows: str,
) -> None:
    expected = json.loads(collector.get(f"/api/v1/{name}?{urlencode(parameters)}"))
    found = ask(client)
    assert plain(found) == (expected[rows] if rows else expected)
    if rows:
        assert isinstance(found, statcollect.Rows)


def test_the_types_are_those_of_the_running_collector(collector: Collector) -> None:
    writer = runpy.run_path(str(ROOT / "scripts/make_python_client.py"))
    expected = writer["formatted"](json.loads(collector.get("/api/v1/openapi.json")))
    assert Path(answers.__file__).read_text() == expected, "the API has changed: run python scripts/make_python_client.py"


def test_status_has_types(collector: Collector, client: statcollect.Collector) -> None:
    status = client.status()
    assert status.data_dir == str(collector.data_dir) and status.state == "ready"
    assert status.alarms is not None and isinstance(status.alarms.raised["loss_spike"], int)


def test_numbers_that_json_lacks_are_floats(client: statcollect.Collector) -> None:
    values = [row.value for row in client.scalars("base", "nothing")]
    assert len(values) == 5 and all(isinstance(value, float) and math.isnan(value) for value in values)


# Columns of the CSV export for parts of tensors, which records of the client do not have.
PLACE = ("global_shape", "boxes", "ranges", "piece", "pieces", "partial", "ranks")


def test_records_are_those_of_the_csv_export(collector: Collector, client: statcollect.Collector, tmp_path: Path) -> None:
    done = collector.statctl("export", "csv", "base", str(tmp_path / "base.csv"))
    assert done.code == 0, done.err
    with (tmp_path / "base.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    records = client.records("base")
    assert len(lines) == len(records) > 100
    for line, record in zip(lines, records):
        for name, text in line.items():
            if name in ("untrusted", "hash_kind", *PLACE):
                continue
            value = getattr(record, "class_name" if name == "class" else name)
            if value is None:
                assert text == "", (name, line)
            elif name == "shape":
                assert [int(size) for size in re.findall(r"\d+", text)] == value
            elif isinstance(value, float):
                assert float(text) == value, (name, line)
            else:
                assert text == str(value), (name, line)
    assert {record.kind for record in client.iterate("base", kinds=["weight"], steps="1")} == {"weight"}


def test_tables_have_columns_of_one_type(client: statcollect.Collector) -> None:
    pytest.importorskip("pyarrow")
    table = client.series("base", "0").to_arrow()
    assert table.num_rows == len(client.series("base", "0"))
    assert {"step", "kind", "stats.l2", "stats.nan", "ranks"} <= set(table.column_names)
    assert str(table.schema.field("stats.l2").type) == "double" and str(table.schema.field("step").type) == "int64"
    empty = client.scalars("base", steps="99").to_arrow()
    assert empty.num_rows == 0 and empty.schema == client.scalars("base").to_arrow().schema
    diff = client.diff("base", "ort").to_arrow()
    assert diff.column("activation")[0].as_py() == "x" and diff.column("a.l2")[0].as_py() > 0
    records = client.records("base").to_arrow()
    assert records.num_rows == len(client.records("base")) and records.column("l2").null_count == 5  # those of "none"


def test_pandas_keeps_integers(client: statcollect.Collector) -> None:
    pytest.importorskip("pandas")
    frame = client.records("base").to_pandas()
    assert str(frame["step"].dtype) == "int64" and str(frame["nan"].dtype) == "Int64" and str(frame["l2"].dtype) == "float64"
    assert frame.loc[frame["activation"] == "odd", "nan"].tolist() == [1] * 5
    assert frame.loc[frame["activation"] == "none", "l2"].isna().all()
    assert client.diff("base", "base").to_pandas().empty


def test_polars_keeps_what_is_absent(client: statcollect.Collector) -> None:
    polars = pytest.importorskip("polars")
    frame = client.records("base").to_polars()
    assert frame.schema["shape"] == polars.List(polars.Int64)
    assert frame.filter(polars.col("activation") == "none")["l2"].null_count() == 5


def test_notebooks_show_answers(client: statcollect.Collector) -> None:
    class Page(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.text = ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)

        def handle_data(self, data: str) -> None:
            self.text += data

    def parsed(answer: object) -> Page:
        page = Page()
        page.feed(answer._repr_html_())  # type: ignore[attr-defined]
        return page

    report = client.diff("base", "ort")
    page = parsed(report)
    assert report.text is not None and page.text.startswith(f"{report.text.verdict} {report.text.sentence}")
    assert page.tags.count("tr") == 1 + min(20, len(report.diverged)) and "activation" in page.text
    assert parsed(client.runs()).tags.count("tr") == 1 + len(client.runs())
    row = dataclasses.replace(report.diverged[0], activation="<script>alert(1)</script>&")
    hostile = parsed(type(report.diverged)([row] * 30, type(row)))
    assert "script" not in hostile.tags and row.activation in hostile.text and "10 more" in hostile.text
    assert parsed(type(report.diverged)([], type(row))).text == "nothing"


def test_a_missing_library_is_named(client: statcollect.Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package in (("pandas", "pandas"), ("polars", "polars"), ("pyarrow", "pyarrow")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(statcollect.StatcollectError, match=f"pip install {package}"):
            getattr(client.runs(), "to_arrow" if name == "pyarrow" else f"to_{name}")()


def test_wrong_questions_have_their_own_errors(client: statcollect.Collector) -> None:
    with pytest.raises(statcollect.NotFoundError, match="no run 'nobody'"):
        client.show("nobody")
    with pytest.raises(statcollect.NotFoundError):
        list(client.iterate("nobody"))
    with pytest.raises(statcollect.ArgumentError, match="neither a step nor a range"):
        client.diff("base", "ort", steps="x")
    with pytest.raises(statcollect.ArgumentError, match="expected a list"):
        client.diff("base", "ort", kinds="output")
    with pytest.raises(statcollect.ArgumentError):
        client.top("base", "beauty")


# --- addresses


def free_pair() -> int:
    """A port that is free like the next one."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                return port
    raise AssertionError("no two free ports beside each other")


def test_the_address_of_statctl_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_pair()
    own = Collector(tmp_path / "data", address=f"127.0.0.1:{port}", http=f"127.0.0.1:{port + 1}").start()
    try:
        assert statcollect.connect(own.address).address.port == port + 1
        assert statcollect.connect(f"http://{own.http}/").runs() == []
        monkeypatch.setenv("STATCTL_COLLECTOR", own.address)
        assert statcollect.connect().status().data_dir == str(own.data_dir)
        with pytest.raises(statcollect.CollectorUnavailableError, match="pass it as http="):
            statcollect.connect(http=own.address)
    finally:
        own.stop()
    with pytest.raises(statcollect.CollectorUnavailableError, match="expected the HTTP address of a running statcollectord"):
        statcollect.connect(own.address)


@pytest.mark.parametrize(
    "address", ["", "host", "host:0", "host:x", "ftp://host:1", "http://host:1/path", ":7433", "user@host:1", "a:1:2"]
)
def test_wrong_addresses_are_refused(address: str) -> None:
    with pytest.raises(statcollect.ArgumentError, match="expected HOST:PORT"):
        statcollect.connect(address or " ")


# --- what a collector may do: a server of the test's own


class Server(http.server.BaseHTTPRequestHandler):
    """Answers as the test says; expects the token "secret"."""

    protocol_version = "HTTP/1.1"
    name = "statcollectord"
    answers: list[tuple[int, bytes, dict[str, str]]] = []
    seen: list[tuple[str, str]] = []

    def version_string(self) -> str:
        return self.name

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, b"{}", {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, self.headers.get("Authorization", "")))
        if self.headers.get("Authorization", "Bearer secret") != "Bearer secret":
            self._send(401, b'{"error":"the token is not known","code":"unauthenticated"}', {})
        else:
            self._send(*(self.answers.pop(0) if self.answers else (200, b'{"runs":[]}', {})))

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[str]:
    Server.answers, Server.seen, Server.name = [], [], "statcollectord"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself: (certificate, key)."""
    made = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-addext",
         "subjectAltName=IP:127.0.0.1", "-out", str(made[0]), "-keyout", str(made[1])], check=True, capture_output=True,
    )  # fmt: skip
    return made


def test_token_and_certificate_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, key)
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("secret\n")
    wrong.write_text("guess\n")
    for path in (token, wrong):
        path.chmod(0o600)
    with serving(context) as address:
        client = statcollect.connect(address, token_file=token, tls_ca=public)
        assert client.runs() == [] and Server.seen == [("/api/v1/runs", "Bearer secret")]
        assert "secret" not in repr(client) + repr(vars(client))
        monkeypatch.setenv("STATCTL_TOKEN_FILE", str(wrong))
        with pytest.raises(statcollect.NotAllowedError, match="the token is not known"):
            statcollect.connect(f"https://{address}", tls_ca=public).runs()
        with pytest.raises(statcollect.CollectorUnavailableError, match="tls_ca="):
            statcollect.connect(f"https://{address}")


def test_tokens_stay_at_home(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o640 if os.getuid() else 0o644)  # root's may be readable by a group
    with pytest.raises(statcollect.ArgumentError, match=r"others may read or change it.*chmod 600"):
        statcollect.connect("127.0.0.1:7433", token_file=token)
    token.chmod(0o600)
    with pytest.raises(statcollect.ArgumentError, match="without encryption"):
        statcollect.connect("192.0.2.1:7433", token_file=token)
    for text in ("", "two words", "ü"):
        token.write_text(text)
        with pytest.raises(statcollect.ArgumentError, match=r"expected (one token|a file that holds one token)"):
            statcollect.connect("127.0.0.1:7433", token_file=token)
    with pytest.raises(statcollect.ArgumentError, match="read the token file"):
        statcollect.connect("127.0.0.1:7433", token_file=tmp_path / "none")


def test_a_busy_collector_is_asked_again() -> None:
    busy = (429, b'{"error":"too many queries wait","code":"resource_exhausted"}', {"Retry-After": "0"})
    with serving() as address:
        client = statcollect.connect(address)
        Server.answers = [busy, busy]
        assert client.runs() == [] and len(Server.seen) == 3
        Server.answers = [(429, busy[1], {})]  # too many rows: asking again would not help
        with pytest.raises(statcollect.QueryError, match="too many queries wait") as refused:
            client.runs()
        assert refused.value.status == 429 and refused.value.code == "resource_exhausted"


CHUNKED = {"Transfer-Encoding": "chunked", "Content-Length": ""}
PROGRESS = b'{"attempt": 1, "rank": 0, "records": null}\n'


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'5\r\n{"a"\r\n', CHUNKED), (b"%x\r\n%b\r\n" % (len(PROGRESS), PROGRESS), CHUNKED), (b"", CHUNKED),
        (PROGRESS, {"Content-Length": "1000"}), (PROGRESS[:-1], {"Content-Length": ""}),
    ],
    ids=["in a line", "between chunks", "at once", "before its length", "before the line's end"],
)  # fmt: skip
def test_a_stream_that_breaks_off_is_no_end(body: bytes, headers: dict[str, str]) -> None:
    with serving() as address:
        client = statcollect.connect(address)
        Server.answers = [(200, body, headers)]
        with pytest.raises(statcollect.CollectorUnavailableError):
            list(client.iterate("base"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"runs": "x"}',
        b"not JSON",
        b'{"runs": [7]}',
        b'{"runs": [{"run": "x"}]}',
        b'{"runs": [{"run": "x", "attempts": "many"}]}',
        b"\xff",
    ],
)
def test_odd_answers_are_named(body: bytes) -> None:
    with serving() as address:
        client = statcollect.connect(address)
        Server.answers = [(200, body, {})]
        with pytest.raises(statcollect.AnswerError):
            client.runs()


def test_another_server_is_no_collector() -> None:
    with serving() as address:
        Server.name = "somebody"
        with pytest.raises(statcollect.CollectorUnavailableError, match="not a collector's HTTP address"):
            statcollect.connect(address)


# --- the page


def test_the_page_runs_as_printed(collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    shared: dict[str, Any] = {}
    for block in sorted(blocks, key=lambda text: "to_pandas" in text):
        if "to_pandas" in block:
            pytest.importorskip("pandas")
        text = block.replace("127.0.0.1:7433", collector.http).replace("blocks.1.ln2", "0")
        exec(compile(text, str(PAGE), "exec"), shared)
