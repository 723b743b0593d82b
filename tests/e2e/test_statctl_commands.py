"""The commands of statctl: the first screen, all of them, names that they had before, and completion in shells."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BUILD, STATCTL, Collector, Finished, run_command
from test_statctl_words import MAKE_RUNS, launch

# An old name with arguments, and what it is called today.
OLD = {
    "series base embed": "tensor base embed",
    "series base embed --stat l2 --kind output --steps 0-3": "tensor base embed --stat l2 --kind output --step 0-3",
    "top base": "tensor base",
    "top base --by absmax --step 3 --count 1 --kinds output": "tensor base --by absmax --step 3 --count 1 --kind output",
    "exponents base": "tensor base --exponents",
    "exponents base --dtype e4m3 --top 5": "tensor base --exponents --dtype e4m3 --count 5",
    "exponents base embed --step 2": "tensor base embed --exponents --step 2",
    "memory base": "show base --memory",
    "memory base --modules --rank 0": "show base --memory --modules --rank 0",
    "memory base --format ort": "show base --memory --format ort",
    "density base --input x --steps 1": None,  # an error, in the words of both
    "density base": "show base --padding",
    "events base": "show base --events",
    "events base --rank 1 --since-step 2": "show base --events --rank 1 --since-step 2",
    "captures base": "values list base",
    "captures base embed --steps 0- --kinds output": "values list base embed --step 0- --kind output",
    "keep base": "pin base",
    "keep base --off": "pin base --off",
    "audit": None,  # the two calls are themselves in the list
    "export csv base -": "move export csv base -",
    "export json base - --ranks 0": "move export json base - --rank 0",
}


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    folder = tmp_path_factory.mktemp("commands")
    subprocess.run(
        [str(MAKE_RUNS), str(folder / "data")],
        input="\n".join([launch("base"), launch("ort", 0.5)]),
        text=True,
        check=True,
        timeout=60,
    )
    started = Collector(folder / "data").start()
    yield started
    started.stop()


def statctl(*arguments: str) -> Finished:
    return run_command([str(STATCTL), *arguments])


def listed(text: str) -> list[str]:
    return re.findall(r"^  (\w[\w-]*)  +\S", text.split("Options:")[0], re.M)


def test_the_first_screen_has_ten_commands_and_fits() -> None:
    done = statctl("--help")
    assert done.code == 0 and statctl("help").out == done.out and statctl().err == done.out
    lines = done.out.splitlines()
    assert len(lines) < 40 and max(map(len, lines)) <= 80
    assert listed(done.out) == ["run", "ab", "diff", "report", "open", "runs", "show", "tensor", "scalars", "help"]
    for concept in ("run", "step", "tensor", "verdict", "page"):
        assert re.search(rf"\b{concept}\b", done.out)
    for later in ("activation", "collector", "daemon", "rank", "sketch", "retention"):
        assert later not in done.out.lower().replace("show        shows a run: ranks, steps, events, configuration", ""), later


def test_every_command_is_in_the_long_help_once_and_old_names_are_not() -> None:
    done = statctl("help", "--all")
    assert done.code == 0 and statctl("help", "all").out == done.out
    names = listed(done.out)
    assert len(names) == len(set(names)) and set(listed(statctl("--help").out)) < set(names)
    assert not {command.split()[0] for command in OLD} & set(names)
    assert "--collector" in done.out and "Exit codes" in done.out
    for line in done.out.split("Options:")[0].splitlines():
        assert len(line) <= 80, line
    for group in ("values", "move", "admin", "map", "noise", "golden"):
        below = re.findall(r"^  (\w+)  +\S", statctl("help", group).out.split("Subcommands:")[1].split("\n\n")[0], re.M)
        assert below
        for name in below:
            assert statctl("help", group, name).out == statctl(group, name, "--help").out != ""
    unknown = statctl("help", "values", "gte")
    assert (unknown.code, unknown.err) == (
        2, "statctl: help: no command 'values gte' (did you mean 'values get'?); statctl help values lists all\n"
    )  # fmt: skip


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_answers_as_before_with_a_hint(collector: Collector, old: str) -> None:
    words, now = old.split(), OLD[old]
    done = collector.statctl(*words)
    hint = re.match(rf"(?s)(.*)statctl: {words[0]} is now called: statctl \S.*\n\Z", done.err)
    if done.code == 2:
        assert not hint and "is now called" not in done.err
    else:
        assert hint and "is now called" not in hint[1], done
    for quiet in (["--quiet"], ["--format", "json"]):
        if "--format" not in words:
            assert "is now called" not in collector.statctl(*words, *quiet).err
    if now is not None:
        today = collector.statctl(*now.split())
        assert (today.code, today.out) == (done.code, done.out) and "is now called" not in today.err
        if "--format" not in words:
            for form in ("json", "csv"):
                of_old, of_new = (collector.statctl(*command.split(), "--format", form) for command in (old, now))
                assert of_old.out == of_new.out, form


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("tensor base --stat l2", "--stat: expected only with the name of a tensor"),
        ("tensor base embed --by nan", "--by: expected only with the tensors of a step, and no name of one"),
        ("tensor base --dtype f16", "--dtype: expected only with --exponents"),
        ("tensor base --step 0-3", "--step: found '0-3'; expected one step, as there is no name of a tensor"),
        ("tensor base embed --kind output,weight", "found several kinds, 'output,weight'; expected one"),
        ("show base --rank 0", "--rank: expected only with --memory, --padding or --events"),
        ("show base --events --step 1", "--step: expected only with --memory or --padding"),
        ("show base --padding --modules", "--modules: expected only with --memory"),
        ("show base --format ort", "--format ort: expected only with --memory or --padding"),
        ("show base --memory --events", "--memory excludes --events"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(collector: Collector, command: str, says: str) -> None:
    done = collector.statctl(*command.split())
    assert done.code == 2 and done.out == "" and says in done.err and done.err.count("\n") == 1, done.err


# --- a terminal of 80 columns

LAYERS = [
    f"model.layers.{layer}.{part}"
    for layer in (0, 11)
    for part in ("self_attn.q_proj", "post_attention_layernorm", "mlp.down_proj")
]
READABLE = [
    "runs", "show llama-3-8b-baseline", "diff llama-3-8b-baseline llama-3-8b-candidate", "tensor llama-3-8b-baseline",
    "tensor llama-3-8b-baseline model.layers.0.self_attn.q_proj", "tensor llama-3-8b-baseline --by nan --step 3",
    "scalars llama-3-8b-baseline", "scalars llama-3-8b-baseline --against llama-3-8b-candidate", "ranks llama-3-8b-baseline",
    "show llama-3-8b-baseline --events", "config llama-3-8b-baseline llama-3-8b-candidate", "values list llama-3-8b-baseline", "status",
]  # fmt: skip


def long_names(run: str, wrong: float) -> str:
    records: list[dict[str, Any]] = []
    for step in range(4):
        for rank in range(2):
            at = {"rank": rank, "step": step}
            for i, name in enumerate(LAYERS):
                value = -1234.5678 - i - (wrong if step > 1 and i > 1 else 0)
                records.append({**at, "name": name, "values": [value, 0.123456789, 3.14159265, 1e-5], "shape": [2, 2]})
            records += [{**at, "scalar": name, "value": 1 / (3 + step)} for name in ("loss", "grad_norm", "lr")]
            records.append({**at, "event": "norm_explosion", "text": f"{LAYERS[3]} (output): l2 1234.5 is 40 times its median"})
    return json.dumps({"run": run, "world_size": 2, "records": records})


def at_80_columns(collector: Collector, command: str) -> list[str]:
    """The lines of standard output at a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "STATCTL_COLLECTOR": collector.address, "TERM": "dumb"}
    with subprocess.Popen([str(STATCTL), *command.split()], stdout=theirs, stderr=subprocess.PIPE, env=env) as process:
        os.close(theirs)
        out = b""
        with contextlib.suppress(OSError):  # the end, of a terminal
            while part := os.read(ours, 65536):
                out += part
        os.close(ours)
        assert process.stderr is not None
        assert process.wait() in (0, 1) or out.startswith(b"INCOMPARABLE"), process.stderr.read()
    return out.decode().replace("\r", "").splitlines()


