"""`python -m statcollect demo`; and the programs that statctl starts."""

from __future__ import annotations

import sys

USAGE = """Usage: python -m statcollect demo [--steps N] [--bug-step N] [--keep DIR] [--no-wait]
       python -m statcollect publish TRACKER RUN_A RUN_B
       python -m statcollect otlp ENDPOINT [--run PATTERN] [--interval SECONDS] [--all] [--once]

  demo     trains a small network on two ranks three times, once with a mistake, and finds it: a few seconds
  publish  compares two runs and writes the verdict to the second one's run in wandb, mlflow or trackio
  otlp     sends losses and alarms to an OpenTelemetry receiver

The collector and its command line are commands of their own: statcollectord, statctl."""


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["demo"]:
        from .demo import main as demo

        return demo(arguments[1:])
    if arguments[:1] == ["mcp"]:
        from .bridges.mcp_server import main as mcp

        return mcp(arguments[1:])
    if arguments[:1] == ["otlp"]:
        from .bridges.otlp import main as otlp

        return otlp(arguments[1:])
    if arguments[:1] == ["publish"]:
        from .bridges.trackers import main as publish

        return publish(arguments[1:])
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    print(
        f"python -m statcollect: '{arguments[0]}' is not a command; expected demo, publish or otlp; see --help", file=sys.stderr
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
