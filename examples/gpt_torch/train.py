"""Trains a small transformer on text, alone or under torchrun, observed by statcollect.

Two runs with equal arguments are bit-identical on one machine; --bug plants one subtle mistake.

    torchrun --nproc_per_node=2 examples/gpt_torch/train.py --run-name base
    torchrun --nproc_per_node=2 examples/gpt_torch/train.py --run-name ort --bug ln_eps
    statctl diff --run-a base --run-b ort
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

import torch
from data import Corpus
from model import BUGS, Config, Gpt
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

REPOSITORY = Path(__file__).resolve().parents[2]


def parse_arguments() -> argparse.Namespace:
    bugs = "\n".join(f"  {name:14} {text}" for name, (text, _) in BUGS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=f"mistakes (--bug):\n{bugs}"
    )
    parser.add_argument("--run-name", help="name of the run (default: STATAGENT_RUN)")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps (default 30)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64, help="tokens per sequence (default 64)")
    parser.add_argument("--batch", type=int, default=16, help="sequences per rank and step (default 16)")
    parser.add_argument(
        "--global-batch",
        type=int,
        help="sequences per step, divided among the ranks, instead of --batch: then any number of ranks trains on the same data",
    )
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="device to train on: cpu (default), cuda, cuda:1, ...")
    parser.add_argument("--corpus", type=Path, default=REPOSITORY, help="folder with text (default: this repository)")
    parser.add_argument("--bug", choices=list(BUGS), default="none", help="mistake to plant, see below")
    parser.add_argument("--bug-layer", type=int, default=1, help="layer of the mistake (default 1)")
    parser.add_argument("--bug-step", type=int, default=0, help="first step with the mistake (default 0)")
    parser.add_argument("--no-agent", action="store_true", help="train without statcollect")
    parser.add_argument("--record-steps", help='steps to record, such as "0-9,every=2" (default: all)')
    parser.add_argument("--no-deterministic", action="store_true", help="let torch choose kernels freely")
    arguments = parser.parse_args()
    batch = arguments.batch if arguments.global_batch is None else arguments.global_batch
    if min(arguments.steps, arguments.layers, arguments.heads, batch, arguments.context) < 1 or arguments.width % arguments.heads:
        parser.error("--width must be a multiple of --heads; steps, layers, heads, batch and context must be at least 1")
    if not 0 <= arguments.bug_layer < arguments.layers and arguments.bug not in ("none", "lr", "grad_sync"):
        parser.error(f"--bug-layer {arguments.bug_layer}: the model has layers 0..{arguments.layers - 1}")
    return arguments


def plant(arguments: argparse.Namespace, model: Gpt, optimizer: torch.optim.Optimizer) -> None:
    """Plants the mistake that --bug names."""
    if arguments.bug == "lr":
        for group in optimizer.param_groups:
            group["lr"] *= 1.01
        return
    change = BUGS[arguments.bug][1]
    if change is not None:
        change(model, arguments.bug_layer)


def report(step: int, steps: int, loss: float, started: float) -> None:
    """Updates one line on a terminal; elsewhere prints a line every few steps."""
    text = f"step {step + 1:4d}/{steps}  loss {loss:.4f}  {(time.monotonic() - started) / (step + 1) * 1000:6.1f} ms/step"
    if sys.stdout.isatty():
        print(f"\r{text}", end="\n" if step + 1 == steps else "", flush=True)
    elif step == 0 or step + 1 == steps or (step + 1) % 10 == 0:
        print(text, flush=True)


def build(arguments: argparse.Namespace, world: int) -> tuple[Gpt, torch.nn.Module, torch.optim.Optimizer]:
    """The model; the module to train, which is a wrapper if there are several ranks; the optimizer."""
    sizes = Config(Corpus.vocabulary, arguments.layers, arguments.width, arguments.heads, arguments.context)
    model = Gpt(sizes).to(arguments.device)
    trained: torch.nn.Module = model
    if world > 1:
        distributed.init_process_group("gloo")
        trained = DistributedDataParallel(model)
    return model, trained, torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)


def recipe(arguments: argparse.Namespace, corpus: Corpus) -> dict[str, object]:
    """The settings that the run is stored with."""
    sizes = Config(Corpus.vocabulary, arguments.layers, arguments.width, arguments.heads, arguments.context)
    return {"model": vars(sizes), "lr": arguments.lr, "batch": arguments.global_batch or arguments.batch, "seed": arguments.seed,
            "corpus_sha256": corpus.sha256}  # fmt: skip


def make_batch(
    arguments: argparse.Namespace, corpus: Corpus, step: int, rank: int, world: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's inputs and targets of a step: int64 [sequences, context], on the device of the model."""
    if arguments.global_batch is None:
        batch = corpus.batch(step, rank, arguments.batch, arguments.context, arguments.seed)
    else:
        everyone = corpus.batch(step, 0, arguments.global_batch, arguments.context, arguments.seed)
        batch = (everyone[0].chunk(world)[rank], everyone[1].chunk(world)[rank])
    return batch[0].to(arguments.device), batch[1].to(arguments.device)


def main() -> None:
    arguments = parse_arguments()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if arguments.global_batch is not None and arguments.global_batch % world:
        sys.exit(f"train.py: --global-batch is {arguments.global_batch}; expected a multiple of the {world} ranks")
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(not arguments.no_deterministic)

    try:
        corpus = Corpus(arguments.corpus)
    except ValueError as error:
        sys.exit(f"train.py: {error}")
    model, trained, optimizer = build(arguments, world)
    if rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{world} rank(s), {parameters:,} parameters, {len(corpus.tokens):,} bytes of text in {corpus.files} files "
              f"(sha256 {corpus.sha256[:12]})")  # fmt: skip

    agent = not arguments.no_agent
    if agent:
        import statagent

        statagent.init(run=arguments.run_name, config=recipe(arguments, corpus), steps=arguments.record_steps)
        statagent.watch(trained, optimizer=optimizer)

    started = time.monotonic()
    for step in range(arguments.steps):
        if step == arguments.bug_step:
            plant(arguments, model, optimizer)
        tokens, targets = make_batch(arguments, corpus, step, rank, world)
        if agent:
            statagent.log_batch(tokens=tokens, targets=targets)
        # Skipping the all-reduce is itself one of the mistakes.
        unsynced = arguments.bug == "grad_sync" and step >= arguments.bug_step and world > 1
        with trained.no_sync() if unsynced else contextlib.nullcontext():  # type: ignore[operator]
            loss = functional.cross_entropy(trained(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
        if agent:
            statagent.log_scalar("loss", loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            report(step, arguments.steps, loss.item(), started)

    if agent:
        statagent.close(timeout=10)
        if rank == 0:
            counts = statagent.counters()
            print(f"records: {counts['produced']} produced, {counts['acked']} stored, "
                  f"{sum(n for name, n in counts.items() if name.startswith('dropped_'))} dropped")  # fmt: skip
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
