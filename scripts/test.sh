#!/usr/bin/env bash
# Installs what is missing, checks form, builds, and runs every test. Usage: scripts/test.sh [--preset PRESET] [--unit] [--sanitizers]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
unit_only=0
sanitizers=0
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset="${2:?--preset takes a name}"; shift 2 ;;
    --unit) unit_only=1; shift ;;
    --sanitizers) sanitizers=1; shift ;;
    -h | --help)
      cat <<'EOF'
Usage: scripts/test.sh [--preset PRESET] [--unit] [--sanitizers]

  --preset PRESET  dev, release (default), asan or tsan
  --unit           only the C++ unit tests (ctest)
  --sanitizers     also build the asan and tsan presets and run their unit tests first
EOF
      exit 0
      ;;
    *) echo "test.sh: unknown argument '$1'; see scripts/test.sh --help" >&2; exit 2 ;;
  esac
done

started=$SECONDS
step() { printf '\n=== %s (%d s)\n' "$*" $((SECONDS - started)); }

step "set-up"
scripts/setup.sh --for test
step "lint"
scripts/lint.sh
if [ "$sanitizers" = 1 ]; then
  for sanitizer in asan tsan; do
    step "build $sanitizer"
    scripts/build.sh "$sanitizer"
    step "unit tests under $sanitizer"
    ctest --preset "$sanitizer"
  done
fi
step "build $preset"
scripts/build.sh "$preset" -DSTATCOLLECT_BUILD_TESTS=ON -DSTATCOLLECT_BUILD_BENCH=ON
step "unit tests (ctest)"
ctest --preset "$preset"
if [ "$unit_only" = 0 ]; then
  step "Python, layering, README and end-to-end tests (pytest)"
  STATCOLLECT_BUILD_DIR="$PWD/build/$preset" .venv/bin/python -m pytest -q --durations=10 tests
fi
