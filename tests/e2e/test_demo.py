"""scripts/demo.sh as it is, with a real collector and statctl: only what it installs, builds and trains is replaced by something quick."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, agent_environment, wait_until

# What stands for a training: three steps of one tensor, of which the last differs if it is asked for a mistake.
TRAINING = """
import array, sys
import statagent
agent = statagent.init()
for step in range(3):
    agent.set_step(step)
    agent.observe("ln", array.array("f", [1.0, 2.0, 3.5 if "--bug" in sys.argv and step == 2 else 3.0]))
statagent.close()
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that demo.sh takes for a checkout in which everything is installed and built."""
    root = tmp_path / "checkout"
    for name in ("setup.sh", "build.sh"):
        executable(root / "scripts" / name, "#!/bin/sh\n")
    shutil.copy(ROOT / "scripts" / "demo.sh", root / "scripts")
    (root / "build").mkdir()
    (root / "build" / "release").symlink_to(BUILD)
    (root / "agent").symlink_to(ROOT / "agent")
    (root / "training.py").write_text(TRAINING)
    executable(
        root / ".venv" / "bin" / "python",
        f'#!/bin/sh\n[ "$2" != torch.distributed.run ] || set -- training.py "$@"\nexec "{sys.executable}" "$@"\n',
    )
    return root


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """All that demo.sh finds on PATH: the tools that it needs, and none of this machine's browsers."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for tool in ("bash", "cat", "cut", "dirname", "grep", "mkdir", "mktemp", "rm", "seq", "sh", "sleep", "tail", "tee"):
        found = shutil.which(tool)
        assert found
        (folder / tool).symlink_to(found)
    return folder


@contextmanager
def demo(checkout: Path, tmp_path: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """demo.sh --open in a terminal of its own, and the side of it that presses keys."""
    env = agent_environment(TMPDIR=str(tmp_path), **environment)
    ours, its = pty.openpty()
    with (tmp_path / "err").open("w") as errors:
        running = subprocess.Popen(
            [str(checkout / "scripts" / "demo.sh"), "--open"],
            env=env,
            stdin=its,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    os.close(its)
    try:
        yield running, ours
    finally:
        running.terminate()  # it stops its collector
        running.wait()
        os.close(ours)


def output_to_link(running: subprocess.Popen[str]) -> tuple[list[str], str]:
    """What is printed up to the link, and the link."""
    assert running.stdout is not None
    lines: list[str] = []
    for line in running.stdout:
        lines.append(line)
        if found := re.match(r"Where they diverge, in a browser: (http://\S+)$", line):
            return lines, found[1]
    pytest.fail("no link in\n" + "".join(lines))


@pytest.mark.parametrize("kind", ["BROWSER", "desktop"])
def test_open_shows_the_printed_link_in_the_browser_until_enter_is_pressed(
    checkout: Path, programs: Path, tmp_path: Path, kind: str
) -> None:
    opened = tmp_path / "opened"
    program = executable(
        tmp_path / "my-browser" if kind == "BROWSER" else programs / "xdg-open", f'#!/bin/sh\nprintf "%s\\n" "$@" >>"{opened}"\n'
    )
    chosen = {"BROWSER": str(program), "DISPLAY": ""} if kind == "BROWSER" else {"BROWSER": "", "DISPLAY": ":99"}
    with demo(checkout, tmp_path, PATH=str(programs), **chosen) as (running, keys):
        printed, link = output_to_link(running)
        assert not [line for line in printed if "found no browser" in line]
        assert link.endswith("/?view=compare&a=base&b=ort")
        wait_until(lambda: opened.exists() and opened.read_text().endswith("\n"), what="the browser to be started")
        assert opened.read_text() == f"{link}\n", "once, and nothing else"
        with urllib.request.urlopen(link, timeout=10) as page:  # as the browser would
            assert page.headers["Content-Type"].startswith("text/html")
        assert running.poll() is None, "the collector runs until Enter is pressed"
        os.write(keys, b"\n")
        assert running.wait(timeout=60) == 0, (tmp_path / "err").read_text()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(link, timeout=10)


def test_without_a_browser_the_link_is_printed_all_the_same(checkout: Path, programs: Path, tmp_path: Path) -> None:
    failing = executable(tmp_path / "my-browser", "#!/bin/sh\nexit 1\n")
    with demo(checkout, tmp_path, PATH=str(programs), BROWSER=str(failing), DISPLAY="") as (running, keys):
        _, link = output_to_link(running)
        assert running.stdout is not None
        assert "found no browser" in running.stdout.readline()
        with urllib.request.urlopen(link, timeout=10) as page:
            assert page.status == 200
        os.write(keys, b"\n")
        assert running.wait(timeout=60) == 0, (tmp_path / "err").read_text()


@pytest.mark.parametrize("terminal", [False, True])
def test_open_needs_a_terminal_and_the_collector(checkout: Path, terminal: bool) -> None:
    ours, its = pty.openpty()
    done = subprocess.run(
        [str(checkout / "scripts" / "demo.sh"), "--open", *(["--no-agent"] if terminal else [])],
        stdin=its if terminal else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(ours)
    os.close(its)
    assert done.returncode == 2 and "--open: found no terminal, or --no-agent" in done.stderr
    assert "==>" not in done.stdout, "before anything is installed or built"


def test_no_link_to_a_collector_that_is_stopped_is_printed(checkout: Path, programs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(checkout / "scripts" / "demo.sh")],
        env=agent_environment(TMPDIR=str(tmp_path), PATH=str(programs)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "DIVERGED" in done.stdout and "http://" not in done.stdout, done.stdout


PACKAGE = [sys.executable, "-m", "statcollect", "demo"]


def package_environment() -> dict[str, str]:
    return {**agent_environment(), "PYTHONPATH": f"{ROOT / 'client' / 'python'}{os.pathsep}{ROOT / 'agent' / 'python'}"}


def test_the_packages_demo_names_the_cause_and_links_to_nothing_that_is_gone() -> None:
    done = subprocess.run(
        PACKAGE, env=package_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = re.sub(r"\s+", " ", done.stdout)
    assert "DIVERGED at step 3, rank 0, forward, blocks.1.norm" in verdict
    assert "Cause: eps is 1e-05 in base and 0.001 in ort (blocks.1.norm); it changed while ort ran" in verdict
    assert "http://" not in done.stdout, done.stdout


@pytest.mark.parametrize("wait", [True, False])
def test_the_packages_demo_keeps_its_page_in_a_terminal_until_enter(wait: bool) -> None:
    ours, its = pty.openpty()
    running = subprocess.Popen([*PACKAGE, *([] if wait else ["--no-wait"])], env=package_environment(), stdin=its, stdout=its)
    os.close(its)
    text = ""
    try:
        while "Press Enter" not in text and select.select([ours], [], [], 120)[0]:
            try:
                text += os.read(ours, 4096).decode(errors="replace")
            except OSError:  # it has ended
                break
        links = set(re.findall(r"http://[\w.:/?=&]+", text))
        assert bool(links) == ("Press Enter" in text) == wait, text
        for link in links:
            with urllib.request.urlopen(link, timeout=10) as page:
                assert page.status == 200
        if wait:
            os.write(ours, b"\n")
        assert running.wait(timeout=60) == 0
        for link in links:
            with pytest.raises(urllib.error.URLError):
                urllib.request.urlopen(link, timeout=10)
    finally:
        running.kill()
        running.wait()
        os.close(ours)
