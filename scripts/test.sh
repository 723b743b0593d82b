#!/usr/bin/env bash
# Installs missing packages, checks the formatting, builds, and runs every test. Usage: scripts/test.sh [--preset PRESET] [--unit] [--sanitizers] [--long [MINUTES]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
unit_only=0
sanitizers=0
long=0 # minutes
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset="${2:?--preset takes a name}"; shift 2 ;;
    --unit) unit_only=1; shift ;;
    --sanitizers) sanitizers=1; shift ;;
    --long)
      long=120
      shift
      case "${1:-}" in '' | -*) ;; *[!0-9]*) echo "test.sh: --long takes minutes, not '$1'" >&2; exit 2 ;; *) long="$1"; shift ;; esac
      ;;
    -h | --help)
      cat <<'EOF'
Usage: scripts/test.sh [--preset PRESET] [--unit] [--sanitizers] [--long [MINUTES]]

  --preset PRESET  dev, release (default), asan or tsan
  --unit           no pytest: lint, build and the C++ unit tests (ctest)
  --sanitizers     also build the asan and tsan presets and run their unit tests first
  --long [MINUTES] only the randomised tests, for so long (default 120): simulation, kills, faults of the disk, fuzzing.
                   Prints their seeds; stops at the first failure

Ends with a table of where the time went and the runners' summaries. One C++ test case: build/PRESET/tests/NAME --gtest_filter=Suite.Case
EOF
      exit 0
      ;;
    *) echo "test.sh: unknown argument '$1'; see scripts/test.sh --help" >&2; exit 2 ;;
  esac
done

work="$(mktemp -d)"
started=$SECONDS
begun=$SECONDS
current=""
rows=()
beside=""
end_step() {
  [ -z "$current" ] || rows+=("$(printf '%6d  %s' $((SECONDS - begun)) "$current")")
  current=""
}
step() {
  end_step
  current="$*"
  begun=$SECONDS
  printf '\n=== %s (%d s)\n' "$current" $((SECONDS - started))
}

# Runs a command beside the steps that follow: many of them wait, or use one core. At a niceness of 19 it takes what they leave. `join` waits
# for its end, and fails if it did.
beside() { # NAME NICENESS COMMAND...
  beside="$1"
  shift
  # A session of its own is ended as one. Where the kernel gives each session its share (autogroup), niceness is that of the session.
  setsid bash -c '{ echo "$1" >/proc/self/autogroup; } 2>/dev/null; exec nice -n "$1" "${@:2}"' beside "$@" >"$work/beside.log" 2>&1 &
  beside_pid=$!
}
join() {
  local name="$beside" code=0
  step "$name: what was left of it"
  { echo 0 >"/proc/$beside_pid/autogroup"; } 2>/dev/null || true
  renice -n 0 -g "$beside_pid" >/dev/null 2>&1 || true
  tail -n +1 -f --pid="$beside_pid" "$work/beside.log"
  wait "$beside_pid" || code=$?
  beside=""
  [ "$code" = 0 ] || echo "test.sh: $name: exit code $code" >&2
  return "$code"
}

