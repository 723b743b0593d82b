"""A modern ClickHouse for tests of the dialect: chdb, which has no listener, behind a small HTTP server on loopback.

As a program it prints its port and serves until it is ended: python chdb_server.py FOLDER
"""

from __future__ import annotations

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

INSERT = re.compile(r"INSERT INTO (\w+)\.(\w+) \(([^)]*)\) FORMAT RowBinary$")
PASSED_ON = {
    "async_insert",
    "insert_deduplication_token",
    "max_insert_block_size",
    "insert_quorum",
    "select_sequential_consistency",
}


class Engine:
    """One statement at a time."""

    def __init__(self, folder: Path) -> None:
        from chdb import session  # type: ignore[import-not-found, unused-ignore]

        self.folder = folder
        self.session: Any = session.Session(str(folder / "data"))
        self.lock = threading.Lock()

    def run(self, statement: str, settings: dict[str, str], body: bytes) -> bytes:
        insert = INSERT.match(statement)
        with self.lock:
            if insert is None:
                return bytes(self.session.query(statement, "TabSeparated").bytes())
            database, table, columns = insert.groups()
            found = self.session.query(
                f"SELECT name, type FROM system.columns WHERE database = '{database}' AND table = '{table}'", "TabSeparated"
            )
            types = dict(line.split("\t") for line in found.bytes().decode().splitlines())
            structure = ", ".join(f"{name} {types[name]}" for name in columns.split(", "))
            rows = self.folder / "rows"
            rows.write_bytes(body)
            assert not re.search(r"['\\]", "".join(settings.values())), settings
            own = ", ".join(f"{name} = '{value}'" for name, value in settings.items() if name in PASSED_ON)
            self.session.query(
                f"INSERT INTO {database}.{table} ({columns}) SELECT * FROM file('{rows}', 'RowBinary', '{structure}')"
                + (f" SETTINGS {own}" if own else "")
            )
            return b""


def serve(folder: Path) -> ThreadingHTTPServer:
    engine = Engine(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            settings = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            body = self.rfile.read(int(self.headers["Content-Length"]))
            statement = settings.pop("query", "")
            try:
                code, answer = 200, engine.run(statement or body.decode(), settings, body)
            except Exception as failure:
                code, answer = 500, str(failure).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


if __name__ == "__main__":
    server = serve(Path(sys.argv[1]))
    print(server.server_address[1], flush=True)
    server.serve_forever()
