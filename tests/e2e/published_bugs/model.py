"""A small GPT whose layouts are written by hand: tensors, sequences, contexts, samples and experts over the ranks of a grid.

It is whole on one rank. `Setup.bug` is one of the cases' names: each is one place here or in training.py where a line that a correct
training has is left out or is another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from . import collectives as c
from .collectives import Axis, Grid

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, BATCH, EXPERTS = 64, 16, 32, 4, 2, 8, 4
IGNORED = -100  # a target that does not count


@dataclass(frozen=True)
class Setup:
    """sequence: activations between the matrices are cut over tp. zigzag: sequences are cut over cp so that each rank has two parts. experts:
    the second block has experts, which are cut over ep; dispatch: tokens go to them and back; shared: and one that all tokens use. smoothing:
    of the labels. second: a second head predicts the token after the next. clip: the largest norm of the gradient."""

    grid: Grid = field(default_factory=Grid)
    sequence: bool = False
    zigzag: bool = False
    experts: bool = False
    dispatch: bool = False
    shared: bool = False
    smoothing: float = 0
    second: bool = False
    clip: float = 0
    micro_batches: int = 1
    whole_logits: bool = False
    zero: bool = False
    bug: str | None = None

    @property
    def between(self) -> Axis:
        """The ranks over which activations between the matrices are cut."""
        return self.grid.tp if self.sequence else Axis()

    def context(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of the sequence."""
        return (c.own_zigzag if self.zigzag else c.own)(x, dim, self.grid.cp)


def _cut(module: nn.Linear | nn.Embedding, dim: int, axis: Axis, bias: bool = False) -> Any:
    """Leaves this rank's part of the weight (and of the bias, with it)."""
    module.weight = _part(module.weight, dim, axis)
    if bias:
        assert isinstance(module, nn.Linear) and module.bias is not None
        module.bias = _part(module.bias, 0, axis)
    return module


def _part(whole: torch.Tensor, dim: int, axis: Axis) -> nn.Parameter:
    part: Any = nn.Parameter(c.own(whole.detach(), dim, axis).clone())
    part.cut = axis.size > 1
    return part


class Tokens(nn.Embedding):
    """This rank's rows of the table."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(VOCABULARY, WIDTH)
        self.setup = setup
        _cut(self, 0, setup.grid.tp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tp, rows = self.setup.grid.tp, len(self.weight)
        row = x - rows * tp.rank
        elsewhere = (row < 0) | (row >= rows)
        if self.setup.bug == "embedding_mask":
            elsewhere = (row <= 0) | (row >= rows)
        found = F.embedding(row.clamp(0, rows - 1), self.weight).masked_fill(elsewhere.unsqueeze(-1), 0)
        return c.sum_parts(found, 1, tp) if self.setup.sequence else c.leave(found, tp)


class Row(nn.Linear):
    """This rank's part of the input's features; the output is summed over the ranks."""

    def __init__(self, setup: Setup, features: int) -> None:
        super().__init__(features, WIDTH)
        self.setup = setup
        self.weight.data *= 3  # so that what is before it matters
        _cut(self, 1, setup.grid.tp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tp, part = self.setup.grid.tp, F.linear(x, self.weight)
        if self.setup.bug == "summed_gradient" and self.in_features == 4 * WIDTH:
            return c.leave_summing_twice(part, tp) + self.bias
        return (c.sum_parts(part, 1, tp) if self.setup.sequence else c.leave(part, tp)) + self.bias


class HeadNorm(nn.Module):
    """Norm of each head's queries, with one weight for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH // HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Attention(nn.Module):
    """Causal attention. Rows of qkv are those of head 0's q, k and v, then head 1's. Each head's keys have a part that all heads share
    (`shared`), and its softmax has one more, learnt entry (`sink`)."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        tp = setup.grid.tp
        self.qkv = _cut(nn.Linear(WIDTH, 3 * WIDTH), 0, tp, bias=True)
        self.shared = nn.Linear(WIDTH, WIDTH // HEADS, bias=False)
        self.sink = _part(0.1 * torch.arange(HEADS), 0, tp)
        self.head_norm = HeadNorm()
        self.wo = Row(setup, WIDTH)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        setup, grid = self.setup, self.setup.grid
        shared = self.shared(x)
        shared = (
            c.join(shared, 1, grid.tp) if setup.sequence else shared if setup.bug == "shared_key" else c.enter(shared, grid.tp)
        )
        q, k, v = self.qkv(into(x, setup, "attention")).unflatten(-1, (-1, 3, WIDTH // HEADS)).transpose(1, 2).unbind(3)
        q, k = self.head_norm(q.transpose(1, 2)).transpose(1, 2), k + shared.unsqueeze(1)
        join = c.join_same if setup.bug == "context_gradient" else c.join
        k, v = join(k, 2, grid.cp), join(v, 2, grid.cp)
        after = c.gathered(places, 0, grid.cp).unsqueeze(0) > places.unsqueeze(1)
        scores = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).masked_fill(after, float("-inf"))
        sink = (8 * self.sink).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


def into(x: torch.Tensor, setup: Setup, where: str) -> torch.Tensor:
    """Activations between the matrices into a matrix of which each rank has some output features."""
    if setup.sequence:
        return _dtensor_join(x, setup) if setup.bug == "plain_to_local" else c.join(x, 1, setup.grid.tp)
    forgotten = {"overlap": "attention", "chunked_loss": "head"}.get(setup.bug or "")
    return x if where == forgotten else c.enter(x, setup.grid.tp)


def _dtensor_join(x: torch.Tensor, setup: Setup) -> torch.Tensor:
    """By DTensor, which takes the gradient for whole unless it is told that it is a partial sum."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = DeviceMesh.from_group(setup.grid.tp.group, "cpu")
    return DTensor.from_local(x, mesh, [Shard(1)]).redistribute(placements=[Replicate()]).to_local()


