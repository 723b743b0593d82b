"""Plain PyTorch programs without a line of ours, recorded as `statctl run` does: the same records as by hand, the same training as without."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from auto_runs import (
    assert_same,
    bare,
    by_hand,
    environment,
    has,
    lines,
    plain,
    program,
    record,
    record_each,
    scalars,
    summary,
)
from conftest import Collector, Finished

AS_BY_HAND = [
    "nanogpt", "workers", "amp", "gan", "parts", "two_models", "disjoint", "teacher", "copies", "held", "wrapped_optimizer", "closure",
]  # fmt: skip
FOLLOWING = {  # models whose weights change without an optimizer
    "nanogpt": "average (AveragedModel)",
    "teacher": "average (Sequential)",
    "copies": "model.slow (Sequential) and learner.targets_0 (Sequential)",
}
PHASES = {"taking_turns": 8, "rebuilt": 8, "two_phases": 6}
NOT_RECORDED = {
    "without_optimizer": "nothing was recorded: backward() was called, but no torch.optim.Optimizer was made; add statagent.init()",
    "bare_tensor": "nothing was recorded: no torch.nn.Module has the parameters of the SGD that was made; add statagent.init()",
    "never_trained": "nothing was recorded: an optimizer was made, but nothing was trained with it",
    "scripted": "cannot record without a line: watch: found a RecursiveScriptModule as model, which does not accept hooks",
}
LATE = {"evaluation_mode": "is trained in evaluation mode", "direct_forward": ""}
ENDINGS = {
    "raises": (1, "interrupted"),
    "exits": (3, "finished"),
    "leaves": (4, ""),
}  # os._exit may leave before anything is sent
OWN = ["by_itself", "late_init"]
EACH = [*AS_BY_HAND, "compiled", "compiled_step", "resumed", *PHASES, *NOT_RECORDED, *LATE, *ENDINGS, *OWN]


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> dict[str, Finished]:
    """What each program did, without a line of ours; its run is named after it."""
    jobs = {
        **{case: plain(case) for case in EACH},
        "stopped": plain("nanogpt", "STATAGENT_STOP_AFTER=2"),
        "badly": plain("teacher", "STATAGENT_STOP_AFTER=soon"),
        "some": plain("nanogpt", "STATAGENT_STOP_AFTER=3", "STATAGENT_STEPS=0"),
        "graph": plain("compiled", "STATAGENT_STOP_AFTER=2"),
        "quiet": plain("teacher", "STATAGENT_QUIET=1"),
        "page": plain("teacher", "STATAGENT_PAGE=http://127.0.0.1:7434/", "STATAGENT_STEPS=0-1"),
        "away": plain("teacher", "STATAGENT_COLLECTOR=127.0.0.1:1", "STATAGENT_CONNECT_TIMEOUT=0.1"),
    }
    found = record_each(shared_collector, jobs)
    again = record_each(shared_collector, {"quiet": plain("teacher")})
    return {**found, "taken": again["quiet"]}


@pytest.fixture(scope="module")
def without() -> Callable[[str], Finished]:
    """What a program does that is not recorded."""
    return functools.cache(lambda case: bare(*program("plain.py", case)))


@pytest.mark.parametrize("case", AS_BY_HAND)
def test_a_program_without_a_line_of_ours_is_recorded_as_one_that_calls_the_agent(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished], case: str
) -> None:
    hand = by_hand(shared_collector, f"{case}-hand", *program("plain.py", case, "--hand"))
    auto = recorded[case]
    assert without(case).code == hand.code == auto.code == 0, auto.err
    assert auto.out == without(case).out == hand.out, "the training is the same bit for bit, and its output"
    assert_same(shared_collector, f"{case}-hand", case)
    begin, end = lines(auto)
    assert begin.startswith(f"recording run '{case}': ") and begin.endswith(", every step"), begin
    left_out = f"; not recorded: {FOLLOWING[case]}, whose weights change without an optimizer" if case in FOLLOWING else ""
    assert end.startswith(f"run '{case}': 4 steps, "), end
    assert end.endswith(f", none lost{left_out}; next: statctl diff {case} OTHER"), end
    if case in ("nanogpt", "workers", "amp", "parts", "teacher"):
        losses = [float(line.split()[1]) for line in auto.out.splitlines() if line.startswith("loss")]
        assert [value for _, _, value in scalars(shared_collector, case, "loss")] == pytest.approx(losses)
        assert scalars(shared_collector, case, "loss") == scalars(shared_collector, f"{case}-hand", "loss")


def test_a_process_of_its_own_is_recorded_as_one_of_many(collector: Collector, without: Callable[[str], Finished]) -> None:
    auto = record(collector, "auto", *program("plain.py", "nanogpt"), cold=True)
    assert auto.code == 0 and auto.out == without("nanogpt").out
    by_hand(collector, "hand", *program("plain.py", "nanogpt", "--hand"))
    assert_same(collector, "hand", "auto")


@pytest.mark.parametrize("case", ["compiled", "compiled_step"])
def test_torch_compile_is_recorded_and_not_disturbed(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished], case: str
) -> None:
    auto = recorded[case]
    assert auto.code == 0 and auto.out == without(case).out and "loss" in auto.out, auto.err
    assert summary(shared_collector, case)["steps"] == 4
    if case == "compiled":
        by_hand(shared_collector, "compiled-hand", *program("plain.py", case, "--hand"))
        assert_same(shared_collector, "compiled-hand", case)
    # A compiled function that calls the model hides its passes: only weights, gradients of weights and state are recorded.
    names = ("lm_head", "blocks.1.mlp.0") if case == "compiled" else ("lm_head.weight", "blocks.1.mlp.0.weight")
    assert all(has(shared_collector, case, name) for name in names)


def test_losses_of_a_gan_are_called_as_their_variables(shared_collector: Collector, recorded: dict[str, Finished]) -> None:
    assert [step for step, _, _ in scalars(shared_collector, "gan", "err_g")] == [0, 1, 2, 3]
    assert [step for step, _, _ in scalars(shared_collector, "gan", "err_real")] == [0, 1, 1, 2, 3]
    assert lines(recorded["gan"])[0] == (
        "recording run 'gan': net_d (Sequential, 3 layers, 289 parameters) with Adam and net_g (Sequential, 3 layers, 544 parameters) "
        "with Adam, every step"
    )


@pytest.mark.parametrize("case", PHASES)
def test_optimizers_that_follow_each_other_end_each_step(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished], case: str
) -> None:
    """Where two models follow each other, the first two updates of each are one step: it is not known yet that the other one rests."""
    assert recorded[case].code == 0 and recorded[case].out == without(case).out
    assert summary(shared_collector, case)["steps"] == PHASES[case], recorded[case].err


def test_a_program_that_calls_the_agent_is_left_alone(shared_collector: Collector, recorded: dict[str, Finished]) -> None:
    auto = recorded["by_itself"]
    assert auto.code == 0 and "run by_itself" in auto.out, auto.err
    assert all(has(shared_collector, "by_itself", name) for name in ("mine", "mine.0", "mine.2"))
    assert not has(shared_collector, "by_itself", "Sequential")
    assert len(scalars(shared_collector, "by_itself", "my loss")) == 4
    assert shared_collector.statctl("scalars", "by_itself", "--name", "loss").code == 2, "ours is not logged"
    assert lines(auto)[0].startswith("recording run 'by_itself': mine (Sequential")


def test_a_program_that_calls_the_agent_after_its_first_pass_keeps_the_run(
    shared_collector: Collector, recorded: dict[str, Finished]
) -> None:
    auto = recorded["late_init"]
    assert auto.code == 0 and summary(shared_collector, "late_init")["steps"] == 4
    said = "init(run='another-name'): this process records run 'late_init' already, from before this call; it goes on"
    assert said in lines(auto), auto.err


@pytest.mark.parametrize("case", NOT_RECORDED)
def test_what_cannot_be_recorded_is_said_once(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished], case: str
) -> None:
    assert recorded[case].code == 0 and recorded[case].out == without(case).out
    assert [line[: len(NOT_RECORDED[case])] for line in lines(recorded[case])] == [NOT_RECORDED[case]], recorded[case].err
    assert not summary(shared_collector, case).get("records")


@pytest.mark.parametrize("case", LATE)
def test_models_that_are_not_called_in_training_mode_are_found_at_their_backward_pass(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished], case: str
) -> None:
    assert recorded[case].code == 0 and recorded[case].out == without(case).out
    assert summary(shared_collector, case)["steps"] == 4 and has(shared_collector, case, "0.weight")
    assert any(LATE[case] in line for line in lines(recorded[case]))


@pytest.mark.parametrize("case", ENDINGS)
def test_a_program_that_ends_badly_keeps_its_exit_code_and_output(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished], case: str
) -> None:
    (code, state), auto, plainly = ENDINGS[case], recorded[case], without(case)
    assert auto.code == plainly.code == code and auto.out == plainly.out
    last = "".join(line for line in plainly.err.splitlines()[-1:])
    assert auto.err.count("Traceback") == plainly.err.count("Traceback") and last in auto.err
    found = summary(shared_collector, case)
    assert case == "leaves" or (found["steps"], found["state"]) == (3, state), found


def test_an_interrupt_ends_the_program_as_without_us(collector: Collector) -> None:
    process = subprocess.Popen(
        program("plain.py", "interrupted"),
        env=environment(collector, "cut"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and err.count("Traceback") == 1 and "\nKeyboardInterrupt\n" in err, err
    assert "run 'cut': 3 steps, " in err and summary(collector, "cut")["state"] == "interrupted"


def test_a_training_ends_after_the_steps_that_are_asked_for(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished]
) -> None:
    cut = recorded["stopped"]
    hand = by_hand(shared_collector, "stopped-hand", *program("plain.py", "nanogpt", "--hand"), STATAGENT_STOP_AFTER="2")
    whole = without("nanogpt").out
    assert cut.code == hand.code == 0 and cut.out == hand.out and whole.startswith(cut.out) and len(cut.out) < len(whole)
    assert "run 'stopped': 2 steps, " in cut.err and summary(shared_collector, "stopped")["steps"] == 2
    assert_same(shared_collector, "stopped-hand", "stopped")
    # What the training did after its last update is still there, and the evaluation before the next pass.
    assert len([line for line in cut.out.splitlines() if line.startswith("evaluation")]) == 2
    bad = recorded["badly"]
    assert bad.code == 0 and "STATAGENT_STOP_AFTER is 'soon'; expected a whole number of steps from 1" in bad.err


def test_a_training_ends_after_its_steps_where_only_some_are_recorded_and_in_a_compiled_graph(
    shared_collector: Collector, recorded: dict[str, Finished]
) -> None:
    some, graph = recorded["some"], recorded["graph"]
    assert some.code == 0 and "run 'some': 3 steps, " in some.err and "AdamW, steps 0\n" in some.err
    assert graph.code == 0 and "run 'graph': 2 steps, " in graph.err, graph.err
    assert graph.out.count("loss") == 2 and "weights" not in graph.out


def test_a_training_that_goes_on_from_a_checkpoint_begins_at_its_next_step(
    shared_collector: Collector, recorded: dict[str, Finished], without: Callable[[str], Finished]
) -> None:
    found = recorded["resumed"]
    assert found.code == 0 and found.out == without("resumed").out
    assert "every step, from step 6, as the optimizer has made 6 updates\n" in found.err
    of_run = summary(shared_collector, "resumed")
    assert (of_run["steps"], of_run["first_step"], of_run["last_step"]) == (4, 6, 9), of_run
    weights = shared_collector.json("tensor", "resumed", "0.0.weight", "--kind", "weight")["records"]
    assert [(each["step"], each["mode"]) for each in weights] == [(6, "init"), *((step, "train") for step in range(6, 10))]


def test_the_lines_can_be_left_out_and_name_the_page_and_the_steps(
    shared_collector: Collector, recorded: dict[str, Finished]
) -> None:
    quiet = recorded["quiet"]
    assert quiet.code == 0 and quiet.err == "" and summary(shared_collector, "quiet")["steps"] == 4
    begin, end = lines(recorded["page"])
    assert begin == "recording run 'page': Sequential (3 layers, 544 parameters) with SGD, steps 0-1; page http://127.0.0.1:7434/"
    assert end.startswith("run 'page': 4 steps, ")


def test_records_that_are_lost_are_said_in_the_last_line(
    recorded: dict[str, Finished], without: Callable[[str], Finished]
) -> None:
    away = recorded["away"]
    assert away.code == 0 and away.out == without("teacher").out
    last = lines(away)[-1]
    assert last.startswith("run 'away': 4 steps, ") and " lost (" in last and "next:" not in last, last


def test_an_agent_that_cannot_start_is_said_once_and_changes_nothing(
    recorded: dict[str, Finished], without: Callable[[str], Finished]
) -> None:
    taken = recorded["taken"]
    assert taken.code == 0 and taken.out == without("teacher").out
    (line,) = lines(taken)
    assert (
        line.startswith("cannot record without a line: ") and "the name is taken" in line and line.endswith("; training goes on")
    ), line


def test_an_interpreter_that_only_looks_pays_nothing(collector: Collector) -> None:
    """No module of ours is imported before an optimizer is made."""
    script = "import sys, torch; print([name for name in sys.modules if name.startswith('statagent')], torch.nn.Module.__call__.__name__)"
    done = record(collector, "none", sys.executable, "-c", script, cold=True)
    assert done.out == "[] _wrapped_call_impl\n" and done.err == "", done.err
    assert os.environ.get("STATAGENT_AUTO") is None
