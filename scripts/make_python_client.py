"""Writes client/python/statcollect/answers.py, the types of the Python client's answers, from the collector's OpenAPI document.

python scripts/make_python_client.py            starts build/release/bin/statcollectord for it
python scripts/make_python_client.py FILE       takes a saved /api/v1/openapi.json
Run it after a change of query.proto or admin.proto; tests/e2e/test_python_client.py compares the file with a running collector.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "client/python/statcollect/answers.py"
WIDTH = 130
# What the client's methods return; everything that these contain follows. Left: the document's name, right: ours.
ANSWERS = {
    "RunSummary": "RunSummary", "GetRunResponse": "Run", "DiffReport": "DiffReport", "SeriesPoint": "SeriesPoint", "ScalarRow": "ScalarRow",
    "GetTopResponse": "Top", "EventRow": "EventRow", "ConfigReport": "ConfigReport", "RanksReport": "RanksReport", "MemoryRow": "MemoryRow",
    "DensityRow": "DensityRow", "GetStatusResponse": "Status", "GetWeightsResponse": "WeightsReport",
    "ListCapturesResponse": "Captures", "GetTokensResponse": "TokensReport",
}  # fmt: skip
# The list that an answer's table shows, where it has one.
TABLES = {
    "DiffReport": "diverged", "Top": "records", "ConfigReport": "items", "RanksReport": "findings", "WeightsReport": "records",
    "Captures": "records", "TokensReport": "taps",
}  # fmt: skip
HEAD = '''"""What the collector answers. Written by scripts/make_python_client.py from the OpenAPI document; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .rows import Rows, TableMixin

'''


class Writer:
    """Collects the types that the answers need, and writes them."""

    def __init__(self, document: Any) -> None:
        self._schemas: dict[str, Any] = document["components"]["schemas"]
        self._enums: dict[str, list[str]] = {}
        self._classes: dict[str, str] = {}

    def text(self) -> str:
        for name in ANSWERS:
            self._add(name)
        aliases = []
        for name, values in sorted(self._enums.items()):
            line = f"{name} = Literal[{', '.join(map(json.dumps, values))}]"
            if len(line) > WIDTH:
                line = f"{name} = Literal[\n" + "".join(f"    {json.dumps(value)},\n" for value in values) + "]"
            aliases.append(line)
        return HEAD + "\n".join(aliases) + "\n\n\n" + "\n\n\n".join(self._classes[name] for name in sorted(self._classes)) + "\n"

    def _add(self, name: str) -> None:
        ours = ANSWERS.get(name, name)
        if ours in self._classes:
            return
        self._classes[ours] = ""  # against circles
        schema = self._schemas[name]
        base = "(TableMixin)" if ours in TABLES else ""
        lines = ["@dataclass(frozen=True)", f"class {ours}{base}:"]
        description = re.sub(r"\s*Fields \d+ to \d+ are[^.]*\.", "", schema.get("description", "")).replace("\n", " ")
        if description:
            lines += [*self._comment(f'"""{description}', "    ", '"""'), ""]
        for field, of in schema["properties"].items():
            line, comment = f"    {field}: {self._type(ours, field, of)}", of.get("description", "").replace("\n", " ")
            if comment and len(line) + len(comment) + 4 <= WIDTH:
                line += f"  # {comment}"
            elif comment:
                lines += self._comment(f"# {comment}", "    ", "", "# ")
            lines.append(line)
        if ours in TABLES:
            table = TABLES[ours]
            lines += [
                "",
                f"    def table(self) -> {self._type(ours, table, schema['properties'][table])}:",
                f"        return self.{table}",
            ]
        self._classes[ours] = "\n".join(lines)

    @staticmethod
    def _comment(text: str, indent: str, end: str, again: str = "") -> list[str]:
        """Broken at words."""
        lines, line = [], indent
        for word in text.replace("\n", " ").split():
            if len(line) + len(word) + len(end) + 1 > WIDTH:
                lines.append(line.rstrip())
                line = indent + again
            line += word + " "
        return [*lines, line.rstrip() + end]

    def _type(self, owner: str, field: str, of: Any) -> str:
        if "$ref" in of:
            name = of["$ref"].rsplit("/", 1)[1]
            self._add(name)
            return ANSWERS.get(name, name)
        if "anyOf" in of:
            choices = [choice for choice in of["anyOf"] if choice.get("type") != "null"]
            if {"enum": ["NaN", "Infinity", "-Infinity"]} in choices:  # JSON has no such numbers
                found = "float"
            else:
                (choice,) = choices
                found = self._type(owner, field, choice)
            return f"{found} | None" if len(choices) < len(of["anyOf"]) else found
        if "enum" in of:
            alias = self._alias(owner, field, [value for value in of["enum"] if value is not None])
            return f"{alias} | None" if None in of["enum"] else alias
        if of["type"] == "array":
            item = self._type(owner, field, of["items"])
            return f"Rows[{item}]" if item in self._classes else f"list[{item}]"
        if of["type"] == "object":
            return f"dict[str, {self._type(owner, field, of['additionalProperties'])}]"
        return {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}[str(of["type"])]

    def _alias(self, owner: str, field: str, values: list[str]) -> str:
        name = "".join(part.capitalize() for part in field.removesuffix("s").split("_"))
        if self._enums.get(name, values) != values or name in self._classes:
            name = owner + name
        self._enums[name] = values
        return name


def of_collector() -> Any:
    """The document of the build's collector, started on a free port."""
    program = ROOT / "build/release/bin/statcollectord"
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [program, "--data-dir", f"{folder}/data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            found = re.search(r"http (\S+:\d+)", process.stdout.readline())
            assert found, "the collector did not start"
            with urllib.request.urlopen(f"http://{found[1]}/api/v1/openapi.json", timeout=10) as response:
                return json.load(response)
        finally:
            process.terminate()
            process.wait()


def formatted(document: Any) -> str:
    """The file's text."""
    text = Writer(document).text()
    command = [sys.executable, "-m", "ruff", "format", "-q", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    TARGET.write_text(
        formatted(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")) if sys.argv[1:] else of_collector()), encoding="utf-8"
    )
