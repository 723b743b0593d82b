#!/usr/bin/env bash
# Measures ClickHouse and VictoriaMetrics (from apt) and the collector in one run, with the same records of statcollect-bench.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib/quiet.sh

install=1
busy=0
arguments=()
for argument in "$@"; do
  case "$argument" in
    --no-install) install=0 ;;
    --busy) busy=1 ;;
    -h | --help)
      cat <<'HELP'
Usage: scripts/bench_rivals.sh [--no-install] [--busy] [--steps N] [--vm-steps N] [--only LIST] [--dir FOLDER] [--output FILE]

  --no-install   do not install packages: they are installed already
  --busy         measure even if the load average of the last minute is above 0.5
  --steps N      steps of each of three runs of 8 ranks and 1,000 activations (default 1000: 24 million records, 10 GB of disk)
  --vm-steps N   the same for VictoriaMetrics (default: a tenth)
  --only LIST    some of statcollect,clickhouse,victoria (default: all, in this order)
  --dir FOLDER   parent of the data folders, on the disk to measure (default: the temporary folder)
  --output FILE  result file to add to (default: the newest bench/results/*-ingest.json)

Example: scripts/bench_rivals.sh --steps 100

Installs clickhouse-server, clickhouse-client, victoria-metrics and curl from the distribution (as root), if they are missing. Starts
each server on the loopback interface with its own folder, loads data, measures, stops the server by pid and removes the folder. Adds rows
to the results, and writes the tables of bench/README.md unless --output is given.
Exit codes: 1 a measurement failed; 3 a package cannot be installed.
Needs a build (scripts/build.sh) and .venv.
HELP
      exit 0
      ;;
    *) arguments+=("$argument") ;;
  esac
done

missing=()
for pair in clickhouse-server:clickhouse-server clickhouse-client:clickhouse-client victoria-metrics:victoria-metrics curl:curl; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$install" = 0 ]; then
    echo "bench_rivals.sh: found no ${missing[*]}; expected them with --no-install; run it without" >&2
    exit 3
  fi
  echo "bench_rivals.sh: installing ${missing[*]}" >&2
  log="$(mktemp)"
  if ! DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    tail -5 "$log" >&2
    rm -f "$log"
    echo "bench_rivals.sh: install ${missing[*]}: apt-get failed, see above; expected root and a Debian 12 with its package lists (apt-get update)" >&2
    exit 3
  fi
  rm -f "$log"
fi

python=.venv/bin/python
if [ ! -x "$python" ]; then
  echo "bench_rivals.sh: run the measurement: found no .venv; scripts/setup.sh makes it" >&2
  exit 1
fi
if [ "$busy" = 0 ]; then require_quiet bench_rivals.sh 300; fi
"$python" bench/rivals.py "${arguments[@]}"
for argument in "${arguments[@]}"; do
  case "$argument" in --output*) exit 0 ;; esac
done
"$python" bench/report.py
echo "bench_rivals.sh: tables written to bench/README.md"
