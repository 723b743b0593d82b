"""The HTTP twins of the queries: the same JSON as statctl, as their description says, whatever comes in."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import re
import socket
from typing import Any
from urllib.parse import urlencode

import pytest
from conftest import Collector, wait_until

WRITE = """
import sys, statagent, torch
for run, wrong in (("base", 0.0), ("ort", 0.5)):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.init(run=run, config={"lr": 0.1, "seed": int(wrong)}, captures=["0@0"], exponents="*@0-2")
    watch = statagent.watch(net, optimizer=optimizer)
    for step in range(5):
        x = torch.randn(4, 8) + (wrong if step > 2 else 0)
        statagent.log_batch(x=x)
        loss = net(x).square().mean()
        loss.backward()
        statagent.log_scalar("loss", loss)
        statagent.log_scalar("nothing", float("nan"))
        optimizer.step()
        optimizer.zero_grad()
    watch.remove()
    statagent.close()
"""

# statctl's arguments, the path and its parameters.
TWINS: list[tuple[list[str], str, dict[str, str]]] = [
    (["runs"], "runs", {}),
    (["show", "base"], "show", {"run": "base"}),
    (["diff", "base", "ort"], "diff", {"run_a": "base", "run_b": "ort", "top": "20"}),
    (["diff", "base", "ort", "--steps", "3-", "--rank", "0", "--kinds", "output,batch", "--all"], "diff",
     {"run_a": "base", "run_b": "ort", "steps": "3-", "ranks": "0", "kinds": "output,batch", "all": "true", "top": "20"}),
    (["diff", "base", "base", "--tolerance", "0.5"], "diff", {"run_a": "base", "run_b": "base", "tolerance": "0.5"}),
    (["series", "base", "0", "--kind", "output"], "series", {"run": "base", "activation": "0", "kind": "output"}),
    (["scalars", "base", "--name", "nothing"], "scalars", {"run": "base", "name": "nothing"}),
    (["scalars", "base"], "scalars", {"run": "base"}),
    (["events", "base"], "events", {"run": "base"}),
    (["top", "base", "--by", "absmax", "--count", "3"], "top", {"run": "base", "by": "absmax", "count": "3"}),
    (["top", "base", "--step", "1", "--kinds", "weight"], "top", {"run": "base", "by": "l2", "step": "1", "kinds": "weight"}),
    (["config", "base", "ort", "--all"], "config", {"run_a": "base", "run_b": "ort", "all": "1"}),
    (["ranks", "base"], "ranks", {"run": "base"}),
    (["noise", "show", "ort"], "noise", {"run": "ort"}),
    (["captures", "base"], "captures", {"run": "base"}),
    (["exponents", "base"], "exponents", {"run": "base", "summary": "true", "format": "f16"}),
    (["exponents", "base", "0", "--step", "1", "--kind", "output", "--dtype", "e5m2"], "exponents",
     {"run": "base", "activation": "0", "steps": "1", "kinds": "output", "format": "f8e5m2"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def collector(shared_collector: Collector) -> Collector:
    shared_collector.python(WRITE)
    saved = shared_collector.statctl("noise", "save", "ort", "--runs", "base")
    assert saved.code == 0, saved.err
    return shared_collector


def ask(
    collector: Collector, path: str, method: str = "GET", body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(collector.http, timeout=60)
    connection.request(method, path, body=body, headers=headers or {})
    response = connection.getresponse()
    text = response.read().decode(errors="surrogateescape")
    connection.close()
    return response.status, text, response.headers


def get(collector: Collector, name: str, parameters: dict[str, str] | None = None) -> Any:
    status, text, _ = ask(collector, f"/api/v1/{name}?{urlencode(parameters or {})}")
    assert status == 200, text
    return json.loads(text)


def description(collector: Collector) -> Any:
    status, text, headers = ask(collector, "/api/v1/openapi.json")
    assert status == 200 and headers["Content-Type"] == "application/json"
    return json.loads(text)


def violation(schema: Any, value: Any, root: Any, where: str = "$") -> str | None:
    """Why the value is not what the schema says (the part of JSON Schema that the description uses); None: it is."""
    if "$ref" in schema:
        return violation(root["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], value, root, where)
    if "anyOf" in schema:
        found = [violation(each, value, root, where) for each in schema["anyOf"]]
        return None if None in found else f"{where}: none of {found}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: {value!r} is not in {schema['enum']}"
    types: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
    types |= {"number": (int, float), "null": type(None)}
    expected = schema.get("type")
    if expected and (not isinstance(value, types[expected]) or (isinstance(value, bool) and expected != "boolean")):
        return f"{where}: {value!r} is no {expected}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{where}: {value!r} is not like {schema['pattern']}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{where}: {value!r} is below {schema['minimum']}"
    if isinstance(value, list):
        return next((w for i, x in enumerate(value) if (w := violation(schema.get("items", {}), x, root, f"{where}[{i}]"))), None)
    if isinstance(value, dict):
        missing = set(schema.get("required", ())) - value.keys()
        if missing:
            return f"{where}: lacks {missing}"
        for key, child in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            if inner is False:
                return f"{where}: {key} is not described"
            wrong = None if inner is True else violation(inner, child, root, f"{where}.{key}")
            if wrong:
                return wrong
    return None


@pytest.mark.parametrize(("arguments", "name", "parameters"), TWINS)
def test_answer_is_what_statctl_prints(collector: Collector, arguments: list[str], name: str, parameters: dict[str, str]) -> None:
    printed = collector.statctl("--format", "json", *arguments)
    assert printed.code in (0, 1, 2) and printed.out, printed.err
    status, text, headers = ask(collector, f"/api/v1/{name}?{urlencode(parameters)}")
    assert status == 200, text
    assert text == printed.out, "byte for byte"
    assert headers["Content-Type"] == "application/json" and "Access-Control-Allow-Origin" not in headers
    assert int(headers["Content-Length"]) == len(text.encode())
    root = description(collector)
    schema = root["paths"][f"/api/v1/{name}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert violation(schema, json.loads(text), root) is None


def example(collector: Collector, parameter: dict[str, Any], name: str) -> str:
    known = {
        "run": "base",
        "run_a": "base",
        "run_b": "ort",
        "runs": "base",
        "activation": "0",
        "name": "loss",
        "steps": "0-3",
        "step": "1",
    }
    if parameter["name"] in known:
        return known[parameter["name"]]
    schema = parameter["schema"].get("items", parameter["schema"])
    if "enum" in schema:
        return str(schema["enum"][0])
    return {"integer": "0", "number": "0.5", "boolean": "false", "string": ""}[schema["type"]]


def test_every_path_of_the_description_answers_and_takes_every_parameter(collector: Collector) -> None:
    root = description(collector)
    assert {f"/api/v1/{name}" for _, name, _ in TWINS} < set(root["paths"])
    assert "/api/v1/records" in root["paths"] and "/api/v1/status" in root["paths"]
    for path, operations in root["paths"].items():
        assert "post" in operations, path
        if "get" not in operations or path == "/api/v1/live":  # which has no end: tests of its own
            continue
        needed = {
            p["name"]: example(collector, p, path)
            for p in operations["get"]["parameters"]
            if p["name"].startswith(("run", "act"))
        }
        if path == "/api/v1/noise":  # of the run that has some
            needed["run"] = "ort"
        status, text, headers = ask(collector, f"{path}?{urlencode(needed)}")
        assert status == 200, f"{path}: {text}"
        content = operations["get"]["responses"]["200"]["content"]
        assert headers["Content-Type"] in content
        schema = content[headers["Content-Type"]]["schema"]
        if headers["Content-Type"] == "application/octet-stream":
            assert text.startswith("SCHM") and headers["ETag"], path
            continue
        lines = text.splitlines() if headers["Content-Type"] == "application/x-ndjson" else [text]
        for line in lines:
            assert violation(schema, json.loads(line), root) is None, path
        for parameter in operations["get"]["parameters"]:
            asked = {**needed, parameter["name"]: example(collector, parameter, path)}
            status, answer, _ = ask(collector, f"{path}?{urlencode(asked)}")
            assert status in (200, 404) or (status == 400 and "no parameter" not in answer), f"{path} {parameter}: {answer}"
        lists = {p["name"] for p in operations["get"]["parameters"] if p["schema"].get("type") == "array"}
        body = {name: [value] if name in lists else value for name, value in needed.items()}
        status, posted, _ = ask(collector, path, "POST", json.dumps(body), {"Content-Type": "application/json"})
        assert status == 200 and (posted == text or path.endswith(("/status", "/audit"))), (
            path
        )  # these tell what has happened since
        status, text, _ = ask(collector, f"{path}?nonsense=1")
        assert status == 400 and "no parameter 'nonsense'" in text
        assert violation({"$ref": "#/components/schemas/Error"}, json.loads(text), root) is None


def test_unknown_things_are_told_with_what_there_is(collector: Collector) -> None:
    for path, status, hint in (
        ("/api/v1/diff?run_a=base&run_b=otr", 404, "ort"),
        ("/api/v1/series?run=base&activation=9", 404, "closest"),
        ("/api/v1/scalars?run=base&name=los", 404, "loss"),
        ("/api/v1/top?run=base&step=77", 404, "0..4"),
        ("/api/v1/top?run=base&by=median", 400, "zero_fraction"),
        ("/api/v1/diff?run_a=base&run_b=ort&steps=nine", 400, "nine"),
        ("/api/v1/diff?run_a=base&run_b=ort&kinds=outputs", 400, "grad_output"),
        ("/api/v1/diff?run_a=base", 400, "run_b is missing"),
        ("/api/v1/diff?run_b=base", 400, "run_a is missing"),
        ("/api/v1/diff?run_a=base&run_b=%zz", 400, "percent"),
        ("/api/v2/diff", 404, "/api/v1/"),
        ("/api/v1/../../etc/passwd", 404, "/api/v1/diff"),
    ):
        found, text, _ = ask(collector, path)
        assert found == status and hint in json.loads(text)["error"], f"{path}: {found} {text}"


def test_thousand_parallel_requests_are_all_answered(collector: Collector) -> None:
    expected = get(collector, "show", {"run": "base"})
    names = ["/api/v1/show?run=base", "/api/v1/runs", "/api/v1/diff?run_a=base&run_b=ort", "/healthz"]

    def one(i: int) -> int:
        status, text, headers = ask(collector, names[i % len(names)])
        assert status == 200 or (status == 429 and headers["Retry-After"] == "1"), text
        if i % len(names) == 0:
            assert status == 200 and json.loads(text)["config"] == expected["config"]
        return status

    with concurrent.futures.ThreadPoolExecutor(250) as pool:
        statuses = list(pool.map(one, range(1000)))
    assert statuses.count(200) >= 750, "what only reads the catalogue is never refused"
    assert get(collector, "runs") and collector.statctl("runs").code == 0


def test_hostile_connections_do_no_harm(collector: Collector) -> None:
    host, port = collector.http.split(":")
    held = []
    for payload in (
        b"", b"GET", b"GET /api/v1/diff?run_a=base", b"POST /api/v1/diff HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{",
        b"POST /api/v1/diff HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"POST /api/v1/diff HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"\x00\xff" * 5000, b"GET /api/v1/runs HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
    ):  # fmt: skip
        connection = socket.create_connection((host, int(port)))
        with contextlib.suppress(OSError):  # refused while it was sent
            connection.sendall(payload)
        held.append(connection)
    for _ in range(50):  # dropped in the middle of a question
        connection = socket.create_connection((host, int(port)))
        connection.sendall(b"GET /api/v1/diff?run_a=base&run_b=ort&all HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.close()
    wait_until(lambda: ask(collector, "/api/v1/diff?run_a=base&run_b=ort")[0] == 200, what="the dropped questions' places")
    for connection in held:
        connection.close()
    status, text, _ = ask(collector, "/api/v1/diff", "POST", "[" * 900_000, {"Content-Type": "application/json"})
    assert status == 400, text


def raw(collector: Collector, request: bytes) -> tuple[bytes, bool]:
    """What comes back, and whether the collector has closed the connection."""
    host, port = collector.http.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(request)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except TimeoutError:
            return answer, False
    return answer, True


@pytest.mark.parametrize(
    "field",
    ["identity", "xchunked", "chunked, identity", "gzip, chunked", "chunked\r\nTransfer-Encoding: chunked", "\tchunkedx", ""],
)
def test_a_body_in_another_transfer_encoding_is_refused_and_the_connection_closed(collector: Collector, field: str) -> None:
    smuggled = b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = (
        f"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: {field}\r\n\r\n"
    )
    answer, closed = raw(collector, head.encode() + smuggled)
    assert closed and answer.count(b"HTTP/1.1 ") == 1, answer
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b"expected" in answer or b"bad Transfer-Encoding" in answer, (
        answer
    )  # ours, or the parser's of a field that comes twice


def test_chunks_are_taken_and_only_in_http_1_1(collector: Collector) -> None:
    head = "POST /api/v1/runs HTTP/{}\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    body = "Transfer-Encoding: CHUNKED\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert raw(collector, (head.format("1.1") + body).encode())[0].startswith(b"HTTP/1.1 200")
    assert b" 400 " in raw(collector, (head.format("1.0") + body).encode())[0].splitlines()[0]


def test_text_that_is_no_utf_8_is_refused_with_a_reason(collector: Collector) -> None:
    for bad in ("%ff%0a", "%ff", "a%0a%c3", "%ed%a0%80%0a", "%00", "a%07%0a", "%ff" * 3000, "x" * 3000 + "%ff"):
        for path in (
            f"/api/v1/show?run={bad}",
            f"/api/v1/series?run=base&activation={bad}",
            f"/api/v1/diff?run_a=base&run_b={bad}",
        ):
            status, text, _ = ask(collector, path)
            assert status == 400 and len(json.loads(text)["error"]) > 20, (path[:60], status, text)
    status, text, _ = ask(collector, "/api/v1/show?run=base%0a")
    assert status == 400 and json.loads(text)["error"], "the query says what a name may have"


def test_names_may_look_like_the_beginning_of_a_token_and_a_token_in_a_url_is_refused(collector: Collector) -> None:
    collector.python("""
import statagent, torch
statagent.init(run="stc_run", required=True)
statagent.inspect("stc_0123456789ab_layer", torch.arange(4.0))
statagent.log_scalar("loss", 1.0)
statagent.step(); statagent.close(timeout=10)
""")
    assert get(collector, "show", {"run": "stc_run"})["summary"]["run"] == "stc_run"
    series = get(collector, "series", {"run": "stc_run", "activation": "stc_0123456789ab_layer"})
    assert len(series["records"]) == 1
    token = "stc_0123456789ab_" + "0f" * 32
    for text in (token, "x" + token + "f", token.replace("_", "%5F")):
        status, answer, _ = ask(collector, f"/api/v1/show?run={text}")
        assert status == 400 and "token in the URL" in answer, answer


def test_daemon_stops_at_once_although_clients_hold_connections(collector: Collector, tmp_path: Any) -> None:
    own = Collector(tmp_path / "data").start()
    host, port = own.http.split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(5)]
    half = socket.create_connection((host, int(port)))
    half.sendall(b"GET /api/v1/ru")
    assert own.stop() == 0
    for connection in [*idle, half]:
        connection.close()
