"""Twins: the same training with noise in the last places."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import statagent
from statagent._native.noise import NoiseWriter, Part
from statagent._native.torch_noise import write_noise

from .models import Calls, Net, data, seeded
from .support import Record, Recording

Key = tuple[int, str, str, str, int, int]
Train = Callable[[Any, Any], None]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)


def key_of(record: Record) -> Key:
    return record.step, record.name, record.kind, record.path, record.micro_batch, record.call


def hashes(recording: Recording) -> dict[Key, int]:
    return {key_of(record): record.hash for record in recording.records}


def trained(
    recording: Recording,
    perturb: str | None,
    make: Callable[[], nn.Module],
    train: Train | None = None,
    watched: int = 1,
    **init: Any,
) -> dict[Key, int]:
    """Two steps of two micro-batches; what was recorded, by identity."""
    statagent.close(timeout=0)
    recording.records.clear()
    recording._identities.clear()  # handles are those of the next agent
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb=perturb, **init)
    model = seeded(make)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for index in range(watched):
        name = f"w{index}" if index else ""
        statagent.watch(model, optimizer if index == 0 else None, name=name)
    for step in range(2):
        for micro_batch in range(2):
            x = data(seed=10 * step + micro_batch)
            if train is None:
                model(x).square().mean().backward()
            else:
                train(model, x)
        optimizer.step()
        optimizer.zero_grad()
    statagent.close(timeout=0)
    assert recording.refusals == []
    assert [event for event in recording.events if event[1] == "not_perturbed"] == []
    return hashes(recording)


# --- the noise itself


def torch_noise(tensor: torch.Tensor, key: int, step: int, ulps: float, difference: bool) -> torch.Tensor:
    """As NoiseWriter.noisy, by the operators that serve other devices."""
    to = torch.empty_like(tensor)
    source, target = tensor.resolve_conj().resolve_neg(), to
    if tensor.is_complex():
        source, target = torch.view_as_real(source), torch.view_as_real(to)
    strides = [int(torch.Size(source.shape[dim + 1 :]).numel()) for dim in range(source.dim())]
    write_noise(source, target, key, step, ulps, difference, strides, 0)
    return to


def layouts_of(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def of(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 10 ** torch.randn(shape, generator=generator)).to(dtype)

    image = of(4, 3, 5, 7)
    found = [of(), of(1), of(0, 3), of(1000), of(33, 65), image, image.contiguous(memory_format=torch.channels_last), image.mT]
    found += [image[:, :, ::2], image[:1].expand(4, 3, 5, 7), of(9)[1:]]
    if dtype.is_complex:
        return [*found, of(50).conj(), of(50).conj().imag]
    special = of(12)
    limits = torch.finfo(dtype)
    special[:8] = torch.tensor([torch.inf, torch.nan, -torch.inf, 0, -0.0, limits.max, limits.min, limits.tiny / 4], dtype=dtype)
    return [*found, special]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("ulps", [1, 3, 32768, 1 << 20])
def test_library_and_operators_of_torch_give_the_same_noise_bit_for_bit(dtype: torch.dtype, ulps: int) -> None:
    writer = NoiseWriter(ulps)
    for tensor in layouts_of(dtype):
        for difference in (False, True):
            made = writer.noisy(tensor, 0x123456789ABCDEF1, 5, (), difference)
            expected = torch_noise(tensor, 0x123456789ABCDEF1, 5, ulps, difference)
            assert torch.equal(made.nan_to_num(), expected.nan_to_num()) and made.stride() == torch.empty_like(tensor).stride()
        assert torch.equal((tensor + made).nan_to_num(), writer.noisy(tensor, 0x123456789ABCDEF1, 5).nan_to_num())


@pytest.mark.parametrize("dtype", FLOATS[:4], ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_what_is_not_finite_or_would_become_so_stays(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    tensor = torch.tensor([torch.inf, torch.nan, -torch.inf, 0.0, limits.max, limits.min], dtype=dtype).repeat(100)
    made = NoiseWriter(1 << 20).noisy(tensor, 1, 0)
    assert torch.equal(made.isfinite(), tensor.isfinite())
    assert torch.equal(made[tensor == 0], tensor[tensor == 0])


def test_noise_is_uniform_within_its_units_and_independent() -> None:
    ones = torch.ones(1 << 18, dtype=torch.float64)
    writer = NoiseWriter(1)

    def noise(key: int, step: int) -> torch.Tensor:
        return writer.noisy(ones, key, step, (), difference=True) * 2**52

    first = noise(7, 0)
    assert -1 < float(first.min()) < -0.999 and 0.999 < float(first.max()) < 1
    assert abs(float(first.mean())) < 0.005 and abs(float(first.std()) - 3**-0.5) < 0.005
    others = [noise(7, 1), noise(8, 0), first.roll(1), first.roll(64)]
    assert all(abs(float((first * other).mean())) < 0.005 for other in others)


def test_a_part_of_a_tensor_has_the_noise_of_the_whole() -> None:
    writer, whole = NoiseWriter(5), data(rows=12, width=10)
    noisy = writer.noisy(whole, 9, 2)
    assert torch.equal(writer.noisy(whole[4:8], 9, 2, (Part((10, 1), 40),)), noisy[4:8])
    assert torch.equal(writer.noisy(whole[:, 3:7].contiguous(), 9, 2, (Part((10, 1), 3),)), noisy[:, 3:7])
    both = torch.cat([whole[:2], whole[8:10]])
    parts = (Part((10, 1), 0, 0, 0, 2), Part((10, 1), 80, 0, 2, 2))
    assert torch.equal(writer.noisy(both, 9, 2, parts), torch.cat([noisy[:2], noisy[8:10]]))


# --- twins of small trainings


class Odd(nn.Module):
    """What is hard to hook: in-place activations, Identity, GRU, a bare view."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)
        self.same = nn.Identity()
        self.gru = nn.GRU(8, 6, batch_first=True)
        self.flat = nn.Flatten()
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.same(self.act(self.first(x)))
        sequence, _ = self.gru(hidden.unsqueeze(1))
        return self.head(self.flat(sequence))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0))[0]
        return found


