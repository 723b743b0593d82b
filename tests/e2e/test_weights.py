"""`statctl weights`: whether a trainer's weights arrived in the program that uses them. The trainer is cut over two ranks (FSDP2), the
engine is one process that gets a state dict after each update."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT, Collector, Finished, run_command, torchrun

MODEL = textwrap.dedent("""
    import sys, torch, statagent
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16))
    states = sys.argv[1]
""")

TRAINER = MODEL + textwrap.dedent("""
    from torch import distributed
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    mesh = distributed.init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    statagent.init()
    statagent.watch(model, optimizer)
    torch.manual_seed(distributed.get_rank())
    for step in range(3):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if distributed.get_rank() == 0:
            torch.save(whole, f"{states}/{step}.pt")
    statagent.close()
    distributed.destroy_process_group()
""")

ENGINE = MODEL + textwrap.dedent("""
    fault = sys.argv[2]
    model.eval().requires_grad_(False)
    statagent.init()
    for step in range(3):
        received = torch.load(f"{states}/{step}.pt")
        if fault == "stale" and step > 0:
            del received["2.weight"]
        if fault == "transposed":
            received["2.weight"] = received["2.weight"].T.contiguous()
        if fault == "exchanged":
            received["0.bias"], received["2.bias"] = received["2.bias"], received["0.bias"]
        model.load_state_dict(received, strict=False)
        if fault == "cast":
            model.bfloat16()
        recorded = statagent.fingerprint(model, step=step)
        assert recorded == 6, recorded
    statagent.close()
""")


@pytest.fixture(scope="module")
def trained(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the state dicts; the run 'trainer' has their weights."""
    folder = tmp_path_factory.mktemp("states")
    script = folder / "trainer.py"
    script.write_text(TRAINER)
    env = shared_collector.environment(STATAGENT_RUN="trainer")
    done = run_command(torchrun(2, str(script), str(folder)), env=env, timeout=240)
    assert done.code == 0, done.err
    return folder


def weights(collector: Collector, states: Path, fault: str, *arguments: str) -> Finished:
    """Runs an engine with the fault, and asks whether its weights arrived."""
    script = states / "engine.py"
    script.write_text(ENGINE)
    env = collector.environment(STATAGENT_RUN=fault)
    done = run_command([sys.executable, str(script), str(states), fault], env=env)
    assert done.code == 0, done.err
    return collector.statctl("weights", "trainer", fault, *arguments)


def test_weights_that_were_cut_over_ranks_arrive_whole(shared_collector: Collector, trained: Path) -> None:
    done = weights(shared_collector, trained, "none")
    assert done.code == 0, done.out + done.err
    assert done.out.startswith("ARRIVED at step 2: 6 of 6 weights of none are those of trainer bit for bit.")
    assert shared_collector.statctl("weights", "trainer", "none", "--step", "1").code == 0


@pytest.mark.parametrize(
    ("fault", "wrong", "said"),
    [
        ("stale", ["2.weight"], "stale: as in step 0 of trainer"),
        ("transposed", ["2.weight"], "permuted: the same elements in another order"),
        ("exchanged", ["0.bias", "2.bias"], "exchanged: has the elements of 2.bias"),
    ],
)
def test_what_went_wrong_is_said(shared_collector: Collector, trained: Path, fault: str, wrong: list[str], said: str) -> None:
    done = weights(shared_collector, trained, fault)
    assert done.code == 1 and said in done.out, done.out + done.err
    assert f"{6 - len(wrong)} of 6 weights of {fault} are those of trainer bit for bit, {len(wrong)} " in done.out
    answer = json.loads(shared_collector.statctl("weights", "trainer", fault, "--format", "json").out)
    assert [row["name_a"] for row in answer["records"]] == wrong


def test_a_cast_is_no_fault(shared_collector: Collector, trained: Path) -> None:
    done = weights(shared_collector, trained, "cast")
    assert done.code == 0 and "cast: f32 to bf16, no more than rounding" in done.out, done.out + done.err
    asked = json.loads(shared_collector.get("/api/v1/weights?run_a=trainer&run_b=cast"))
    assert {row["state"] for row in asked["records"]} == {"cast"}


def test_a_receiver_in_another_dtype_is_compared_by_bits_if_the_sender_casts(collector: Collector, tmp_path: Path) -> None:
    script = tmp_path / "both.py"
    script.write_text(
        MODEL.replace("sys.argv[1]", "None")
        + textwrap.dedent("""
            statagent.init()
            if sys.argv[1] == "receiver":
                model.bfloat16()
            assert statagent.fingerprint(model, step=4, dtype=torch.bfloat16) == 6
            statagent.close()
        """)
    )
    for run in ("sender", "receiver"):
        done = run_command([sys.executable, str(script), run], env=collector.environment(STATAGENT_RUN=run))
        assert done.code == 0, done.err
    done = collector.statctl("weights", "sender", "receiver")
    assert done.out.startswith("ARRIVED at step 4: 6 of 6 weights of receiver are those of sender bit for bit."), (
        done.out + done.err
    )


def test_the_lines_of_weights_md_run_as_printed(collector: Collector, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/weights.md").read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "engine.py"
    script.write_text(MODEL.replace("sys.argv[1]", "None") + block)
    done = run_command([sys.executable, str(script)], env=collector.environment())
    assert done.code == 0, done.err
    asked = collector.statctl("weights", "engine", "engine", "--step", "40")
    assert asked.out.startswith("ARRIVED at step 40: 6 of 6 weights"), asked.out + asked.err


def test_what_cannot_be_compared_is_an_error(shared_collector: Collector, trained: Path) -> None:
    asked = shared_collector.statctl("weights", "trainer", "trainer", "--step", "99")
    assert asked.code == 2 and "not both have weights in step 99" in asked.err, asked.err
    assert shared_collector.statctl("weights", "trainer", "nobody").code == 2