def test_every_command_is_readable_at_80_columns_and_names_are_not_lost(tmp_path: Path) -> None:
    launches = [long_names("llama-3-8b-baseline", 0), long_names("llama-3-8b-candidate", 0.5)]
    subprocess.run([str(MAKE_RUNS), str(tmp_path / "data")], input="\n".join(launches), text=True, check=True, timeout=60)
    collector = Collector(tmp_path / "data").start()
    try:
        shown = {command: at_80_columns(collector, command) for command in READABLE}
    finally:
        collector.stop()
    for command, lines in shown.items():
        for line in lines:
            assert len(line) <= 80 or "http://" in line, (command, line)
            for cut in re.findall(r"\S*(?<!\.)\.\.(?!\.)\S*", line):
                assert (
                    len(cut) >= 24 or not re.search("model|llama|proj|layernorm", cut) or re.fullmatch(r"\(?\d+\.\.\d+\)?,?", cut)
                ), (command, line)
    diff = "\n".join(shown[READABLE[2]])
    assert "Every row: micro-batch 0, stage forward, reason numeric, tolerance 1e-4" in diff
    assert "model.layers.0.mlp.down_proj" in diff.split("Diverged, in order")[1]
    assert "model.layers.0.self_attn.q_proj" in "\n".join(shown["tensor llama-3-8b-baseline"])
    assert "llama-3-8b-candidate" in "\n".join(shown["runs"])


