"""A transformer under torch.compile, observed by statcollect.

The same script without compilation (--backend none) is the reference: backends "eager" and "aot_eager" compute the same bits, "inductor"
fuses operations and differs within rounding.

    python examples/frameworks/compile.py --run-name eager --backend none
    python examples/frameworks/compile.py --run-name compiled --backend inductor
    statctl diff --run-a eager --run-b compiled
"""

from __future__ import annotations

import argparse
import hashlib

import torch
from torch import nn
from torch.nn import functional

import statagent


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width)) * self.scale
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 32, heads: int = 2, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-name", "--run", dest="run", help="name of the run (default: STATAGENT_RUN)")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps (default 10)")
    parser.add_argument(
        "--backend", default="inductor", help="of torch.compile: inductor (default), aot_eager, eager; none: not compiled"
    )
    parser.add_argument("--layers", type=int, default=3, help="blocks of the model (default 3)")
    parser.add_argument("--blocks", action="store_true", help="compile each block alone instead of the model as a whole")
    parser.add_argument("--micro-batches", type=int, default=1, help="forward and backward passes a step (default 1)")
    parser.add_argument("--record-steps", help='steps to record, such as "0-9,every=2" (default: all)')
    parser.add_argument("--bug", action="store_true", help="a mistake in the attention of blocks.1: its output is scaled by 1.01")
    parser.add_argument("--no-agent", action="store_true", help="train without statcollect")
    arguments = parser.parse_args()
    if min(arguments.steps, arguments.layers, arguments.micro_batches) < 1:
        parser.error("--steps, --layers and --micro-batches must be at least 1")
    if arguments.bug and arguments.layers < 2:
        parser.error("--bug is a mistake in blocks.1: --layers must be at least 2")
    return arguments


def compiled(model: Gpt, arguments: argparse.Namespace) -> nn.Module:
    if arguments.backend == "none":
        return model
    if arguments.blocks:
        for block in model.blocks:
            block.compile(backend=arguments.backend, fullgraph=True)
        return model
    return torch.compile(model, backend=arguments.backend, fullgraph=True)  # type: ignore[return-value]


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Gpt(layers=arguments.layers)
    if arguments.bug:
        block = model.blocks[1]
        assert isinstance(block, Block)
        block.scale = 1.01
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if not arguments.no_agent:
        statagent.init(run=arguments.run, steps=arguments.record_steps)
        statagent.watch(model, optimizer=optimizer)  # before or after torch.compile
    trained = compiled(model, arguments)

    losses = []
    for _ in range(arguments.steps):
        for _ in range(arguments.micro_batches):
            tokens = torch.randint(64, (4, 17))
            if not arguments.no_agent:
                statagent.log_batch(tokens=tokens)
            logits = trained(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            losses.append(loss.detach())
            if not arguments.no_agent:
                statagent.log_scalar("loss", loss)
        optimizer.step()
        optimizer.zero_grad()

    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(f"loss {losses[-1].item():.9g}, weights {hashlib.sha256(weights).hexdigest()[:16]}")
    graphs = torch._dynamo.utils.counters
    print(f"graphs {graphs['stats']['unique_graphs']}, graph breaks {sum(graphs['graph_break'].values())}")
    if not arguments.no_agent:
        statagent.close(timeout=10)
        counts = statagent.counters()
        dropped = sum(n for name, n in counts.items() if name.startswith("dropped_"))
        print(f"records: {counts['produced']} produced, {counts['acked']} stored, {dropped} dropped")


if __name__ == "__main__":
    main()
