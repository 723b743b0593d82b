"""Commands of statctl that the documents, the page, the agent and statctl itself name are those of `statctl help --all`, by their names of today."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, STATCTL, run_command

FOLDERS = ("agent", "bench", "client", "common", "compat", "deploy", "docs", "examples", "scripts", "server", "web/src")
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
SUFFIXES = {".cc", ".h", ".md", ".py", ".sh", ".ts", ".tsx", ".yml", ".yaml", ".toml", ".proto"}
# A command as one types it: the first word of a line, of a string or of a piece of code, or a list of words.
NAMED = re.compile(
    r"""(?:^[ \t]*(?:\$[ ])?|["'`>]\s*|\\n[ ]*|;[ ]|\()statctl[ ](?P<words>[a-z][a-z-]*(?:[ ][a-z][a-z-]*)?)
    |["']statctl["'],[ ]["'](?P<first>[a-z][a-z-]*)["'](?:,[ ]["'](?P<second>[a-z][a-z-]*)["'])?""",
    re.MULTILINE | re.VERBOSE,
)
VERBS = {"carries", "command", "ends", "exited", "finds", "needs", "will"}  # of sentences that begin with statctl


@functools.cache
def commands(group: str = "") -> frozenset[str]:
    """Of statctl, or of a command that is a group of others."""
    shown = run_command([str(STATCTL), *(["help", group] if group else ["help", "--all"])])
    assert shown.code == 0, shown.err
    _, heading, below = shown.out.partition("Subcommands:" if group else "Record trainings")
    text = below.partition("\n\n\n")[0] if group else below.partition("\nOptions:")[0]
    return frozenset(re.findall(r"^  ([a-z][a-z-]*)  ", text, re.MULTILINE)) if heading else frozenset()


def named_in(text: str) -> Iterator[tuple[str, str]]:
    for found in NAMED.finditer(text):
        first, _, second = (found["words"] or f"{found['first']} {found['second'] or ''}").partition(" ")
        if first not in VERBS:
            yield first, second


def wrong(text: str) -> list[str]:
    found = []
    for first, second in named_in(text):
        if first not in commands():
            found.append(f"statctl {first}")
        elif second and (below := commands(first)) and second not in below:
            found.append(f"statctl {first} {second}")
    return found


def sources() -> list[Path]:
    listed = run_command(["git", "-C", str(ROOT), "ls-files", *FOLDERS, *FILES]).out.splitlines()
    return [ROOT / name for name in listed if Path(name).suffix in SUFFIXES and (ROOT / name).exists()]


@pytest.mark.parametrize(
    "text",
    ["`statctl series base`", "  statctl memory base\n", "$ statctl keep base", "command('statctl', 'diff-values', a)", '"statctl move audit"',
     "<code>statctl events</code>", "x; statctl nonsense"],
)  # fmt: skip
def test_a_wrong_name_is_seen(text: str) -> None:
    assert len(wrong(text)) == 1


def test_every_command_that_is_named_exists() -> None:
    assert {"diff", "run", "values", "help"} <= commands() and {"get", "list", "diff"} == commands("values")
    seen = 0
    for path in sources():
        text = path.read_text(encoding="utf-8")
        seen += sum(1 for _ in named_in(text))
        assert not wrong(text), f"{path.relative_to(ROOT)}: {wrong(text)}; statctl help --all has the names"
    assert seen > 350, "the pattern no longer finds them"


@pytest.mark.parametrize("words", [["nonsense"], ["move", "nonsense"]])
def test_help_of_a_command_that_does_not_exist_is_an_error(words: list[str]) -> None:
    done = run_command([str(STATCTL), *words, "--help"])
    assert done.code == 2 and done.out == "" and "nonsense" in done.err
