"""What a server of the second store that does not start says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from clickhouse_local import LOG_LINES, Server, StartError


class Failing(Server):
    """Writes these lines into its log and ends."""

    lines: tuple[str, ...] = ()

    def command(self) -> list[str]:
        return [sys.executable, "-c", f"print({chr(10).join(self.lines)!r})"]

    def answers(self) -> bool:
        return False


def message(server: Failing, *lines: str) -> list[str]:
    server.lines = lines
    with pytest.raises(StartError) as error:
        server.start()
    return str(error.value).splitlines()[1:]


def test_the_first_error_of_a_start_is_shown_although_a_long_log_follows_it(tmp_path: Path) -> None:
    server = Failing(tmp_path / "server")
    rest = [f"<Information> line {n}" for n in range(200)]
    shown = message(server, "<Information> begins", "<Error> the table is not there", *rest)
    assert shown[0] == "<Error> the table is not there"
    assert shown[-LOG_LINES - 1 :] == ["...", *rest[-LOG_LINES:]]
    assert len(shown) == 2 * LOG_LINES + 1

    # What an earlier start wrote is not what is wrong now.
    assert message(server, "now", "here") == ["now", "here"]


def test_a_log_without_an_error_is_shown_from_its_end(tmp_path: Path) -> None:
    lines = [f"line {n}" for n in range(50)]
    assert message(Failing(tmp_path / "server"), *lines) == lines[-LOG_LINES:]


def test_an_error_among_the_last_lines_is_shown_once(tmp_path: Path) -> None:
    lines = [*(f"line {n}" for n in range(30)), "java.net.BindException: Address already in use", "end"]
    assert message(Failing(tmp_path / "server"), *lines) == lines[-LOG_LINES:]
