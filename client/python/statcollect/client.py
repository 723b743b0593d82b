"""The queries of `statctl` as methods that return dataclasses."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from .answers import (
    Captures,
    ConfigReport,
    DensityRow,
    DiffReport,
    EventRow,
    MemoryRow,
    RanksReport,
    Run,
    RunSummary,
    ScalarRow,
    SeriesPoint,
    Status,
    TokensReport,
    Top,
    WeightsReport,
)
from .decode import decode
from .errors import AnswerError, ArgumentError, CollectorUnavailableError
from .records import Observation, observations
from .rows import Rows
from .transport import Address, Transport, check_project, parse_address, read_token

T = TypeVar("T")


def connect(
    address: str | None = None,
    *,
    http: str | None = None,
    token_file: str | Path | None = None,
    project: str | None = None,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    timeout: float = 60.0,
) -> Collector:
    """The collector at an address. Asks it once, so that a wrong address is noticed here.

    address: HOST:PORT as statctl takes it (default: STATCTL_COLLECTOR, else 127.0.0.1:7433), or the collector's HTTP address, also as
        http://HOST:PORT or https://HOST:PORT. Queries go over HTTP: if the address speaks gRPC, the next port is tried, as in the
        default pair 7433 and 7434.
    http: the HTTP address, where it is neither.
    token_file: file with a token, sent as `Authorization: Bearer`. Default: STATCTL_TOKEN_FILE.
    project: project of the runs. Default: STATCTL_PROJECT, else the token's, else "default".
    tls_ca: file with the certificates of the authority that signed the collector's; turns TLS on. https:// alone uses the system's.
    tls_cert, tls_key: this client's own certificate and key, for collectors that ask for one. Without any of the three:
        STATCTL_TLS_CA, STATCTL_TLS_CERT, STATCTL_TLS_KEY, unless the address begins with http://.
    timeout: seconds without progress after which a request fails.

    Raises ArgumentError, CollectorUnavailableError, NotAllowedError."""
    if not timeout > 0:
        raise ArgumentError(f"connect with timeout={timeout}: expected seconds, more than 0")
    text = http or address or os.environ.get("STATCTL_COLLECTOR") or "127.0.0.1:7433"
    if not (text.startswith("http://") or any((tls_ca, tls_cert, tls_key))):
        tls_ca, tls_cert, tls_key = (os.environ.get(f"STATCTL_TLS_{name}") or None for name in ("CA", "CERT", "KEY"))
    given = parse_address(text, any((tls_ca, tls_cert, tls_key)))
    token_file = token_file or os.environ.get("STATCTL_TOKEN_FILE") or None
    token = read_token(token_file) if token_file else ""
    if token and not given.secure and not given.loopback:
        raise ArgumentError(
            f"connect to {given} with a token: it would be sent without encryption; expected TLS: pass tls_ca=, or https://"
        )
    context = _context(tls_ca, tls_cert, tls_key) if given.secure else None
    project = project or os.environ.get("STATCTL_PROJECT") or ""
    transport = Transport(given, timeout, token, context, check_project(project))
    return Collector(_at_http(transport, only=http is not None))


def _context(tls_ca: str | Path | None, tls_cert: str | Path | None, tls_key: str | Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(tls_ca) if tls_ca else None)
        if tls_cert or tls_key:
            context.load_cert_chain(str(tls_cert or tls_key), str(tls_key) if tls_key else None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(path) for path in (tls_ca, tls_cert, tls_key) if path)
        raise ArgumentError(f"read the certificates in {files}: {error}; expected PEM files") from error
    return context


def _at_http(transport: Transport, only: bool) -> Transport:
    """`transport` if a collector's HTTP address answers there; otherwise that of the next port, if it may be tried."""
    if transport.probe():
        return transport
    given = transport.address
    if not only and given.port < 65535:
        beside = replace(transport, address=replace(given, port=given.port + 1))
        with contextlib.suppress(CollectorUnavailableError):
            if beside.probe():
                return beside
    also = "" if only else ", and neither is the next port"
    raise CollectorUnavailableError(
        f"connect to {given.host}:{given.port}: it is not a collector's HTTP address{also}; expected the HTTP address of statcollectord, "
        "which its ready line shows; pass it as http="
    )


