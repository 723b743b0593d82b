"""Trainings as users write them, run by test_auto_*.py: without a line of statagent, or with `--hand` as docs/python.md says.

python plain.py CASE [--hand]     Prints each loss, a hash of the weights at the end, and the next random number.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

HAND = "--hand" in sys.argv
WIDTH, VOCABULARY, STEPS = 16, 20, 4


def by_hand(*watched: tuple[Any, Any, str]) -> None:
    """Starts the agent and watches (model, optimizer, name), if asked to."""
    if HAND:
        import statagent

        statagent.init()
        for model, optimizer, name in watched:
            statagent.watch(model, optimizer=optimizer, name=name)


def log(loss: torch.Tensor) -> torch.Tensor:
    if HAND:
        import statagent

        statagent.log_scalar("loss", loss)
    print(f"loss {loss.item():.9g}")
    return loss


def finish(*models: nn.Module) -> None:
    weights = hashlib.sha256()
    for model in models:
        for parameter in model.parameters():
            weights.update(parameter.detach().double().numpy().tobytes())
    print("weights", weights.hexdigest()[:16], "random", torch.rand(1).item())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.ln(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = self.wte(idx)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(x)
        loss = None if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, VOCABULARY, (9,), generator=torch.Generator().manual_seed(index))


def batches(workers: int = 0) -> Iterator[torch.Tensor]:
    while True:
        yield from torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers)


def nanogpt() -> None:
    """Accumulation, clipping, an evaluation, a schedule, and an average of the weights, as nanoGPT's train.py."""
    model = GPT()
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
         {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}], lr=1e-2,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    average = torch.optim.swa_utils.AveragedModel(model)
    by_hand((model, optimizer, ""))
    data = batches()
    for step in range(STEPS):
        if step % 2 == 0:
            model.eval()
            with torch.no_grad():
                print("evaluation", model(next(data)[:, :-1])[0].sum().item())
            model.train()
        for _ in range(2):
            rows = next(data)
            _, loss = model(rows[:, :-1], rows[:, 1:])
            assert loss is not None
            log(loss / 2).backward() if HAND else step_loss(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        average.update_parameters(model)
    finish(model, average)


def step_loss(loss: torch.Tensor) -> None:
    (loss / 2).backward()
    print(f"loss {(loss / 2).item():.9g}")


def workers() -> None:
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_hand((model, optimizer, ""))
    train(model, optimizer, batches(2))


def train(
    model: Any, optimizer: Any, data: Iterator[torch.Tensor], autocast: Any = contextlib.nullcontext, scaler: Any = None
) -> None:
    inner = getattr(model, "_orig_mod", model)
    for _ in range(STEPS):
        rows = next(data)
        with autocast():
            _, loss = model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        log(loss)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    finish(inner)


def amp() -> None:
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    by_hand((model, optimizer, ""))
    train(
        model,
        optimizer,
        batches(),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.amp.GradScaler("cpu", init_scale=64.0),
    )


def compiled() -> None:
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fast: Any = torch.compile(model, backend="aot_eager")
    by_hand((fast, optimizer, ""))
    train(fast, optimizer, batches())


def compiled_step() -> None:
    """The compiled function calls the model: nothing may be added to the graph."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = batches()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compute(rows: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        return loss

    for _ in range(STEPS):
        loss = compute(next(data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.9g}")
    finish(model)


def gan() -> None:
    """DCGAN's loop: the generator runs with gradients in the discriminator's half, too."""
    net_g, net_d = small(WIDTH), small(1)
    opt_d = torch.optim.Adam(net_d.parameters(), lr=1e-3)
    opt_g = torch.optim.Adam(net_g.parameters(), lr=1e-3)
    by_hand((net_d, opt_d, "net_d"), (net_g, opt_g, "net_g"))
    for step in range(STEPS):
        for _ in range(2 if step == 1 else 1):  # the critic may make more updates
            opt_d.zero_grad()
            err_real = judge(net_d(torch.randn(4, WIDTH)), 1.0)
            err_real.backward()
            with torch.no_grad() if step == 2 else contextlib.nullcontext():
                fake = net_g(torch.randn(4, WIDTH))
            err_fake = judge(net_d(fake.detach()), 0.0)
            err_fake.backward()
            opt_d.step()
        opt_g.zero_grad()
        err_g = judge(net_d(net_g(torch.randn(4, WIDTH))), 1.0)
        err_g.backward()
        opt_g.step()
        print(f"loss {err_g.item():.9g}")
    finish(net_g, net_d)


def small(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs))


def judge(said: torch.Tensor, value: float) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(said, torch.full_like(said, value))


class Autoencoder(nn.Module):
    """Called by its parts only."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = small(4), nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def parts() -> None:
    model = Autoencoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_hand((model, optimizer, ""))
    regress(lambda x: model.decoder(model.encoder(x)), [optimizer])
    finish(model)


def regress(model: Callable[[torch.Tensor], torch.Tensor], optimizers: list[Any], steps: int = STEPS) -> None:
    for _ in range(steps):
        x = torch.randn(4, WIDTH)
        loss = (model(x) - x).square().mean()
        for each in optimizers:
            each.zero_grad()
        log(loss).backward()
        for each in optimizers:
            each.step()


def two_models() -> None:
    """One optimizer for two models that no module contains."""
    encoder, decoder = small(4), nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    by_hand((encoder, optimizer, "encoder"), (decoder, optimizer, "decoder"))
    regress(lambda x: decoder(encoder(x)), [optimizer])
    finish(encoder, decoder)


def disjoint() -> None:
    """Two optimizers for parts of one model, as Muon and AdamW."""
    model = small(WIDTH)
    matrices = torch.optim.SGD([p for p in model.parameters() if p.dim() > 1], lr=0.1)
    rest = torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2], lr=1e-2)
    by_hand((model, [matrices, rest], ""))
    regress(model, [matrices, rest])
    finish(model)