# --- completion


def completed(shell: str, line: str, *, env: dict[str, str], folder: Path) -> list[str]:
    """What a real shell offers at the end of the line, as its user would load the script."""
    if shell == "bash":
        script = f"""
            PATH={BUILD}/bin:$PATH; source <(statctl completion bash)
            line={line!r}; read -ra COMP_WORDS <<<"$line"; [[ $line == *' ' ]] && COMP_WORDS+=('')
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE=$line COMP_POINT=${{#line}}
            _statctl; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        command = ["bash", "--norc", "-c", script]
    elif shell == "fish":
        command = [
            "fish",
            "--no-config",
            "-c",
            f"set -p PATH {BUILD}/bin; statctl completion fish | source; complete -C {line!r}",
        ]
    else:
        script = f"""
            path=({BUILD}/bin $path); autoload -U compinit; compinit -u -d {folder}/dump; eval "$(statctl completion zsh)"
            _describe() {{ print -l -- "${{(@P)2}}" }}; _files() {{ }}
            words=("${{(@s: :)1}}") CURRENT=$#words; _statctl
        """
        command = ["zsh", "-f", "-c", script, "zsh", line]
    done = run_command(command, env={**os.environ, **env}, cwd=folder)
    assert done.code == 0 and done.err == "", done
    return [re.split(r"\t|(?<!\\):", word)[0] for word in done.out.splitlines() if word]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_runs(collector: Collector, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")

    def at(line: str) -> list[str]:
        return completed(shell, line, env={"STATCTL_COLLECTOR": collector.address}, folder=tmp_path)

    assert at("statctl di") == ["diff"]
    commands = at("statctl ")
    assert {"run", "values", "completion"} <= set(commands) and not {"series", "keep"} & set(commands)
    assert at("statctl values ") == ["get", "list", "diff"]
    assert at("statctl diff ") == at("statctl diff base ") == ["base", "ort"]
    assert at("statctl --quiet diff --noise x b") == ["base"]
    assert at("statctl scalars base --against o") == at("statctl scalars base o") == ["ort"]
    assert at("statctl diff base ort --tol") == ["--tolerance"]
    assert "--collector" in at("statctl diff --") and "--step" in at("statctl diff --") and "--out" not in at("statctl diff --")
    assert at("statctl help ta") == [] and at("statctl help te") == ["tensor"]
    (tmp_path / "train.py").touch()
    files = ["train.py"] if shell == "fish" else []  # other shells add them
    assert at("statctl run base -- ") == at("statctl move import ort ") == files


def test_completion_starts_no_collector_and_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "statcollect-data").mkdir()
    for address in (
        {},
        {"STATCTL_COLLECTOR": "127.0.0.1:1"},
        {"STATCTL_COLLECTOR": "no address"},
        {"STATCTL_DATA_DIR": "statcollect-data"},
    ):
        env = {name: value for name, value in os.environ.items() if not name.startswith("STATCTL_")} | address
        done = run_command([str(STATCTL), "completion", "bash", "--", "statctl", "diff", ""], env=env, cwd=tmp_path, timeout=5)
        assert done.out == "" or "no address" in done.err, done
    assert list((tmp_path / "statcollect-data").iterdir()) == []
    for shell in ("bash", "zsh", "fish"):
        assert "statctl completion " + shell in statctl("completion", shell).out
    assert "expected bash, zsh or fish" in statctl("completion", "csh").err
