"""Runs sequences through a model of Transformers, once for each fault: faulty_trainer.py MODEL SEQUENCES_JSON FAMILY FAULT... Runs are named FAMILY_FAULT.
`make MODEL FAMILY`: writes a model with random weights instead. `send RUN MODEL TO`: one step, and what the engine gets."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers

import statagent

SMALL = {
    "hidden_size": 128, "head_dim": 32, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
    "num_hidden_layers": 4, "vocab_size": 512, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {"num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"num_key_value_heads": 2}),
    "mixtral": ("MixtralConfig", {"num_key_value_heads": 2, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True},
    ),
    "gemma2": (
        "Gemma2Config",
        {
            "num_key_value_heads": 2, "sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 24, "tie_word_embeddings": True,
        },
    ),
}  # fmt: skip


def make(folder: str, family: str) -> None:
    torch.manual_seed(3)
    kind, more = FAMILIES[family]
    config = getattr(transformers, kind)(**{**SMALL, **more}, dtype="float32")
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.06)
    model.save_pretrained(folder)


def layer(model: Any, number: int) -> Any:
    return model.model.layers[number]


def changed(module: Any, change: Callable[[Any], Any]) -> None:
    module.register_forward_hook(lambda _, __, output: change(output))


def scaled(parameter: Any, factor: float = 1.01) -> None:
    parameter.data.mul_(factor)


def swap(first: Any, second: Any) -> None:
    first.weight.data, second.weight.data = second.weight.data, first.weight.data


def stale(module: Any) -> None:
    torch.manual_seed(9)
    for parameter in module.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=1e-3)


def rope(model: Any, factor: float = 1.0, base: float = 1.0) -> None:
    angles = model.model.rotary_emb
    size = angles.inv_freq.numel()
    angles.inv_freq = angles.inv_freq * factor * base ** (-torch.arange(size) / size)


def stale_expert(module: Any, number: int) -> None:
    torch.manual_seed(9)
    for parameter in (module.experts.gate_up_proj, module.experts.down_proj):
        parameter.data[number] += 1e-2 * torch.randn_like(parameter.data[number])


def router_in_bf16(module: Any) -> None:
    gate = module.gate
    gate.weight.data = gate.weight.data.bfloat16().float()
    gate.register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(),))


def not_renormalised(gate: Any) -> None:
    """The chosen experts' probabilities of all, not of those chosen."""

    def after(_: Any, __: Any, output: Any) -> Any:
        logits, _, chosen = output
        return logits, logits.softmax(-1).gather(1, chosen), chosen

    gate.register_forward_hook(after)


