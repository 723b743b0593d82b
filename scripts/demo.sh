#!/usr/bin/env bash
# The main job, end to end: two real training runs, one collector, one verdict.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bug=ln_eps
bug_step=3
steps=30
agent=1
keep=""
open=""
usage() {
  cat <<'EOF'
Usage: scripts/demo.sh [--bug NAME] [--bug-step N] [--steps N] [--no-agent] [--keep DIR] [--open]

Installs missing packages, builds, and starts statcollectord. Trains a small transformer on two ranks (torchrun, CPU) as run `base`, again
with noise in the last places (twins), with one subtle mistake as run `ort`, and once more unchanged as run `base2`. Then asks where the
runs diverge.

  --bug NAME     the mistake (default ln_eps); examples/gpt_torch/train.py --help lists them
  --bug-step N   the first step with the mistake (default 3)
  --steps N      training steps of each run (default 30)
  --no-agent     only train once, without the agent and the collector
  --keep DIR     keep the collector's data and the logs in DIR (default: a temporary folder, removed at the end)
  --open         show the answer in a browser at the end; the collector runs until you press Enter

Examples:
  scripts/demo.sh
  scripts/demo.sh --bug attn_scale --bug-step 0
  scripts/demo.sh --keep demo-out     # then: build/release/bin/statcollectord --data-dir demo-out/data
EOF
}
while [ $# -gt 0 ]; do
  case "$1" in
    --bug) bug="${2:?--bug takes a name}"; shift 2 ;;
    --bug-step) bug_step="${2:?--bug-step takes a number}"; shift 2 ;;
    --steps) steps="${2:?--steps takes a number}"; shift 2 ;;
    --no-agent) agent=0; shift ;;
    --open) open=1; shift ;;
    --keep) keep="${2:?--keep takes a folder}"; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "demo.sh: unknown argument '$1'; see scripts/demo.sh --help" >&2; exit 2 ;;
  esac
done

if [ -n "$open" ] && { [ "$agent" = 0 ] || [ ! -t 0 ]; }; then
  echo "demo.sh: --open: found no terminal, or --no-agent; expected a terminal, in which Enter ends the collector that shows the page" >&2
  exit 2
fi

started=$SECONDS
step() { printf '\n\033[1m==> %s\033[0m  (%d s)\n' "$*" $((SECONDS - started)); }
[ -t 1 ] || step() { printf '\n==> %s  (%d s)\n' "$*" $((SECONDS - started)); }

step "set-up: about 2 minutes on a bare machine, seconds once everything is there"
scripts/setup.sh --for demo
if [ "$agent" = 1 ]; then
  step "build of the collector, statctl and the agent: about 7 minutes with 2 processors, seconds if nothing changed"
  scripts/build.sh release --targets "statcollectord statctl statagent" -DSTATCOLLECT_BUILD_TESTS=OFF -DSTATCOLLECT_BUILD_BENCH=OFF
fi

bin="$PWD/build/release/bin"
python="$PWD/.venv/bin/python"
if [ -n "$keep" ]; then
  mkdir -p "$keep"
  work="$(cd "$keep" && pwd)"
  if [ -e "$work/data" ]; then
    echo "demo.sh: --keep $keep: found an earlier demo's data in $keep/data; name another folder or remove that one" >&2
    exit 2
  fi
else
  work="$(mktemp -d)"
fi

