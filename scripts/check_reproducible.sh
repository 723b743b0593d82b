#!/usr/bin/env bash
# Makes the release of a commit twice and compares the files byte for byte.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOT'
Usage: scripts/check_reproducible.sh [--cached] [--apart] [--keep DIR] [ARGUMENTS OF scripts/release.sh]
       scripts/check_reproducible.sh --compare DIR DIR

Clones the last commit twice into one folder, one after the other, runs scripts/release.sh in each, and compares what they made. The
second clone is compiled without the compiler cache, which takes as long as the first build of all. Changes that are not committed take
no part.

  --cached        use the compiler cache in both: compares the packing, not the compiler
  --apart         use two folders: all is equal but the kernels for GPUs, in whose names nvcc puts a hash of the folder
  --keep DIR      leave both releases in DIR/first and DIR/second (default: remove them)
  --compare A B   compare two releases that are there, say of two machines

Exit code: 0 all files are equal, 1 some are not, or are missing.

Examples:
  scripts/check_reproducible.sh --preset release
  scripts/check_reproducible.sh --only docs
  scripts/check_reproducible.sh --compare build/dist /mnt/other/dist
EOT
}

# Names each file of the two folders, and what is wrong with it.
compare() {
  local name code=0 names
  names="$(cd "$1" && find . -type f -printf '%P\n'; cd "$2" && find . -type f -printf '%P\n')"
  [ -n "$names" ] || { echo "check_reproducible.sh: compare '$1' and '$2': found no files; expected two releases of scripts/release.sh" >&2; return 1; }
  while read -r name; do
    if [ ! -f "$1/$name" ] || [ ! -f "$2/$name" ]; then
      echo "MISSING   $name (only in $([ -f "$1/$name" ] && echo "$1" || echo "$2"))"
      code=1
    elif cmp -s "$1/$name" "$2/$name"; then
      echo "equal     $name ($(stat -c %s "$1/$name") bytes)"
    else
      echo "DIFFERENT $name: $(cmp "$1/$name" "$2/$name" 2>&1 | sed 's/.* differ: //')"
      code=1
    fi
  done <<<"$(sort -u <<<"$names")"
  return "$code"
}

keep=
cached=0
apart=0
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --compare)
      for folder in "${2:?--compare takes two folders}" "${3:?--compare takes two folders}"; do
        [ -d "$folder" ] || { echo "check_reproducible.sh: --compare: '$folder' is not a folder" >&2; exit 2; }
      done
      compare "$2" "$3"
      exit
      ;;
    --cached) cached=1; shift ;;
    --apart) apart=1; shift ;;
    --keep) keep="${2:?--keep needs a folder}"; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

commit="$(git rev-parse HEAD)"
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "check_reproducible.sh: uncommitted changes take no part" >&2
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
[ -z "$keep" ] || mkdir -p "$keep"
out="$(cd "${keep:-$work}" && pwd)"
make() { # NAME CLONE
  git clone -q --no-checkout . "$2"
  git -C "$2" checkout -q --detach "$commit"
  for shared in .venv web/node_modules; do
    [ ! -e "$shared" ] || ln -s "$(readlink -f "$shared")" "$2/$shared"
  done
  rm -rf "${out:?}/$1"
  (cd "$2" && scripts/release.sh "${arguments[@]}" --out "$out/$1")
}
second="$work/clone"
[ "$apart" = 0 ] || second="$work/another/clone" # a path of another length
make first "$work/clone" >&2
rm -rf "$work/clone"
[ "$cached" = 1 ] || export CCACHE_DISABLE=1
make second "$second" >&2
compare "$out/first" "$out/second"
