"""The overhead budget, with a simulated clock: which n is chosen, when it changes, and what a rank follows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest

from statagent._runtime.full_steps import WINDOWS_MAX, FullSteps, Range
from statagent._runtime.overhead import LADDER, Controller, find_budget, parse_budget, percent
from statagent._runtime.thinning import PATIENCE_SECONDS, Outside, Thinning
from statagent.errors import InvalidArgumentError


class Simulated:
    """A training whose steps take `base` seconds and cost `full` or `light` seconds of recording; each a function of the step."""

    def __init__(
        self, budget: float, base: Callable[[int], float], full: Callable[[int], float], light: float = 0.0,
        rank: int = 0, world_size: int = 1, first: int = 0,
    ) -> None:  # fmt: skip
        self.base, self.full_cost, self.light = base, full, light
        self.now, self.step = 100.0, first
        self.spent = self.trained = 0.0
        self.recorded: list[int] = []
        self.events: list[tuple[int, str, dict[str, str]]] = []
        self.settings: dict[str, str] = {}
        self.inbox: list[Range] = []
        outside = Outside(rank, world_size, self._take, self._report, self.settings.update, lambda: self.now)
        self.thinning = Thinning(budget, outside)

    def _take(self) -> list[Range]:
        taken, self.inbox = self.inbox, []
        return taken

    def _report(self, text: str, fields: Mapping[str, str]) -> None:
        self.events.append((self.step, text, dict(fields)))

    def run(self, steps: int) -> Simulated:
        for _ in range(steps):
            full = self.thinning.begin_step(self.step)
            cost = self.full_cost(self.step) if full else self.light
            if full:
                self.recorded.append(self.step)
            self.thinning.meter.spent += round(cost * 1e9)
            self.now += self.base(self.step) + cost
            self.spent += cost
            self.trained += self.base(self.step)
            self.thinning.end_step()
            self.step += 1
        return self

    def chosen(self) -> list[int]:
        return [int(fields["every"]) for _, _, fields in self.events]


def always(value: float) -> Callable[[int], float]:
    return lambda _: value


# --- the budget's text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.5 %", 0.005), (" 100% ", 1.0), (".5%", 0.005)])
def test_a_share_is_read(text: str, share: float) -> None:
    assert parse_budget("overhead", text) == pytest.approx(share)


@pytest.mark.parametrize("bad", ["2", "0%", "200%", "abc", "-1%", "", "%", "nan%", "1e1%", 0, 0.02, 2, True, b"2%"])
def test_what_is_not_a_share_is_refused_with_what_was_found_and_expected(bad: object) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_budget("overhead", bad)
    assert repr(bad) in str(raised.value) and "above 0% and up to 100%" in str(raised.value)


def test_the_variable_counts_if_the_argument_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_budget(None) is None
    monkeypatch.setenv("STATAGENT_OVERHEAD", "5%")
    assert find_budget(None) == pytest.approx(0.05)
    assert find_budget("1%") == pytest.approx(0.01)
    monkeypatch.setenv("STATAGENT_OVERHEAD", "5")
    with pytest.raises(InvalidArgumentError, match="STATAGENT_OVERHEAD is '5'"):
        find_budget(None)


def test_a_share_is_said_with_two_digits() -> None:
    assert [percent(share) for share in (0.0171, 0.02, 0.005, 0.5, 1.0)] == ["1.7%", "2%", "0.5%", "50%", "100%"]


# --- the ladder ----------------------------------------------------------------------------------------------------------------


def test_runs_with_any_two_choices_share_the_steps_of_a_third() -> None:
    for one in LADDER:
        for other in LADDER:
            shared = math.lcm(one, other)
            assert shared in LADDER
            assert LADDER.index(shared) <= max(LADDER.index(one), LADDER.index(other)) + 1


def test_steps_in_full_are_ranges_with_divisors_and_windows() -> None:
    steps = FullSteps(7)
    steps.change(12, 10)
    steps.change(40, 2)
    assert steps.add(45, 48) and not steps.add(46, 48)
    assert [step for step in range(60) if step in steps] == [
        7,
        8,
        9,
        10,
        11,
        20,
        30,
        *range(40, 45, 2),
        *range(45, 49),
        50,
        52,
        54,
        56,
        58,
    ]
    assert str(steps) == "7-11/1, 12-39/10, 40-/2, 45-48/1"


def test_a_choice_that_is_replaced_before_it_holds_leaves_no_trace() -> None:
    steps = FullSteps(0)
    steps.change(20, 10)
    steps.change(15, 5)
    assert str(steps) == "0-14/1, 15-/5"


def test_the_number_of_windows_is_bounded() -> None:
    steps = FullSteps(0)
    steps.change(1, 1000)
    assert [steps.add(10 * i + 1, 10 * i + 2) for i in range(WINDOWS_MAX + 1)] == [True] * WINDOWS_MAX + [False]


# --- one rank ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "cost", "every"),
    [(0.02, 0.0, 1), (0.02, 0.002, 1), (0.02, 0.0021, 2), (0.02, 0.017, 10), (0.02, 0.1, 50), (0.001, 0.5, 1000), (0.5, 0.1, 2)],
)
def test_the_finest_choice_within_the_budget_is_made_after_the_first_steps(budget: float, cost: float, every: int) -> None:
    run = Simulated(budget, always(0.1), always(cost)).run(4 * every + 4)
    assert run.chosen() == [every]
    assert run.recorded == [0, 1, 2, 3, *(step for step in range(4, 4 * every + 4) if step % every == 0)]
    assert run.settings["recording.full_steps"] == f"0-3/1, 4-/{every}"


def test_a_steady_training_keeps_its_choice_and_its_budget() -> None:
    run = Simulated(0.02, always(0.1), always(0.017), light=0.0001).run(5000)
    assert run.chosen() == [10]
    assert run.spent / run.trained <= 0.021


def test_what_is_measured_is_stored() -> None:
    run = Simulated(0.02, always(0.1), always(0.017)).run(2004)
    run.thinning.store_measured()
    assert run.settings["recording.overhead"] == "2%"
    assert run.settings["recording.overhead_measured"] == "1.7%"


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_a_third_changes_nothing_after_the_first_reviews(seed: int) -> None:
    draw = random.Random(seed)
    run = Simulated(0.02, lambda _: 0.1 * draw.uniform(0.7, 1.3), lambda _: 0.017 * draw.uniform(0.7, 1.3)).run(20000)
    assert len(run.events) <= 3
    assert set(run.chosen()) <= {5, 10, 20}
    assert run.spent / run.trained <= 0.025


def test_an_expensive_first_step_is_not_measured() -> None:
    run = Simulated(0.02, lambda step: 30.0 if step == 0 else 0.1, lambda step: 20.0 if step == 0 else 0.017).run(2000)
    assert run.chosen() == [10]


def test_one_slow_step_among_the_first_ones_is_outvoted() -> None:
    run = Simulated(0.02, always(0.1), lambda step: 3.0 if step == 2 else 0.017).run(500)
    assert run.chosen() == [10]


def test_a_burst_changes_nothing_and_a_lasting_change_does() -> None:
    burst = Simulated(0.02, always(0.1), lambda step: 0.5 if 300 <= step <= 320 else 0.017).run(3000)
    assert burst.chosen() == [10]
    lasting = Simulated(0.02, always(0.1), lambda step: 0.06 if step >= 300 else 0.017).run(3000)
    assert lasting.chosen() == [10, 50]


def test_a_cost_that_falls_makes_the_choice_finer() -> None:
    run = Simulated(0.02, always(0.1), lambda step: 0.017 if step < 300 else 0.001).run(3000)
    assert run.chosen()[0] == 10
    assert run.chosen()[-1] == 1


def test_a_cost_that_swings_does_not_make_the_choice_swing() -> None:
    run = Simulated(0.02, always(0.1), lambda step: 0.017 if step // 1000 % 2 == 0 else 0.002).run(40000)
    directions = [later > earlier for earlier, later in zip(run.chosen(), run.chosen()[1:])]
    turns = sum(one != other for one, other in zip(directions, directions[1:]))
    assert turns <= 1


def test_cheap_records_beyond_the_budget_leave_half_of_it_to_the_full_ones() -> None:
    run = Simulated(0.02, always(0.1), always(0.013), light=0.004).run(20000)
    assert run.chosen()[-1] == 10
    assert max(run.chosen()) <= 20


def test_the_first_steps_after_a_resume_are_recorded_in_full() -> None:
    run = Simulated(0.02, always(0.1), always(0.017), first=1003)
    run.thinning.begin_step(0)  # init, before set_step
    run.run(30)
    assert run.recorded == [1003, 1004, 1005, 1006, 1010, 1020, 1030]
    assert run.settings["recording.full_steps"] == "1003-1006/1, 1007-/10"


def test_an_alarm_brings_some_steps_in_full() -> None:
    run = Simulated(0.02, always(0.1), always(0.017)).run(53)
    run.inbox.append(Range(49, 49, 1))
    run.run(10)
    assert [step for step in run.recorded if step > 40] == [50, 53, 54, 55, 56, 60]
    assert run.settings["recording.full_steps"] == "0-3/1, 4-/10, 53-56/1"


# --- several ranks -------------------------------------------------------------------------------------------------------------


def test_rank_0_proposes_and_every_rank_changes_in_the_same_step() -> None:
    ranks = [Simulated(0.02, always(0.101), always(cost), rank=rank, world_size=2) for rank, cost in enumerate((0.017, 0.05))]
    for _ in range(40):
        for run in ranks:
            run.run(1)
        for _, _, fields in ranks[0].events:
            announced = Range(int(fields["first"]), None, int(fields["every"]))
            if "announce" in fields and ranks[0].step == 9:
                for run in ranks:
                    run.inbox.append(announced)
    assert ranks[0].recorded == ranks[1].recorded == [*range(14), 20, 30]  # step 4, and a second of 10 steps ahead
    assert not ranks[1].events
    assert ranks[0].settings == ranks[1].settings


def test_a_late_announcement_is_followed_at_once_and_said() -> None:
    run = Simulated(0.02, always(0.1), always(0.017), rank=1, world_size=2).run(25)
    run.inbox.append(Range(14, None, 10))
    run.run(20)
    assert run.recorded == [*range(25), 30, 40]
    assert "learned only in step 25" in run.events[0][1]
    assert run.events[0][2] == {"every": "10", "first": "25"}


def test_a_repeated_announcement_is_ignored() -> None:
    run = Simulated(0.02, always(0.1), always(0.017), rank=1, world_size=2).run(5)
    run.inbox.append(Range(14, None, 10))
    run.run(30)
    run.inbox.append(Range(14, None, 10))
    run.run(10)
    assert not run.events
    assert run.settings["recording.full_steps"] == "0-13/1, 14-/10"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hears_nothing_follows_its_own_measurement(rank: int) -> None:
    patience = round(PATIENCE_SECONDS / 0.117)
    run = Simulated(0.02, always(0.1), always(0.017), rank=rank, world_size=2).run(patience + 30)
    alone = next(first for first, text, _ in run.events if "no choice of rank 0 was announced" in text)
    assert patience <= alone <= patience + 6
    assert all(step in run.recorded for step in range(alone))
    assert [step for step in run.recorded if step >= alone] == [step for step in range(alone, patience + 30) if step % 10 == 0]


def test_a_window_is_followed_and_only_rank_0_answers_an_alarm() -> None:
    for rank in (0, 1):
        run = Simulated(0.02, always(0.101), always(0.017), rank=rank, world_size=2).run(5)
        run.inbox.append(Range(14, None, 10))
        run.run(30)
        run.events.clear()
        run.inbox.append(Range(33, 33, 1))
        run.run(1)
        assert [fields for _, _, fields in run.events] == (
            [{"every": "1", "first": "45", "last": "48", "announce": "1"}] if rank == 0 else []
        )
        run.inbox.append(Range(45, 48, 1))
        run.run(20)
        assert [step for step in run.recorded if step > 40] == [45, 46, 47, 48, 50]


def test_an_announcement_that_is_no_member_of_the_ladder_is_ignored() -> None:
    run = Simulated(0.02, always(0.1), always(0.0), rank=1, world_size=2).run(2)
    run.inbox += [Range(3, None, 7), Range(3, 2**40, 1)]
    run.run(10)
    assert run.recorded == list(range(12))


def test_nothing_is_chosen_before_enough_full_steps() -> None:
    controller = Controller(0.02)
    for _ in range(2):
        controller.note(True, 0.1, 0.05)
        assert controller.choice() is None