def taking_turns() -> None:
    """Both are there from the start; the second takes over."""
    model = small(WIDTH)
    first, second = torch.optim.Adam(model.parameters(), lr=1e-2), torch.optim.SGD(model.parameters(), lr=1e-2)
    regress(model, [first])
    regress(model, [second])
    finish(model)


def rebuilt() -> None:
    """The old one is still there, in its schedule."""
    model = small(WIDTH)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = torch.optim.lr_scheduler.ConstantLR(optimizer)
    regress(model, [optimizer])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    regress(model, [optimizer])
    assert kept is not None
    finish(model)


def two_phases() -> None:
    """One model after the other; both optimizers are there from the start."""
    first, second = small(WIDTH), small(WIDTH)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, second)]
    regress(first, optimizers[:1])
    regress(second, optimizers[1:])
    finish(first, second)


def teacher() -> None:
    """A model without an optimizer, and a copy of the trained one."""
    import copy

    master, student = small(WIDTH).eval(), small(WIDTH)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    average = copy.deepcopy(student)
    by_hand((student, optimizer, ""))
    for _ in range(STEPS):
        x = torch.randn(4, WIDTH)
        with torch.no_grad():
            wanted = master(x) + 0.1 * average(x)
        optimizer.zero_grad()
        log((student(x) - wanted).square().mean()).backward()
        optimizer.step()
        for one, other in zip(average.parameters(), student.parameters()):
            one.data.lerp_(other.data, 0.1)
    finish(student, average)


class Online(nn.Module):
    """Holds its slow copy itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow, self.fixed = small(WIDTH), small(WIDTH), small(WIDTH)
        self.slow.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fast: torch.Tensor = self.fast(x)
        return fast


class Learner:
    def __init__(self) -> None:
        self.online, self._targets = Online(), [small(WIDTH)]
        self.optimizer = torch.optim.SGD(self.online.fast.parameters(), lr=0.1)


def copies() -> None:
    """Two copies that follow, in an attribute and inside of the model, and two models that stay as they are."""
    learner, frozen = Learner(), small(WIDTH)
    by_hand((learner.online, learner.optimizer, ""))
    for _ in range(STEPS):
        regress(learner.online, [learner.optimizer], 1)
        learner._targets[0].load_state_dict(learner.online.fast.state_dict())
        with torch.no_grad():
            torch._foreach_lerp_(list(learner.online.slow.parameters()), list(learner.online.fast.parameters()), 0.1)
    finish(learner.online, *learner._targets, frozen)


class ActorCritic:
    def __init__(this) -> None:  # noqa: N805 (names are found whatever the object is called)
        this.actor, this._critic = small(4), small(1)
        this.optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (this.actor, this._critic)]

    def update(this) -> None:  # noqa: N805
        x = torch.randn(4, WIDTH)
        for error in (this._critic(x).square().mean(), this.actor(x).square().mean()):
            error.backward()
            print(f"error {error.item():.9g}")
        for each in this.optimizers:
            each.step()
            each.zero_grad()


def held() -> None:
    """Two models in an object."""
    learner = ActorCritic()
    by_hand((learner.actor, learner.optimizers[0], "actor"), (learner._critic, learner.optimizers[1], "critic"))
    for _ in range(STEPS):
        learner.update()
    finish(learner.actor, learner._critic)


class Lookahead(torch.optim.Optimizer):
    """Does not call the initialisation of its base, as timm's: everything is in the optimizer inside."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self._optimizer_step_pre_hooks: Any = collections.OrderedDict()
        self._optimizer_step_post_hooks: Any = collections.OrderedDict()
        self._base, self.param_groups, self.state, self.defaults = base, base.param_groups, base.state, base.defaults

    def step(self, closure: Any = None) -> Any:
        return self._base.step(closure)