def autocast(model: Any, x: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()


MODELS: dict[str, tuple[Callable[[], nn.Module], Train | None]] = {
    "plain": (Net, None),
    "odd": (Odd, None),
    "attention": (Attention, None),
    "bfloat16": (lambda: Net().bfloat16(), lambda model, x: model(x.bfloat16()).float().square().mean().backward()),
    "autocast": (Net, autocast),
    "reentrant": (lambda: Net(checkpoints="reentrant"), lambda model, x: model(x.requires_grad_()).square().mean().backward()),
    "non_reentrant": (lambda: Net(checkpoints="non_reentrant"), None),
    "float64": (lambda: Net().double(), lambda model, x: model(x.double()).square().mean().backward()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_twin_is_the_same_twice_and_differs_from_its_base(recording: Recording, name: str) -> None:
    base = trained(recording, None, *MODELS[name])
    twin = trained(recording, "1", *MODELS[name])
    assert twin == trained(recording, "1,1", *MODELS[name])
    assert twin.keys() == base.keys() == trained(recording, "1,2", *MODELS[name]).keys()
    other = hashes(recording)
    differing = {key for key in base if base[key] != twin[key] and key[2] != "batch"}
    assert len(differing) > 0.6 * len(base), sorted(set(base) - differing)
    assert len([key for key in twin if twin[key] != other[key]]) > 0.6 * len(base)
    kinds = {key[2] for key in differing}
    assert {"output", "grad_output", "weight_grad", "weight"} <= kinds


@pytest.mark.parametrize("checkpoints", ["reentrant", "non_reentrant"])
def test_recomputation_gets_the_same_noise(recording: Recording, checkpoints: str) -> None:
    """The gradients are those of the twin without checkpoints: each recomputed value is the one that the first pass had."""

    def train(model: Any, x: torch.Tensor) -> None:
        model(x.requires_grad_()).square().mean().backward()

    plain = trained(recording, "1000", Net, train)
    again = trained(recording, "1000", lambda: Net(checkpoints=checkpoints), train)
    assert again == plain


def test_loaded_weights_are_those_of_the_base_unless_once(recording: Recording) -> None:
    def initial() -> dict[Key, int]:
        found = {key_of(r): r.hash for r in recording.records if r.kind == "weight" and r.mode == "init"}
        assert len(found) == 10
        return found

    trained(recording, None, Net)
    base = initial()
    trained(recording, "1", Net)
    assert initial() == base
    trained(recording, "1,1,once", Net)
    once = initial()
    assert all(once[key] != base[key] for key in base if not key[1].endswith((".bias", "ln.weight")))


def test_once_leaves_everything_but_the_weights(agent: statagent.Agent, recording: Recording) -> None:
    statagent.close(timeout=0)
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="4,1,once")
    net, x = seeded(Net), data()
    plain = copy.deepcopy(net)
    statagent.watch(net)
    moved = {name: (p - q).abs().max() for (name, p), (_, q) in zip(net.named_parameters(), plain.named_parameters())}
    assert moved["blocks.0.fc.weight"] > 0
    for p, q in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(p, q, rtol=5 * 2**-23, atol=0)
    plain.load_state_dict(net.state_dict())
    assert torch.equal(net(x), plain(x))


def test_noise_is_as_large_as_asked_for(recording: Recording) -> None:
    """Of a linear layer alone, whose output is the only noise there is before the gradients."""
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="32")
    net, x = seeded(lambda: nn.Sequential(nn.Linear(8, 500))), data(100)
    plain = copy.deepcopy(net)
    statagent.watch(net)
    difference = ((net(x) - plain(x)) / plain(x) / 2**-23).detach()
    assert 31 < float(difference.abs().max()) < 33 and abs(float(difference.mean())) < 1


def test_gradients_flow_as_without_noise(recording: Recording) -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="1")
    net, x = seeded(Odd), data()
    plain = copy.deepcopy(net)
    statagent.watch(net)
    net(x).square().mean().backward()
    plain(x).square().mean().backward()
    for p, q in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_second_derivative_goes_through(recording: Recording) -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="1")
    net, x = seeded(Net), data().requires_grad_()
    plain = copy.deepcopy(net)
    statagent.watch(net)

    def penalty(model: Any) -> torch.Tensor:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        found: torch.Tensor = slope.square().sum()
        return found

    for model in (net, plain):
        penalty(model).backward()
    for p, q in zip(net.parameters(), plain.parameters()):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad)


