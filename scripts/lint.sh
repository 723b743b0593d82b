#!/usr/bin/env bash
# Checks form: C++ by clang-format, Python by ruff and mypy, shell by shellcheck, TypeScript by its compiler; links of the pages, include
# rules and sizes by their tests. Usage: scripts/lint.sh [--fix]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fix=0
while [ $# -gt 0 ]; do
  case "$1" in
    --fix) fix=1; shift ;;
    -h | --help)
      cat <<'EOF'
Usage: scripts/lint.sh [--fix]

Exit code 1 if a check finds a problem; each check prints what it found. Needs the packages of scripts/setup.sh --for test.

  --fix   let clang-format and ruff fix what they can
EOF
      exit 0
      ;;
    *) echo "lint.sh: unknown argument '$1'; see scripts/lint.sh --help" >&2; exit 2 ;;
  esac
done

python=.venv/bin/python
failed=()
check() { # NAME COMMAND...
  local name="$1" begin=$SECONDS
  shift
  if "$@"; then
    printf 'lint: %-14s ok (%d s)\n' "$name" $((SECONDS - begin))
  else
    printf 'lint: %-14s FAILED\n' "$name"
    failed+=("$name")
  fi
}

mapfile -t sources < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
mapfile -t scripts < <(git ls-files '*.sh' '.ci/run')
if [ ${#sources[@]} -eq 0 ] || [ ${#scripts[@]} -eq 0 ]; then
  echo "lint.sh: list the sources with git ls-files: found none; run it in a clone, not in an unpacked archive" >&2
  exit 2
fi
if [ "$fix" = 1 ]; then
  clang-format -i "${sources[@]}"
  "$python" -m ruff check -q --fix .
  "$python" -m ruff format -q .
fi
# The longest check goes beside the others: it takes three quarters of the time, on one core.
said="$(mktemp)"
trap 'rm -f "$said"' EXIT
"$python" -m mypy --no-error-summary >"$said" 2>&1 &
types=$!
mypy() {
  local code=0
  wait "$types" || code=$?
  cat "$said"
  return "$code"
}
check clang-format clang-format --dry-run -Werror "${sources[@]}"
check ruff "$python" -m ruff check -q .
check "ruff format" "$python" -m ruff format -q --check .
check shellcheck .venv/bin/shellcheck --severity=warning --external-sources "${scripts[@]}"
# The tests that read the sources only, so that a moved file or a long function is found before the build.
check "links, rooms" "$python" -m pytest -q -p no:cacheprovider tests/test_readme.py tests/test_layering.py tests/test_sizes.py -k "links or layering or sizes"

web() { # without Node.js only the page's own sources stay unchecked, and it is said
  local code=0
  scripts/web.sh check || code=$?
  [ "$code" != 3 ] || echo "lint: web            skipped"
  [ "$code" = 0 ] || [ "$code" = 3 ]
}
check web web
check mypy mypy

if [ ${#failed[@]} -gt 0 ]; then
  echo "lint.sh: failed: ${failed[*]}; scripts/lint.sh --fix mends format" >&2
  exit 1
fi
