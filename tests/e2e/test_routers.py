"""What `statctl diff` says of the routers of Transformers' Mixtral: a clean pair with near ties, and faults that are told apart."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from conftest import Collector

pytest.importorskip("transformers", reason="scripts/setup.sh --for test installs transformers")

# One training each, of two steps. `fault`: what the last layer does otherwise in step 1; "reordered": sums of the routers, in all steps.
SCRIPT = textwrap.dedent("""
    import copy, statagent, sys, torch
    from torch.nn import functional as F
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = MixtralConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16, vocab_size=64,
        num_local_experts=6, num_experts_per_tok=2, initializer_range=0.2, attn_implementation="eager",
    )
    first = MixtralForCausalLM(config)
    with torch.no_grad():
        rows = first.model.layers[1].mlp.gate.weight
        rows[1] = torch.nextafter(rows[0], rows[0] + torch.randn(32).sign())  # near ties
    ids = torch.randint(1, 64, (2, 4, 24))

    def odd(mlp, fault):
        gate, experts = mlp.gate, mlp.experts
        forward, inner = gate.forward, experts.forward

        def gated(x):
            if fault == "reordered":
                logits = F.linear(x.flip(-1), gate.weight.flip(-1))
                scores, chosen = F.softmax(logits.float(), -1).topk(2, -1)
                return logits, scores / scores.sum(-1, keepdim=True), chosen
            if fault == "bf16":
                logits = F.linear(x.bfloat16(), gate.weight.bfloat16()).float()
                scores, chosen = F.softmax(logits, -1).topk(2, -1)
                return logits, scores / scores.sum(-1, keepdim=True), chosen
            return forward(x * 1.05 if fault == "scaled" else x)

        def mixed(x, chosen, weights):
            if fault == "dropped":
                weights = weights * (torch.arange(len(x)) != 17)[:, None]
            return inner(x, chosen, weights)
        gate.forward, experts.forward = gated, mixed

    for fault in ("", "reordered", "bf16", "scaled", "stale", "dropped"):
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        statagent.init(run=fault or "base", required=True)
        statagent.watch(model, optimizer=optimizer, tokens=True)
        layers = model.model.layers
        if fault == "reordered":
            for layer in layers:
                odd(layer.mlp, fault)
        for step in range(2):
            if step and fault not in ("", "reordered", "stale"):
                odd(layers[1].mlp, fault)
            loss = model(input_ids=ids[step], labels=ids[step], use_cache=False).loss
            loss.backward()
            weights = layers[1].mlp.experts.gate_up_proj
            kept = weights[3].detach().clone()
            optimizer.step()
            if fault == "stale" and step == 0:
                with torch.no_grad():
                    weights[3] = kept
            optimizer.zero_grad()
        assert statagent.close(timeout=30)
""")
GATE = "model.layers.1.mlp.gate"
# From which finding, of which expert, and which root.
FAULTS: dict[str, tuple[str, int | None]] = {
    "bf16": ("router", None),
    "scaled": ("router", None),
    "stale": ("expert", 3),
    "dropped": ("tokens", None),
}


@pytest.fixture(scope="module")
def recorded(shared_collector: Collector) -> Collector:
    shared_collector.python(SCRIPT)
    return shared_collector


def router(report: Any) -> Any:
    return next(each for each in report["routers"] if each["router"] == GATE)


def test_near_ties_are_rounding(recorded: Collector) -> None:
    report = recorded.diff("base", "reordered")
    found = router(report)
    assert found["flips"] == found["near_ties"] > 0 and (found["finding"], found["step"]) == ("rounding", 0), found
    assert found["explained"] > 0.99 and found["layer"] == "model.layers.1.mlp", found
    assert report["verdict"] in ("identical", "within_tolerance"), (report["verdict"], report.get("root"), report["notes"])


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_apart(recorded: Collector, fault: str) -> None:
    report = recorded.diff("base", fault)
    found = router(report)
    assert (found["step"], found["finding"], found.get("expert")) == (1, *FAULTS[fault]), found
    assert report["verdict"] == "diverged", report["verdict"]
    if FAULTS[fault][0] == "router":
        assert (report["root"]["step"], report["root"]["activation"]) == (1, GATE), report["root"]
    else:
        assert found["flips"] == 0 and found["distance"] <= found["distance_limit"], found
    if fault == "dropped":
        assert found["apart"] == 1, found