def test_the_trainings_random_numbers_are_untouched(recording: Recording) -> None:
    def drawn(perturb: str | None) -> list[Any]:
        torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
        trained(recording, perturb, Net)
        torch_state = torch.random.get_rng_state().tolist()
        return [torch_state, random.random(), numpy.random.rand()]

    assert drawn(None) == drawn("1") == drawn("1,1,once")


def test_modules_that_pass_their_input_on_are_not_perturbed(recording: Recording) -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="1")
    net = seeded(Odd)
    seen: dict[str, tuple[Any, Any]] = {}
    statagent.watch(net)
    for name, module in net.named_children():
        module.register_forward_hook(lambda _m, args, output, name=name: seen.update({name: (args[0], output)}))
    net(data())
    assert seen["same"][0] is seen["same"][1] and seen["act"][0] is seen["act"][1]
    assert seen["flat"][0].data_ptr() == seen["flat"][1].data_ptr()


def test_outputs_in_containers_are_perturbed_and_keep_their_kind(recording: Recording) -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"a": (x * 2, None, x.long()), "b": [x + 1], "c": torch.max(x, dim=0)}

    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="1000")
    net = Calls(lambda self, x: self.many(x), many=Many())
    plain = Many()(data())
    statagent.watch(net)
    found = net(data())
    assert type(found["c"]) is type(plain["c"]) and torch.equal(found["c"].indices, plain["c"].indices)
    assert not torch.equal(found["c"].values, plain["c"].values)
    assert found["a"][1] is None and torch.equal(found["a"][2], plain["a"][2])
    assert not torch.equal(found["a"][0], plain["a"][0]) and not torch.equal(found["b"][0], plain["b"][0])


def test_a_model_under_two_watches_is_perturbed_once(recording: Recording) -> None:
    assert trained(recording, "1", Net, watched=2).items() >= trained(recording, "1", Net).items()


def test_several_models_are_perturbed(recording: Recording) -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="100")
    first, second = seeded(Net), seeded(Net)
    plain = copy.deepcopy(first)
    statagent.watch(first, name="a")
    statagent.watch(second, name="b")
    x = data()
    assert not torch.equal(first(x), plain(x))
    assert not torch.equal(first(x), second(x)), "the noise depends on the name"


def test_steps_that_are_not_recorded_are_perturbed_as_well(recording: Recording) -> None:
    everything = trained(recording, "1", Net)
    last = trained(recording, "1", Net, steps="1")
    assert {key: value for key, value in everything.items() if key[0] == 1 and key[2] == "output"} == {
        key: value for key, value in last.items() if key[2] == "output"
    }


def test_the_noise_ends_with_the_run(recording: Recording) -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="1000")
    net, x = seeded(Net), data()
    plain = copy.deepcopy(net)
    statagent.watch(net).remove()
    assert not torch.equal(net(x), plain(x)), "the noise belongs to the run, not to the watch"
    statagent.close(timeout=0)
    assert torch.equal(net(x), plain(x))
    assert not net.head._forward_hooks and not net.head.weight._backward_hooks


