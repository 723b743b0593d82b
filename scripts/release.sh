#!/usr/bin/env bash
# Makes what a release consists of, with checksums. Usage: scripts/release.sh [--only wheel|tarball] [--out DIR] [--no-build]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

only=all
out=build/dist
build=1
usage() {
  cat <<'EOT'
Usage: scripts/release.sh [--only wheel|tarball] [--out DIR] [--no-build]

Builds the preset `release` and writes into DIR:
  statcollect-VERSION-py3-none-manylinux_2_35_x86_64.whl   collector, command line, agent, Python packages: pip install THIS
  statagent-VERSION-py3-none-manylinux_2_35_x86_64.whl     the agent alone, for machines that only train
  statcollect-VERSION-linux-x86_64.tar.gz                  the folder of scripts/bundle.sh, also for C++
  SHA256SUMS                                               of what was made

  --only wheel|tarball  make only these
  --out DIR             default: build/dist
  --no-build            take build/release as it is

The same commit and machine give the same wheels, byte for byte. Needs the packages of scripts/setup.sh --for wheel.
EOT
}
while [ $# -gt 0 ]; do
  case "$1" in
    --only) only="${2:?--only takes wheel or tarball}"; shift 2 ;;
    --out) out="${2:?--out needs a folder}"; shift 2 ;;
    --no-build) build=0; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "release.sh: unknown argument '$1'; see scripts/release.sh --help" >&2; exit 2 ;;
  esac
done
case "$only" in all | wheel | tarball) ;; *) echo "release.sh: --only takes wheel or tarball, not '$only'" >&2; exit 2 ;; esac

python="${STATCOLLECT_WHEEL_PYTHON:-.venv/bin/python}"
if [ "$only" != tarball ] && [ ! -x "$python" ]; then
  echo "release.sh: make wheels with $python: it is not there; run scripts/setup.sh --for wheel, or name another in STATCOLLECT_WHEEL_PYTHON" >&2
  exit 1
fi
[ "$build" = 0 ] || scripts/build.sh release --targets "statcollectord statctl statagent" >&2
mkdir -p "$out"
out="$(cd "$out" && pwd)"
made=()
if [ "$only" != tarball ]; then
  wheels="$("$python" scripts/make_wheels.py --build build/release --out "$out")"
  mapfile -t made <<<"$wheels"
fi
if [ "$only" != wheel ]; then
  archive="$(scripts/bundle.sh --archive | head -n 1)"
  cp "$archive" "$out/"
  made+=("$out/$(basename "$archive")")
fi
(cd "$out" && sha256sum "${made[@]##*/}" >SHA256SUMS)
printf '%s\n' "${made[@]}" "$out/SHA256SUMS"
