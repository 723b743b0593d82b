#!/usr/bin/env bash
# Checks the CUDA engine on a machine with a GPU: correctness, compute-sanitizer where it exists, speed beside the device's limits
# (P3 to P6), a short training through to `statctl diff`. Prints a table, writes gpu-<name>-<date>.json after each part.
#
# Runs in the source tree after a build with CUDA, and in the folder that scripts/bundle.sh makes, where nothing is needed but python3
# with torch for CUDA, and a driver.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  cat <<'EOT'
Usage: scripts/gpu_check.sh [--only PART[,PART...]] [--quick] [--python PROGRAM] [--output FILE]

  --only PART        one or several of the parts below (default: all); a part takes at most ten minutes
  --quick            correctness and a minute of measurements
  --python PROGRAM   a Python with torch (default: .venv/bin/python if it exists, else python3)
  --output FILE      result file (default: bench/results/gpu-<name>-<date>.json)

Parts: engine      the engine on the device, against the host's emulation and the CPU engine
       memcheck, racecheck, initcheck   some of these tests under compute-sanitizer, where it exists
       package     the Python package's tests: training, graphs, statctl diff
       speed       P3 to P5: the engine beside a copy, a kernel that only reads, and empty launches
       training    P6: a training step with and without the agent

The result file is written after each part. A later call with the same GPU and commit adds its parts to it.

Exit codes: 0 every check passed (a missed target is a line with MISSED); 1 one failed; 2 wrong arguments; 3 no GPU was found, so
nothing was checked on a GPU.

Examples:
  scripts/build.sh cuda && STATCOLLECT_BUILD_DIR=build/cuda scripts/gpu_check.sh
  scripts/bundle.sh --preset cuda --gpu-check --output /tmp/statcollect   # then, on the other machine:
  /tmp/statcollect/scripts/gpu_check.sh --only engine,memcheck
EOT
}

python=
if [ -x "$here/.venv/bin/python" ]; then python="$here/.venv/bin/python"; fi
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) arguments+=(--quick); shift ;;
    --only) arguments+=(--only "${2:?--only needs a part}"); shift 2 ;;
    --python) python="${2:?--python needs a program}"; shift 2 ;;
    --output) arguments+=(--output "${2:?--output needs a file}"); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "gpu_check.sh: unknown argument '$1'; see scripts/gpu_check.sh --help" >&2; exit 2 ;;
  esac
done
exec "${python:-python3}" "$here/bench/gpu_check.py" "${arguments[@]}"