def test_copies_of_a_perturbed_model_are_plain(recording: Recording) -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="1000")
    net, x = seeded(Net), data()
    plain = copy.deepcopy(net)
    statagent.watch(net)
    assert torch.equal(copy.deepcopy(net)(x), plain(x))


def test_sparse_gradients_are_perturbed(recording: Recording) -> None:
    statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb="1000")
    net = Calls(lambda self, x: self.table(x).sum(), table=nn.Embedding(9, 4, sparse=True))
    statagent.watch(net)
    net(torch.tensor([1, 3, 3])).backward()
    table: Any = net.table
    gradient = table.weight.grad
    assert gradient.is_sparse and not torch.equal(gradient.coalesce().values(), gradient.coalesce().values().round())


# --- compiled graphs


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_is_perturbed_in_its_graph(recording: Recording, backend: str) -> None:
    def make() -> nn.Module:
        torch._dynamo.reset()
        net = Net()
        net.compile(backend=backend, fullgraph=True)
        return net

    base = trained(recording, None, make)
    twin = trained(recording, "1", make)
    assert twin == trained(recording, "1", make)
    assert twin.keys() == base.keys()
    kinds = {key[2] for key in base if base[key] != twin[key]}
    assert {"output", "grad_output", "weight_grad", "weight"} <= kinds
    if (
        backend == "aot_eager"
    ):  # the noise is that of eager mode; the root's hooks are outside of the graph, whose gradient comes in later
        eager = trained(recording, "1", Net)
        assert [key for key in eager if eager[key] != twin[key] and key[1:3] != ("Net", "grad_output")] == []
    torch._dynamo.reset()


# --- names, settings, bad input


def test_a_twin_is_named_after_its_base_and_says_what_it_is(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATAGENT_RUN", "night.3")
    monkeypatch.setenv("STATAGENT_PERTURB", "32,7")
    agent = statagent.init(collector="127.0.0.1:1", connect_timeout=0, config={"recording": {"perturb": "no"}})
    assert agent.run == "night.3.twin-32-7"
    assert {key: value for key, value in recording.config.items() if key.startswith("recording.perturb")} == {
        "recording.perturb": "32", "recording.perturb_seed": "7", "recording.perturb_mode": "leaf", "recording.perturb_base": "night.3",
    }  # fmt: skip


def test_once_is_said_in_the_settings(recording: Recording) -> None:
    agent = statagent.init(run="base", perturb=" 1, once ", collector="127.0.0.1:1", connect_timeout=0)
    assert agent.run == "base.twin-1-1"
    assert recording.config["recording.perturb_mode"] == "once"


BAD = [
    "0",
    "-1",
    "1048577",
    "99999999999999",
    "1.5",
    "x",
    ",",
    "1,",
    "1,2,3",
    "1,-1",
    "1,4294967296",
    "once",
    "1,once,2",
    "1,1,twice",
    "1 2",
]


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("variable", [False, True])
def test_malformed_requests_are_refused(recording: Recording, monkeypatch: pytest.MonkeyPatch, text: str, variable: bool) -> None:
    if variable:
        monkeypatch.setenv("STATAGENT_PERTURB", text)
    with pytest.raises(statagent.InvalidArgumentError) as caught:
        statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb=None if variable else text)
    message = str(caught.value)
    assert ("STATAGENT_PERTURB" if variable else "perturb") in message and repr(text) in message
    assert "expected ULPS[,SEED][,once] with ULPS from 1 to 1048576" in message and "leave it out" in message


def test_a_number_is_no_request(recording: Recording) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="perturb is 1; expected ULPS"):
        statagent.init(run="base", collector="127.0.0.1:1", connect_timeout=0, perturb=1)  # type: ignore[arg-type]


def test_a_twin_of_a_twin_is_refused(recording: Recording) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match=r"which is a twin already; expected the run.*run='base'"):
        statagent.init(run="base.twin-1-2", perturb="1", collector="127.0.0.1:1", connect_timeout=0)


def test_a_name_that_becomes_too_long_is_refused(recording: Recording) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="twin-1-1"):
        statagent.init(run="r" * 125, perturb="1", collector="127.0.0.1:1", connect_timeout=0)


def test_a_twin_without_a_watched_model_says_so(recording: Recording, capfd: pytest.CaptureFixture[str]) -> None:
    statagent.init(run="base", perturb="1", collector="127.0.0.1:1", connect_timeout=0)
    statagent.close(timeout=0)
    assert [text for _, kind, text, _ in recording.events if kind == "not_perturbed"] == [
        "no model was watched, so nothing of this twin is perturbed; expected statagent.watch(model)"
    ]
    assert "no model was watched" in capfd.readouterr().err
