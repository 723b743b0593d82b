"""`statctl diff A B --tokens` of a causal model that one program runs in batches with padding, and another token by token."""

from __future__ import annotations

import re
import textwrap

import pytest
from conftest import ROOT, Collector

# A stack of causal means and linear layers. The trainer runs padded batches; the engine runs sequences one by one, in chunks, in another
# order, and one of them twice. `tapped(tap, rows)`: what a fault does to a tap.
SCRIPT = textwrap.dedent("""
    import statagent, torch

    torch.manual_seed(5)
    embedding, layers = torch.nn.Embedding(50, 32), [torch.nn.Linear(32, 32) for _ in range(3)]
    ids = torch.randint(0, 50, (4, 12))
    ids[1, :5] = ids[0, :5]  # a common prefix
    lengths = [12, 9, 7, 12]

    def rows_of(sequence, tapped):
        x = tapped("embed", embedding(sequence))
        for number, layer in enumerate(layers):
            mean = x.cumsum(-2) / torch.arange(1, x.shape[-2] + 1)[:, None]
            x = tapped(f"layers.{number}", x + torch.tanh(layer(mean)))
        tapped("logprob", torch.log_softmax(x @ embedding.weight.T / 32, -1).amax(-1, keepdim=True))

    def trainer(agent, fault):
        mask = torch.tensor([[at < length for at in range(12)] for length in lengths])
        keys, positions = statagent.token_keys(ids), torch.arange(12).expand(4, 12)

        def tapped(tap, rows):
            agent.record_rows(tap, rows[mask], keys[mask], positions[mask])
            return rows
        rows_of(ids, tapped)

    def engine(agent, fault):
        for number in (3, 1, 0, 2, 1):
            sequence = ids[number, : lengths[number]]
            keys, positions = statagent.token_keys(sequence), torch.arange(len(sequence))

            def tapped(tap, rows):
                rows = fault(tap, rows)
                agent.record_rows(tap, rows[:4], keys[:4], positions[:4])
                agent.record_rows(tap, rows, keys[4:], positions[4:], index=range(4, len(rows)))
                return rows
            rows_of(sequence, tapped)
        agent.step()

    def no_fault(tap, rows):
        return rows
    def scaled(tap, rows):
        return rows * 1.01 if tap == "layers.1" else rows
    def late(tap, rows):
        return torch.cat([rows[:6], rows[6:] + 0.02]) if tap == "layers.0" else rows
    def colder(tap, rows):
        return rows / 0.7 if tap == "logprob" else rows
    def rounded(tap, rows):
        return rows.bfloat16().float() if tap == "layers.2" else rows

    with torch.no_grad():
        for run, record, fault in (
            ("trainer", trainer, no_fault), ("engine", engine, no_fault), ("scaled", engine, scaled), ("late", engine, late),
            ("colder", engine, colder), ("rounded", engine, rounded),
        ):
            agent = statagent.init(run=run, required=True)
            record(agent, fault)
            assert agent.close(timeout=30), agent.counters()
            counters = agent.counters()
            assert counters["produced"] == counters["acked"] >= 5, counters
""")


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> Collector:
    done = shared_collector.python(SCRIPT)
    assert done.code == 0, done.err
    return shared_collector


def test_the_same_model_is_not_called_different_whatever_the_batches(recorded: Collector) -> None:
    found = recorded.json("diff", "trainer", "engine", "--tokens")
    assert found["verdict"] in ("within_tolerance", "identical")
    assert found["tokens"] == 12 + 4 + 7 + 12 and found["tokens_only_a"] == found["tokens_only_b"] == 0
    assert [tap["tap"] for tap in found["taps"]] == ["embed", "layers.0", "layers.1", "layers.2", "logprob"]
    assert found["taps"][0]["equal"] == found["taps"][0]["rows"] == 35
    checks = {check["check"]: check["ok"] for check in found["comparable"]}
    assert checks == {"tokens": True, "taps": True, "weights": True, "dtype": True, "repeated": True}


@pytest.mark.parametrize(
    ("run", "tap", "rows", "position"),
    [("scaled", "layers.1", 35, 0), ("late", "layers.0", 16, 6), ("colder", "logprob", 35, 0), ("rounded", "layers.2", 35, 0)],
)
def test_the_first_tap_with_a_fault_is_named(recorded: Collector, run: str, tap: str, rows: int, position: int) -> None:
    found = recorded.json("diff", "trainer", run, "--tokens", codes=(1,))
    first = found["taps"][found["first"]]
    assert (first["tap"], first["diverged"], first["first"]["position"]) == (tap, rows, position)
    text = recorded.statctl("--format", "table", "diff", "trainer", run, "--tokens")
    assert text.code == 1 and f"part at {tap}: {rows} of 35 rows are beyond rounding" in text.out, text.out


def test_runs_without_tokens_are_not_comparable(recorded: Collector) -> None:
    done = recorded.python("import statagent; statagent.init(run='plain'); statagent.log_scalar('loss', 1); statagent.close()")
    assert done.code == 0
    answer = recorded.statctl("--format", "table", "diff", "trainer", "plain", "--tokens")
    assert answer.code == 2 and "INCOMPARABLE trainer and plain: run 'plain' has no token records" in answer.out
    refused = recorded.statctl("diff", "trainer", "engine", "--tokens", "--tolerance", "1")
    assert refused.code == 2 and "expected only --exact, --map, --noise and --steps" in refused.err


def test_the_lines_of_tokens_md_record_a_row_for_each_token(recorded: Collector) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tokens.md").read_text(encoding="utf-8"), re.DOTALL)
    given = """
import statagent, torch
ids, positions = torch.tensor([[5, 6, 7], [5, 8, 0]]), torch.arange(3).expand(2, 3)
mask, hidden = ids > 0, torch.ones(2, 3, 4)
agent = statagent.init(run="by_hand", required=True)
"""
    done = recorded.python(given + lines + "agent.step()\nassert agent.close(timeout=30)\n")
    assert done.code == 0, done.err
    found = recorded.json("diff", "by_hand", "by_hand", "--tokens")
    assert [(tap["tap"], tap["rows"]) for tap in found["taps"]] == [("layers.3", 4)], (
        "of six places one is padding, and two are one"
    )
