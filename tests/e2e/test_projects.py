"""Projects: runs of the same name side by side, tokens for one project, and what each caller sees."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from conftest import ROOT, Collector, Finished, run_command
from test_tokens import Tokens, http, statctl

RECORD = """
import numpy, statagent, sys
statagent.init(run="base", required=True, connect_timeout=5, project=sys.argv[2] or None)
for step in range(5):
    statagent.inspect("layer", numpy.full(300, float(sys.argv[1]), dtype="float32"))
    statagent.log_scalar("loss", float(sys.argv[1]))
    statagent.step()
statagent.close(timeout=60)
"""


def record(collector: Collector, value: float, project: str = "", **variables: str) -> Finished:
    return run_command([sys.executable, "-c", RECORD, str(value), project], env=collector.environment(**variables))


def maximum(collector: Collector, project: str, **variables: str) -> float:
    chosen = ["--project", project] if project else []
    done = statctl(collector, *chosen, "series", "base", "layer", "--stat", "max", "--format", "json", **variables)
    assert done.code == 0, done.err
    return float(done.json()["records"][0]["stats"]["max"])


def names(done: Finished) -> list[str]:
    assert done.code == 0, done.err
    return [run["run"] for run in done.json()["runs"]]


def test_runs_of_one_name_in_several_projects_are_kept_apart(collector: Collector) -> None:
    for value, project in ((1.0, ""), (2.0, "vision"), (3.0, "speech")):
        done = record(collector, value, project)
        assert done.code == 0, done.err
    assert [maximum(collector, p) for p in ("", "default", "vision", "speech")] == [1.0, 1.0, 2.0, 3.0]
    taken = record(collector, 4.0, "vision")
    assert taken.code != 0 and "vision/base" in taken.err and "if_exists" in taken.err
    by_variable = record(collector, 5.0, STATAGENT_PROJECT="audio")
    assert by_variable.code == 0, by_variable.err
    assert maximum(collector, "", STATCTL_PROJECT="audio") == 5.0

    assert names(statctl(collector, "runs", "--format", "json")) == ["base"]
    removed = statctl(collector, "--project", "vision", "rm", "base", "--yes")
    assert removed.code == 0, removed.err
    assert [maximum(collector, p) for p in ("", "speech")] == [1.0, 3.0]
    assert "no project 'vision'" in statctl(collector, "--project", "vision", "show", "base").err
    kept = statctl(collector, "--project", "speech", "keep", "base")
    assert kept.code == 0, kept.err
    assert statctl(collector, "status", "--format", "json").json()["retention"]["kept"] == ["speech/base"]
    noise = statctl(collector, "--project", "speech", "noise", "save", "base", "base")
    assert "speech" in noise.err or noise.code == 2

    collector.stop()
    collector.start()
    assert [maximum(collector, p) for p in ("", "speech", "audio")] == [1.0, 3.0, 5.0]


def test_a_project_that_is_not_there_is_named(collector: Collector) -> None:
    assert record(collector, 1.0, "vision").code == 0
    for command in (["runs"], ["show", "base"], ["diff", "base", "base"], ["events", "base"], ["config", "base"]):
        done = statctl(collector, "--project", "visoin", *command)
        assert done.code == 2, command
        assert "no project 'visoin'" in done.err and "vision" in done.err, done.err
    elsewhere = statctl(collector, "show", "base")
    assert elsewhere.code == 2 and "no run" in elsewhere.err.lower()
    missing = statctl(collector, "--project", "vision", "show", "bse")
    assert missing.code == 2 and "in project 'vision'" in missing.err
    for bad in ("a/b", "", "p" * 65, "..", "a b"):
        if bad:
            assert "--project" in statctl(collector, "--project", bad, "runs").err
        refused = record(collector, 1.0, bad or "\n")
        assert refused.code != 0 and "project" in refused.err, refused.err


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "data")


def test_a_token_for_one_project_sees_and_reaches_only_that(tokens: Tokens) -> None:
    scopes = "ingest,read,control,delete"
    all_of_them = tokens.file("all.token", tokens.create(scopes + ",admin"))
    vision = tokens.file("vision.token", tokens.create(scopes, "--project", "vision"))
    assert "vision" in tokens.command("list").out and "(all)" in tokens.command("list").out
    assert "project 'a/b'" in tokens.command("create", "--scope", "read", "--project", "a/b").err
    collector = Collector(tokens.data_dir).start()
    try:
        mine, whole = {"STATCTL_TOKEN_FILE": str(vision)}, {"STATCTL_TOKEN_FILE": str(all_of_them)}
        assert names(statctl(collector, "runs", "--format", "json", **mine)) == [], (
            "an empty project is no error to its own token"
        )
        assert record(collector, 1.0, STATAGENT_TOKEN_FILE=str(all_of_them)).code == 0
        assert record(collector, 2.0, STATAGENT_TOKEN_FILE=str(vision)).code == 0
        assert maximum(collector, "", **mine) == 2.0
        assert maximum(collector, "", **whole) == 1.0 and maximum(collector, "vision", **whole) == 2.0
        other = record(collector, 3.0, "speech", STATAGENT_TOKEN_FILE=str(vision))
        assert other.code != 0 and "is for project 'vision'" in other.err and "--project speech" in other.err
        for command in (["runs"], ["show", "base"], ["rm", "base", "--yes"], ["keep", "base"]):
            done = statctl(collector, "--project", "default", *command, **mine)
            assert done.code == 2 and "is for project 'vision'" in done.err, done.err
        assert statctl(collector, "keep", "base", **whole).code == 0
        status = statctl(collector, "status", "--format", "json", **mine).json()
        assert status["retention"]["kept"] == [], "names of other projects are not shown"
        assert statctl(collector, "rm", "base", "--yes", **mine).code == 0
        assert maximum(collector, "", **whole) == 1.0

        token = vision.read_text().strip()
        assert json.loads(http(collector, "/api/v1/runs", token)[1])["runs"] == []
        request = urllib.request.Request(
            f"http://{collector.http}/api/v1/runs",
            headers={"Authorization": f"Bearer {token}", "X-Statcollect-Project": "default"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        assert refused.value.code == 403
    finally:
        collector.stop()


def test_the_python_client_chooses_a_project(collector: Collector) -> None:
    assert record(collector, 2.0, "vision").code == 0
    code = """
import statcollect, sys
print([run.run for run in statcollect.connect(sys.argv[1], project=sys.argv[2] or None).runs()])
"""
    path = str(ROOT / "client" / "python")
    for project, expected in (("vision", "['base']"), ("", "[]")):
        done = run_command(
            [sys.executable, "-c", code, collector.http, project], env=collector.environment(PYTHONPATH=path), cold=True
        )
        assert done.out.strip() == expected, done.err
    bad = run_command([sys.executable, "-c", code, collector.http, "a/b"], env=collector.environment(PYTHONPATH=path), cold=True)
    assert "project 'a/b'" in bad.err
