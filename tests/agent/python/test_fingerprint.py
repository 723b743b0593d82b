"""`fingerprint`: the parameters of a model that this program does not train."""

from __future__ import annotations

from types import SimpleNamespace

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


class Linear(torch.nn.Module):
    """A layer that says of itself what vLLM's say: matrices side by side, each cut over tensor-parallel ranks."""

    def __init__(self, matrices: list[torch.Tensor], rank: int = 0, ranks: int = 1, replicas: int = 1, rows: bool = True) -> None:
        super().__init__()
        self.tp_rank, self.tp_size, self.num_kv_head_replicas = rank, ranks, replicas
        here = []
        for number, matrix in enumerate(matrices):
            shared = replicas if number else 1
            here.append(matrix.chunk(ranks // shared, 0 if rows else 1)[rank // shared])
        self.input_size, self.output_size = matrices[0].shape[1], sum(len(matrix) for matrix in matrices)
        self.input_size_per_partition = here[0].shape[1]
        self.output_partition_sizes = [len(part) for part in here]
        self.output_size_per_partition = sum(self.output_partition_sizes)
        self.weight = torch.nn.Parameter(torch.cat(here), requires_grad=False)
        self.weight.output_dim = 0  # type: ignore[attr-defined]


class Vocabulary(torch.nn.Module):
    """Rows of a table, and others that pad it."""

    def __init__(self, table: torch.Tensor, rank: int = 0, ranks: int = 1, multiple: int = 8) -> None:
        super().__init__()
        each = -(-len(table) // (multiple * ranks)) * multiple
        start, stop = min(rank * each, len(table)), min((rank + 1) * each, len(table))
        self.num_embeddings = self.org_vocab_size = len(table)
        self.shard_indices = SimpleNamespace(org_vocab_start_index=start, org_vocab_end_index=stop)
        self.output_partition_sizes = [each]
        self.weight = torch.nn.Parameter(torch.zeros(each, table.shape[1]), requires_grad=False)
        self.weight.data[: stop - start] = table[start:stop]
        self.weight.output_dim = 0  # type: ignore[attr-defined]


def engine(checkpoint: dict[str, torch.Tensor], rank: int = 0, ranks: int = 1, replicas: int = 1) -> torch.nn.Module:
    model, layer = torch.nn.Module(), torch.nn.Module()
    model.packed_modules_mapping = {"qkv_proj": ["q", "k", "v"], "gate_up": ["gate", "up"]}  # type: ignore[assignment]
    model.table = Vocabulary(checkpoint["table.weight"], rank, ranks)
    layer.qkv_proj = Linear([checkpoint[f"layer.{name}.weight"] for name in "qkv"], rank, ranks, replicas)
    layer.gate_up = Linear([checkpoint[f"layer.{name}.weight"] for name in ("gate", "up")], rank, ranks)
    layer.down = Linear([checkpoint["layer.down.weight"]], rank, ranks, rows=False)
    layer.norm = torch.nn.LayerNorm(8, bias=False)
    model.layer = layer
    return model


def checkpoint() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    shapes = {"table": (21, 8), "layer.q": (16, 8), "layer.k": (8, 8), "layer.v": (8, 8), "layer.gate": (12, 8),
              "layer.up": (12, 8), "layer.down": (8, 12)}  # fmt: skip
    return {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}


def test_an_engines_merged_and_padded_layers_are_recorded_as_the_checkpoint_has_them(agent: Agent, recording: Recording) -> None:
    expected = checkpoint()
    model = engine(expected)
    assert statagent.fingerprint(model, step=1) == len(expected) + 1
    found = {record.name: record for record in recording.of("weight", 1)}
    assert {name: found[name].hash for name in expected} == {name: compute(value)["hash"] for name, value in expected.items()}
    assert found.keys() - expected.keys() == {"layer.norm.weight"}
    assert found["layer.q.weight"].parent == "layer.q"
    packed = model.layer.qkv_proj  # type: ignore[union-attr]
    packed.weight = torch.nn.Parameter(torch.zeros(32, 4), requires_grad=False)  # type: ignore[union-attr] # a kernel's form, which says nothing of itself
    statagent.fingerprint(model, step=2)
    assert "layer.qkv_proj.weight" in {record.name for record in recording.of("weight", 2)}


def test_sglang_names_its_merged_layers_another_way(agent: Agent, recording: Recording) -> None:
    expected = checkpoint()
    model = engine(expected)
    del model.packed_modules_mapping, model.table.output_partition_sizes  # type: ignore[union-attr]
    parts = {"q": "qkv_proj", "k": "qkv_proj", "v": "qkv_proj", "gate": "gate_up", "up": "gate_up"}
    numbers = {"q": 0, "k": 1, "v": 2, "gate": 0, "up": 1}
    model.bitsandbytes_stacked_params_mapping = {f".{part}": (f".{whole}", numbers[part]) for part, whole in parts.items()}  # type: ignore[assignment]
    statagent.fingerprint(model, step=1)
    found = {record.name: record.hash for record in recording.of("weight", 1)}
    assert {name: found[name] for name in expected} == {name: compute(value)["hash"] for name, value in expected.items()}


def test_weights_that_a_kernel_has_taken_are_not_taken_for_others(agent: Agent, recording: Recording) -> None:
    model = engine(checkpoint())
    down = model.layer.down  # type: ignore[union-attr]
    down.quant_method = object()  # type: ignore[union-attr]
    down.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)  # type: ignore[union-attr]
    assert statagent.fingerprint(model, step=1) == 0
    assert recording.of("weight", 1) == [] and agent.current_step() == 2
    reasons = [fields["reason"] for _, kind, _, fields in recording.events if kind == "not_recorded"]
    assert len(reasons) == 1 and "layer.down.weight without elements" in reasons[0] and "set_step" in reasons[0]


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (4, 1), (4, 2)])
def test_parts_of_an_engines_tensor_parallel_ranks_add_up_to_the_checkpoint(
    agent: Agent, recording: Recording, ranks: int, replicas: int
) -> None:
    expected = checkpoint()
    for rank in range(ranks):
        statagent.fingerprint(engine(expected, rank, ranks, replicas), step=rank)
    for name, value in expected.items():
        parts = [record for record in recording.of("weight") if record.name == name]
        shared = replicas if name in ("layer.k.weight", "layer.v.weight") else 1
        assert all(record.placement is not None and record.placement.global_shape == value.shape for record in parts)
        assert sum(record.hash for record in parts[::shared]) % 2**64 == compute(value)["hash"], name
