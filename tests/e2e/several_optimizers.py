"""Trains small models of several networks as users write them, one run for each job: run as a program by test_several_optimizers.py.

python several_optimizers.py JOB...    JOB: case, or case:fault; the run is named after it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

import statagent
from statagent._runtime.current import set_current_agent
from statagent.watch import Kind

STEPS = 3
WIDTH = 8
BETAS = (0.5, 0.999)


def batch(step: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * seed + step))


def small(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs))


def swapped(betas: tuple[float, float], now: bool) -> tuple[float, float]:
    return (betas[1], betas[0]) if now else betas


def real_or_fake(said: torch.Tensor, real: bool) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(said, torch.full_like(said, float(real)))


def gan(fault: str, kinds: Sequence[Kind] | None = None, logged: bool = True) -> None:
    """`logged`: the program says what its batch is; else that is what each model is called with."""
    gen, dis = small(WIDTH), small(1)
    if fault == "gen_forward":
        gen[1] = nn.Hardtanh()
    og = torch.optim.Adam(gen.parameters(), lr=1e-2 if fault != "gen_lr" else 2e-2, betas=BETAS)
    od = torch.optim.Adam(dis.parameters(), lr=1e-2 if fault != "dis_lr" else 2e-2, betas=swapped(BETAS, fault == "dis_betas"))
    statagent.watch(gen, optimizer=og, name="gen", kinds=kinds)
    statagent.watch(dis, optimizer=od, name="dis", kinds=kinds)
    for step in range(STEPS):
        if logged:
            statagent.log_batch(real=batch(step))
        od.zero_grad()
        fake = gen(batch(step, 1))
        dis_loss = real_or_fake(dis(batch(step)), True) + real_or_fake(dis(fake.detach()), False)
        dis_loss.backward()
        od.step()
        og.zero_grad()
        gen_loss = real_or_fake(dis(fake), True)
        (gen_loss * (1.5 if fault == "gen_backward" and step == 1 else 1)).backward()
        if fault == "gen_clipped":
            nn.utils.clip_grad_norm_(gen.parameters(), 1e-3)
        statagent.log_scalar("dis/loss", dis_loss)
        statagent.log_scalar("gen/loss", gen_loss * (2 if fault == "gen_loss" else 1))
        og.step()


def gan_unlogged(fault: str) -> None:
    gan(fault, logged=False)


def gan_without_state(fault: str) -> None:
    """Only weights show what an optimizer does: Adam's first update is the same whatever its betas are, except for rounding."""
    gan(fault, ["output", "grad_output", "weight", "weight_grad"])


def critic_often(fault: str) -> None:
    """Three updates of the discriminator for each of the generator."""
    gen, dis = small(WIDTH), small(1)
    og = torch.optim.RMSprop(gen.parameters(), lr=1e-2)
    od = torch.optim.RMSprop(dis.parameters(), lr=1e-2)
    statagent.watch(gen, optimizer=og, name="gen")
    statagent.watch(dis, optimizer=od, name="dis")
    for step in range(STEPS):
        for turn in range(3):
            for group in od.param_groups:
                group["lr"] = 2e-2 if fault == "second_update" and turn == 1 else 1e-2
            od.zero_grad()
            (dis(gen(batch(step, turn)).detach()).mean() - dis(batch(step, 10 + turn)).mean()).backward()
            od.step()
        og.zero_grad()
        (-dis(gen(batch(step, 20))).mean()).backward()
        og.step()


def teacher_student(fault: str) -> None:
    """Only the student is trained; the teacher is run without gradients, as evaluation."""
    teacher = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 3)).eval()
    student = small(3)
    if fault == "teacher_dropout":
        teacher.train()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2, betas=swapped(BETAS, fault == "student_betas"))
    statagent.watch(teacher, name="teacher", eval=True)
    statagent.watch(student, optimizer=optimizer, name="student")
    for step in range(STEPS):
        x = batch(step)
        with torch.no_grad():
            wanted = teacher(x)
        optimizer.zero_grad()
        temperature = 3.0 if fault == "temperature" else 2.0
        loss = functional.kl_div(
            functional.log_softmax(student(x) / temperature, 1),
            functional.softmax(wanted / temperature, 1),
            reduction="batchmean",
        )
        loss.backward()
        statagent.log_scalar("loss", loss)
        optimizer.step()


class ActorCritic(nn.Module):
    """Two heads on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(WIDTH, WIDTH)
        self.actor = nn.Linear(WIDTH, 3)
        self.critic = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return self.actor(hidden), self.critic(hidden)


def actor_critic(fault: str) -> None:
    """The critic's update takes the trunk along, the actor's its own head only."""
    model = ActorCritic()
    critic_betas, actor_betas = swapped(BETAS, fault == "critic_betas"), swapped(BETAS, fault == "actor_betas")
    oc = torch.optim.Adam([*model.trunk.parameters(), *model.critic.parameters()], lr=1e-2, betas=critic_betas)
    oa = torch.optim.Adam(model.actor.parameters(), lr=1e-2, betas=actor_betas)
    statagent.watch(model, optimizer=[oc, oa])
    for step in range(STEPS):
        oc.zero_grad()
        returns = batch(step, 2)[:, :1]
        critic_loss = functional.mse_loss(model(batch(step))[1], returns)
        critic_loss.backward()
        oc.step()
        oa.zero_grad()
        logits, value = model(batch(step))
        advantage = (returns - value.detach()) * (2 if fault == "advantage" else 1)
        actor_loss = -(functional.log_softmax(logits, 1)[:, :1] * advantage).mean()
        actor_loss.backward()
        statagent.log_scalar("critic_loss", critic_loss)
        statagent.log_scalar("actor_loss", actor_loss)
        oa.step()


CASES: dict[str, Callable[[str], None]] = {
    "gan": gan, "gan_unlogged": gan_unlogged, "gan_without_state": gan_without_state, "critic_often": critic_often, "teacher_student": teacher_student, "actor_critic": actor_critic,
}  # fmt: skip


def main() -> None:
    for job in sys.argv[1:]:
        case, _, fault = job.partition(":")
        set_current_agent(None)  # as in a process of its own
        torch.manual_seed(1)
        statagent.init(run=job.replace(":", "-"), required=True)
        CASES[case](fault)
        statagent.close(timeout=20)
        counts = statagent.counters()
        assert counts["produced"] == counts["acked"], counts


if __name__ == "__main__":
    main()
