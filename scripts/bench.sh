#!/usr/bin/env bash
# Runs every benchmark, writes bench/results/<date>-<what>.json and the tables of bench/README.md.
# Usage: scripts/bench.sh [--quick] [--busy] [engine] [host_path] [agent_memory] [overhead] [ingest]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib/quiet.sh

quick=0
busy=0
chosen=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=1 ;;
    --busy) busy=1 ;;
    engine | host_path | agent_memory | overhead | ingest) chosen+=("$1") ;;
    -h | --help)
      cat <<'EOF'
Usage: scripts/bench.sh [--quick] [--busy] [engine] [host_path] [agent_memory] [overhead] [ingest]

  --quick       a few seconds each, to check that everything runs; results go to a temporary folder, and bench/ is not changed
  --busy        measure even if the load average of the last minute is above 0.5
  engine        CPU engine, compared with a plain read-and-sum (P1, P2)
  host_path     host time of one observation (P5)
  agent_memory  memory that the agent adds to a process (P12)
  overhead      a training step with and without the agent, and with other tools (P6)
  ingest        collector under load, its limits, queries (P7 to P12)

Without names, all are run. Needs a build (scripts/build.sh) and .venv; STATCOLLECT_BUILD_DIR selects another build folder.
Results are only written on a quiet machine: with a load average above 0.5 it waits up to five minutes before each benchmark, then stops.

Examples:
  scripts/bench.sh --quick
  scripts/bench.sh ingest
EOF
      exit 0
      ;;
    *) echo "bench.sh: unknown argument '$1'; see scripts/bench.sh --help" >&2; exit 2 ;;
  esac
  shift
done
[ ${#chosen[@]} -gt 0 ] || chosen=(engine host_path agent_memory overhead ingest)

python=.venv/bin/python
if [ ! -x "$python" ]; then
  echo "bench.sh: run the benchmarks: found no .venv; scripts/setup.sh makes it" >&2
  exit 1
fi
folder=
if [ "$quick" = 1 ]; then
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
fi
for what in "${chosen[@]}"; do
  arguments=()
  if [ "$quick" = 1 ]; then
    arguments=(--output "$folder/$what.json")
    case "$what" in
      engine) arguments+=(--mebibytes 16 --rounds 1) ;;
      host_path) arguments+=(--rounds 2) ;;
      agent_memory) arguments+=(--seconds 1) ;;
      overhead | ingest) arguments+=(--quick) ;;
    esac
  fi
  printf '\n=== %s\n' "$what"
  if [ "$quick" = 0 ] && [ "$busy" = 0 ]; then require_quiet bench.sh 300; fi
  "$python" "bench/$what.py" "${arguments[@]}"
done
if [ "$quick" = 0 ]; then
  "$python" bench/report.py
  echo "bench.sh: tables written to bench/README.md"
fi
