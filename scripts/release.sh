#!/usr/bin/env bash
# Makes what a release consists of, with checksums.
# Usage: scripts/release.sh [--only wheel|deb|tarball|docs|sbom] [--preset cuda|release] [--out DIR] [--no-build]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

parts=(wheel deb tarball docs sbom)
only=
preset=cuda
out=build/dist
build=1
usage() {
  cat <<'EOT'
Usage: scripts/release.sh [--only wheel|deb|tarball|docs|sbom] [--preset cuda|release] [--out DIR] [--no-build]

Builds, and writes into DIR:
  wheel    statcollect-VERSION-py3-none-manylinux_2_35_x86_64.whl   collector, command line, agent, Python packages: pip install THIS
           statagent-VERSION-py3-none-manylinux_2_35_x86_64.whl     the agent alone, for machines that only train
  deb      statcollect-server, statcollect-client, libstatagent-dev  for this machine's release of Debian or Ubuntu: apt install ./THESE
  tarball  statcollect-VERSION-linux-x86_64.tar.gz                  the folder of scripts/bundle.sh, also for C++
  docs     statcollect-VERSION-docs.tar.gz                          the documentation site
  sbom     statcollect-VERSION.cdx.json                             what they contain, as CycloneDX
  SHA256SUMS                                                        of what was made

  --only PART    make only this
  --preset NAME  cuda (default): with kernels for NVIDIA GPUs, which needs nvcc; release: without a check for it
  --out DIR      default: build/dist
  --no-build     take build/PRESET as it is

The same commit, on the same machine and in the same folder, gives the same bytes (scripts/check_reproducible.sh tries it); SOURCE_DATE_EPOCH, by default the time of the last
commit, is the time of every file in them. Needs the packages of scripts/setup.sh --for wheel, and for the site --for docs.

Examples:
  scripts/release.sh
  scripts/release.sh --only wheel --preset release
EOT
}
while [ $# -gt 0 ]; do
  case "$1" in
    --only) only="${2:?--only takes wheel, deb, tarball, docs or sbom}"; shift 2 ;;
    --preset) preset="${2:?--preset takes cuda or release}"; shift 2 ;;
    --out) out="${2:?--out needs a folder}"; shift 2 ;;
    --no-build) build=0; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "release.sh: unknown argument '$1'; see scripts/release.sh --help" >&2; exit 2 ;;
  esac
done
case "$only" in '') ;; wheel | deb | tarball | docs | sbom) parts=("$only") ;; *) echo "release.sh: --only takes wheel, deb, tarball, docs or sbom, not '$only'" >&2; exit 2 ;; esac
case "$preset" in cuda | release) ;; *) echo "release.sh: --preset takes cuda or release, not '$preset'" >&2; exit 2 ;; esac

python="${STATCOLLECT_WHEEL_PYTHON:-.venv/bin/python}"
if [ ! -x "$python" ]; then
  echo "release.sh: make artefacts with $python: it is not there; run scripts/setup.sh --for wheel, or name another in STATCOLLECT_WHEEL_PYTHON" >&2
  exit 1
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH="$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)"
fi
export SOURCE_DATE_EPOCH
if [ "$build" = 1 ] && [ "$only" != docs ]; then
  scripts/build.sh "$preset" --targets "statcollectord statctl statagent" >&2
fi
mkdir -p "$out"
out="$(cd "$out" && pwd)"
tree="build/$preset"
version="$(sed -n 's/^project(statcollect VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"

make() {
  case "$1" in
    wheel) "$python" scripts/make_wheels.py --build "$tree" --out "$out" ;;
    deb) "$python" scripts/make_debs.py --build "$tree" --out "$out" ;;
    sbom) "$python" scripts/make_sbom.py --build "$tree" --out "$out/statcollect-$version.cdx.json" ;;
    tarball)
      local archive
      archive="$(scripts/bundle.sh --preset "$preset" --archive | head -n 1)"
      cp "$archive" "$out/"
      echo "$out/${archive##*/}"
      ;;
    docs)
      local work
      work="$(mktemp -d)"
      if scripts/docs.sh build --out "$work/statcollect-$version-docs" >&2; then
        scripts/lib/tar.sh "$work/statcollect-$version-docs" "$out/statcollect-$version-docs.tar.gz"
      fi
      rm -rf "$work"
      [ -f "$out/statcollect-$version-docs.tar.gz" ]
      echo "$out/statcollect-$version-docs.tar.gz"
      ;;
  esac
}
made=()
for part in "${parts[@]}"; do
  lines="$(make "$part")"
  mapfile -t -O "${#made[@]}" made <<<"$lines"
done
(cd "$out" && sha256sum "${made[@]##*/}" >SHA256SUMS)
printf '%s\n' "${made[@]}" "$out/SHA256SUMS"
