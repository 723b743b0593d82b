"""Goldens: a run in a file, compared with later runs on other collectors; what continuous integration reads of it."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Collector, Finished

sys.path.insert(0, str(ROOT / "client/python"))
import statcollect
from statcollect import programs

PAGE = ROOT / "docs/golden.md"
TRAIN = """
import os, statagent, torch
def train(run, scale=1.0, wrong=0.0, begin=0, end=4, if_exists="error", config={}):
    torch.manual_seed(0)  # before init, which records the generators' states
    statagent.init(run=run, config={"lr": 0.1, **config}, if_exists=if_exists, required=True)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = statagent.watch(net, optimizer=optimizer)
    for step in range(begin, end):
        torch.manual_seed(100 + step)
        if wrong and step >= 2:
            net[1].eps = wrong
        statagent.log_scalar("loss", (loss := (net(torch.randn(4, 8)) * scale).square().mean()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.remove()
    assert statagent.close(timeout=10)
"""
RUNS = """
train("base")
train("again")
train("wrong", wrong=0.5)
train("rounded", scale=1 + 2e-7, config={"torch.version": "99.0"})
train("resumed", end=2)
train("resumed", begin=2, if_exists="append")
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """Where the goldens come from."""
    started = Collector(tmp_path_factory.mktemp("other") / "data").start()
    started.python(TRAIN + RUNS)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def collector(shared_collector: Collector) -> Collector:
    shared_collector.python(TRAIN + RUNS)
    return shared_collector


@pytest.fixture(scope="module")
def golden(other: Collector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "base.scg"
    saved = other.statctl("golden", "save", "base", str(path))
    assert saved.code == 0 and re.search(r"saved \d+ tensors of run base", saved.err), saved.err
    return path


def compare(collector: Collector, golden: Path, run: str, *arguments: str) -> Finished:
    return collector.statctl("diff", "--golden", str(golden), "--run-b", run, *arguments)


def last_line(done: Finished) -> str:
    return done.out.rstrip().splitlines()[-1]


def junit(path: Path) -> ElementTree.Element:
    (case,) = ElementTree.parse(path).getroot().iter("testcase")
    return case


def test_an_equal_run_is_the_same(collector: Collector, golden: Path, tmp_path: Path) -> None:
    done = compare(collector, golden, "again", "--junit", str(tmp_path / "junit.xml"))
    assert done.code == 0 and last_line(done) == f"SAME again equals {golden} bit for bit.", done.out + done.err
    case = junit(tmp_path / "junit.xml")
    assert case.get("name") == f"again against {golden}" and {child.tag for child in case} == {"system-out"}


def test_a_golden_says_what_the_run_itself_says(collector: Collector, golden: Path) -> None:
    name = next(row["run"] for row in runs_after(collector, golden) if row["run"].startswith("golden-"))
    direct, by_golden = collector.diff("base", "wrong"), collector.diff(name, "wrong")
    for report in (direct, by_golden):
        del report["run_a"], report["inputs"]["config"]
        assert report.pop("source_a") == ("agent" if report is direct else "golden")
        del report["text"]["values"]  # a golden cannot be launched again
    assert json.loads(json.dumps(by_golden).replace(name, "base")) == direct
    assert collector.json("scalars", name)["records"] != [] and [
        each["key"] for each in collector.json("config", "base", name, codes=(1,))["items"]
    ] == ["host"]


def runs_after(collector: Collector, golden: Path) -> list[dict[str, str]]:
    assert compare(collector, golden, "base").code == 0
    return list(collector.json("runs")["runs"])


def test_a_changed_run_is_named(collector: Collector, golden: Path, tmp_path: Path) -> None:
    done = compare(collector, golden, "wrong", "--junit", str(tmp_path / "junit.xml"))
    assert done.code == 1 and last_line(done).startswith("CHANGED at layer 1, step 2, rank 0"), done.out
    (failure,) = junit(tmp_path / "junit.xml").iter("failure")
    assert (failure.get("message") or "").startswith("CHANGED at layer 1") and "DIVERGED at step 2" in (failure.text or "")
    as_json = collector.statctl("--format", "json", "diff", "--golden", str(golden), "--run-b", "wrong")
    assert as_json.code == 1 and as_json.json()["root"]["activation"] == "1" and "CHANGED at layer 1" in as_json.err


def test_rounding_with_other_versions_is_a_drift(collector: Collector, golden: Path) -> None:
    done = compare(collector, golden, "rounded")
    assert done.code == 0 and last_line(done).startswith("DRIFTED with the environment: rounded equals"), done.out + done.err
    assert "99.0" in last_line(done)


def test_steps_and_resumed_launches_are_kept(other: Collector, collector: Collector, tmp_path: Path) -> None:
    path = tmp_path / "resumed.scg"
    assert other.statctl("golden", "save", "resumed", str(path)).code == 0
    done = compare(collector, path, "resumed")
    assert done.code == 0 and last_line(done).startswith("SAME resumed equals"), done.out
    short = tmp_path / "short.scg"
    assert other.statctl("golden", "save", "base", str(short), "--steps", "0-1").code == 0
    assert short.stat().st_size < path.stat().st_size
    assert compare(collector, short, "wrong").code == 0  # the mistake begins later


def test_two_ranks_come_back(collector: Collector, tmp_path: Path) -> None:
    collector.train("two")
    path = tmp_path / "two.scg"
    assert collector.statctl("golden", "save", "two", str(path)).code == 0
    done = compare(collector, path, "two")
    assert done.code == 0 and "ranks 0, 1" in done.out and last_line(done).startswith("SAME"), done.out


def test_a_golden_is_loaded_once(collector: Collector, golden: Path) -> None:
    before = [row for row in runs_after(collector, golden) if row["run"].startswith("golden-")]
    assert [row for row in runs_after(collector, golden) if row["run"].startswith("golden-")] == before


def test_a_half_loaded_golden_is_loaded_again(other: Collector, golden: Path) -> None:
    name = next(row["run"] for row in runs_after(other, golden) if row["run"].startswith("golden-"))
    assert other.statctl("rm", "--yes", name).code == 0
    other.python(TRAIN + f"train({name!r}, end=1)")
    done = compare(other, golden, "base")
    assert done.code == 0 and last_line(done).startswith("SAME"), done.out + done.err
    assert other.json("show", name)["summary"]["last_step"] == 3


def test_damaged_files_are_refused(collector: Collector, golden: Path, tmp_path: Path) -> None:
    whole = golden.read_bytes()
    before = collector.json("runs")["runs"]
    broken = tmp_path / "broken.scg"
    places = range(0, len(whole), max(1, len(whole) // 25))
    for at in places:
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]):
            broken.write_bytes(damaged)
            done = compare(collector, broken, "again", "--junit", str(tmp_path / "junit.xml"))
            assert done.code == 2 and str(broken) in done.err and "; expected " in done.err, (at, done.err)
            assert next(junit(tmp_path / "junit.xml").iter("error")).get("message")
    broken.write_bytes(whole + b"more")
    assert "bytes after its end" in compare(collector, broken, "again").err
    broken.write_bytes(whole.replace(b"golden 1", b"golden 2", 1))
    assert "its format version is unknown" in compare(collector, broken, "again").err
    assert collector.json("runs")["runs"] == before


def test_wrong_usage_says_so(collector: Collector, golden: Path, tmp_path: Path) -> None:
    assert "expected a file of statctl golden save" in compare(collector, tmp_path / "none.scg", "again").err
    assert compare(collector, golden, "nobody").code == 2
    both = collector.statctl("diff", "--golden", str(golden), "base", "again")
    assert both.code == 2 and "expected only --run-b" in both.err
    assert collector.statctl("diff", "--golden", str(golden), "again").code == 0  # without --run-b
    assert "--run-b is required" in collector.statctl("diff", "base").err
    assert collector.statctl("golden", "save", "nobody", str(tmp_path / "x.scg")).code == 2
    nothing = collector.statctl("golden", "save", "base", str(tmp_path / "x.scg"), "--steps", "99")
    assert nothing.code == 2 and "nothing matches" in nothing.err
    assert list(tmp_path.iterdir()) == []  # nothing half-written
    assert "--overwrite" in collector.statctl("golden", "save", "base", str(golden)).err
    unwritable = compare(collector, golden, "again", "--junit", str(golden / "junit.xml"))  # below a file
    assert unwritable.code == 2 and "--junit" in unwritable.err


def test_names_of_runs_are_safe_in_xml(collector: Collector, golden: Path, tmp_path: Path) -> None:
    odd = tmp_path / 'a "b" <c> & d.scg'
    odd.write_bytes(golden.read_bytes())
    assert compare(collector, odd, "wrong", "--junit", str(tmp_path / "junit.xml")).code == 1
    assert junit(tmp_path / "junit.xml").get("name") == f"wrong against {odd}"


def test_assert_matches(collector: Collector, golden: Path, tmp_path: Path) -> None:
    def matches(run: str, **arguments: object) -> str:
        return statcollect.assert_matches(golden, run, collector=collector.address, **arguments)  # type: ignore[arg-type]

    assert matches("again").startswith("SAME again")
    assert matches("rounded").startswith("DRIFTED")
    with pytest.raises(AssertionError, match=r"^CHANGED at layer 1, step 2(.|\n)*DIVERGED at step 2"):
        matches("wrong", junit=tmp_path / "junit.xml")
    assert next(junit(tmp_path / "junit.xml").iter("failure")) is not None
    with pytest.raises(statcollect.QueryError, match="no run 'nobody'"):
        matches("nobody")
    assert matches("wrong", options=["--tolerance", "10"]).startswith(("SAME", "DRIFTED"))


def test_the_page_runs_as_printed(collector: Collector, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)  # the first: test_pytest_plugin.py
    monkeypatch.chdir(tmp_path)
    (tmp_path / "golden.scg").write_bytes(golden.read_bytes())
    monkeypatch.setenv("STATCTL_COLLECTOR", collector.address)
    names: dict[str, object] = {"train": lambda run: collector.python(TRAIN + f"train({run!r})")}
    exec(compile(block, str(PAGE), "exec"), names)
    names["test_training_is_unchanged"]()  # type: ignore[operator]
    assert programs.find("statctl").is_file()