class Collector:
    """Queries to one collector. Thread-safe. Every method raises the errors of statcollect.errors: NotFoundError for a run that does
    not exist, ArgumentError for an argument that the collector refuses, CollectorUnavailableError, QueryError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<statcollect collector at {self._transport.address}>"

    @property
    def address(self) -> Address:
        """Where the queries go."""
        return self._transport.address

    def status(self) -> Status:
        """The collector's own health and counters."""
        return self._one("status", Status)

    def runs(self) -> Rows[RunSummary]:
        """All runs, by name."""
        return self._rows("runs", RunSummary, "runs")

    def show(self, run: str) -> Run:
        """One run: ranks, steps, counts, configuration, events."""
        return self._one("show", Run, run=run)

    def diff(
        self,
        run_a: str,
        run_b: str,
        *,
        tolerance: float | None = None,
        exact: bool = False,
        ranks: Sequence[int] = (),
        steps: str | None = None,
        kinds: Sequence[str] = (),
        top: int | None = None,
        all: bool = False,  # noqa: A002
        map: str | None = None,  # noqa: A002
        first_only: bool = False,
        noise: Sequence[str] = (),
        no_noise: bool = False,
        no_alignment: bool = False,
        merge_ranks: bool = False,
        logical: bool = False,
        by_rank: bool = False,
    ) -> DiffReport:
        """Where two runs diverge first: the answer of `statctl diff`, with the meaning of its options. `map`: the text of a map, not
        a file's name. A divergence is an answer, not an error: see `verdict`, `root`, `first`."""
        return self._one(
            "diff", DiffReport, run_a=run_a, run_b=run_b, tolerance=tolerance, exact=exact, ranks=ranks, steps=steps, kinds=kinds,
            top=top, all=all, map=map, first_only=first_only, noise=noise, no_noise=no_noise, no_alignment=no_alignment,
            merge_ranks=merge_ranks, logical=logical, by_rank=by_rank,
        )  # fmt: skip

    def series(
        self, run: str, activation: str, *, kind: str | None = None, ranks: Sequence[int] = (), steps: str | None = None,
        output_path: str | None = None, by_rank: bool = False,
    ) -> Rows[SeriesPoint]:  # fmt: skip
        """The statistics of one activation over the steps."""
        return self._rows(
            "series", SeriesPoint, "records", run=run, activation=activation, kind=kind, ranks=ranks, steps=steps,
            output_path=output_path, by_rank=by_rank,
        )  # fmt: skip

    def scalars(
        self, run: str, name: str | None = None, *, ranks: Sequence[int] = (), steps: str | None = None, by_rank: bool = False
    ) -> Rows[ScalarRow]:
        """The scalars of a run; only those of `name` if it is given."""
        return self._rows("scalars", ScalarRow, "records", run=run, name=name, ranks=ranks, steps=steps, by_rank=by_rank)

    def top(
        self, run: str, by: str = "l2", *, step: int | None = None, ranks: Sequence[int] = (), kinds: Sequence[str] = (),
        count: int | None = None, by_rank: bool = False,
    ) -> Top:  # fmt: skip
        """The extreme activations of a step (default: the newest)."""
        return self._one("top", Top, run=run, by=by, step=step, ranks=ranks, kinds=kinds, count=count, by_rank=by_rank)

    def events(
        self, run: str, *, ranks: Sequence[int] = (), kinds: Sequence[str] = (), since_step: int | None = None
    ) -> Rows[EventRow]:
        """The events of a run, alarms included."""
        return self._rows("events", EventRow, "records", run=run, ranks=ranks, kinds=kinds, since_step=since_step)

    def config(self, run_a: str, run_b: str | None = None, *, all: bool = False) -> ConfigReport:  # noqa: A002
        """The differences in configuration, versions, environment and data; likely culprits first."""
        return self._one("config", ConfigReport, run_a=run_a, run_b=run_b, all=all)

    def ranks(
        self, run: str, *, steps: str | None = None, ranks: Sequence[int] = (), kinds: Sequence[str] = (), tolerance: float | None = None,
        top: int | None = None,
    ) -> RanksReport:  # fmt: skip
        """Whether the ranks of a run agree where they must."""
        return self._one("ranks", RanksReport, run=run, steps=steps, ranks=ranks, kinds=kinds, tolerance=tolerance, top=top)

    def memory(self, run: str, *, ranks: Sequence[int] = (), steps: str | None = None, modules: bool = False) -> Rows[MemoryRow]:
        """Memory by phase; also by module if asked."""
        return self._rows("memory", MemoryRow, "records", run=run, ranks=ranks, steps=steps, modules=modules)

    def tokens(
        self, run_a: str, run_b: str, *, exact: bool = False, steps: str | None = None, map: str | None = None,  # noqa: A002
        noise: Sequence[str] = (),
    ) -> TokensReport:  # fmt: skip
        """The first tap at which the same tokens part in two programs, such as a trainer and an engine."""
        return self._one("tokens", TokensReport, run_a=run_a, run_b=run_b, exact=exact, steps=steps, map=map, noise=noise)

    def density(
        self,
        run: str,
        *,
        ranks: Sequence[int] = (),
        steps: str | None = None,
        input: str | None = None,  # noqa: A002
    ) -> Rows[DensityRow]:
        """The fraction of each input that is not padding."""
        return self._rows("density", DensityRow, "records", run=run, ranks=ranks, steps=steps, input=input)

    def weights(self, run_a: str, run_b: str, *, step: int | None = None, map: str | None = None) -> WeightsReport:  # noqa: A002
        """Whether A's weights arrived in B. `map`: the text of a map, or a built-in one's name; `step`: by default the newest of both."""
        return self._one("weights", WeightsReport, run_a=run_a, run_b=run_b, step=step, map=map)

    def captures(
        self,
        run: str,
        activation: str | None = None,
        *,
        ranks: Sequence[int] = (),
        steps: str | None = None,
        kinds: Sequence[str] = (),
    ) -> Captures:
        """The tensors whose raw values are stored, and the requests of the newest launch."""
        return self._one("captures", Captures, run=run, activation=activation, ranks=ranks, steps=steps, kinds=kinds)

    def records(
        self, run: str, *, ranks: Sequence[int] = (), steps: str | None = None, kinds: Sequence[str] = ()
    ) -> Rows[Observation]:
        """Every stored tensor record, as `statctl move export csv` writes them. Keeps all of them in memory; `iterate` does not."""
        return Rows(self.iterate(run, ranks=ranks, steps=steps, kinds=kinds), Observation)

    def iterate(
        self, run: str, *, ranks: Sequence[int] = (), steps: str | None = None, kinds: Sequence[str] = ()
    ) -> Iterator[Observation]:
        """As `records`, but one by one as they arrive: by step, then rank, in order of execution."""
        parameters = _parameters(run=run, ranks=ranks, steps=steps, kinds=kinds)
        return observations(run, self._transport.stream("records", parameters))

    def _one(self, query: str, cls: type[T], /, **parameters: Any) -> T:
        return decode(cls, self._transport.ask(query, _parameters(**parameters)))

    def _rows(self, query: str, cls: type[T], key: str, /, **parameters: Any) -> Rows[T]:
        answer = self._transport.ask(query, _parameters(**parameters))
        if not isinstance(answer, dict) or not isinstance(answer.get(key), list):
            raise AnswerError(
                f"ask {self.address} for {query}: found {str(answer)[:80]!r}; expected an object with the list '{key}'"
            )
        return Rows((decode(cls, each) for each in answer[key]), cls)


def _parameters(**given: Any) -> dict[str, Any]:
    """The arguments that are set. Refuses text for a list, because it would be split into letters."""
    parameters = {}
    for name, value in given.items():
        if name in ("ranks", "kinds", "noise"):
            if isinstance(value, (str, bytes, int)):
                raise ArgumentError(f"{name}={value!r}: expected a list, such as [{value!r}]")
            value = list(value)
        if value is not None and value is not False and value != []:
            parameters[name] = value
    return parameters
