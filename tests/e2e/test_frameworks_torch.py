"""PyTorch's own ways of training: accumulation, mixed precision, checkpointing; DistributedDataParallel; FSDP of both kinds."""

from __future__ import annotations

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

BLOCK = ["ln", "fc1", "fc2"]
MODULES = ["emb", *(f"blocks.{i}.{part}" for i in (0, 1) for part in BLOCK), "blocks.0", "blocks.1", "head"]
PARAMETERS = ["emb.weight", *(f"blocks.{i}.{part}.{p}" for i in (0, 1) for part in BLOCK for p in ("weight", "bias"))]
PARAMETERS += ["head.weight", "head.bias"]
STEPS = 5


# --- plain PyTorch ---

WAYS = [(amp, checkpoint) for amp in ("none", "bf16", "fp16") for checkpoint in ("none", "reentrant", "non_reentrant")]


@pytest.fixture(scope="module")
def plain(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    jobs = []
    for amp, checkpoint in WAYS:
        run, steps = f"{amp}_{checkpoint}", "12" if amp == "fp16" else str(STEPS)
        job = ["--amp", amp, "--checkpoint", checkpoint, "--steps", steps]
        jobs += [["--run-name", run, *job], ["--run-name", f"{run}_off", *job, "--no-agent"]]
    again = ["--steps", str(STEPS), "--amp", "bf16", "--checkpoint", "non_reentrant"]
    jobs += [["--run-name", "again", *again], ["--run-name", "bug", *again, "--bug-step", "3"]]
    return train(shared_collector, tmp_path_factory.mktemp("plain"), "plain_torch", *jobs)


@pytest.mark.parametrize(("amp", "checkpoint"), WAYS)
def test_plain_training_is_the_same_with_and_without_the_agent(plain: dict[str, Trained], amp: str, checkpoint: str) -> None:
    check_same_training_with_and_without(plain, f"{amp}_{checkpoint}", f"{amp}_{checkpoint}_off")


@pytest.mark.parametrize("checkpoint", ["none", "reentrant", "non_reentrant"])
def test_plain_records_have_modules_steps_and_micro_batches(
    shared_collector: Collector, plain: dict[str, Trained], tmp_path: Path, checkpoint: str
) -> None:
    rows = observations(shared_collector, f"none_{checkpoint}", tmp_path)
    every = [(0, step, micro_batch) for step in range(STEPS) for micro_batch in (0, 1)]
    for kind in ("output", "grad_output"):
        assert sorted(names(rows, kind)) == sorted([*MODULES, "Checkpointed"])
        for module in MODULES:
            assert places(rows, kind, module) == every, (kind, module)
    for kind in ("weight", "weight_grad", "optimizer_state"):
        assert sorted(names(rows, kind, mode="train")) == sorted(PARAMETERS)
    for parameter in PARAMETERS:
        assert (
            places(rows, "weight", parameter) == places(rows, "weight_grad", parameter) == [(0, step, 0) for step in range(STEPS)]
        )
    assert names(rows, "batch") == ["tokens", "targets"]
    assert places(rows, "batch", "tokens") == every
    assert [at[:2] for at in scalars(shared_collector, f"none_{checkpoint}", "loss")] == [place[1:] for place in every]


def test_checkpointing_changes_no_record(shared_collector: Collector, plain: dict[str, Trained], tmp_path: Path) -> None:
    """Recomputed tensors are not recorded twice, and nothing is missing."""

    def content(run: str) -> set[tuple[str, ...]]:
        rows = observations(shared_collector, run, tmp_path)
        found = {
            tuple(row[key] for key in ("step", "micro_batch", "kind", "activation", "output_path", "call", "hash"))
            for row in rows
        }
        assert len(found) == len(rows)
        return found

    for amp in ("none", "bf16"):
        assert content(f"{amp}_none") == content(f"{amp}_reentrant") == content(f"{amp}_non_reentrant")


def test_updates_that_the_scaler_skips_are_no_steps(
    shared_collector: Collector, plain: dict[str, Trained], tmp_path: Path
) -> None:
    rows = observations(shared_collector, "fp16_none", tmp_path)
    steps = {int(row["step"]) for row in rows if row["kind"] == "weight" and row["mode"] == "train"}
    skipped = 12 - len(steps)
    assert 1 <= skipped <= 8, "the scale was to overflow a few times"
    assert steps == set(range(len(steps)))
    # Passes whose update is skipped are further micro-batches of the step; none is lost.
    passes = places(rows, "output", "head")
    assert len(passes) == 2 * 12 and passes == sorted(set(passes))
    assert len([place for place in passes if place[1] == 0]) > 2
    assert len(places(rows, "weight_grad", "head.weight")) == len(steps)


def test_equal_plain_runs_are_identical_and_a_fault_is_found(shared_collector: Collector, plain: dict[str, Trained]) -> None:
    check_identical(shared_collector, "bf16_non_reentrant", "again")
    assert first_difference(shared_collector, "again", "bug") == (3, "forward", "output", "blocks.1.ln")


# --- DistributedDataParallel ---


@pytest.fixture(scope="module")
def ddp(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    steps = ["--steps", str(STEPS)]
    runs = {"ddp": [], "ddp_again": [], "ddp_off": ["--no-agent"], "ddp_bug": ["--bug-step", "2"],
            "ddp_broken": ["--bug-step", "3", "--bug-rank", "1"]}  # fmt: skip
    jobs = [["--run-name", run, *steps, *more] for run, more in runs.items()]
    return train(shared_collector, tmp_path_factory.mktemp("ddp"), "ddp", *jobs, ranks=2)


def test_ddp_is_the_same_with_and_without_the_agent(ddp: dict[str, Trained]) -> None:
    check_same_training_with_and_without(ddp, "ddp", "ddp_off", ranks=2)
    assert ddp["ddp"].weights[0] == ddp["ddp"].weights[1]


def test_ddp_records_both_ranks_under_plain_names(shared_collector: Collector, ddp: dict[str, Trained], tmp_path: Path) -> None:
    rows = observations(shared_collector, "ddp", tmp_path)
    every = [(rank, step, micro_batch) for rank in (0, 1) for step in range(STEPS) for micro_batch in (0, 1)]
    assert sorted(names(rows, "output")) == sorted([*MODULES, "Tiny"])
    for kind in ("output", "grad_output"):
        for module in MODULES:
            assert places(rows, kind, module) == every, (kind, module)
    assert sorted(names(rows, "weight_grad")) == sorted(PARAMETERS)
    check = shared_collector.json("ranks", "ddp")
    assert check["verdict"] == "consistent" and check["compared"]["records"] > 100, check


def test_faults_under_ddp_are_found_at_their_step_and_rank(shared_collector: Collector, ddp: dict[str, Trained]) -> None:
    check_identical(shared_collector, "ddp", "ddp_again")
    assert first_difference(shared_collector, "ddp", "ddp_bug") == (2, "forward", "output", "blocks.1.ln")
    # One rank's gradient of one parameter, after the reduction.
    assert first_difference(shared_collector, "ddp", "ddp_broken") == (3, "grad", "weight_grad", "head.weight")
    finding = shared_collector.json("ranks", "ddp_broken", codes=(0, 1, 2))["findings"][0]
    assert (finding["step"], finding["reason"], finding["activation"]) == (3, "gradients_differ", "head.weight"), finding


# --- FSDP ---


@pytest.fixture(scope="module")
def fsdp(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    jobs = []
    for version in ("1", "2"):
        runs = {"": [], "_again": [], "_off": ["--no-agent"], "_bug": ["--bug-step", "3"]}
        more = ["--version", version, "--steps", str(STEPS)]
        jobs += [["--run-name", f"fsdp{version}{run}", *more, *arguments] for run, arguments in runs.items()]
    return train(shared_collector, tmp_path_factory.mktemp("fsdp"), "fsdp", *jobs, ranks=2)


@pytest.mark.parametrize("run", ["fsdp1", "fsdp2"])
def test_fsdp_is_the_same_with_and_without_the_agent(fsdp: dict[str, Trained], run: str) -> None:
    check_same_training_with_and_without(fsdp, run, f"{run}_off", ranks=2)
    assert fsdp[run].weights[0] != fsdp[run].weights[1]  # each holds its part


@pytest.mark.parametrize("run", ["fsdp1", "fsdp2"])
def test_fsdp_records_plain_names_and_this_ranks_shards(
    shared_collector: Collector, fsdp: dict[str, Trained], tmp_path: Path, run: str
) -> None:
    rows = observations(shared_collector, run, tmp_path)
    every = [(rank, step, 0) for rank in (0, 1) for step in range(STEPS)]
    assert sorted(names(rows, "output")) == sorted([*MODULES, "Tiny"])
    assert {row["class"] for row in rows if row["activation"] in ("blocks.0", "blocks.1")} == {"Block"}
    for kind in ("output", "grad_output"):
        for module in MODULES:
            assert places(rows, kind, module) == every, (kind, module)
    for kind in ("weight", "weight_grad", "optimizer_state"):
        assert sorted(names(rows, kind)) == sorted(PARAMETERS), kind
    # The ranks' shards together are the model, once.
    for name, whole in (("head.weight", 32 * 32), ("blocks.0.fc1.weight", 64 * 32), ("blocks.1.ln.bias", 32)):
        shards = [r for r in rows if (r["activation"], r["kind"], r["step"], r["mode"]) == (name, "weight", "1", "train")]
        assert sum(int(row["numel"]) for row in shards) == whole
    weights = [r for r in rows if (r["kind"], r["step"], r["mode"]) == ("weight", "1", "train")]
    sizes = [sum(int(r["numel"]) for r in weights if r["rank"] == rank) for rank in ("0", "1")]
    assert min(sizes) > 0.4 * sum(sizes)


@pytest.mark.parametrize("run", ["fsdp1", "fsdp2"])
def test_fsdp_is_said_in_the_configuration_and_known_to_ranks(
    shared_collector: Collector, fsdp: dict[str, Trained], run: str
) -> None:
    expected = {"fsdp1": "FullyShardedDataParallel", "fsdp2": "fully_shard"}[run]
    assert f'"{expected}"' in shared_collector.statctl("--format", "json", "show", run).out
    check = shared_collector.json("ranks", run, codes=(2,))
    assert (check["verdict"], check["findings"], check["notes"]) == ("incomparable", [], []), check
    assert "no two ranks hold the same part of a weight" in check["message"], check


@pytest.mark.parametrize("run", ["fsdp1", "fsdp2"])
def test_equal_fsdp_runs_are_identical_and_a_fault_is_found(
    shared_collector: Collector, fsdp: dict[str, Trained], run: str
) -> None:
    check_identical(shared_collector, run, f"{run}_again")
    assert first_difference(shared_collector, run, f"{run}_bug") == (3, "forward", "output", "blocks.1.ln")


# --- what cannot be recorded ---

STRANGE = """
import copy, hashlib, sys, torch, statagent
from torch import nn

class Odd(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, x):
        return self.function(x)

def halves(x):
    yield x / 2

ODD = {
    "sparse": lambda x: x.detach().to_sparse(),
    "quantised": lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8),
    "meta": lambda x: torch.empty(3, device="meta"),
    "nothing": lambda x: None,
    "generator": halves,
}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = nn.ModuleDict({name: Odd(function) for name, function in ODD.items()})
        self.view, self.fc = Odd(lambda x: x[:, :2]), nn.Linear(4, 1)
    def forward(self, x):
        x = x * 1
        for name, odd in self.odd.items():
            found = odd(x)
            if name == "generator":
                x = x + next(found)
        self.view(x).add_(1)  # writes into x, behind the hook
        return self.fc(x)

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
statagent.init(run="strange")
statagent.watch(model, optimizer)
losses = []
for step in range(3):
    copy.deepcopy(model)(torch.ones(2, 4))  # no copy is watched
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(losses, hashlib.sha256(model.fc.weight.detach().numpy().tobytes()).hexdigest())
print(statagent.close(timeout=60), statagent.counters().get("dropped_refused"), file=sys.stderr)
"""


def test_what_cannot_be_recorded_is_an_event_of_the_run(shared_collector: Collector, tmp_path: Path) -> None:
    watched = shared_collector.python(STRANGE)
    plain = shared_collector.python(STRANGE, env={"STATAGENT_DISABLE": "1"})
    assert watched.out == plain.out and len(set(watched.out.split(","))) == 3, "the same training"
    assert watched.err.splitlines()[-1].split() == ["True", "9"], watched.err  # three tensors in three steps
    events = [event for event in shared_collector.json("events", "strange")["records"] if event["kind"] == "not_recorded"]
    reasons = {event["fields"]["name"]: event["fields"]["reason"] for event in events}
    assert len(events) == len(reasons) == 5, events
    for name, reason in {
        "odd.sparse": "torch.sparse_coo", "odd.quantised": "torch.qint8", "odd.meta": "on the meta device",
        "odd.nothing": "found None", "odd.generator": "which iteration would use up",
    }.items():  # fmt: skip
        assert reason in reasons[name], reasons
    assert {(event["step"], event["fields"]["kind"]) for event in events} == {(0, "output")}
    shown = shared_collector.statctl("events", "strange")
    assert "output of 'odd.sparse' is not recorded: found a torch tensor of layout torch.sparse_coo" in shown.out
    rows = observations(shared_collector, "strange", tmp_path)
    assert places(rows, "output", "fc") == places(rows, "output", "view") == [(0, step, 0) for step in range(3)]
    assert {row["max"] for row in rows if (row["kind"], row["activation"]) == ("output", "view")} == {"1.5"}, "before add_(1)"
