"""Asks a collector about two runs in all the ways that people do: the table, JSON, and the page's heat map."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from conftest import Collector

from contradictions.check import Answer


def ask(collector: Collector, a: str, b: str, *options: str, sources: Mapping[str, str] | None = None) -> Answer:
    """`options`: of statctl diff; the heat map is only asked for without any."""
    table = collector.statctl("--format", "table", "diff", a, b, *options)
    report = collector.json("diff", a, b, *options, "--all", codes=(0, 1, 2))
    whole = collector.statctl("--format", "table", "diff", a, b, *options, "--all")
    assert table.code == whole.code and table.out.splitlines()[0] == whole.out.splitlines()[0], (table.out, whole.out)
    return Answer(whole.out, report, whole.code, None if options else heat_map(collector, a, b), sources)


def heat_map(collector: Collector, a: str, b: str) -> dict[str, Any] | None:
    """As the page gets it."""
    found = json.loads(collector.get(f"/api/v1/diff?run_a={quote(a)}&run_b={quote(b)}&heat_map_columns=1024&heat_map_rows=1024"))
    heat: dict[str, Any] | None = found["heat_map"]
    return None if heat is None else {**heat, "cells": bytes.fromhex(heat["cells"])}