# Where the time went, then the last runner's own summary once more.
by_folder() { # pytest's tests, seconds in each folder and in the slowest files; workers run at the same time
  .venv/bin/python - "$1" <<'EOF'
import collections, sys, xml.etree.ElementTree as tree
seconds, files = collections.Counter(), collections.Counter()
for case in tree.parse(sys.argv[1]).iter("testcase"):
    parts = case.get("classname", "").split(".")
    module = next((i for i, part in enumerate(parts) if part.startswith("test_")), len(parts))
    folder, file = "/".join(parts[:module]), "/".join(parts[: module + 1]) + ".py"
    seconds[folder] += float(case.get("time", 0))
    files[folder, file] += float(case.get("time", 0))
for folder, spent in seconds.most_common():
    print(f"{spent:6.0f}    {folder or 'setting up'}")
    for (owner, file), part in files.most_common(20):
        if owner == folder:
            print(f"{part:6.0f}      {file}")
EOF
}
report() {
  status=$?
  trap - EXIT
  end_step
  if [ -n "$beside" ]; then
    kill -- "-$beside_pid" 2>/dev/null || true
    printf '\ntest.sh: %s was ended. It said last:\n' "$beside" >&2
    tail -n 5 "$work/beside.log" >&2
  fi
  printf '\n=== seconds\n'
  printf '%s\n' "${rows[@]}"
  [ ! -s "$work/pytest.xml" ] || by_folder "$work/pytest.xml" || true
  printf '%6d  total\n\n' $((SECONDS - started))
  [ ! -s "$work/ctest.log" ] || grep -E 'tests passed, ' "$work/ctest.log" || true
  [ ! -s "$work/pytest.log" ] || tail -n 1 "$work/pytest.log"
  rm -rf "$work"
  exit "$status"
}
trap report EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Each for its share of the minutes: half of them simulated worlds, a quarter kills and faults of the disk, the rest fuzzing with at least
# 30 s a target. STATCOLLECT_FAULT_SEED repeats a run; without it every run is a different one.
run_long() {
  local tests="build/$preset/tests" seconds=$((long * 60)) target targets
  step "simulation, $((seconds / 2)) s"
  STATCOLLECT_SIMULATION_STEPS=1000000000000 STATCOLLECT_SIMULATION_SECONDS=$((seconds / 2)) "$tests/simulation_test"
  step "faults of the disk"
  STATCOLLECT_FAULT_ROUNDS=$((long * 40)) "$tests/store_fault_test"
  step "kills"
  STATCOLLECT_FAULT_ROUNDS=$((long * 8 + 30)) "$tests/kill_test"
  mapfile -t targets < <(find "$tests" -maxdepth 1 -type f -executable -name 'fuzz_*' | sort)
  for target in "${targets[@]}"; do
    local name="${target##*/fuzz_}" each=$((seconds / 4 / ${#targets[@]}))
    [ "$each" -ge 30 ] || each=30
    step "fuzz $name, $each s"
    mkdir -p "$work/$name"
    "$target" -max_total_time="$each" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -artifact_prefix="build/$preset/" \
      "$work/$name" "tests/fuzz/corpus/$name" 2>&1 | tail -n 8
  done
}

step "set-up: what the build needs"
scripts/setup.sh --for test --build-only
beside "build $preset" 0 scripts/build.sh "$preset" -DSTATCOLLECT_BUILD_TESTS=ON -DSTATCOLLECT_BUILD_BENCH=ON
step "set-up"
scripts/setup.sh --for test
step "lint"
scripts/lint.sh
join
# Not -Werror: then the compiler's cache could not serve this build and that of the demo alike.
if grep -q 'warning:' "$work/beside.log"; then
  grep -A 3 'warning:' "$work/beside.log" >&2
  echo "test.sh: build without warnings: found $(grep -c 'warning:' "$work/beside.log"), repeated above; mend them" >&2
  exit 1
fi
if [ "$sanitizers" = 1 ]; then
  for sanitizer in asan tsan; do
    step "build $sanitizer"
    scripts/build.sh "$sanitizer"
    step "unit tests under $sanitizer"
    ctest --preset "$sanitizer"
  done
fi
# A figure, not a test; counted again only if the kernels, the compiler or the script have changed.
step "instructions of the CUDA kernels"
.venv/bin/python scripts/sass_count.py --optional --cache build/sass-count.txt || echo "test.sh: the instructions were not counted; see above" >&2
# First what pytest makes of the tests' sources (bytecode, with what an assertion shows), once for all workers, which would each take 7 s.
beside "clang-tidy" 19 bash -c '
  [ "$1" = 1 ] || env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest -q -p no:cacheprovider --collect-only tests >/dev/null 2>&1 || true
  exec .venv/bin/python scripts/tidy.py "$2"' clang-tidy "$((unit_only || long))" "build/$preset"
if [ "$long" != 0 ]; then
  join
  run_long
  exit 0
fi
step "unit tests (ctest)"
# A test more than cores: the longest of them wait for the disk and for ClickHouse.
ctest --preset "$preset" --parallel "$(($(nproc) + 1))" | tee "$work/ctest.log"
if [ "$unit_only" = 0 ]; then
  step "Python, layering, README and end-to-end tests (pytest)"
  # Hundreds of processes import these, also where PYTHONDONTWRITEBYTECODE keeps each of them from leaving its bytecode to the next.
  .venv/bin/python -m compileall -q agent/python client/python
  colour=()
  [ ! -t 1 ] || colour=(--color=yes)
  # A worker more than cores: the tests wait half of their time (decision 49). Slow files come first: tests/e2e/conftest.py has their order.
  STATCOLLECT_BUILD_DIR="$PWD/build/$preset" .venv/bin/python -m pytest -q -n "$(($(nproc) + 1))" --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
    --durations=10 "${colour[@]}" --junitxml "$work/pytest.xml" tests | tee "$work/pytest.log"
fi
join
