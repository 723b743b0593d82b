"""Requests to a collector's HTTP address, with the standard library only.

Each request has a connection of its own, so one Transport may be used by several threads. No proxy of the environment is used.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import (
    AnswerError,
    ArgumentError,
    CollectorUnavailableError,
    NotAllowedError,
    NotFoundError,
    QueryError,
    StatcollectError,
)

ATTEMPTS = 4  # of a request that the collector is too busy for
PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class Address:
    """Where a collector answers."""

    host: str
    port: int
    secure: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str, secure: bool) -> Address:
    """HOST:PORT, http://HOST:PORT or https://HOST:PORT. Raises ArgumentError."""
    wrong = f"connect to '{text}': expected HOST:PORT, such as 127.0.0.1:7433, or http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ArgumentError(f"{wrong} ({error})") from error
    if (
        not host
        or not port
        or parts.scheme not in ("", "http", "https")
        or parts.path not in ("", "/")
        or parts.query
        or parts.username
    ):
        raise ArgumentError(wrong)
    if parts.scheme == "http" and secure:
        raise ArgumentError(f"connect to '{text}' with TLS: the address says http; expected https://, or no scheme")
    return Address(host, port, secure or parts.scheme == "https")


def read_token(path: str | Path) -> str:
    """Reads the token from a file. Raises ArgumentError."""
    try:
        with Path(path).open(encoding="ascii") as file:
            found = os.fstat(file.fileno())
            token = file.read(1024).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"read the token file '{path}': {error}; expected a file that holds one token") from error
    others = found.st_mode & 0o077
    if others and not (found.st_uid == 0 and others == stat.S_IRGRP):  # as common/secret_mode.h
        raise ArgumentError(
            f"read the token file '{path}': others may read or change it; expected mode 0600; run: chmod 600 {path}"
        )
    if not token or any(character.isspace() for character in token):
        raise ArgumentError(f"read the token file '{path}': found {len(token.split())} words; expected one token")
    return token


def check_project(name: str) -> str:
    """The name, which may be empty. Raises ArgumentError."""
    if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ArgumentError(
            f"project {name!r:.80}: expected 1 to 64 letters, digits, '.', '_' and '-', first a letter or a digit"
        )
    return name


@dataclass(frozen=True)
class Transport:
    """How to reach one collector. `timeout`: seconds without progress after which a request fails."""

    address: Address
    timeout: float
    token: str = field(default="", repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False)
    project: str = ""

    def ask(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """The answer to one query. Waits and retries while the collector is busy."""
        for attempt in range(ATTEMPTS):
            connection, response = self._send(name, parameters)
            try:
                body = self._read(response)
                wait = _seconds(response.headers.get("Retry-After"))
                if response.status in (429, 503) and wait is not None and attempt + 1 < ATTEMPTS:
                    time.sleep(wait)
                    continue
                return self._answer(name, response, body)
            finally:
                connection.close()
        raise AssertionError("unreachable")

    def stream(self, name: str, parameters: Mapping[str, Any]) -> Iterator[Any]:
        """The messages of an answer with one message per line, as they arrive. Raises CollectorUnavailableError if the answer is cut off."""
        connection, response = self._send(name, parameters)
        try:
            if response.status != 200:
                self._answer(name, response, self._read(response))
            self._check(response)
            for line in self._lines(response):
                yield json.loads(line)
        except ValueError as error:
            raise AnswerError(f"ask {self.address} for {name}: {error}; expected lines of JSON") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from error
        finally:
            connection.close()

    def probe(self) -> bool:
        """Whether a collector's HTTP address answers here. Raises CollectorUnavailableError if nothing listens."""
        connection = self._connection()
        try:
            connection.request("GET", "/healthz", headers=self._headers())
            response = connection.getresponse()
            response.read()
            return _is_collector(response)
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError):
            return False  # something else, such as gRPC
        except ssl.SSLError as error:
            raise self._broken(error) from error
        except OSError as error:
            raise self._broken(error) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.address.secure:
            return http.client.HTTPSConnection(self.address.host, self.address.port, timeout=self.timeout, context=self.context)
        return http.client.HTTPConnection(self.address.host, self.address.port, timeout=self.timeout)

    def _headers(self) -> dict[str, str]:
        headers = {"X-Statcollect-Project": self.project} if self.project else {}
        return {**headers, "Authorization": f"Bearer {self.token}"} if self.token else headers

    def _send(self, name: str, parameters: Mapping[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        body = json.dumps({key: value for key, value in parameters.items() if value is not None})
        connection = self._connection()
        try:
            connection.request("POST", f"/api/v1/{name}", body, {**self._headers(), "Content-Type": "application/json"})
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._broken(error) from error

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from error

    @staticmethod
    def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Not by readline(), which takes a connection that breaks between two chunks for the end."""
        rest = b""
        while piece := response.read1(PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
        if rest or response.length:
            raise http.client.IncompleteRead(rest, response.length)

    def _answer(self, name: str, response: http.client.HTTPResponse, body: bytes) -> Any:
        self._check(response)
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise AnswerError(f"ask {self.address} for {name}: found {body[:80]!r}; expected JSON") from error
        if response.status == 200:
            return answer
        text, code = (str(answer.get("error", "")), str(answer.get("code", ""))) if isinstance(answer, dict) else ("", "")
        raise _refusal(f"ask {self.address} for {name}: {text or f'HTTP status {response.status}'}", response.status, code)

    def _check(self, response: http.client.HTTPResponse) -> None:
        if not _is_collector(response):
            found = response.headers.get("Server", "a server without a name")
            raise AnswerError(
                f"ask {self.address}: {found} answered; expected statcollectord's HTTP address, which its ready line shows"
            )

    def _broken(self, error: Exception) -> CollectorUnavailableError:
        text = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = "expected a certificate that the authority in tls_ca signed for this host; pass tls_ca="
        elif isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
            advice = (
                "the collector requires a client certificate; pass one signed by its --tls-client-ca as tls_cert= and tls_key="
            )
        elif isinstance(error, ssl.SSLError):
            advice = "expected TLS on this address; without TLS, leave out https:// and tls_ca"
        elif isinstance(error, TimeoutError):
            advice = f"expected an answer within {self.timeout:g} s; a larger timeout= waits longer"
        else:
            advice = "expected the HTTP address of a running statcollectord; its ready line shows it"
        return CollectorUnavailableError(f"ask {self.address}: {text}; {advice}")


def _is_collector(response: http.client.HTTPResponse) -> bool:
    return response.headers.get("Server", "").startswith("statcollectord")


def _seconds(text: str | None) -> float | None:
    return min(float(text), 5.0) if text and text.isdigit() else None


def _refusal(message: str, status: int, code: str) -> StatcollectError:
    if status in (401, 403):
        return NotAllowedError(f"{message}; expected a valid token: pass token_file=")
    if status == 404:
        return NotFoundError(message)
    if status == 400:
        return ArgumentError(message)
    return QueryError(message, status, code)
