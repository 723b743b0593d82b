"""The workflows in .github call scripts that exist, with options that these have, and trust nobody else."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def called(workflow: Path) -> list[tuple[str, list[str]]]:
    """The repository's own scripts, each with its options and their values."""
    commands = [re.split(r"\s*(?:&&|;|\|)\s*", str(step.get("run", ""))) for step in steps(workflow)]
    words = [command.split() for parts in commands for command in parts]
    return [(word[0], word[1:]) for word in words if word and word[0].startswith((".ci/", "scripts/"))]


def test_continuous_integration_runs_the_same_script_on_both_systems() -> None:
    text = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert text["jobs"]["test"]["strategy"]["matrix"]["image"] == ["debian:12", "ubuntu:24.04"]
    assert (".ci/run", []) in called(ROOT / ".github/workflows/ci.yml")
    assert "scripts/release.sh" in [name for name, _ in called(ROOT / ".github/workflows/release.yml")]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_exist_and_take_their_options(workflow: Path) -> None:
    found = called(workflow)
    assert found
    for name, arguments in found:
        assert os.access(ROOT / name, os.X_OK), name
        if arguments:
            shown = subprocess.run([ROOT / name, "--help"], capture_output=True, text=True, check=True).stdout
            for word in arguments:
                assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", shown), f"{name} {word}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_use_no_secret_and_only_the_platforms_own_actions(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    assert "secrets." not in text
    assert all(action.startswith("actions/") for action in re.findall(r"uses: (\S+)", text))
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}, "a job that needs more says so itself"
