"""When the updates of several optimizers end a step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from statagent._runtime.updates import ALIKE, PATIENCE, PATIENCE_NEW, Facts, Updates


class Optimizers:
    """Their parameters by name; which of their models run in every step. `play` makes updates and returns the steps that these make."""

    def __init__(self, idle: str = "", **parameters: set[int]) -> None:
        self._parameters, self._updates = parameters, Updates()
        self._ids = {name: number for number, name in enumerate(parameters)}
        self.idle = idle
        self.counts = dict.fromkeys(self._ids.values(), 0)

    def _facts(self, key: int) -> Facts:
        name = list(self._ids)[key]
        return Facts(frozenset(self._parameters[name]), name not in self.idle or self.counts[key] > 0)

    def play(self, updates: str) -> list[str]:
        steps, now = [], ""
        for name in updates:
            now += name
            self.counts[self._ids[name]] += 1
            if self._updates.complete(self._ids[name], self.counts, self._facts):
                steps.append(now)
                self.counts, now = dict.fromkeys(self.counts, 0), ""
        return [*steps, now] if now else steps


def test_a_step_ends_when_each_has_made_an_update() -> None:
    assert Optimizers(a={1}, b={2}).play("ababba") == ["ab", "ab", "ba"]


def test_a_critic_may_make_many_updates() -> None:
    gan = Optimizers(d={1}, g={2})
    assert gan.play("dg" + "d" * 100 + "g" + "dddddg") == ["dg", "d" * 100 + "g", "dddddg"]


def test_one_that_is_left_out_of_a_step_does_not_shift_those_after_it() -> None:
    assert Optimizers(a={1}, b={2}).play("ab" * ALIKE + "bbab") == ["ab"] * ALIKE + ["b", "b", "ab"]
    assert Optimizers(d={1}, g={2}).play("ddg" * ALIKE + "gddg") == ["ddg"] * ALIKE + ["g", "ddg"]
    assert Optimizers(a={1}, b={2}).play("ab" * (ALIKE - 1) + "bab")[-1] == "b", "fewer steps show no habit"
    assert Optimizers(a={1}, b={2}).play("ab" * ALIKE + "aab") == ["ab"] * ALIKE + ["aab"], "what ends the steps is waited for"


def test_updates_of_several_threads_have_no_order() -> None:
    """Of two that each train a model, the one that has come last so far may come first."""
    trainings = Optimizers(a={1}, b={2})
    with ThreadPoolExecutor(1) as other:
        for _ in range(ALIKE):
            trainings.play("a")
            other.submit(trainings.play, "b").result()
            assert not any(trainings.counts.values()), "a step"
        other.submit(trainings.play, "b").result()
    assert any(trainings.counts.values()), "the step waits for a"


def test_optimizers_of_the_same_parameters_take_turns() -> None:
    assert Optimizers(a={1, 2}, b={1, 2}).play("aaabba") == ["a", "a", "a", "b", "b", "a"]


def test_one_of_a_part_is_not_waited_for_and_the_whole_rests() -> None:
    assert Optimizers(h={1}, a={1, 2}).play("hhhaa") == ["hh", "h", "a", "a"]


def test_one_that_shares_parameters_with_two_others_is_waited_for() -> None:
    """InfoGAN has a third optimizer for both networks."""
    assert Optimizers(d={1}, g={2}, i={1, 2}).play("dgidgi") == ["dgi", "dgi"]


def test_models_that_are_trained_one_after_the_other_do_not_wait_for_each_other() -> None:
    phases = Optimizers(a={1}, b={2}, idle="b")
    assert phases.play("aaaa") == ["aa", "a", "a"]
    phases.idle = "a"
    assert phases.play("bbbb") == ["b", "bb", "b"]
    assert Optimizers(a={1}, b={2}, idle="ab").play("abab") == ["ab", "ab"], "models of an ensemble run one after the other"


def test_one_whose_model_runs_but_is_not_updated_rests_after_a_while() -> None:
    frozen = Optimizers(a={1}, b={2})
    assert frozen.play("a" * (PATIENCE_NEW + 2)) == ["a" * PATIENCE_NEW, "a", "a"]
    assert frozen.play("abab") == ["a", "b", "ab"], "its next update ends the rest"
    assert frozen.play("a" * PATIENCE) == ["a" * PATIENCE]


def test_what_is_known_of_one_that_is_gone_is_forgotten() -> None:
    """Another may get its id."""
    updates = Updates()
    facts = {key: Facts(frozenset({key}), True) for key in (1, 2)}
    assert updates.complete(1, {1: PATIENCE_NEW, 2: 0}, facts.__getitem__)
    assert updates.complete(1, {1: 1, 2: 0}, facts.__getitem__), "2 rests"
    updates.forget(2)
    assert not updates.complete(1, {1: 1, 2: 0}, facts.__getitem__)
