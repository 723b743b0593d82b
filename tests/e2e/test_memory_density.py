"""Memory and density of real training on two ranks, as statctl shows them."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from conftest import Collector, run_command, torchrun

STEPS = 12
SCRIPT = textwrap.dedent("""
    import os, torch, statagent
    from torch import distributed, nn

    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo")
    torch.manual_seed(1)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(32, 64, padding_idx=0), nn.Linear(64, 8)

        def forward(self, input_ids):
            return self.head(torch.tanh(self.tokens(input_ids)))

    model = nn.parallel.DistributedDataParallel(Tagger())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    statagent.init(run="tagger")
    statagent.watch(model, optimizer=optimizer, memory="modules")
    for step in range(12):
        ids = torch.randint(1, 32, (4, 10))
        ids[0, 4 + step % 3 :] = 0
        ids[1:, 8:] = 0
        labels = torch.where(ids == 0, -100, ids % 8)
        statagent.log_batch(input_ids=ids, labels=labels)
        nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    statagent.close(timeout=20)
    distributed.destroy_process_group()
""")


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    script = Path(tmp_path_factory.mktemp("script")) / "train.py"
    script.write_text(SCRIPT)
    done = run_command(torchrun(2, str(script)), env=shared_collector.environment())
    assert done.code == 0, done.out + done.err
    return shared_collector


def test_memory_of_every_phase(recorded: Collector) -> None:
    records = recorded.json("memory", "tagger")["records"]
    phases = ["pre_forward", "post_forward", "pre_backward", "post_backward", "pre_optimizer", "post_optimizer"]
    expected = [(rank, step, phase) for rank in (0, 1) for step in range(STEPS) for phase in phases]
    assert [(r["rank"], r["step"], r["phase"]) for r in records] == expected
    weights = 4 * (32 * 64 + 64 * 8 + 8)
    last = records[-1]
    assert (last["device"], last["parameter"], last["gradient"]) == ("cpu", weights, weights)
    assert last["optimizer_state"] == 2 * weights + 3 * 4
    assert 0 < last["host_rss"] <= last["host_max_rss"] < last["host_total"]
    assert last["allocated"] is None, "there is no allocator of a GPU here"
    assert {r["step"] for r in recorded.json("memory", "tagger", "--rank", "1", "--step", "3-4")["records"]} == {3, 4}


def test_memory_for_people_and_in_the_reference_form(recorded: Collector) -> None:
    page = recorded.statctl("memory", "tagger").out
    assert re.search(r"^Peak of all phases: \d+\.\d MiB resident on cpu \(rank [01], step \d+, \w+\)\.$", page, re.M)
    assert "Phases of step 11, the last one, in MiB" in page
    assert len(re.findall(r"^ .*post_backward ", page, re.MULTILINE)) == 2
    modules = recorded.statctl("memory", "tagger", "--modules").out
    assert {line.split()[1] for line in modules.splitlines() if re.match(r"\s*[01]  ", line)} == {"tokens", "head", "Tagger"}
    ort = recorded.statctl("memory", "tagger", "--format", "ort").out.splitlines()
    assert len(ort) == 2 * STEPS * 6
    assert all(re.fullmatch(r"rank-[01] step \d+ memory \(MiB\) \| phase: \w+( \| [a-z ]+: \d+)+", line) for line in ort)


def test_density_of_inputs_and_labels(recorded: Collector) -> None:
    records = recorded.json("density", "tagger")["records"]
    assert len(records) == 2 * STEPS * 2
    for record in records:
        valid = [4 + record["step"] % 3, 8, 8, 8]
        assert (record["valid"], record["total"]) == (sum(valid), 40)
        if record["input"] == "input_ids":
            assert (record["type"], record["pad_index"], record["valid_per_sample"]) == ("embed", 0, valid)
        else:
            assert (record["input"], record["type"], record["pad_index"], record["valid_per_sample"]) == (
                "labels",
                "label",
                -100,
                [],
            )


def test_density_for_people_and_in_the_reference_form(recorded: Collector) -> None:
    page = recorded.statctl("density", "tagger", "--input", "input_ids", "--rank", "0").out
    assert "input_ids (embed): 72.5 % of 480 elements are not padding, over 12 batches." in page
    assert re.search(r"input_ids\s+70.00 %\s+28\s+40\s+\[4, 8, 8, 8\]", page)
    ort = recorded.statctl("density", "tagger", "--step", "0", "--rank", "0", "--format", "ort").out.splitlines()
    assert ort[0] == ">>>Valid token/label density (e.g. valid/total) in passing 2 steps:"
    assert (
        ort[2]
        == "\t| 0          | EMBED      | input_ids       | 0          | 70.00    % | 28              | 40              | [4, 8, 8, 8]    |"
    )
    assert ort[3].endswith("| -100       | 70.00    % | 28              | 40              | N/A             |")
    assert ort[-1] == "<<<"
    wrong = recorded.statctl("density", "tagger", "--input", "input_idz")
    assert wrong.code == 2 and "closest: input_ids" in wrong.err


def test_the_http_twins_give_the_same(recorded: Collector) -> None:
    for name in ("memory", "density"):
        twin = json.loads(recorded.get(f"/api/v1/{name}?run=tagger&steps=2"))
        assert twin == recorded.json(name, "tagger", "--step", "2")


def test_exports_have_them(recorded: Collector, tmp_path: Path) -> None:
    done = recorded.statctl("export", "json", "tagger", str(tmp_path / "all.jsonl"), "--steps", "0-1")
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    memory = [line for line in lines if line["record"] == "memory" and not line["module"]]
    assert [line["phase"] for line in memory[:2]] == ["pre_forward", "post_forward"] and len(memory) == 2 * 2 * 6
    assert all(line["host_rss"] > 0 and "allocated" not in line for line in memory)
    density = next(line for line in lines if line["record"] == "density")
    assert (density["input"], density["valid"], density["valid_per_sample"]) == ("input_ids", 28, [4, 8, 8, 8])

    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert recorded.statctl("export", "tensorboard", "tagger", str(tmp_path / "logs"), "--ranks", "0").code == 0
    events = event_accumulator.EventAccumulator(str(tmp_path / "logs")).Reload()
    assert [event.value for event in events.Scalars("density/input_ids (embed)")][:3] == pytest.approx([0.7, 0.725, 0.75])
    assert events.Scalars("memory/post_forward/host_rss MiB")[0].value > 50


def test_only_these_two_have_the_reference_form(recorded: Collector) -> None:
    done = recorded.statctl("scalars", "tagger", "--format", "ort")
    assert done.code == 2 and "only show --memory and --padding" in done.err


def test_an_embedding_without_a_padding_index_is_named(recorded: Collector) -> None:
    recorded.python(
        "import statagent, torch; statagent.init(run='unpadded')\n"
        "import collections; parts = dict(tok=torch.nn.Embedding(10, 4), head=torch.nn.Linear(4, 3))\n"
        "model = torch.nn.Sequential(collections.OrderedDict(parts)); statagent.watch(model)\n"
        "x = torch.arange(6); torch.nn.functional.cross_entropy(model(x), x % 3).backward(); statagent.step(); statagent.close()"
    )
    page = " ".join(recorded.statctl("density", "unpadded").out.split())
    assert "labels (label): 100.0 %" in page
    assert 'Token ids have no density: no padding_idx is set in tok. statagent.watch(model, density={"input_ids": 0})' in page
    assert "no padding_idx" not in recorded.statctl("density", "tagger").out


def test_a_run_without_says_how_to_record_them(recorded: Collector) -> None:
    recorded.python(
        "import statagent; statagent.init(run='bare'); statagent.log_scalar('a', 1); statagent.step(); statagent.close()"
    )
    assert "watch(model, memory=True)" in recorded.statctl("memory", "bare").out
    assert (
        'statagent.watch(model, density=True) or density={"input_ids": 0} records them' in recorded.statctl("density", "bare").out
    )
    assert "padding_idx" not in recorded.statctl("density", "bare").out
