"""Answers as HTML, for notebooks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from . import tables

ROWS_MAX = 20  # of a list; the rest is counted


def rows_html(rows: Sequence[Any], row_type: type) -> str:
    """The first 20 rows, with the columns that have a value in one of them. Every text is escaped."""
    shown = list(rows[:ROWS_MAX])
    every = [(column, [tables.value_at(row, column) for row in shown]) for column in tables.columns(row_type)]
    columns = [(column, values) for column, values in every if any(value not in (None, "", []) for value in values)]
    head = "".join(f"<th>{escape(column.name)}</th>" for column, _ in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(values[index]))}</td>" for _, values in columns) + "</tr>"
        for index in range(len(shown))
    )
    more = f"<p>{len(rows) - len(shown):,} more</p>" if len(rows) > len(shown) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}" if shown else "<p>nothing</p>"


def answer_html(answer: Any) -> str:
    """An answer in words if it has them, else its plain fields; then its list."""
    text: Any = getattr(answer, "text", None)
    if hasattr(text, "sentence"):
        said = [f"<p><b>{escape(text.verdict)}</b> {escape(text.sentence)}</p>"]
        said += [f"<p>Next: {escape(text.next)}</p>"] if text.next else []
    else:
        fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
        plain = {name: value for name, value in fields.items() if isinstance(value, (str, int, float)) and value != ""}
        said = (
            [f"<p>{', '.join(f'{escape(name)}: <b>{escape(_text(value))}</b>' for name, value in plain.items())}</p>"]
            if plain
            else []
        )
    table = answer.table()
    return "".join(said) + rows_html(table, table.row_type)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return str(value)
