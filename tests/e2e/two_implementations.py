"""One small Llama-like model in two implementations, with the names that Hugging Face and Megatron-Core give its modules, and the same weights.

python -m two_implementations JSON: a list of jobs {"run", "of", "bug", "renamed", "frozen", "steps"}, trained one after the other.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

import statagent

VOCABULARY, PADDED, WIDTH, LAYERS, HEADS, GROUPS, INNER = 29, 32, 16, 2, 4, 2, 24
BATCH, TOKENS = 3, 6
HEAD = WIDTH // HEADS
BUGS = ("interleaving", "gate", "embedding")


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of (batch, heads, tokens, width) with fewer groups of k and v than heads."""
    k, v = (each.repeat_interleave(HEADS // GROUPS, dim=1) for each in (k, v))
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) / HEAD**0.5).masked_fill(future, float("-inf"))
    return scores.softmax(-1) @ v


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class SelfAttn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = linear(WIDTH, WIDTH), linear(WIDTH, GROUPS * HEAD), linear(WIDTH, GROUPS * HEAD)
        self.o_proj = linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        q, k, v = (each(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(q, k, v).transpose(1, 2).flatten(2)), None


class HfMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class HfLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = SelfAttn(), HfMlp()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(HfLayer() for _ in range(LAYERS))
        self.norm = Norm()

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return {"last_hidden_state": self.norm(x)}


class LlamaForCausalLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaModel()
        self.lm_head = linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.lm_head(self.model(input_ids)["last_hidden_state"])}


class CoreAttention(nn.Module):
    """(tokens, batch, heads, width) to (tokens, batch, all)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(*(each.permute(1, 2, 0, 3) for each in (q, k, v))).permute(2, 0, 1, 3).flatten(2)


class Parallel(nn.Linear):
    """A linear layer that returns its output and a bias to be added later, here none."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core_attention = CoreAttention()
        self.linear_proj, self.linear_qkv = Parallel(WIDTH, WIDTH), Parallel(WIDTH, WIDTH + 2 * GROUPS * HEAD)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The rows of each query group: its heads, then its key and value.
        groups = self.linear_qkv(x)[0].unflatten(-1, (GROUPS, -1))
        q, k, v = groups.split([WIDTH // GROUPS, HEAD, HEAD], dim=-1)
        return self.linear_proj(self.core_attention(q.reshape(*q.shape[:2], HEADS, HEAD), k, v))


class MegatronMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = Parallel(WIDTH, 2 * INNER), Parallel(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        gate, up = self.linear_fc1(x)[0].chunk(2, dim=-1)
        return self.linear_fc2(F.silu(gate) * up)


class TransformerLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attention = Norm(), SelfAttention()
        self.pre_mlp_layernorm, self.mlp = Norm(), MegatronMlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        x = x + self.self_attention(self.input_layernorm(x))[0]
        return x + self.mlp(self.pre_mlp_layernorm(x))[0], None


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer() for _ in range(LAYERS))
        self.final_layernorm = Norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return self.final_layernorm(x)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(PADDED, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.word_embeddings(tokens).transpose(0, 1).contiguous()


class GPTModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = Embedding(), TransformerBlock()
        self.output_layer = Parallel(WIDTH, PADDED)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return self.output_layer(self.decoder(self.embedding(input_ids)))[0].transpose(0, 1)[..., :VOCABULARY]


def qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The rows of each query group one after the other."""
    return torch.cat([each.unflatten(0, (GROUPS, -1)) for each in (q, k, v)], dim=1).flatten(0, 1)


def converted(weights: dict[str, torch.Tensor], bug: str | None) -> dict[str, torch.Tensor]:
    """The weights of LlamaForCausalLM as GPTModel names and joins them."""

    def padded(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows, torch.zeros(PADDED - VOCABULARY, WIDTH)])

    table = weights["model.embed_tokens.weight"]
    new = {
        "embedding.word_embeddings.weight": padded(table.roll(1, 0) if bug == "embedding" else table),
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
        "output_layer.weight": padded(weights["lm_head.weight"]),
    }
    for layer in range(LAYERS):
        old, to = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        parts = [weights[f"{old}self_attn.{name}_proj.weight"] for name in "qkv"]
        halves = [weights[f"{old}mlp.{name}_proj.weight"] for name in ("gate", "up")]
        wrong = layer == 1  # bugs are in one layer
        new[to + "self_attention.linear_qkv.weight"] = torch.cat(parts) if wrong and bug == "interleaving" else qkv(*parts)
        new[to + "self_attention.linear_proj.weight"] = weights[old + "self_attn.o_proj.weight"]
        new[to + "mlp.linear_fc1.weight"] = torch.cat(halves[::-1] if wrong and bug == "gate" else halves)
        new[to + "mlp.linear_fc2.weight"] = weights[old + "mlp.down_proj.weight"]
        new[to + "input_layernorm.weight"] = weights[old + "input_layernorm.weight"]
        new[to + "pre_mlp_layernorm.weight"] = weights[old + "post_attention_layernorm.weight"]
    return new


def renamed(model: nn.Module) -> nn.Module:
    """The same model, whose modules have names that say nothing: Za, Zb, ... Its code finds them by their old names."""
    for index, (name, child) in enumerate(list(model._modules.items())):
        assert child is not None
        renamed(child)
        del model._modules[name]
        object.__setattr__(model, name, child)
        model._modules[f"Z{chr(ord('a') + index)}"] = child
    return model


def build(job: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    model = LlamaForCausalLM()
    if job.get("of", "hf") == "hf":
        return model
    other = GPTModel()
    other.load_state_dict(converted(model.state_dict(), job.get("bug")))
    return other


def train(job: dict[str, Any]) -> None:
    model = build(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    statagent.init(run=job["run"], if_exists="replace")
    watched: dict[str, Any] = {} if job.get("frozen") else {"optimizer": optimizer}
    statagent.watch(renamed(model) if job.get("renamed") else model, **watched)
    numbers = torch.Generator().manual_seed(1)
    for _ in range(job.get("steps", 3)):
        tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1), generator=numbers)
        inputs = tokens[:, :-1].contiguous()
        if isinstance(model, GPTModel):
            logits = model(inputs, torch.arange(TOKENS).expand(BATCH, -1))
        else:
            logits = model(inputs)["logits"]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        statagent.log_scalar("loss", float(loss))
        if not job.get("frozen"):
            optimizer.step()
        else:
            statagent.step()
        optimizer.zero_grad()
    statagent.close(timeout=20)


def main() -> None:
    torch.set_num_threads(1)
    for job in json.loads(sys.argv[1]):
        train(job)


if __name__ == "__main__":
    main()