collector_pid=""
trainer_pid=""
stop() { # PID: SIGTERM, then wait for it
  [ -n "$1" ] && kill -TERM "$1" 2>/dev/null && wait "$1" 2>/dev/null
  return 0
}
finish() {
  status=$?
  trap - EXIT INT TERM
  stop "$trainer_pid"
  stop "$collector_pid"
  [ -n "$keep" ] || rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export OMP_NUM_THREADS=1
train() { # RUN extra arguments: two ranks under torchrun; output to the terminal and to a log
  local run="$1"
  shift
  STATAGENT_RUN="$run" "$python" -m torch.distributed.run --standalone --nproc_per_node=2 \
    examples/gpt_torch/train.py --steps "$steps" "$@" > >(tee "$work/$run.log") 2>"$work/$run.err" &
  trainer_pid=$!
  if ! wait "$trainer_pid"; then
    trainer_pid=""
    echo "demo.sh: training run '$run' failed; its last messages:" >&2
    tail -n 30 "$work/$run.err" >&2
    exit 1
  fi
  trainer_pid=""
}

if [ "$agent" = 0 ]; then
  step "training without the agent"
  train plain --no-agent
  step "done"
  exit 0
fi

# Links to the page are printed only where its collector stays until Enter is pressed.
http=off
if [ -n "$open" ] || { [ -z "$keep" ] && [ -t 0 ] && [ -t 1 ]; }; then http=127.0.0.1:0; fi
step "collector"
"$bin/statcollectord" --data-dir "$work/data" --listen 127.0.0.1:0 --http "$http" >"$work/collector.out" 2>"$work/collector.err" &
collector_pid=$!
for _ in $(seq 100); do
  [ -s "$work/collector.out" ] && break
  kill -0 "$collector_pid" 2>/dev/null || break
  sleep 0.1
done
if ! grep -q ready "$work/collector.out"; then
  echo "demo.sh: statcollectord did not get ready; its messages:" >&2
  cat "$work/collector.err" >&2
  exit 1
fi
cat "$work/collector.out"
address="$(grep -oE 'grpc [0-9.]+:[0-9]+' "$work/collector.out" | cut -d' ' -f2)"
export STATAGENT_COLLECTOR="$address" STATCTL_COLLECTOR="$address"
export PYTHONPATH="$PWD/agent/python${PYTHONPATH:+:$PYTHONPATH}" STATAGENT_LIBRARY="$PWD/build/release/lib/libstatagent.so"

step "run base: two ranks, $steps steps"
train base
step "run base's twins: the same with noise in the last places, which shows what rounding does to it"
"$bin/statctl" --quiet twins base --quick -- "$python" -m torch.distributed.run --standalone --nproc_per_node=2 \
  examples/gpt_torch/train.py --steps "$steps" &
trainer_pid=$!
wait "$trainer_pid"
trainer_pid=""
step "run ort: the same, with the mistake '$bug' from step $bug_step on"
train ort --bug "$bug" --bug-step "$bug_step"
step "run base2: base once more, unchanged"
train base2

"$bin/statctl" runs
verdict() { # EXPECTED A B: runs diff, checks its exit code
  local expected="$1" code=0
  "$bin/statctl" diff --run-a "$2" --run-b "$3" || code=$?
  if [ "$code" != "$expected" ]; then
    echo "demo.sh: statctl diff $2 $3 exited with $code; expected $expected (0 same, 1 diverged, 2 no answer)" >&2
    exit 1
  fi
}
step "statctl diff --run-a base --run-b ort"
if [ "$bug" = none ]; then verdict 0 base ort; else verdict 1 base ort; fi
step "statctl diff --run-a base --run-b base2"
verdict 0 base base2
page="/?view=compare&a=base&b=ort"
url="http://$(grep -oE 'http [0-9.]+:[0-9]+' "$work/collector.out" | cut -d' ' -f2 || true)$page"
step "done"
if [ -n "$open" ]; then # printed first: a browser may stay in the foreground until it is closed
  echo "Where they diverge, in a browser: $url"
  "$python" -c 'import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1], new=2))' "$url" >/dev/null 2>&1 ||
    echo "demo.sh: --open: found no browser on this machine; the link above works while the collector runs"
fi
if [ -n "$keep" ]; then
  echo "Kept in $keep. To look around: build/release/bin/statcollectord --data-dir $keep/data"
  echo "Then in a browser: http://127.0.0.1:7434$page"
fi
if [ "$http" != off ]; then
  [ -n "$open" ] || echo "Where they diverge, in a browser: $url"
  read -r -p "Press Enter to stop the collector. " _ || true
elif [ -z "$keep" ]; then
  echo "To see it in a browser: scripts/demo.sh --open, or --keep DIR"
fi
