"""The fixture `statcollect`: pytest runs the example's test as users do, in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from conftest import BUILD, LIBRARY, ROOT, Collector

pytest_plugins = ["pytester"]
EXAMPLE = ROOT / "examples/pytest/test_numerics.py"
ODD = """
import subprocess, sys
import numpy, statagent

def numbers():
    for step in range(3):
        statagent.inspect("layer", numpy.arange(8.0) + step)
        statagent.step()

def own_init():
    statagent.init()
    numbers()
    statagent.close()

def test_function_that_starts_the_agent_itself(statcollect):
    print(statcollect.assert_matches("odd.scg", own_init, init=False))

def test_same_numbers_from_another_process(statcollect):
    run = statcollect.new_run()
    program = "import test_odd, statagent; statagent.init(); test_odd.numbers()"
    subprocess.run([sys.executable, "-c", program], env=statcollect.environment(run), check=True)
    print(statcollect.assert_matches("odd.scg", run))

def test_nothing_recorded(statcollect):
    statcollect.assert_matches("odd.scg", lambda: None)

def test_no_golden(statcollect):
    statcollect.assert_matches("none.scg", numbers)

def test_no_run(statcollect):
    statcollect.assert_matches("odd.scg", "nobody")

def test_exception_of_the_function(statcollect):
    def fails():
        raise KeyError("mine")
    statcollect.assert_matches("odd.scg", fails)

def test_after_all_these_it_still_works(statcollect):
    print(statcollect.assert_matches("odd.scg", numbers))
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with the example's test, and the packages of this tree on the path."""
    for name in [name for name in os.environ if name.startswith(("STATAGENT_", "STATCTL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "client/python"), str(ROOT / "agent/python"))))
    monkeypatch.setenv("STATAGENT_LIBRARY", str(LIBRARY))
    monkeypatch.setenv("PATH", f"{BUILD / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copy(EXAMPLE, pytester.path)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    plugin = ("-p", "statcollect.pytest_plugin", "-p", "no:cacheprovider")
    return project.runpytest_subprocess(*plugin, *arguments, timeout=120)


def properties(path: Path) -> dict[str, str]:
    (case,) = [case for case in ElementTree.parse(path).getroot().iter("testcase") if case.get("classname") == "test_numerics"]
    return {each.get("name", ""): each.get("value", "") for each in case.iter("property")}


def test_an_unchanged_training_passes_and_a_planted_change_names_the_layer(project: pytest.Pytester) -> None:
    golden, junit = project.path / "golden.scg", project.path / "junit.xml"
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/golden.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [each for each in blocks if "def test_numerics(statcollect)" in each]
    (project.mkdir("page") / "test_page.py").write_text(block)
    written = run(project, "--statcollect-update")
    written.assert_outcomes(passed=2)
    written.stdout.fnmatch_lines(["*statcollect goldens written*", f"{golden}: *saved * tensors of run test_numerics-*"])
    assert (project.path / "page/golden.scg").is_file()
    before = golden.read_bytes()

    clean = run(project, f"--junitxml={junit}")
    clean.assert_outcomes(passed=2)
    said = properties(junit)
    assert said["statcollect.golden"] == "golden.scg" and said["statcollect.verdict"].startswith("SAME test_numerics-"), said

    source = (project.path / EXAMPLE.name).read_text()
    planted = source.replace("LayerNorm(16)", "LayerNorm(16, eps=0.1)")
    assert planted != source
    (project.path / EXAMPLE.name).write_text(planted)
    changed = run(project, f"--junitxml={junit}")
    changed.assert_outcomes(failed=1, passed=1)
    changed.stdout.fnmatch_lines(["*AssertionError: CHANGED at layer 1, step 0, rank 0*", "*pytest --statcollect-update*"])
    assert "pytest_plugin.py:" not in changed.stdout.str(), "the traceback ends in the user's test"
    assert properties(junit)["statcollect.verdict"].startswith("CHANGED at layer 1, step 0")
    assert golden.read_bytes() == before


def test_odd_uses(project: pytest.Pytester) -> None:
    (project.path / EXAMPLE.name).unlink()
    project.makepyfile(test_odd=ODD)
    run(project, "--statcollect-update", "-k", "still_works").assert_outcomes(passed=1, deselected=6)
    done = run(project, "-rA")
    text = done.stdout.str()
    done.assert_outcomes(passed=3, failed=4)
    assert len(re.findall(r"^SAME ", text, re.MULTILINE)) == 3, text
    for expected in (
        "recorded nothing; expected tensors; call statagent.watch", "none.scg: there is no such file", "no run 'nobody'", "KeyError: 'mine'",
    ):  # fmt: skip
        assert expected in text, text


def test_a_given_collector_is_used_and_kept(project: pytest.Pytester, collector: Collector) -> None:
    project.makepyfile(test_numerics=ODD)
    chosen = ("-k", "still_works")
    run(project, *chosen, "--statcollect-update", "--statcollect-collector", collector.address).assert_outcomes(
        passed=1, deselected=6
    )
    (kept,) = collector.json("runs")["runs"]
    assert kept["run"].startswith("test_after_all_these_it_still_works-")
    nobody = run(project, *chosen, "--statcollect-collector", "127.0.0.1:1")
    nobody.assert_outcomes(failed=1, deselected=6)
    nobody.stdout.fnmatch_lines(["*CollectorUnavailableError*127.0.0.1:1*"])


def test_a_session_without_the_fixture_starts_nothing(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / EXAMPLE.name).write_text("def test_nothing():\n    pass\n")
    monkeypatch.setenv("PATH", "/nonexistent")
    run(project).assert_outcomes(passed=1)
