"""The demo from start to verdict: a collector, three trainings on two ranks each, two comparisons."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .. import local, programs
from ..errors import StatcollectError

TRAINING_SECONDS = 300.0
RANKS = 2


class DemoError(StatcollectError):
    """A part of the demo failed; the message says which."""


def clean_environment(**extra: str) -> dict[str, str]:
    """Ours without settings of an agent, a collector or a launcher that the demo's processes would obey."""
    environment = local.clean_environment()
    # Where this package and the agent are, however they were found.
    import statagent

    places = [
        str(Path(statagent.__file__).parents[1]),
        str(Path(__file__).resolve().parents[2]),
        environment.get("PYTHONPATH", ""),
    ]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(place for place in places if place))
    environment.update(extra)
    return environment


def train(run: str, address: str, steps: int, bug_step: int, work: Path) -> None:
    """One run on two ranks. Raises DemoError with a rank's messages if one fails."""
    meeting = tempfile.mkdtemp(prefix="sc-")  # short: the names of sockets have at most 107 bytes
    ranks = []
    try:
        for rank in range(RANKS):
            environment = clean_environment(
                STATAGENT_RUN=run, STATAGENT_COLLECTOR=address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                TORCHELASTIC_RUN_ID=f"demo-{run}", DEMO_BUG_STEP=str(bug_step), DEMO_SOCKET=f"{meeting}/ranks",
            )  # fmt: skip
            command = [sys.executable, "-m", "statcollect.demo.training", str(steps)]
            with (work / f"{run}-{rank}.log").open("w") as errors:
                ranks.append(subprocess.Popen(command, env=environment, stderr=errors, text=True))
        until = time.monotonic() + TRAINING_SECONDS
        while any(process.poll() is None for process in ranks):
            failed = any(process.poll() for process in ranks)  # the other would wait for it
            if failed or time.monotonic() > until:
                break
            time.sleep(0.05)
        for rank, process in enumerate(ranks):
            if process.poll():
                raise DemoError(f"train run '{run}': rank {rank} failed:\n{(work / f'{run}-{rank}.log').read_text()[-4000:]}")
        if any(process.poll() is None for process in ranks):
            raise DemoError(f"train run '{run}': it did not end within {TRAINING_SECONDS:.0f} s")
    finally:
        for process in ranks:
            local.stop(process)
        shutil.rmtree(meeting, ignore_errors=True)


def compare(address: str, a: str, b: str, expected: int) -> None:
    """Prints the verdict. Raises DemoError if it is not the expected one."""
    command = [str(programs.find("statctl")), "--collector", address, "diff", "--run-a", a, "--run-b", b, "--top", "6"]
    sys.stdout.flush()
    code = subprocess.run(command, env=clean_environment(), check=False, timeout=120).returncode
    if code != expected:
        raise DemoError(
            f"compare {a} with {b}: statctl exited with {code}; expected {expected} (0 same, 1 diverged, 2 no answer)"
        )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m statcollect demo",
        description="Trains a small network on two ranks as run `base`, again with a wrong eps in one LayerNorm as run `ort`, and once more "
        "unchanged as run `base2`; then shows where the runs diverge. Needs only this package.",
    )
    parser.add_argument("--steps", type=int, default=12, help="steps of each training (default 12)")
    parser.add_argument("--bug-step", type=int, default=3, help="the first step with the mistake (default 3)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the collector's data and the logs in DIR")
    parser.add_argument(
        "--no-wait", action="store_true", help="end after the verdicts; otherwise, in a terminal, the page stays until Enter"
    )
    options = parser.parse_args(arguments)
    if not 0 <= options.bug_step < options.steps <= 1000:
        parser.error(f"found --steps {options.steps} --bug-step {options.bug_step}; expected 0 <= bug step < steps <= 1000")
    if options.keep and (options.keep / "data").exists():
        parser.error(f"--keep {options.keep}: found an earlier demo's data in it; name another folder or remove that one")
    return options


def run(options: argparse.Namespace, work: Path) -> None:
    started = time.monotonic()

    def heading(text: str) -> None:
        print(f"\n==> {text}  ({time.monotonic() - started:.0f} s)", flush=True)

    # Links to the page are printed only where its collector stays.
    waits = not (options.no_wait or options.keep) and sys.stdin.isatty() and sys.stdout.isatty()
    heading("collector")
    with local.collector(work, http="127.0.0.1:0" if waits else "off") as own:
        address = own.grpc
        print(own.ready_line, end="")
        heading(f"run base: two ranks, {options.steps} steps")
        train("base", address, options.steps, -1, work)
        heading(f"run ort: the same, but from step {options.bug_step} on the eps of blocks.1.norm is 1e-3 instead of 1e-5")
        train("ort", address, options.steps, options.bug_step, work)
        heading("run base2: base once more, unchanged")
        train("base2", address, options.steps, -1, work)
        heading("statctl diff --run-a base --run-b ort")
        compare(address, "base", "ort", 1)
        heading("statctl diff --run-a base --run-b base2")
        compare(address, "base", "base2", 0)
        heading("done")
        if waits:
            print(f"Where they diverge, in a browser: http://{own.http}/?view=compare&a=base&b=ort")
            print("Press Enter to stop the collector. ", end="", flush=True)
            sys.stdin.readline()
    if options.keep:
        print(f"Kept in {work}. To look around: statcollectord --data-dir {work}/data")
    print("Your own training, without a line in it: statctl run base -- python train.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if both verdicts are right, 1 if not, 2 for wrong arguments."""
    options = parse(arguments)
    work = Path(tempfile.mkdtemp(prefix="statcollect-demo-"))
    try:
        if options.keep:
            shutil.rmtree(work)
            options.keep.mkdir(parents=True, exist_ok=True)
            work = options.keep.resolve()
        run(options, work)
    except (StatcollectError, OSError, subprocess.TimeoutExpired) as error:
        print(f"statcollect demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    return 0
