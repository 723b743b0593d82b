"""The eight rows of changes and bugs on which the verdict once was wrong, each trained for real: rounding is called rounding, and a bug is named
where it is, with its cause. verdict_rows.py has what each run changes."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Collector, run_command
from framework_runs import observations
from verdict_rows import CHANGES, STEPS

PROGRAM = ROOT / "tests" / "e2e" / "verdict_rows.py"
TOLERANCE = 1e-4  # of f32
# Trained in two processes, which take about as long.
SHARES = (
    ("seq2seq", "bf16", "cnn", "gan", "moe", "speech"),
    ("gpt", "joint", "rmsprop", "adagrad", "muon", "ownadam", "ownsigns"),
)


@pytest.fixture(scope="module")
def runs(shared_collector: Collector) -> Collector:
    env = shared_collector.environment()

    def train(families: tuple[str, ...]) -> None:
        names = [run for run in CHANGES if run.partition(".")[0] in families]
        done = run_command([sys.executable, str(PROGRAM), *names], env=env)
        assert done.code == 0, done.err

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, SHARES))
    return shared_collector


def text_of(runs: Collector, a: str, b: str, code: int) -> str:
    done = runs.statctl("diff", a, b)
    assert done.code == code, done.out + done.err
    return done.out


def root_of(runs: Collector, a: str, b: str) -> Any:
    report = runs.diff(a, b)
    assert report["verdict"] == "diverged" and report["explained"] is None
    assert report["root"] is not None
    return report["root"]


def place_of(row: Any) -> tuple[int, str, str, str]:
    return row["step"], row["stage"], row["kind"], row["activation"]


def agreeing_before(runs: Collector, a: str, root: Any, folder: Path, losses: int) -> int:
    """How many records of A come before the root in its step and those before: tensors, and so many losses."""
    rows = observations(runs, a, folder)
    named = {name: str(root[name]) for name in ("step", "kind", "activation", "output_path")}
    (at,) = (int(row["order"]) for row in rows if named.items() <= row.items() and row["mode"] == "train")
    return losses + sum((int(row["step"]), int(row["order"])) < (root["step"], at) for row in rows)


def curve_of(text: str) -> list[tuple[int, float, float]]:
    """Step, typical distance, largest distance."""
    _, _, table = text.partition("How rounding grows\n")
    rows = re.findall(r"^ +(\d+) +([\d.e-]+) +([\d.e-]+)$", table.partition("\n\n")[0], re.MULTILINE)
    return [(int(step), float(typical), float(largest)) for step, typical, largest in rows]


# --- rounding


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("seq2seq", "seq2seq.threads"),
        ("gan.last", "gan.last_threads"),
        ("bf16", "bf16.kernel_threads"),
        ("gpt", "gpt.kernel"),
        ("joint", "joint.kernel"),
    ],
)
def test_threads_and_another_kernel_are_rounding(runs: Collector, a: str, b: str) -> None:
    report = runs.diff(a, b)
    assert (report["verdict"], report["explained"], report["root"]) == ("within_tolerance", "rounding", None)
    assert report["first"] is not None and report["compared"]["diverged"] > 0, "tolerances alone must find fault with it"
    text = text_of(runs, a, b, code=0)
    assert text.startswith(f"SAME UP TO ROUNDING {a} and {b}: ")
    assert "Why there" not in text and "Next:" not in text


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("rmsprop", "rmsprop.kernel"),
        ("muon", "muon.kernel"),
    ],
)
def test_rounding_that_an_optimizer_enlarges_is_rounding(runs: Collector, a: str, b: str) -> None:
    report = runs.diff(a, b)
    assert (report["verdict"], report["explained"], report["root"]) == ("within_tolerance", "rounding", None)
    assert report["compared"]["identical"] < report["compared"]["records"]


def test_experts_in_another_order_are_rounding(runs: Collector) -> None:
    report = runs.diff("moe", "moe.order_threads")
    assert (report["verdict"], report["explained"], report["root"]) == ("within_tolerance", "rounding", None)
    (note,) = [note for note in report["notes"] if "different order" in note]
    assert "at step 0, rank 0, blocks.0.mlp.experts.0.up runs after blocks.0.mlp.experts.3.up" in note
    exact = runs.statctl("diff", "moe", "moe.order_threads", "--exact", "--quiet")
    assert exact.code == 1 and "blocks.0.mlp.experts.0.up" in exact.out, exact.out


def test_blocks_in_another_order_are_a_bug(runs: Collector) -> None:
    root = root_of(runs, "gpt", "gpt.swapped")
    assert place_of(root) == (0, "forward", "output", "b.0.ln1")
    assert (root["reason"], root["confidence"]) == ("order", "certain")


@pytest.mark.parametrize("optimizer", ["rmsprop", "muon"])
def test_an_eps_is_named_whatever_the_optimizer_does(runs: Collector, optimizer: str) -> None:
    root = root_of(runs, optimizer, f"{optimizer}.kernel_eps")
    assert place_of(root) == (0, "forward", "output", "b.2.ln2")


def test_a_bug_in_an_own_optimizer_is_found_beside_another_kernel(runs: Collector) -> None:
    root = root_of(runs, "ownadam", "ownadam.kernel_second")
    assert (root["step"], root["stage"]) == (0, "optimizer") and root["confidence"] != "possible"


@pytest.mark.parametrize("gpt", ["gpt", "joint"])
def test_another_kernel_is_shown_where_it_starts_and_how_it_grows(runs: Collector, gpt: str) -> None:
    text = text_of(runs, gpt, f"{gpt}.kernel", code=0)
    assert re.search(
        r"first difference of any size: step 0, rank 0, forward, b\.0\.attn\.o \(Linear\), distance [1-4](\.\d)?e-7$",
        text,
        re.MULTILINE,
    )
    curve = curve_of(text)
    assert [step for step, _, _ in curve] == list(range(STEPS))
    typical = [distance for _, distance, _ in curve]
    assert 1e-7 < typical[0] and max(typical) < 3e-6
    assert all(1 / 4 < after / before < 4 for before, after in zip(typical, typical[1:]))


# --- eps of a LayerNorm


def test_an_eps_is_named_at_its_module_though_it_shows_later(runs: Collector, tmp_path: Path) -> None:
    root = root_of(runs, "joint", "joint.eps")
    assert place_of(root) == (0, "forward", "output", "b.2.ln2")
    assert root["confidence"] == "certain" and root["alternatives"] == []
    assert 1e-6 < root["distance"] < 4e-6
    assert root["agreeing"] == agreeing_before(runs, "joint", root, tmp_path, losses=0) > 50
    # Which gradients are so small that Adam turns their rounding into steps, and so which step that is, differs from processor to processor.
    above = runs.diff("joint", "joint.eps")["first"]
    assert above["stage"] == "optimizer" and root["above_tolerance"] == above["step"]
    assert root["cause"] == {
        "rule": "module_setting", "text": "eps is 1e-05 in joint and 2e-05 in joint.eps (b.2.ln2)", "confidence": "certain",
        "key": "module.b.*.ln2.eps", "a": "1e-05", "b": "2e-05",
    }  # fmt: skip
    text = text_of(runs, "joint", "joint.eps", code=1)
    assert text.startswith("DIVERGED at step 0, rank 0, forward, b.2.ln2 (LayerNorm): numeric, distance 2")
    assert "everything before it agrees bit for bit" in text
    assert f"{root['agreeing']} records of its rank were compared before it" in text
    place = f"step {above['step']}, rank 0, optimizer, {above['activation']} (Parameter)"
    assert f"first above its tolerance: {place}, distance" in text


@pytest.mark.parametrize("bug", ["joint.kernel_eps", "joint.kernel_unrecorded"])
def test_an_eps_is_named_on_top_of_another_kernel(runs: Collector, bug: str) -> None:
    root = root_of(runs, "joint", bug)
    assert place_of(root) == (0, "forward", "output", "b.2.ln2")
    # Without twins, what only the rules say is likely at most.
    assert root["confidence"] in ("certain", "likely") and root["alternatives"] == [] and root["agreeing"] is None


@pytest.mark.parametrize("bug", ["joint.kernel_unrecorded", "joint.kernel_eps"])
def test_an_eps_on_top_of_another_kernel_is_told_by_its_size(runs: Collector, bug: str) -> None:
    root = root_of(runs, "joint", bug)
    text = text_of(runs, "joint", bug, code=1)
    assert "Rounding explains everything before it." in text and "everything observed before it agrees" not in text
    assert root["times_expected"] > 5
    assert any("times what its inputs and rounding explain" in because for because in root["because"])
    assert "3 modules of its kind stay at about 1 times" in root["because"]


def test_the_cause_of_an_eps_is_named_on_top_of_another_kernel(runs: Collector) -> None:
    cause = root_of(runs, "joint", "joint.kernel_eps")["cause"]
    assert (cause["rule"], cause["confidence"]) == ("module_setting", "certain")
    assert cause["text"] == "eps is 1e-05 in joint and 2e-05 in joint.kernel_eps (b.2.ln2)"


# --- optimizers, buffers, experts


def test_swapped_betas_are_named_in_their_own_optimizer(runs: Collector) -> None:
    root = root_of(runs, "gan", "gan.dis_betas")
    assert place_of(root) == (0, "optimizer", "optimizer_state", "dis.conv1.weight") and root["output_path"] == "exp_avg"
    assert (root["cause"]["rule"], root["cause"]["confidence"]) == ("betas", "certain")
    assert (root["cause"]["key"], root["cause"]["a"], root["cause"]["b"]) == (
        "optimizer.dis.group0.betas", "(0.5, 0.999)", "(0.999, 0.5)",
    )  # fmt: skip
    assert root["confidence"] == "certain" and root["alternatives"] == []
    assert "a recorded setting of the optimizer differs in this step" in root["because"]


def test_a_momentum_of_batch_norm_is_named_in_its_running_statistics(runs: Collector, tmp_path: Path) -> None:
    root = root_of(runs, "cnn", "cnn.momentum")
    assert place_of(root) == (0, "forward", "buffer", "stages.1.bn1.running_mean")
    assert root["confidence"] == "certain" and root["alternatives"] == []
    assert root["agreeing"] == agreeing_before(runs, "cnn", root, tmp_path, losses=0) > 50
    cause = root["cause"]
    assert (cause["rule"], cause["confidence"]) == ("module_setting", "certain")
    assert cause["text"] == "momentum is 0.1 in cnn and 0.2 in cnn.momentum (stages.1.bn1)"


def test_a_late_schedule_is_named_with_both_learning_rates(runs: Collector) -> None:
    root = root_of(runs, "cnn", "cnn.schedule")
    assert place_of(root) == (4, "optimizer", "weight", "stem.weight")
    assert root["confidence"] == "likely"
    cause = root["cause"]
    assert (cause["rule"], cause["confidence"], cause["key"]) == ("learning_rate", "certain", "lr/group0")
    assert (cause["a"], cause["b"]) == ("0.025", "0.05")
    assert cause["text"] == "learning rate of group 0 is 0.025 in cnn and 0.05 in cnn.schedule at step 4"


def test_what_agrees_is_counted_in_all_steps_before_the_root(runs: Collector, tmp_path: Path) -> None:
    root = root_of(runs, "cnn", "cnn.schedule")
    validated = 2  # in steps 1 and 3
    assert root["agreeing"] == agreeing_before(runs, "cnn", root, tmp_path, losses=5 + validated) > 500
    root = root_of(runs, "moe", "moe.expert")
    assert root["agreeing"] == agreeing_before(runs, "moe", root, tmp_path, losses=3) > 500
    text = text_of(runs, "moe", "moe.expert", code=1)
    assert f"{root['agreeing']:,} records of its rank were compared before it" in text


def test_a_learning_rate_is_named_though_the_model_was_validated_after_the_update(runs: Collector) -> None:
    root = root_of(runs, "cnn", "cnn.rate")
    assert place_of(root) == (3, "optimizer", "weight", "stem.weight")
    assert root["confidence"] == "likely"
    assert root["cause"]["text"] == "learning rate of group 0 is 0.05 in cnn and 0.1 in cnn.rate at step 3"


def test_a_scaled_expert_is_named_alone(runs: Collector) -> None:
    report = runs.diff("moe", "moe.expert")
    root = report["root"]
    assert place_of(root) == (3, "forward", "output", "blocks.1.mlp.experts.2")
    assert place_of(report["first"]) == place_of(root)
    assert root["confidence"] == "certain" and root["alternatives"] == []
    assert [place_of(row) for row in report["origins"]] == [place_of(root)]
    assert (root["cause"]["rule"], root["cause"]["confidence"]) == ("tensor_scale", "certain")
    assert root["cause"]["text"].endswith(" in moe.expert is 1.001 times that in moe at step 3")
    assert "independent origins" not in text_of(runs, "moe", "moe.expert", code=1)