# What is wrong in the trainer -> what is done to it, and the tap at which the two programs part.
Faults = dict[str, tuple[Callable[[Any], Any], str]]
LLAMA: Faults = {
    "rope_base": (lambda m: rope(m, base=2.0), "model.layers.0.self_attn"),
    "rope_scaling": (lambda m: rope(m, factor=0.5), "model.layers.0.self_attn"),
    "norm_eps": (lambda m: setattr(layer(m, 0).input_layernorm, "variance_epsilon", 1e-4), "model.layers.0.self_attn"),
    "norm_eps_late": (lambda m: setattr(layer(m, 2).post_attention_layernorm, "variance_epsilon", 1e-2), "model.layers.2.mlp"),
    "norm_plus_one": (lambda m: layer(m, 1).input_layernorm.weight.data.add_(1), "model.layers.1.self_attn"),
    "attention_scale": (lambda m: setattr(layer(m, 2).self_attn, "scaling", 0.2), "model.layers.2.self_attn"),
    "stale_layer": (lambda m: stale(layer(m, 1)), "model.layers.1.self_attn"),
    "stale_mlp": (lambda m: stale(layer(m, 3).mlp), "model.layers.3.mlp"),
    "stale_head": (lambda m: stale(m.lm_head), "logprob"),
    "stale_embedding": (lambda m: stale(m.model.embed_tokens), "model.layers.0.input"),
    "swapped_q_k": (lambda m: swap(layer(m, 1).self_attn.q_proj, layer(m, 1).self_attn.k_proj), "model.layers.1.self_attn"),
    "swapped_k_v": (lambda m: swap(layer(m, 3).self_attn.k_proj, layer(m, 3).self_attn.v_proj), "model.layers.3.self_attn"),
    "swapped_gate_up": (lambda m: swap(layer(m, 0).mlp.gate_proj, layer(m, 0).mlp.up_proj), "model.layers.0.mlp"),
    "activation": (lambda m: setattr(layer(m, 0).mlp, "act_fn", torch.nn.GELU()), "model.layers.0.mlp"),
    "final_norm": (lambda m: scaled(m.model.norm.weight), "model.norm"),
    "head_in_bf16": (lambda m: changed(m.lm_head, lambda x: x.bfloat16().float()), "logprob"),
    "soft_cap": (lambda m: changed(m.lm_head, lambda x: 5 * torch.tanh(x / 5)), "logprob"),
    "temperature": (lambda m: changed(m.lm_head, lambda x: x / 0.9), "logprob"),
    "kv_rounded": (lambda m: changed(layer(m, 1).self_attn.v_proj, lambda x: x.bfloat16().float()), "model.layers.1.self_attn"),
    "residual_dropped": (lambda m: layer(m, 2).register_forward_hook(_only_added), "model.layers.2"),
    "layer_in_bf16": (lambda m: changed(layer(m, 2).mlp, lambda x: x.bfloat16().float()), "model.layers.2.mlp"),
    "dropout": (lambda m: _drop(m), "model.layers.0.self_attn"),
    "position_gap": (lambda m: _positions(m, lambda at: at + (at >= 20)), "model.layers.0.self_attn"),
    "sliding_window": (lambda m: _window(m, 24), "model.layers.0.self_attn"),
}
FAULTS: dict[str, Faults] = {
    "llama": LLAMA,
    "qwen2": {
        "bias_missing": (lambda m: layer(m, 1).self_attn.v_proj.bias.data.zero_(), "model.layers.1.self_attn"),
        "bias_stale": (lambda m: scaled(layer(m, 2).self_attn.q_proj.bias), "model.layers.2.self_attn"),
        "padding_attended": (lambda m: _window(m, 1000, padding=True), "model.layers.0.self_attn"),
    },
    "qwen3": {
        "q_norm_missing": (lambda m: setattr(layer(m, 1).self_attn, "q_norm", torch.nn.Identity()), "model.layers.1.self_attn"),
        "k_norm_eps": (lambda m: setattr(layer(m, 2).self_attn.k_norm, "variance_epsilon", 1e-3), "model.layers.2.self_attn"),
        "stale_k_norm": (lambda m: scaled(layer(m, 3).self_attn.k_norm.weight), "model.layers.3.self_attn"),
    },
    "mixtral": {
        "stale_expert": (lambda m: stale_expert(layer(m, 1).mlp, 2), "model.layers.1.mlp"),
        "router_in_bf16": (lambda m: router_in_bf16(layer(m, 0).mlp), "model.layers.0.mlp"),
        "stale_router": (lambda m: stale(layer(m, 2).mlp.gate), "model.layers.2.mlp"),
        "experts_exchanged": (lambda m: _exchange(layer(m, 3).mlp.experts.down_proj, 0, 1), "model.layers.3.mlp"),
    },
    "qwen3_moe": {
        "not_renormalised": (lambda m: not_renormalised(layer(m, 0).mlp.gate), "model.layers.0.mlp"),
        "one_expert_less": (lambda m: setattr(layer(m, 2).mlp.gate, "top_k", 1), "model.layers.2.mlp"),
        "stale_expert": (lambda m: stale_expert(layer(m, 1).mlp, 5), "model.layers.1.mlp"),
    },
    "gemma2": {
        "norm_without_plus_one": (lambda m: layer(m, 1).input_layernorm.weight.data.sub_(1), "model.layers.1.self_attn"),
        "attention_cap_missing": (lambda m: _uncapped(m.model.layers), "model.layers.0.self_attn"),
        "final_cap_missing": (lambda m: setattr(m.config, "final_logit_softcapping", None), "logprob"),
        "window_off_by_one": (lambda m: setattr(m.model.config, "sliding_window", 23), "model.layers.0.self_attn"),
        "window_missing": (lambda m: setattr(m.model.config, "sliding_window", 500), "model.layers.0.self_attn"),
        "attention_scale": (lambda m: setattr(layer(m, 1).self_attn, "scaling", 32**-0.5), "model.layers.1.self_attn"),
        "embedding_not_scaled": (lambda m: m.model.embed_tokens.embed_scale.fill_(1), "model.layers.0.input"),
    },
}


def _exchange(parameter: Any, first: int, second: int) -> None:
    parameter.data[[first, second]] = parameter.data[[second, first]]


