"""What statctl, and the same questions over HTTP, say of words that they do not know, of runs that do not exist, and of selections that
find nothing; and what commands print that print little."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conftest import BUILD, STATCTL, Collector, Finished, run_command

MAKE_RUNS = BUILD / "tests" / "make_runs"
FREE = {"TEXT", "NUMBER", "INT", "UINT", "FLOAT", "SEED"}  # placeholders of options that take anything of a type
STEPS = 6


def launch(run: str, wrong: float = 0.0) -> str:
    records: list[dict[str, Any]] = []
    for step in range(STEPS):
        for rank in range(2):
            at = {"rank": rank, "step": step}
            records.append({**at, "name": "embed", "values": [1.0, 2.0, 3.0 + wrong]})
            records.append({**at, "scalar": "loss", "value": 2 / (1 + step) + wrong})
            records += [{**at, "scalar": f"rng/{name}", "value": 1e9 + step} for name in ("cpu", "python")]
    return json.dumps({"run": run, "world_size": 2, "records": records})


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    folder = tmp_path_factory.mktemp("words")
    lines = "\n".join([launch("base"), launch("ort", 0.5), launch("same")])
    subprocess.run([str(MAKE_RUNS), str(folder / "data")], input=lines, text=True, check=True, timeout=60)
    started = Collector(folder / "data").start()
    yield started
    started.stop()


def statctl(*arguments: str) -> Finished:
    return run_command([str(STATCTL), *arguments])


def commands() -> Iterator[list[str]]:
    """Every command with its subcommands, as the help lists them."""
    for name in re.findall(r"^  (\w[\w-]*)  +\S", statctl("help", "--all").out.split("Options:")[0], re.M):
        within = statctl(name, "--help").out.partition("Subcommands:")[2]
        found = [[name, sub] for sub in re.findall(r"^  (\w[\w-]*)  +\S", within.split("\n\n")[0], re.M)]
        yield from found or [[name]]


def fixed_options() -> dict[tuple[str, str], list[str]]:
    """(command, option) -> how to give it, of every option whose help has a word for its fixed set of values."""
    found = {}
    for command in commands():
        text = statctl(*command, "--help").out
        for option, word in re.findall(r"^  (?:-\w,)?(-?-?[\w-]+)(?:,[\w-]+)* ([A-Z]+)\b", text, re.M):
            if word not in FREE:
                found[" ".join(command), option] = [*command, option] if option.startswith("-") else command
    found["runs", "--format"] = ["runs", "--format"]
    return found


def test_every_option_with_a_fixed_set_of_values_refuses_others_and_suggests_one() -> None:
    options = fixed_options()
    expected = {
        ("runs", "--sort"), ("runs", "--state"), ("runs", "--format"), ("admin audit", "--outcome"), ("tensor", "--by"), ("tensor", "--kind"),
        ("tensor", "--stat"), ("tensor", "--dtype"), ("values get", "--kind"), ("values get", "--mode"), ("values diff", "--kind"),
        ("values diff", "--mode"), ("values list", "--kind"), ("diff", "--kind"), ("report", "--kind"), ("open", "--kind"), ("ranks", "--kind"),
        ("move export", "to"), ("move export", "--kind"), ("move export", "--stat"), ("move import", "dump"), ("move import", "--if-exists"),
        ("map show", "name"), ("run", "--if-exists"), ("run", "--watch"), ("completion", "shell"),
    }  # fmt: skip
    assert set(options) == expected
    for (command, option), given in options.items():
        done = statctl(*given, "zzzz")
        assert (done.code, done.out) == (2, ""), (command, option)
        assert re.match(rf"statctl: {option}: found 'zzzz'; expected \S.*; see statctl help {given[0]}\n$", done.err), done.err
        known = re.split(r", | or ", done.err.split("expected ")[1].split(";")[0])
        for word in known:
            nearly = word + "z" if len(word) > 3 else word[:-1] or "z"
            done = statctl(*given, nearly)
            assert done.code == 2 and f"found '{nearly}' (did you mean '" in done.err, (command, option, done.err)
    assert "(did you mean 'output'?)" in statctl("diff", "a", "b", "--kinds", "weight,outptu").err


def test_no_option_lists_its_values_in_words_only() -> None:
    for command in commands():
        text = re.sub(r"\n {20,}", " ", statctl(*command, "--help").out.partition("Examples:")[0])
        for line in text.splitlines():
            listed = re.match(
                r"^  (?:-\w,)?(-?-?[\w-]+)(?:,[\w-]+)* TEXT(?: \[\w+\])? +(.*: )?([a-z0-9]+, )+[a-z0-9]+ or [a-z0-9]+\b", line
            )
            assert not listed, (command, line)


def get(collector: Collector, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{collector.http}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_parameters_with_a_fixed_set_of_values_refuse_others_and_suggest_one(collector: Collector) -> None:
    described = json.loads(collector.get("/api/v1/openapi.json"))
    seen = set()
    for path, methods in described["paths"].items():
        for parameter in methods.get("get", {}).get("parameters", []):
            schema = parameter["schema"].get("items", parameter["schema"])
            values = [value for value in schema.get("enum", []) if value]
            if not values:
                continue
            seen.add((path, parameter["name"]))
            code, text = get(collector, f"{path}?{parameter['name']}={values[0]}z")
            assert code == 400 and "(did you mean '" in text and "expected " in text, (path, text)
    assert {("/api/v1/diff", "kinds"), ("/api/v1/top", "by"), ("/api/v1/exponents", "format")} <= seen
    for question in (
        "curves?run=base&activation=embed&mode=trian", "capture?run=base&activation=embed&mode=trian", "audit?outcome=oka",
        "events?run=base&kinds=nan_first", "exponents?run=base&format=f32",
    ):  # fmt: skip
        code, text = get(collector, f"/api/v1/{question}")
        assert code == 400 and "expected " in text, (question, text)
        assert "did you mean" in text or "f32" in question, text


# Commands about a run that does not exist. Those that wait for a run to appear are not here.
# Old names are here as well: each goes to the same place as the new one.
UNKNOWN = [
    "show nope", "diff base nope", "diff nope base", "diff base ort --noise nope", "report base nope --out OUT", "open nope",
    "open --run-a nope", "open base nope", "export csv nope OUT", "export json nope OUT", "summary nope --step 1",
    "summary base --step 1 --like nope", "map propose base nope", "noise save nope --runs base", "noise save base --runs nope",
    "noise show nope", "noise rm nope", "golden save nope OUT", "rm nope --yes", "record nope --steps 1", "series nope embed", "top nope",
    "config nope", "config base nope", "ranks nope", "capture nope embed --step 1", "captures nope", "diff-values nope base embed --step 1",
    "scalars nope", "scalars base --against nope", "memory nope", "density nope", "exponents nope", "events nope", "watch nope --once",
    "keep nope", "pin nope", "tensor nope", "tensor nope embed", "tensor nope --exponents", "show nope --memory", "show nope --padding",
    "show nope --events", "values get nope embed --step 1", "values list nope", "values diff nope base embed --step 1",
    "move export csv nope OUT", "set-steps nope --step 1",
]  # fmt: skip

# Commands with something else that is wrong: a list, a number, a tensor, a place to write.
WRONG = [
    "diff base ort --rank x", "diff base ort --step x", "diff base ort --map nowhere", "diff base ort --golden nowhere", "diff base ../x",
    "diff base ort --junit /dev/null/x", "report base ort --rank x --out OUT", "report base ort --out /dev/null/x", "open base ort --step x",
    "config ../x", "summary base --step 900", "summary base --step 1 --out /dev/null/x", "golden save base OUT --rank x",
    "golden save base /dev/null/x", "golden save base OUT --step 900", "noise save base --runs ../x", "noise save base --runs base",
    "map show hf", "map propose base base", "ranks base --rank 9", "ranks base --step x", "ranks base --step 900", "runs --filter [",
    "show ../x", "show base --memory --rank x", "show base --memory --step x", "show base --padding --input nope", "show base --events --rank x",
    "show base --events --kind nope", "tensor base --rank x", "tensor base --step 900", "tensor base --by nope", "tensor base nope",
    "tensor base embed --rank x", "tensor base embed --step x", "tensor base embed --stat nope", "tensor base embed --stat update_ratio",
    "tensor base nope --stat update_ratio", "tensor base embed --exponents", "tensor base --exponents --step x", "scalars base --rank x",
    "scalars base --step x", "scalars base --name nope", "scalars base --against ../x", "values get base nope --step 1",
    "values get base embed --step 1", "values get base embed --step 1 --rank x", "values get base embed --step 1 --kind nope",
    "values list base --rank x", "values diff base ort embed --step 1", "values diff base ort embed --step x", "watch base --against base --once",
    "set-steps base --step 1", "set-steps base --step x", "rm ../x --yes", "rm nope-* --yes", "move import ort nowhere --run r",
    "move import spill nowhere", "move import ort . --run ../x", "move export csv base /dev/null/x", "move export csv base OUT --rank x",
    "move export csv base OUT --step 900", "move migrate --to nowhere", "move migrate --to 127.0.0.1:1 --timeout 1", "admin checkpoint here",
    "admin audit --since x", "pin ../x", "run base", "run ../x -- true", "run base -- true", "twins nope -- true", "twins base",
]  # fmt: skip


@pytest.mark.parametrize("command", [*UNKNOWN, *WRONG])
def test_an_error_says_each_thing_once(collector: Collector, tmp_path: Path, command: str) -> None:
    """No part of it has all the words of the part before, as in `capture x of r: capture x of run 'r': ...`."""
    done = collector.statctl(*command.replace("OUT", str(tmp_path / "out")).split())
    if done.code != 2 or done.out.startswith("INCOMPARABLE"):
        return  # an answer after all, such as that there is nothing to compare
    said = [line for line in done.err.splitlines() if line.startswith("statctl: ")]
    assert said, done
    parts = [set(re.findall(r"[\w./*-]+", part)) - {"of", "run", "runs", "the"} for part in re.split(r": |; ", said[-1])[1:]]
    for one, other in itertools.pairwise(parts):
        assert len(one) < 2 or not one <= other, said[-1]


@pytest.mark.parametrize("command", UNKNOWN)
def test_an_unknown_run_is_an_error_that_names_it(collector: Collector, tmp_path: Path, command: str) -> None:
    done = collector.statctl(*command.replace("OUT", str(tmp_path / "out")).split())
    assert (done.code, done.out) == (2, ""), done
    assert re.match(r"statctl: .*'nope'", done.err) and done.err.count("\n") == 1, done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        ("show nope", "no run 'nope'; runs there: "),
        ("series base nope", "'nope' of run 'base': no activation of that name; "),
        ("run base python -c 1", "found no '--'; expected one before the command to run"),
        ("scalars base --name los", "scalars of run 'base': no scalar 'los' there; closest: loss"),
        ("density base --input x", "density of run 'base': no input 'x', nor any other"),
        ("exponents base embed", "exponents of 'embed' in run 'base': none were recorded, of no activation; "),
        ("top base --step 900", "top of run 'base': no statistics in step 900; "),
        ("events base --kind nan_first", "events of run 'base': no kind 'nan_first' "),
        ("capture base nope --step 1", "capture nope of run 'base': "),
        ("keep nope", "keep run 'nope': "),
        ("record base --steps 7", "record steps '7' of run 'base': "),
        ("noise show base", "noise of run 'base': none is stored; "),
        ("noise rm base", "noise of run 'base': none is stored; "),
        ("diff-values base ort embed --step 1", "read capture 'embed' of run 'base': "),
        ("checkpoint here", "checkpoint to 'here': "),
        ("diff base nope", "diff base nope: no run 'nope'; "),  # which of the two
    ],
)
def test_an_error_says_what_was_attempted_once(collector: Collector, command: str, begins: str) -> None:
    done = collector.statctl(*command.split())
    assert done.code == 2 and done.err.startswith("statctl: " + begins), done.err


def test_a_selection_that_finds_nothing_says_where_there_is_something(collector: Collector) -> None:
    found = collector.statctl("scalars", "base", "--steps", "900")
    assert (found.code, found.out) == (0, "No scalars in base for this selection: it has some at steps 0-5, of ranks 0, 1.\n")
    assert "log_scalar" not in found.out and "STATAGENT" not in found.out
    named = collector.statctl("scalars", "base", "--name", "loss", "--rank", "7")
    assert (
        named.code == 2 and "no scalar 'loss' at these steps and ranks; there are some at steps 0-5, of ranks 0, 1" in named.err
    )
    tensor = collector.statctl("tensor", "base", "embed", "--step", "900")
    assert (tensor.code, tensor.out[:72]) == (0, "No records of embed in base for this selection: it has some at steps 0-5")
    for what, how in (("memory", "memory=True"), ("density", "density=True"), ("exponents", "STATAGENT_EXPONENTS")):
        assert how in collector.statctl(what, "base", "--steps", "900").out, "the run has none at all"


def test_scalars_are_plotted_and_states_of_generators_are_left_out(collector: Collector) -> None:
    done = collector.statctl("scalars", "base")
    assert done.code == 0
    plot, _, rest = done.out.partition("\n\n")
    assert plot.startswith("loss\n") and "step 0" in plot and "* rank 0" in plot and "+ rank 1" in plot
    assert rest.splitlines()[0].split("  ") == ["", "step", "loss (rank 0)", "loss (rank 1)"]
    assert done.out.endswith("Left out, as only diff reads them: rng/cpu, rng/python. --all shows them.\n")
    everything = collector.statctl("scalars", "base", "--all").out
    assert "rng/cpu (rank 1)" in everything and "Left out" not in everything
    assert "rng/cpu" in collector.statctl("scalars", "base", "--name", "rng/cpu").out
    assert {row["name"] for row in collector.json("scalars", "base")["records"]} == {"loss", "rng/cpu", "rng/python"}
    # Only one step has nothing to plot.
    assert "* rank" not in collector.statctl("scalars", "base", "--steps", "1").out


def test_scalars_of_two_runs_are_plotted_together(collector: Collector) -> None:
    done = collector.statctl("scalars", "base", "--against", "ort")
    assert done.code == 1 and done.out.startswith("DIFFERENT base and ort\n")
    assert "* base rank 0" in done.out and "ort rank 1" in done.out
    plots = done.out.split("loss\n")[1], done.out.split("loss: relative difference, on a logarithmic axis\n")[1]
    assert "* base rank 0" in plots[0] and "* of rank 0" in plots[1]
    assert plots[1].splitlines()[0].split()[0] == "1.5" and " 0.25 |" in plots[1], "0.5 of 2 at step 0, of 1/3 at step 5"
    assert "rng/cpu, rank" not in done.out and "--all shows them" in done.out
    assert "rng/cpu, rank 0: 6 values, none differs" in collector.statctl("scalars", "base", "--against", "ort", "--all").out


def test_a_long_training_is_plotted_loss_first_and_its_table_is_cut(tmp_path: Path) -> None:
    records = [
        {"rank": 0, "step": step, "scalar": name, "value": 1 / (1 + step)}
        for step in range(200)
        for name in ("accuracy", "loss", "lr")
    ]
    run = json.dumps({"run": "long", "world_size": 1, "records": records})
    subprocess.run([str(MAKE_RUNS), str(tmp_path / "data")], input=run, text=True, check=True, timeout=60)
    collector = Collector(tmp_path / "data").start()
    try:
        out = collector.statctl("scalars", "long").out
        assert out.startswith("loss\n") and out.index("\naccuracy\n") < out.index("\nlr\n")
        assert out.endswith("The last 12 of 200 rows; --all shows all, --format csv is for programs.\n")
        assert "\n   199 " in out and "\n   187 " not in out
        assert "\n   187 " in collector.statctl("scalars", "long", "--all").out
        assert len(collector.statctl("scalars", "long", "--format", "csv").out.splitlines()) == 601
    finally:
        collector.stop()


def test_an_empty_collector_says_how_to_begin(tmp_path: Path) -> None:
    collector = Collector(tmp_path / "data").start()
    try:
        done = collector.statctl("runs")
        assert (done.code, done.out) == (0, "No runs yet. To record one: statctl run base -- python train.py\n")
    finally:
        collector.stop()


def test_removing_noise_says_so(collector: Collector) -> None:
    assert collector.statctl("noise", "save", "base", "--runs", "same").code == 0
    assert collector.statctl("noise", "rm", "base").err == "removed the noise saved for run 'base'\n"
    assert collector.statctl("noise", "save", "base", "--runs", "same").code == 0
    assert collector.json("noise", "rm", "base") == {}


@pytest.mark.parametrize("form", ["csv", "json", "ort", "tensorboard", "parquet"])
def test_an_export_makes_the_folders_that_it_needs(collector: Collector, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / "not" / "yet" / "there"
    done = collector.statctl("export", form, "base", str(path))
    assert done.code == 0 and path.exists(), done.err
    refused = collector.statctl("export", form, "nope", str(tmp_path / "other" / "place"))
    assert refused.code == 2 and not (tmp_path / "other").exists()
    (tmp_path / "file").touch()
    blocked = collector.statctl("export", form, "base", str(tmp_path / "file" / "below"))
    assert blocked.code == 2 and "file" in blocked.err and "create" in blocked.err, blocked.err


def test_whatever_else_writes_a_file_makes_its_folders_too(collector: Collector, tmp_path: Path) -> None:
    written = {
        "golden": ["golden", "save", "base", "OUT/base.scg"],
        "report": ["report", "base", "ort", "--out", "OUT/report.html"],
        "summary": ["summary", "base", "--step", "1", "--out", "OUT/texts"],
        "junit": ["diff", "base", "ort", "--junit", "OUT/diff.xml"],
    }
    for name, command in written.items():
        folder = tmp_path / name / "deeper"
        done = collector.statctl(*(word.replace("OUT", str(folder)) for word in command))
        assert done.code in (0, 1) and list(folder.iterdir()), done.err


def test_an_export_that_fails_leaves_no_folders(collector: Collector, tmp_path: Path) -> None:
    done = collector.statctl("export", "tensorboard", "base", str(tmp_path / "logs" / "base"), "--steps", "900", "--rank", "x")
    assert done.code == 2 and list(tmp_path.iterdir()) == []


def test_open_links_to_runs_that_exist(collector: Collector) -> None:
    for runs in (["base"], ["base", "ort"], []):
        done = collector.statctl("open", *runs)
        assert done.code == 0 and done.out.startswith(f"http://{collector.http}/"), done.err
    assert quote("base") in collector.statctl("open", "base").out
