"""The curves of soak.py as one SVG: a small plot for each, over the same time."""

from __future__ import annotations

from typing import Any

CURVES = [
    ("collector_mib", "collector, resident memory, MiB"),
    ("agent_mib", "agent's process, resident memory, MiB"),
    ("disk_mib", "store, MiB"),
    ("collector_descriptors", "collector, file descriptors"),
    ("collector_threads", "collector, threads"),
    ("acknowledged_p99_ms", "acknowledgement, p99, ms"),
    ("health_ms", "/healthz, ms"),
    ("runs_ms", "statctl runs, ms"),
    ("show_ms", "statctl show, ms"),
    ("diff_ms", "statctl diff, ms"),
]
_COLUMNS = 2
_WIDTH, _HEIGHT = 460, 130  # of a plot with its title
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 26, 14, 20


def draw(rows: list[dict[str, Any]]) -> str:
    """`rows`: samples with "minute" and values by the names of CURVES."""
    lines = (len(CURVES) + _COLUMNS - 1) // _COLUMNS
    plots = [
        _plot(rows, what, title, index % _COLUMNS * _WIDTH, index // _COLUMNS * _HEIGHT)
        for index, (what, title) in enumerate(CURVES)
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_COLUMNS * _WIDTH}" height="{lines * _HEIGHT}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>', *plots, "</svg>\n",
    ])  # fmt: skip


def _plot(rows: list[dict[str, Any]], what: str, title: str, x: int, y: int) -> str:
    points = [(row["minute"], row[what]) for row in rows if what in row]
    if not points:
        return ""
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    most = max(value for _, value in points) * 1.1 or 1.0
    until = max(row["minute"] for row in rows) or 1.0
    path = " ".join(f"{width * minute / until:.1f},{height * (1 - value / most):.1f}" for minute, value in points)
    return "\n".join([
        f'<g transform="translate({x + _LEFT},{y + _TOP})">',
        f'<text x="0" y="-8" fill="#222">{title}</text>',
        f'<path d="M0,0V{height}H{width}" fill="none" stroke="#bbb"/>',
        f'<text x="-6" y="9" text-anchor="end" fill="#666">{most:,.4g}</text>',
        f'<text x="-6" y="{height}" text-anchor="end" fill="#666">0</text>',
        f'<text x="{width}" y="{height + 14}" text-anchor="end" fill="#666">{until:,.0f} min</text>',
        f'<polyline points="{path}" fill="none" stroke="#1f5fa8" stroke-width="1.3"/>',
        "</g>",
    ])  # fmt: skip
