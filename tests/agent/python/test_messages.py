"""The last line of a run: what has become of its records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statagent._runtime.messages import Messages


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The line for these counters."""
    for name in ("STATAGENT_LOG", "STATAGENT_QUIET"):
        monkeypatch.delenv(name, raising=False)

    def end(**counters: int) -> str:
        Messages(first=True).end("busy", 3, {"produced": 90, "pending": 0, "acked": 0, **counters})
        return capfd.readouterr().err

    return end


def test_what_a_busy_collector_did_not_confirm_may_be_stored(said: Callable[..., str]) -> None:
    line = said(acked=60, dropped_closed=20, dropped_buffer_full=10)
    assert "3 steps, 90 records, 10 lost (10 buffer_full), 20 not confirmed by the time it closed; next: " in line


def test_what_no_collector_ever_confirmed_is_lost(said: Callable[..., str]) -> None:
    line = said(dropped_closed=90)
    assert "90 lost (90 closed)" in line and "next:" not in line
