"""Trains a small mixture of experts whose experts are spread over the ranks by hand: python expert_runs.py JOBS.json, under torchrun if there
are several. Each rank has some of the samples and sends every token to the ranks of its experts, and back.

`fault`: what one run does otherwise, from step 1 on: see FAULTS in test_layouts_experts.py. `tied`: experts 0 and 1 of the last block have nearly the
same logits; `reordered`: routers add up in another order."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

import statagent

VOCABULARY, LENGTH, WIDTH, BATCH, EXPERTS, CHOSEN, LAYERS = 32, 12, 24, 8, 4, 2, 2


@dataclass
class Odd:
    """What the last block's mixture does otherwise in this step. No setting of a module, which would be recorded.
    `capacity`: rows of each expert's input, the rest zeros; 0: as many as tokens."""

    fault: str = ""
    capacity: int = 0


ODD = Odd()


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class _Exchange(torch.autograd.Function):
    """Rows to other ranks: `send` and `take` rows for and from each. The gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, send: list[int], take: list[int]) -> torch.Tensor:
        ctx.send, ctx.take = send, take
        return exchange(x, send, take)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return exchange(gradient, ctx.take, ctx.send), None, None


def exchange(x: torch.Tensor, send: list[int], take: list[int]) -> torch.Tensor:
    found = x.new_empty(sum(take), *x.shape[1:])
    distributed.all_to_all_single(found, x.contiguous(), take, send)
    return found


class Mixture(nn.Module):
    """`experts`: those of this rank, under names that count from 0."""

    def __init__(self, rank: int, size: int, odd: Odd) -> None:
        super().__init__()
        self._rank, self._size, self._odd, self.top_k = rank, size, odd, CHOSEN
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        every = [Expert() for _ in range(EXPERTS)]
        here = EXPERTS // size
        self.experts = nn.ModuleList(every[rank * here : (rank + 1) * here])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._odd.fault == "router_bf16"):
            scores = self.router(x * 1.05 if self._odd.fault == "scaled" else x)
        gates, chosen = scores.float().flatten(0, 1).softmax(-1).topk(CHOSEN, -1)
        if self._odd.fault == "gates":
            gates = gates * 1.02
        order = chosen.flatten().argsort(stable=True)  # by expert
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        if self._odd.fault == "dropped" and int(counts[2]) > 0 and self._rank == 0:
            at = int(counts[:2].sum())
            order, counts = torch.cat([order[:at], order[at + 1 :]]), counts - F.one_hot(torch.tensor(2), EXPERTS)
        rows = tokens[order // CHOSEN]
        done = self._by_experts(rows, counts)
        weighted = done * gates.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, order // CHOSEN, weighted).view_as(x)

    def _by_experts(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """`counts`: rows of this rank for each expert of all."""
        if self._size == 1:
            return torch.cat([self._one(e, part) for e, part in enumerate(rows.split(counts.tolist()))])
        here = len(self.experts)
        theirs = exchange(counts, [here] * self._size, [here] * self._size).view(self._size, here)
        send, take = counts.view(self._size, here).sum(1).tolist(), theirs.sum(1).tolist()
        arrived = _Exchange.apply(rows, send, take)
        parts = [list(part.split(theirs[rank].tolist())) for rank, part in enumerate(arrived.split(take))]
        outputs = [self._one(e, torch.cat([parts[rank][e] for rank in range(self._size)])) for e in range(here)]
        back = [output.split(theirs[:, e].tolist()) for e, output in enumerate(outputs)]
        ordered = torch.cat([back[e][rank] for rank in range(self._size) for e in range(here)])
        return _Exchange.apply(ordered, take, send)

    def _one(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        if self._odd.capacity == 0:
            return self.experts[expert](rows)
        padded = torch.cat([rows, rows.new_zeros(self._odd.capacity - len(rows), WIDTH)])
        return self.experts[expert](padded)[: len(rows)]


class Block(nn.Module):
    def __init__(self, rank: int, size: int, odd: Odd) -> None:
        super().__init__()
        self.norm, self.mix, self.mlp = nn.LayerNorm(WIDTH), nn.Linear(LENGTH, LENGTH, bias=False), Mixture(rank, size, odd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self, rank: int, size: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(rank, size, ODD if i == layers - 1 else Odd()) for i in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    @property
    def mixture(self) -> Mixture:
        """That of the last block."""
        block: Any = self.blocks[-1]
        return block.mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def change_routers(net: Net, tied: bool, reordered: bool) -> None:
    if tied:
        with torch.no_grad():
            rows = net.mixture.router.weight
            rows[1] = torch.nextafter(rows[0], rows[0] + torch.randn(WIDTH).sign())
    blocks: Any = net.blocks if reordered else ()
    for block in blocks:
        router = block.mlp.router
        router.forward = lambda x, router=router: F.linear(x.flip(-1), router.weight.flip(-1))


def train(run: str, steps: int, fault: str, capacity: int, tied: bool, reordered: bool, layers: int = LAYERS) -> None:
    rank, size = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    torch.manual_seed(1)
    net = Net(rank, size, layers)
    change_routers(net, tied, reordered)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, foreach=False)
    statagent.init(run=run, if_exists="replace", launch=f"{run}-1")
    layouts = {"*": statagent.batch(order="blocks")} if size > 1 else None
    statagent.watch(net, optimizer=optimizer, layouts=layouts, tokens=True)
    for step in range(steps):
        numbers = torch.Generator().manual_seed(100 + step)
        text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=numbers)
        mine = text.chunk(size)[rank]
        ODD.fault, ODD.capacity = fault if step >= 1 else "", capacity
        loss = F.cross_entropy(net(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        for name, parameter in net.named_parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if size > 1 and ".experts." not in name:
                distributed.all_reduce(parameter.grad)
            parameter.grad /= size
        statagent.log_scalar("loss", loss.item())
        stale = list(net.mixture.experts[-1].parameters()) if fault == "stale" and rank == size - 1 and step == 0 else []
        kept = [parameter.detach().clone() for parameter in stale]
        optimizer.step()
        with torch.no_grad():
            for parameter, before in zip(stale, kept):
                parameter.copy_(before)
        optimizer.zero_grad()
    statagent.close(timeout=20)


def main() -> None:
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("gloo")
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        train(**job)
        if distributed.is_initialized():
            distributed.barrier()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
