"""`fingerprint`: the parameters of a model that this program does not train."""

from __future__ import annotations

import pytest
import torch

import statagent
from statagent import Agent, InvalidArgumentError, StatagentError, compute

from .models import Net, data, seeded
from .support import Recording


def test_every_parameter_is_recorded_under_the_step_that_is_named(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    count = statagent.fingerprint(net, step=7)
    weights = recording.of("weight", 7)
    assert count == len(weights) == len(list(net.parameters()))
    assert {record.name for record in weights} == {name for name, _ in net.named_parameters()}
    assert all(record.hash == compute(before[record.name])["hash"] for record in weights)
    assert {(record.mode, record.call, record.micro_batch) for record in weights} == {("eval", 0, 0)}
    assert recording.ended_steps == [7] and agent.current_step() == 8
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert statagent.fingerprint(net, step=9) == count and recording.ended_steps == [7, 9]
    assert recording.refusals == []


def test_without_a_number_the_current_step_goes_on(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    assert statagent.fingerprint(net) > 0
    assert recording.ended_steps == [] and {record.step for record in recording.of("weight")} == {0}


def test_a_cast_has_the_bits_that_a_receiver_gets(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    statagent.fingerprint(net, step=1, dtype=torch.bfloat16)
    parameters = dict(net.named_parameters())
    for record in recording.of("weight", 1):
        assert record.dtype == "bf16" and record.hash == compute(parameters[record.name].detach().bfloat16())["hash"]
        assert parameters[record.name].dtype == torch.float32


def test_it_is_not_taken_for_what_an_update_in_the_same_step_leaves(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer)
    with pytest.raises(InvalidArgumentError, match=r"found step=3 in a program whose watched optimizer counts"):
        statagent.fingerprint(net, step=3)
    statagent.fingerprint(net)
    net(data(seed=0)).square().mean().backward()
    optimizer.step()
    modes = [record.mode for record in recording.of("weight", 0) if record.name == "head.weight"]
    assert sorted(modes) == ["eval", "init", "train"] and recording.refusals == []


def test_bad_arguments_are_named(agent: Agent) -> None:
    net = seeded(Net)
    for model, options, message in (
        ("net", {}, "fingerprint: found a str as model"),
        (net, {"step": -1}, "step"),
        (net, {"step": "3"}, "step"),
        (net, {"dtype": torch.int8}, "fingerprint: found torch.int8 as dtype"),
        (net, {"dtype": "bf16"}, "fingerprint: found 'bf16' as dtype"),
        (net, {"name": "a\nb"}, "fingerprint: name is"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            statagent.fingerprint(model, **options)  # type: ignore[arg-type]
    statagent.fingerprint(net, step=5)
    with pytest.raises(InvalidArgumentError):
        statagent.fingerprint(net, step=5)  # it has ended


def test_it_needs_an_agent() -> None:
    with pytest.raises(StatagentError, match="fingerprint: found none as this process's agent"):
        statagent.fingerprint(seeded(Net))
