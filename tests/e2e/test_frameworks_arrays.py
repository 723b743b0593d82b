"""NumPy and JAX: no hooks, so the script names what is recorded; inside of jit through callbacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Collector
from framework_runs import (
    Trained,
    check_identical,
    check_same_training_with_and_without,
    first_difference,
    names,
    observations,
    places,
    scalars,
    train,
)

STEPS = 6


@pytest.fixture(scope="module", params=["numpy", "jax"])
def arrays(
    request: pytest.FixtureRequest, shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Trained]]:
    library = request.param
    runs = {"": [], "_again": [], "_off": ["--no-agent"], "_bug": ["--bug-step", "3"]}
    jobs = [["--run-name", library + run, "--steps", str(STEPS), *arguments] for run, arguments in runs.items()]
    return library, train(shared_collector, tmp_path_factory.mktemp(library), f"{library}_loop", *jobs)


def test_loop_is_the_same_with_and_without_the_agent(arrays: tuple[str, dict[str, Trained]]) -> None:
    library, runs = arrays
    check_same_training_with_and_without(runs, library, f"{library}_off")


def test_loop_records_every_step(shared_collector: Collector, arrays: tuple[str, dict[str, Trained]], tmp_path: Path) -> None:
    library, runs = arrays
    rows = observations(shared_collector, library, tmp_path)
    every = [(0, step, 0) for step in range(STEPS)]
    assert names(rows, "batch") == ["x", "y"]
    for name in ("hidden", "output"):
        assert places(rows, "inspect", name) == every
    if library == "jax":
        assert names(rows, "inspect_grad") == ["output", "hidden"]  # backwards
        assert (
            sorted(names(rows, "weight")) == sorted(names(rows, "weight_grad")) == ["first.b", "first.w", "second.b", "second.w"]
        )
        assert places(rows, "inspect_grad", "hidden") == places(rows, "weight", "first.w") == every
    else:
        assert places(rows, "inspect", "weight.w1") == places(rows, "inspect", "grad.b2") == every
    assert [at[2] for at in scalars(shared_collector, library, "loss")] == [float(loss) for _, loss in runs[library].losses[0]]


def test_equal_loops_are_identical_and_a_fault_is_found(
    shared_collector: Collector, arrays: tuple[str, dict[str, Trained]]
) -> None:
    library, _ = arrays
    check_identical(shared_collector, library, f"{library}_again")
    assert first_difference(shared_collector, library, f"{library}_bug") == (3, "forward", "inspect", "hidden")


# --- without the frameworks ---


@pytest.mark.parametrize("module", ["transformers", "lightning", "jax"])
def test_integration_without_its_package_says_what_to_install(module: str, tmp_path: Path) -> None:
    """`statagent` alone imports none of them; the integration names the package."""
    script = f"""
import sys
import statagent
assert not [name for name in ("transformers", "lightning", "pytorch_lightning", "jax") if name in sys.modules]
for name in ("transformers", "lightning", "pytorch_lightning", "jax"):
    sys.modules[name] = None  # as if it were not installed
try:
    import statagent.integrations.{module}
except ImportError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "agent" / "python")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python -m pip install {module}" in done.stdout
