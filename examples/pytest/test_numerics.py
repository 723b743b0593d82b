"""A golden as a test: what three training steps compute must not change unnoticed."""

import torch

import statagent


def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    statagent.watch(model, optimizer=optimizer)
    for _ in range(3):
        loss = model(torch.randn(4, 8)).square().mean()
        statagent.log_scalar("loss", loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_numerics(statcollect):
    statcollect.assert_matches("golden.scg", train, tolerance=1e-4)
