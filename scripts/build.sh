#!/usr/bin/env bash
# Configures and builds one preset. Usage: scripts/build.sh [PRESET] [extra cmake -D flags]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset="${1:-release}"
[ $# -eq 0 ] || shift
cmake --preset "$preset" "$@" >"${TMPDIR:-/tmp}/statcollect-configure.$$.log" 2>&1 || {
  cat "${TMPDIR:-/tmp}/statcollect-configure.$$.log" >&2
  rm -f "${TMPDIR:-/tmp}/statcollect-configure.$$.log"
  echo "build.sh: configuring preset '$preset' failed; scripts/setup.sh installs what is missing" >&2
  exit 1
}
rm -f "${TMPDIR:-/tmp}/statcollect-configure.$$.log"
cmake --build --preset "$preset"
