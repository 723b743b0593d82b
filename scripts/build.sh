#!/usr/bin/env bash
# Configures and builds one preset. Usage: scripts/build.sh [PRESET] [--targets "NAME ..."] [extra cmake -D flags]
# Without --targets: everything that is configured. CMake remembers -D flags, so pass what a later call should change back.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset="${1:-release}"
[ $# -eq 0 ] || shift
targets=()
if [ "${1:-}" = --targets ]; then
  read -ra targets <<<"${2:?--targets takes names}"
  targets=(--target "${targets[@]}")
  shift 2
fi
cmake --preset "$preset" "$@" >"${TMPDIR:-/tmp}/statcollect-configure.$$.log" 2>&1 || {
  cat "${TMPDIR:-/tmp}/statcollect-configure.$$.log" >&2
  rm -f "${TMPDIR:-/tmp}/statcollect-configure.$$.log"
  echo "build.sh: configuring preset '$preset' failed; scripts/setup.sh installs what is missing" >&2
  exit 1
}
rm -f "${TMPDIR:-/tmp}/statcollect-configure.$$.log"
cmake --build --preset "$preset" "${targets[@]}"
