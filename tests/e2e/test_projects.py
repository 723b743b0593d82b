"""Projects: runs of the same name side by side, tokens for one project, and what each caller sees."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from conftest import ROOT, Collector, Finished, run_command, start_python, wait_until
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


# For each line of its input records ten steps, and says how much of it all is acknowledged.
FILL = """
import numpy, statagent, sys
statagent.init(run=sys.argv[1], required=True, connect_timeout=5)
random = numpy.random.default_rng(int(sys.argv[2]))
print("started", flush=True)
for _ in sys.stdin:
    for step in range(10):
        for layer in range(400):
            statagent.inspect(f"layer.{layer}", random.normal(size=256).astype("float32"))
        statagent.step()
    print(statagent.counters()["acked"], flush=True)
statagent.close(timeout=60)
c = statagent.counters()
print(c["produced"], c["acked"], sum(n for name, n in c.items() if name.startswith("dropped_")), flush=True)
"""


def test_a_full_project_waits_and_loses_nothing(tmp_path: Path) -> None:
    collector = Collector(tmp_path / "data", extra=["--project-disk-max", "1TiB"])
    collector.start()

    def fill(run: str, seed: int) -> subprocess.Popen[str]:
        process = start_python(["-c", FILL, run, str(seed)], env=collector.environment(), text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        return process

    def ten_steps(process: subprocess.Popen[str]) -> int:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def disk() -> int:
        return int(collector.json("status")["project_disk"]["bytes"])

    older = fill("older", 1)
    for _ in range(3):
        ten_steps(older)
    older.communicate(timeout=60)
    # Room for about half as much again.
    collector.stop()
    collector.start()
    wait_until(lambda: disk() > 0, what="the sum")
    limit = (disk() >> 20) + 1
    collector.stop()
    collector.extra = ["--project-disk-max", f"{limit}MiB", "--project-disk-max", "vision=1GiB"]
    collector.start()
    newer = fill("newer", 2)
    try:
        for _ in range(10):
            before = disk()
            ten_steps(newer)
            wait_until(lambda before=before: disk() > before, what="the next sum")
            if disk() >= limit << 20:
                break
        ten_steps(newer)
        wait_until(lambda: collector.json("status")["access"]["quota_refused"] > 0, what="the refusal")
        stuck = ten_steps(newer)
        refused = record(collector, 1.0)
        assert refused.code != 0 and "the runs of project 'default' take" in refused.err, refused.err
        assert "statctl rm" in refused.err and "--project-disk-max" in refused.err
        assert record(collector, 2.0, "vision").code == 0, "the others go on"
        shown = collector.statctl("status").out
        assert re.search(rf"default: .* limit {limit}.* its records are refused until runs are removed", shown), shown
        assert "1 projects over their limit" in shown
        assert re.search("vision: .* limit 1", statctl(collector, "--project", "vision", "status").out)
        metrics = collector.get("/metrics")
        assert "\nstatcollect_projects_full 1\n" in metrics
        assert re.search(r"\nstatcollect_project_refused_total [1-9]", metrics)
        assert ten_steps(newer) == stuck, "nothing more is stored"
        removed = collector.statctl("rm", "older", "--yes")
        assert removed.code == 0, removed.err
        out, _ = newer.communicate(timeout=60)
        produced, acknowledged, dropped = map(int, out.split())
        assert produced == acknowledged > stuck and dropped == 0
    finally:
        newer.kill()
        newer.wait()
        collector.stop()