def _uncapped(layers: Any) -> None:
    for each in layers:
        each.self_attn.attn_logit_softcapping = None


def _only_added(_: Any, args: Any, output: Any) -> Any:
    first = output[0] if isinstance(output, tuple) else output
    left = first - 0.1 * args[0]
    return (left, *output[1:]) if isinstance(output, tuple) else left


def _drop(model: Any) -> None:
    model.train()
    for each in model.model.layers:
        each.self_attn.attention_dropout = 0.1


def _positions(model: Any, change: Callable[[Any], Any]) -> None:
    def before(_: Any, args: Any, kwargs: Any) -> Any:
        at = (kwargs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        return args, {**kwargs, "position_ids": change(at)}

    model.model.register_forward_pre_hook(before, with_kwargs=True)


def _window(model: Any, size: int, padding: bool = False) -> None:
    def before(_: Any, args: Any, kwargs: Any) -> Any:
        length = kwargs["attention_mask"].shape[1]
        at = torch.arange(length)
        live = kwargs["attention_mask"].bool()[:, None, None, :] | padding
        seen = (at[:, None] >= at) & (at[:, None] - at < size) & live
        seen = seen | torch.eye(length, dtype=torch.bool)
        return args, {**kwargs, "attention_mask": seen}

    model.model.register_forward_pre_hook(before, with_kwargs=True)


def batch(sequences: list[list[int]]) -> tuple[Any, Any]:
    """Padded on the left."""
    length = max(map(len, sequences))
    ids, mask = torch.zeros(len(sequences), length, dtype=torch.long), torch.zeros(len(sequences), length, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, length - len(sequence) :], mask[row, length - len(sequence) :] = torch.tensor(sequence), 1
    return ids, mask


def record(family: str, folder: str, sequences: list[list[int]], fault: str) -> None:
    attention = "eager" if family == "gemma2" else "sdpa"  # the latter has no cap
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    if fault in FAULTS[family]:
        FAULTS[family][fault][0](model)
    run = f"{family}_{fault}"
    agent = statagent.init(run=run, required=True)
    statagent.fingerprint(model, dtype=torch.bfloat16 if fault == "sent_as_bf16" else None)
    statagent.watch(model, tokens=True)
    with torch.no_grad():
        if fault == "packed":
            positions = torch.tensor([[at for sequence in sequences for at in range(len(sequence))]])
            model(
                torch.tensor([[token for sequence in sequences for token in sequence]]), position_ids=positions, use_cache=False
            )
        elif fault == "alone":
            for sequence in reversed(sequences):
                model(torch.tensor([sequence]), use_cache=False)
        elif fault == "decoded":
            for sequence in sequences:
                cache = model(torch.tensor([sequence[:30]]), use_cache=True).past_key_values
                for token in sequence[30:]:
                    model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        elif fault == "other_tokenizer":
            model(torch.tensor([[499, *sequence] for sequence in sequences[:1]]), use_cache=False)
        else:
            ids, mask = batch(sequences)
            model(ids, attention_mask=mask, use_cache=False)
    assert agent.close(timeout=60), agent.counters()
    assert "dropped_refused" not in agent.counters(), agent.counters()


def send(run: str, folder: str, to: str) -> None:
    """An update, after which the checkpoint in `to` has not arrived well: one weight of the step before, one transposed, two exchanged, one
    scaled. The trainer has a head that it does not send."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    agent = statagent.init(run=run, required=True)
    sent = copy.deepcopy(model)
    model.value = torch.nn.Linear(128, 1, bias=False)
    statagent.fingerprint(model, step=0)
    torch.manual_seed(4)
    for name, parameter in model.named_parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=1e-3)
        if not name.startswith(("value", "model.layers.1.mlp.up_proj")):
            sent.get_parameter(name).data.copy_(parameter)
    statagent.fingerprint(model, step=1)
    turned = layer(sent, 2).self_attn.o_proj.weight
    turned.data = turned.data.T.contiguous()
    swap(layer(sent, 0).self_attn.q_proj, layer(sent, 0).self_attn.k_proj)
    scaled(sent.model.norm.weight, 1.5)
    sent.save_pretrained(to)
    assert agent.close(timeout=60), agent.counters()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3])
    elif sys.argv[1] == "send":
        send(*sys.argv[2:5])
    else:
        for each in sys.argv[4:]:
            record(sys.argv[3], sys.argv[1], json.loads(sys.argv[2]), each)
