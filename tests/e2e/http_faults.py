"""An HTTP proxy in front of a real server that puts in answers of its own, with or without TLS."""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Request:
    parameters: dict[str, str]
    body: bytes

    @property
    def statement(self) -> str:
        """Its text as far as the URL or the body have it; the rows of an insert are in the body."""
        return self.parameters.get("query") or self.body[:2000].decode(errors="replace")


@dataclass
class Injected:
    """`passed_on`: the server gets the request all the same, and does what it says."""

    status: int
    body: str
    passed_on: bool = False


Rule = Callable[[Request], "Injected | None"]


def failing(code: int, words: str, passed_on: bool = False) -> Injected:
    """As ClickHouse 18.16 words it."""
    return Injected(500, f"Code: {code}, e.displayText() = DB::Exception: {words}, e.what() = DB::Exception\n", passed_on)


class HttpFaults:
    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self.rule: Rule = lambda _: None
        self.rewrite: Callable[[Request], Request] = lambda request: request  # what the server gets instead
        self.injected = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are two packets

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                parameters = {k: v[0] for k, v in urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).items()}
                request = Request(parameters, body)
                injected = proxy.rule(request)
                status, answer = 0, b""
                if injected is None or injected.passed_on:
                    connection = http.client.HTTPConnection(target, timeout=60)
                    try:
                        kept = {k: v for k, v in self.headers.items() if k.startswith("X-ClickHouse")}
                        sent = proxy.rewrite(request)
                        path = self.path if sent is request else "/?" + urllib.parse.urlencode(sent.parameters)
                        connection.request("POST", path, sent.body, kept)
                        reply = connection.getresponse()
                        status, answer = reply.status, reply.read()
                    except OSError:
                        status, answer = 502, b"Bad Gateway"
                    finally:
                        connection.close()
                if injected is not None:
                    proxy.injected += 1
                    status, answer = injected.status, injected.body.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request: object, client_address: object) -> None:
                # The handshake in the connection's own thread: one that fails holds up nobody else.
                wrapped = tls.wrap_socket(request, server_side=True) if tls is not None else request  # type: ignore[arg-type]
                Handler(wrapped, client_address, self)  # type: ignore[arg-type]

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