def closure() -> None:
    """The model runs inside of the optimizer's update."""
    model = small(WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    by_hand((model, optimizer, ""))
    for _ in range(STEPS):
        x = torch.randn(4, WIDTH)

        def compute(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            log(loss).backward()
            return loss

        optimizer.step(compute)
    finish(model)


def wrapped_optimizer() -> None:
    model = small(WIDTH)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    by_hand((model, inner, ""))
    regress(model, [Lookahead(inner)])
    finish(model)


def resumed() -> None:
    """Goes on from a checkpoint after six updates; SGD beside Adam does not count its own."""
    model, other = small(WIDTH), small(WIDTH)
    optimizer, plain = torch.optim.Adam(model.parameters(), lr=1e-2), torch.optim.SGD(other.parameters(), lr=0.1)
    moments = [{"step": torch.tensor(6.0), "exp_avg": p * 0, "exp_avg_sq": p * 0 + 1} for p in model.parameters()]
    optimizer.load_state_dict(optimizer.state_dict() | {"state": dict(enumerate(moments))})
    regress(nn.Sequential(model, other), [optimizer, plain])
    finish(model, other)


def by_itself() -> None:
    """Calls the agent, with its own names."""
    import statagent

    agent = statagent.init(config={"own": 1})
    model = small(WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer=optimizer, name="mine")
    for _ in range(STEPS):
        x = torch.randn(4, WIDTH)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        statagent.log_scalar("my loss", loss)
        optimizer.step()
    print("run", agent.run)
    finish(model)


def late_init() -> None:
    """Calls the agent when a training pass has been already."""
    model = small(WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, WIDTH)).sum().backward()
    optimizer.zero_grad()
    import statagent

    statagent.init(run="another-name")
    statagent.watch(model, optimizer=optimizer)
    regress(model, [optimizer])
    finish(model)


def without_optimizer() -> None:
    model = small(WIDTH)
    for _ in range(STEPS):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator,misc]
                parameter.grad = None
    finish(model)


def bare_tensor() -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (weight - 1).square().sum().backward()
        optimizer.step()
    print("weights", weight.tolist())


def evaluation_mode() -> None:
    model = small(WIDTH).eval()
    regress(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    finish(model)


def direct_forward() -> None:
    """Calls forward(), which runs no hooks of the model itself."""
    model = small(WIDTH)
    regress(model.forward, [torch.optim.SGD(model.parameters(), lr=0.1)])
    finish(model)


def scripted() -> None:
    import warnings

    warnings.simplefilter("ignore")
    model: Any = torch.jit.script(small(WIDTH))
    regress(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    finish(model)


def never_trained() -> None:
    model = small(WIDTH)
    torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        print(model(torch.randn(4, WIDTH)).sum().item())
    finish(model)


def ends_badly(how: str) -> None:
    import os

    model = small(WIDTH)
    regress(model, [torch.optim.SGD(model.parameters(), lr=0.1)], 3)
    sys.stdout.flush()
    if how == "raises":
        raise RuntimeError("planted")
    if how == "interrupted":
        print("ready", flush=True)
        import time

        time.sleep(60)
    if how == "exits":
        sys.exit(3)
    os._exit(4)


def main() -> None:
    torch.manual_seed(7)
    case = next(word for word in sys.argv[1:] if not word.startswith("--"))
    if case in ("raises", "interrupted", "exits", "leaves"):
        ends_badly(case)
    globals()[case]()


if __name__ == "__main__":
    main()
