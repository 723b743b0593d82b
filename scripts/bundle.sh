#!/usr/bin/env bash
# Makes a folder that runs on a machine without the system packages of a build: programs, libraries found by $ORIGIN, the Python package,
# headers, benchmarks and examples. The release is this folder. Needs a built tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
output=
archive=0
gpu_check=0
usage() {
  cat <<'EOT'
Usage: scripts/bundle.sh [--preset NAME] [--output DIR] [--archive] [--gpu-check]

  --preset NAME   take build/NAME (default: release)
  --output DIR    write to DIR (replaced if it is a bundle; default: build/bundle/statcollect-VERSION-linux-ARCHITECTURE)
  --archive       also write DIR.tar.gz
  --gpu-check     only what scripts/gpu_check.sh needs, as DIR and DIR.tar.gz, which may have at most 60 MiB

Prints the folder's path. The folder only needs the system's C library (MANIFEST has the minimum version) and, for GPUs, the driver.

Examples:
  scripts/build.sh && scripts/bundle.sh --archive
  PYTHONPATH=DIR/python python3 -c 'import statagent, numpy; print(statagent.compute(numpy.arange(9.0)))'
EOT
}
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset="${2:?--preset needs a name}"; shift 2 ;;
    --output) output="${2:?--output needs a folder}"; shift 2 ;;
    --archive) archive=1; shift ;;
    --gpu-check) gpu_check=1 archive=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "bundle.sh: unknown argument '$1'; see scripts/bundle.sh --help" >&2; exit 2 ;;
  esac
done

build="build/$preset"
fail() { echo "bundle.sh: $*" >&2; exit 1; }
[ -x "$build/bin/statcollectord" ] || fail "take programs from '$build': statcollectord is missing; run scripts/build.sh $preset first"
command -v patchelf >/dev/null || fail "patchelf is not installed; run scripts/setup.sh first"

version=$(sed -n 's/^project(statcollect VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name="statcollect-$version-linux-$(uname -m)"
output="${output:-build/bundle/$name}"
if [ -e "$output" ]; then
  [ -f "$output/MANIFEST" ] || fail "make '$output': it exists and is not a bundle; choose a different folder"
  rm -rf "$output"
fi
mkdir -p "$output"
output=$(cd "$output" && pwd)

# --- our own files
cmake --install "$build" --prefix "$output" >/dev/null
mkdir -p "$output/python" "$output/bench" "$output/scripts"
cp -R agent/python/statagent "$output/python/"
[ ! -f "$build/lib/statagent_host.abi3.so" ] || cp "$build/lib/statagent_host.abi3.so" "$output/lib/"
cp bench/*.py "$output/bench/"
cp scripts/gpu_check.sh "$output/scripts/"
programs=(statagent_bench statagent_host_bench statagent_gpu_bench)
if [ "$gpu_check" = 1 ]; then
  for needed in bin/statagent_gpu_bench tests/gpu_test; do
    [ -x "$build/$needed" ] || fail "take '$build/$needed': it is not there; expected a build with CUDA, tests and benchmarks; run scripts/build.sh cuda -DSTATCOLLECT_BUILD_TESTS=ON -DSTATCOLLECT_BUILD_BENCH=ON"
  done
  programs=(statagent_gpu_bench)
  rm -rf "$output/include" "$output"/lib/{cmake,pkgconfig} "$output"/lib/libstatctl_parquet.so "$output/bin/statcollect-bench"
fi
for program in "${programs[@]}"; do
  [ ! -x "$build/bin/$program" ] || cp "$build/bin/$program" "$output/bin/"
done
for program in "$build"/tests/*gpu*_test; do
  [ ! -x "$program" ] || { mkdir -p "$output/tests" && cp "$program" "$output/tests/"; }
done
[ ! -d tests/gpu ] || { mkdir -p "$output/tests" && cp -R tests/gpu "$output/tests/"; }
cp -R examples "$output/"
cp README.md CHANGELOG.md LICENSE "$output/"
find "$output" -name __pycache__ -prune -exec rm -rf {} +
[ "$gpu_check" = 0 ] || rm -f "$output"/tests/*.cc "$output"/CHANGELOG.md

# --- libraries of the system, all but those that must be the machine's own: the C library and the GPU's driver
elf_files() {
  find "$output" -type f \( -path '*/bin/*' -o -path '*/lib/*' -o -path '*/tests/*' \) | while read -r file; do
    if [ "$(head -c 4 "$file" | od -An -tx1 | tr -d ' \n')" = 7f454c46 ]; then echo "$file"; fi
  done
}
own='^(libc|libm|libdl|libpthread|librt|libresolv|libutil|libcuda|libnvidia-.*|ld-linux.*)\.so'
elf_files | xargs -d '\n' ldd | sed -n 's/^\t\(lib[^ ]*\) => \(\/[^ ]*\).*/\1 \2/p' | sort -u |
  while read -r soname path; do
    [[ "$soname" =~ $own ]] || [ -e "$output/lib/$soname" ] || cp -L "$path" "$output/lib/$soname"
  done
elf_files | while read -r f; do
  case "$f" in
    "$output"/lib/*) rpath='$ORIGIN' ;;
    *) rpath='$ORIGIN/../lib' ;;
  esac
  chmod u+w "$f"
  strip --strip-unneeded "$f"
  patchelf --set-rpath "$rpath" "$f"
done

# --- what it is and needs
glibc=$(elf_files | xargs -d '\n' objdump -T | grep -o 'GLIBC_[0-9][0-9.]*' | sort -uV | tail -1)
{
  echo "statcollect $version"
  echo "architecture $(uname -m)"
  echo "needs ${glibc/_/ } or later"
  cuda=$(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\([0-9.]*\)").*/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake 2>/dev/null || true)
  case "$cuda" in
    12.*) echo "cuda $cuda, for GPUs with driver 525 or later" ;;
    ?*) echo "cuda $cuda, for GPUs with driver 580 or later" ;;
  esac
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)"
} >"$output/MANIFEST"

if [ "$archive" = 1 ]; then
  SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)}" scripts/lib/tar.sh "$output" "$output.tar.gz"
  echo "$output.tar.gz"
  bytes=$(stat -c %s "$output.tar.gz")
  if [ "$gpu_check" = 1 ] && [ "$bytes" -gt $((60 << 20)) ]; then
    fail "make a bundle that is easy to carry: found $bytes bytes in $output.tar.gz; expected at most $((60 << 20)); see what is large with du"
  fi
fi
echo "$output"
