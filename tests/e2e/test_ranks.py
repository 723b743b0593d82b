"""statctl ranks over real training on several ranks: clean runs are consistent, planted faults are found where they are."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import Collector, run_command, torchrun

# One launch trains a run for each fault, one after the other: starting torch takes longer than training.
SCRIPT = textwrap.dedent("""
    import os, sys, torch, statagent
    from torch import distributed, nn

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")

    def train(fault, run, config):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
        ddp = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        at = {"step": 0, "before": None}

        def keep_old(*_):  # registered before the agent's hook: it sees what this leaves
            if (fault == "stale" and rank == 1 and at["step"] == 3) or fault == "frozen":
                with torch.no_grad():
                    model[2].weight.copy_(at["before"])

        optimizer.register_step_post_hook(keep_old)
        statagent.init(run=run, config=config)
        # The module that DDP wraps says nothing of where its weights are.
        watch = statagent.watch(model if run == "sharded" else ddp, optimizer=optimizer)
        for step in range(6):
            data = torch.Generator().manual_seed(100 * step + (0 if fault == "same_data" else rank))
            x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
            statagent.log_batch(x=x, y=y)
            at["step"], at["before"] = step, model[2].weight.detach().clone()
            ddp.require_backward_grad_sync = not (fault == "no_reduce" and step >= 2)
            if fault == "nan" and rank == 1 and step == 4:
                x = x * float("nan")
            loss = nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
            reduced = loss.detach().clone()
            distributed.all_reduce(reduced)
            statagent.log_scalar("reduced_loss", reduced + (0.5 if fault == "loss" and rank == 0 and step == 5 else 0))
            statagent.log_scalar("loss", loss)
            optimizer.step()
            optimizer.zero_grad()
        watch.remove()
        statagent.close(timeout=10)
        distributed.barrier()

    for job in sys.argv[1:]:
        fault, run, *pairs = job.split(",")
        train(fault, run, dict(pair.split("=") for pair in pairs))
    distributed.destroy_process_group()
""")


def train(collector: Collector, folder: Path, ranks: int, *jobs: str) -> None:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    done = run_command(torchrun(ranks, str(script), *jobs), env=collector.environment(), timeout=240)
    assert done.code == 0, done.out + done.err


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    folder = tmp_path_factory.mktemp("ranks")
    faults = ("none", "stale", "no_reduce", "same_data", "frozen", "nan", "loss")
    train(
        shared_collector,
        folder,
        2,
        *(f"{fault},{fault}" for fault in faults),
        "stale,sharded,fsdp=full_shard",
        "stale,replicas,fsdp=full_shard",
    )
    train(shared_collector, folder, 4, "none,clean4", "stale,stale4")
    return shared_collector


def check(collector: Collector, run: str, *arguments: str) -> Any:
    return collector.json("ranks", run, *arguments, codes=(0, 1, 2))


def test_clean_training_is_consistent_on_two_and_four_ranks(runs: Collector) -> None:
    for run, ranks in (("none", 2), ("clean4", 4)):
        report = check(runs, run)
        assert report["verdict"] == "consistent", report
        assert report["findings"] == [] and report["notes"] == []
        assert report["groups"] == [{"ranks": list(range(ranks))}]
        assert report["steps"] == {"first": 0, "last": 5}
        assert report["compared"]["identical"] == report["compared"]["records"] > 100
    done = runs.statctl("ranks", "none")
    assert done.code == 0 and done.out.startswith("CONSISTENT none: ranks 0, 1 agree"), done.out


@pytest.mark.parametrize("run", ["stale", "stale4"])
def test_stale_weight_is_found_at_its_step_and_rank(runs: Collector, run: str) -> None:
    report = check(runs, run)
    assert report["verdict"] == "inconsistent"
    first = report["findings"][0]
    assert (first["step"], first["ranks"], first["stage"], first["kind"]) == (3, [1], "optimizer", "weight"), report
    assert (first["activation"], first["reason"]) == ("2.weight", "weights_differ")
    assert first["distance"] > 0 and first["propagated"] is False
    assert first["outvoted"] == (run == "stale4")
    done = runs.statctl("ranks", run)
    assert done.code == 1 and done.out.startswith(f"INCONSISTENT {run}, from step 3 on: Rank 1 "), done.out
    assert check(runs, run, "--steps", "0-2")["verdict"] == "consistent"


def test_skipped_all_reduce_is_found_in_the_gradients(runs: Collector) -> None:
    findings = check(runs, "no_reduce")["findings"]
    first = findings[0]
    assert (first["step"], first["ranks"], first["stage"], first["reason"]) == (2, [0, 1], "grad", "gradients_differ"), findings
    assert first["activations"] == 6 and first["steps"] == 4
    assert [f["propagated"] for f in findings] == [False] + [True] * (len(findings) - 1)


@pytest.mark.parametrize(
    ("run", "reason", "step", "ranks"),
    [("same_data", "same_batch", 0, [0, 1]), ("frozen", "frozen_weight", 0, [0, 1]), ("nan", "nonfinite", 4, [1]),
     ("loss", "loss_differs", 5, [0, 1])],
)  # fmt: skip
def test_other_faults_are_named(runs: Collector, run: str, reason: str, step: int, ranks: list[int]) -> None:
    report = check(runs, run)
    first = report["findings"][0]
    assert (first["reason"], first["step"], first["ranks"]) == (reason, step, ranks), report["findings"]


def test_shards_by_configuration_are_not_compared(runs: Collector) -> None:
    report = check(runs, "sharded")
    assert report["verdict"] == "incomparable" and report["findings"] == []
    assert any("sharded" in note for note in report["notes"])
    assert runs.statctl("ranks", "sharded").code == 2
    assert check(runs, "replicas")["verdict"] == "inconsistent", "the placements of DDP's weights say that they are whole"
