#!/usr/bin/env bash
# Configures and builds one preset. Usage: scripts/build.sh [PRESET] [--targets "NAME ..."] [extra cmake -D flags]
# Without --targets it builds everything. CMake remembers -D flags: to undo one, pass it again with the old value.
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
