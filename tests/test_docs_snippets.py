"""Every code block of the pages is run or checked: Python and C++ run in tests that are named here, each command of a shell block exists and
takes the flags that it is given."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release"))
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
)
# (page, language) -> the number of its blocks and the test that runs them.
RUN = {
    ("README.md", "python"): (1, "tests/e2e/test_readme_snippets.py"),
    ("docs/cpp.md", "cpp"): (2, "tests/e2e/test_readme_snippets.py"),
    ("docs/cpp.md", "cmake"): (1, "tests/e2e/test_readme_snippets.py"),
    ("docs/golden.md", "python"): (2, "tests/e2e/test_golden.py"),  # the first: test_pytest_plugin.py
    ("docs/python-client.md", "python"): (3, "tests/e2e/test_python_client.py"),
    ("docs/reference-python.md", "python"): (1, "tests/test_docs_snippets.py"),
    ("docs/weights.md", "python"): (1, "tests/e2e/test_weights.py"),
    ("docs/engines.md", "python"): (1, "tests/agent/python/test_watch_tokens.py"),
    ("docs/tokens.md", "python"): (1, "tests/e2e/test_token_rows.py"),
    ("docs/trackers.md", "python"): (1, "tests/e2e/test_trackers.py"),
    ("deploy/clickhouse.md", "toml"): (1, "tests/e2e/test_clickhouse_deploy.py"),
    ("deploy/clickhouse.md", "haproxy"): (1, "tests/e2e/test_clickhouse_deploy.py"),
    ("docs/alarms.md", "json"): (1, "tests/test_docs_snippets.py"),
    ("docs/alarms.md", "python"): (1, "tests/e2e/test_alarms.py"),
}
# What cannot be run here, and why.
NOT_RUN = {
    ("deploy/clickhouse.md", "sql"): "makes a user, which the ClickHouse of the tests has already",
    ("deploy/clickhouse.md", "xml"): "the replicas of scripts/lib/clickhouse_local.py have the same settings, with free ports",
}
# Commands of other programs: what they do is theirs, and needs a machine of its own.
OTHERS = {
    "apt", "cd", "export", "cmake", "mpirun", "helm", "install", "kubectl", "podman", "systemctl", "accelerate", "pytest", "curl", "jq",
    "chmod", "vllm",
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
            name = page.relative_to(ROOT).as_posix()
            found.append(Block(name, text[: match.start()].count("\n") + 1, match[2], match[3]))
    return found


BLOCKS = blocks()
SHELL = [block for block in BLOCKS if block.language in ("bash", "sh", "shell", "console")]


def commands(text: str) -> list[list[str]]:
    """The words of each command, without variables that are set for it, redirections and comments."""
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words and words[0] in ("do", "for", "done"):
                    words = words[1:] if words[0] == "do" else []
                found += [words] if words else []
                words = []
            else:
                words.append(word)
    return found


@cache
def usage(*command: str) -> str:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{command} --help: {done.stderr}"
    return done.stdout


def check_flags(words: list[str], text: str) -> None:
    for flag in (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)):
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), f"{words}: {flag} is not in --help"


def check_statctl(words: list[str]) -> None:
    """A well-formed command gets as far as the network; a wrong one is refused before."""
    done = subprocess.run(
        [BUILD / "bin/statctl", "--collector", "127.0.0.1:1", "--timeout", "1", *words], capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, cwd="/", env={**os.environ, "STATCTL_COLLECTOR": ""},
    )  # fmt: skip
    reached = "127.0.0.1:1" in done.stderr or "cannot open it" in done.stderr  # of a file that the example has
    assert done.returncode == 2 and reached, f"statctl {words}: {done.stdout}{done.stderr}"


def check_python(words: list[str]) -> None:
    if words[:2] == ["-m", "statcollect"]:
        assert words[2:] == ["demo"]
        return
    script = next(word for word in words if word.endswith(".py"))
    if script == "train.py":
        return  # the reader's own
    own = words[words.index(script) + 1 :]
    source = (ROOT / script).read_text(encoding="utf-8")
    for module in re.findall(r"^from (common\w*|frame\w*|tiny\w*) import", source, re.MULTILINE):
        source += ((ROOT / script).parent / f"{module}.py").read_text(encoding="utf-8")
    check_flags([word for word in own if word.startswith("--")], source + usage_of_folder(str((ROOT / script).parent)))


@cache
def usage_of_folder(folder: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in Path(folder).glob("*.py"))


def check(words: list[str]) -> None:
    name = words[0].rpartition("/")[2]
    if words[0].startswith("scripts/"):
        check_flags(words[1:], usage(words[0]))
    elif name == "statctl":
        check_statctl(words[1:])
    elif name == "statcollectord":
        program = str(BUILD / "bin/statcollectord")
        command = itertools.takewhile(lambda word: re.fullmatch("[a-z]+", word), words[1:])
        check_flags(words[1:], usage(program) + usage(program, *command))
    elif name in ("python", "python3", "torchrun"):
        check_python(words[1:])
    elif name == "pip":
        assert words[1] == "install"
    elif name == "mpi_trainer":
        pass  # tests/e2e/test_mpi_example.py builds and runs it
    else:
        assert name in OTHERS, f"{words}: unknown command; check it in {Path(__file__).name}"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_of_shell_blocks_exist_and_take_their_flags(block: Block) -> None:
    found = commands(block.text)
    assert found
    for words in found:
        if words[0] == "$":
            words = words[1:]
        check(words)


def test_wrong_commands_are_noticed() -> None:
    for wrong in (
        "statctl dif a b",
        "statctl diff --run-a a --run-x b",
        "scripts/demo.sh --bugg x",
        "statcollectord --tls-cart x",
        "statctll runs",
    ):
        with pytest.raises(AssertionError):
            check(commands(wrong)[0])


def test_every_other_block_is_run_by_a_test() -> None:
    counted: dict[tuple[str, str], int] = {}
    for block in BLOCKS:
        if block not in SHELL and block.language != "text" and (block.page, block.language) not in NOT_RUN:
            counted[block.page, block.language] = counted.get((block.page, block.language), 0) + 1
    assert counted == {place: number for place, (number, _) in RUN.items()}, "run the new block in a test, and enter it in RUN"
    for (page, _), (_, test) in RUN.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not read {page}"


def test_curl_asks_for_paths_that_exist() -> None:
    described = (ROOT / "web/openapi.json").read_text(encoding="utf-8")
    asked = {path for block in SHELL for path in re.findall(r"localhost:7434(/api/v1/\w+)", block.text)}
    assert len(asked) > 5
    for path in asked:
        assert f'"{path}"' in described, path


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_configuration_files_have_keys_that_exist(block: Block) -> None:
    keys = re.findall(r"^([a-z-]+) =", block.text, re.MULTILINE)
    assert keys
    check_flags([f"--{key}" for key in keys], usage(str(BUILD / "bin/statcollectord")))


def test_shards_of_the_python_reference_add_up() -> None:
    """docs/reference-python.md, with a tensor as it supposes."""
    (block,) = [block for block in BLOCKS if (block.page, block.language) == ("docs/reference-python.md", "python")]
    pytest.importorskip("numpy")
    program = (
        "import numpy, statagent\nt = numpy.random.default_rng(0).normal(size=(4, 10)).astype('f4')\n" + block.text +
        'assert merged["hash"] == whole["hash"] and merged["complete"] is True\nprint("same")\n'
    )  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "agent/python"),
        "STATAGENT_LIBRARY": str(BUILD / "lib/libstatagent.so"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "same\n", done.stderr


def test_the_webhooks_json_of_alarms_md_has_the_fields_that_are_sent() -> None:
    import json

    (block,) = [block for block in BLOCKS if (block.page, block.language) == ("docs/alarms.md", "json")]
    source = (ROOT / "server/control/alarm_message.cc").read_text(encoding="utf-8")
    for field in json.loads(block.text):
        assert f'"{field}"' in source, field