class Mlp(nn.Module):
    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        self.fc1 = _cut(nn.Linear(WIDTH, 4 * WIDTH), 0, setup.grid.tp, bias=True)
        self.fc2 = Row(setup, 4 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = into(x, self.setup, "mlp")
        with _saved_in_parts(x, self.setup):
            hidden = self.fc1(x)
        return self.fc2(F.gelu(hidden))


def _saved_in_parts(x: torch.Tensor, setup: Setup) -> Any:
    """Each rank keeps a part of an activation that all have whole, and gathers it for the backward pass."""
    tp = setup.grid.tp
    if tp.size == 1 or setup.sequence:
        return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    source = setup.grid.dp if setup.bug == "saved_group" else tp

    def unpack(kept: Any) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        part, shape = kept
        if setup.bug == "saved_input":
            return torch.cat([part] * tp.size, 1).view(shape)
        return c.gathered(part, 1, source).view(shape)

    return torch.autograd.graph.saved_tensors_hooks(
        lambda t: (c.own(t.view(x.shape), 1, tp), t.shape) if t.numel() == x.numel() and t.data_ptr() == x.data_ptr() else t,
        unpack,
    )


class Experts(nn.Module):
    """Two of four experts for each token. Over tp, each expert is cut, over ep, each rank has some experts; it sees the tokens of all, or is sent
    those that chose them."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        grid, self.mine = setup.grid, []
        for e in range(EXPERTS):
            first, second = 0.2 * torch.randn(2 * WIDTH, WIDTH), 0.2 * torch.randn(WIDTH, 2 * WIDTH)
            if e * grid.ep.size // EXPERTS == grid.ep.rank:
                self.mine.append(e)
                self.register_parameter(f"first{e}", _part(first, 0, grid.tp))
                self.register_parameter(f"second{e}", _part(second, 1, grid.tp))
        self.balance = torch.zeros(())
        self.shared = nn.Linear(WIDTH, WIDTH) if setup.shared else None

    def _expert(self, e: int, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, getattr(self, f"first{e}"))), getattr(self, f"second{e}"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        setup, grid = self.setup, self.setup.grid
        probabilities = self.router(x).softmax(-1)
        gates, chosen = probabilities.topk(2, -1)
        self.balance = self._balance(probabilities, chosen)
        if setup.dispatch:
            return self._dispatched(x, gates, chosen)
        tokens = into(x, setup, "experts")
        if setup.sequence:
            gates, chosen = c.join(gates, 1, grid.tp), c.gathered(chosen, 1, grid.tp)
        elif setup.bug != "router_replicas":
            gates = c.enter(gates, grid.tp)
        gather = c.join_same if setup.bug == "gathered_tokens" else c.join
        tokens, chosen = gather(tokens, 0, grid.ep), c.gathered(chosen, 0, grid.ep)
        gates = c.gathered(gates, 0, grid.ep) if setup.bug == "detached_gates" else c.join(gates, 0, grid.ep)
        out = torch.zeros_like(tokens)
        for e in self.mine:
            gate = (gates * (chosen == e)).sum(-1, keepdim=True)
            out = out + gate * self._expert(e, tokens)
        out = c.sum_parts(out, 0, grid.ep)
        if self.shared is None:
            return c.sum_parts(out, 1, grid.tp) if setup.sequence else c.leave(out, grid.tp)
        if setup.bug == "shared_expert":
            return c.leave(out + self.shared(x), grid.tp)
        return c.leave(out, grid.tp) + self.shared(x)

    def _dispatched(self, x: torch.Tensor, gates: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Each token goes to the ranks of its experts, in the order of the experts, and comes back from there."""
        ep, expert = self.setup.grid.ep, chosen.flatten()
        order = expert.argsort(stable=True)
        token = order // chosen.shape[-1]
        to = torch.bincount(expert * ep.size // EXPERTS, minlength=ep.size).tolist()
        from_ = c.counts(to, ep)
        rows, which = c.exchange(x.flatten(0, 1)[token], to, from_, ep), c.exchange(expert[order], to, from_, ep)
        out = torch.zeros_like(rows)
        for e in self.mine:
            here = (which == e).nonzero().squeeze(1)
            out = out.index_copy(0, here, self._expert(e, rows[here]))
        back = c.exchange(out, from_, to, ep)
        if self.setup.bug == "own_tokens" and ep.size > 1:
            back = back * (expert[order] * ep.size // EXPERTS == ep.rank).unsqueeze(-1)
        weighted = back * gates.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x.flatten(0, 1)).index_add(0, token, weighted).view_as(x)

    def _balance(self, probabilities: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """This rank's share of the auxiliary loss: the load of each expert times its mean probability."""
        between, grid = self.setup.between, self.setup.grid
        load = F.one_hot(chosen, EXPERTS).float().sum((0, 1, 2))
        count = chosen.shape[0] * chosen.shape[1]
        everywhere = count * between.size * grid.cp.size * grid.dp.size
        load = c.total(load, between, grid.cp, grid.dp) / everywhere
        share = (load * probabilities.sum((0, 1))).sum() * EXPERTS * grid.dp.size / everywhere
        return share * between.size if self.setup.bug == "balance_count" else share


class Block(nn.Module):
    def __init__(self, setup: Setup, experts: bool) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(WIDTH), Attention(setup)
        self.ln2 = nn.LayerNorm(WIDTH)
        self.mlp: nn.Module = Experts(setup) if experts else Mlp(setup)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x), places)
        return x + self.mlp(self.ln2(x))


class Criterion(nn.Module):
    """The loss of each token, from logits of which each rank has some columns."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        setup, tp = self.setup, self.setup.grid.tp
        if setup.whole_logits and setup.bug != "whole_logits":
            tp = Axis()
        columns = logits.shape[-1]
        highest = logits.detach().amax(-1)
        highest = c.gathered(highest.unsqueeze(-1), -1, tp).amax(-1)
        logits = logits - highest.unsqueeze(-1)
        norm = c.leave(logits.exp().sum(-1), tp).log()
        here = targets.clamp(min=0) - (columns * tp.rank if columns < VOCABULARY else 0)
        mine = (here >= 0) & (here < columns)
        hit = logits.gather(-1, here.clamp(0, columns - 1).unsqueeze(-1)).squeeze(-1) * mine
        hit = hit if columns == VOCABULARY else c.leave(hit, tp)
        if not setup.smoothing:
            return (norm - hit) * (targets != IGNORED)
        mean = logits.mean(-1) if setup.bug == "label_smoothing" else c.leave(logits.sum(-1) / VOCABULARY, tp)
        return (norm - (1 - setup.smoothing) * hit - setup.smoothing * mean) * (targets != IGNORED)


class Net(nn.Module):
    """`forward` returns the loss of each token; `second` and `balance` are then those of the second head and of the experts."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        tp = setup.grid.tp
        self.tokens = Tokens(setup)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleDict({str(i): Block(setup, setup.experts and i == 1) for i in range(LAYERS)})
        self.norm = nn.LayerNorm(WIDTH)
        self.head = _cut(nn.Linear(WIDTH, VOCABULARY, bias=False), 0, tp)
        self.criterion = Criterion(setup)
        self.head2 = _cut(nn.Linear(WIDTH, VOCABULARY, bias=False), 0, tp) if setup.second else None
        self.criterion2 = Criterion(setup) if setup.second else None
        self.second: torch.Tensor | None = None

    @property
    def balance(self) -> torch.Tensor | None:
        return next((block.mlp.balance for block in self.blocks.values() if isinstance(block.mlp, Experts)), None)

    def forward(self, x: torch.Tensor, targets: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        setup, cp, between = self.setup, self.setup.grid.cp, self.setup.between
        places = setup.context(torch.arange(CONTEXT), 0)
        tables = {"positions": torch.arange(x.shape[1]), "zigzag_positions": c.own(torch.arange(CONTEXT), 0, cp)}
        table = tables.get(setup.bug or "", places)
        x = self.tokens(x) + self.positions(c.own(table, 0, between))
        for block in self.blocks.values():
            x = block(x, places)
        x = into(self.norm(x), setup, "head")
        logits = self.head(x)
        if setup.whole_logits:
            logits = c.join_same(logits, -1, setup.grid.tp)
        if self.head2 is not None and self.criterion2 is not None:
            self.second = self.criterion2(self.head2(x), after)
        return self.criterion(logits, targets)
