#!/usr/bin/env bash
# The demo over several machines' worth of processes: see scripts/demo_cluster.py, which this one installs and builds for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case " $* " in *" -h "* | *" --help "*) exec python3 scripts/demo_cluster.py --help ;; esac
started=$SECONDS
step() { printf '\n==> %s  (%d s)\n' "$*" $((SECONDS - started)); }
step "set-up: about 2 minutes on a bare machine, seconds once everything is there"
scripts/setup.sh --for cluster
step "build of the collector, statctl and the agent: about 7 minutes with 2 processors, seconds if nothing changed"
scripts/build.sh release --targets "statcollectord statctl statagent" -DSTATCOLLECT_BUILD_TESTS=OFF -DSTATCOLLECT_BUILD_BENCH=OFF
exec .venv/bin/python scripts/demo_cluster.py "$@"
