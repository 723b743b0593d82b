#!/usr/bin/env bash
# Builds or serves the documentation site. Usage: scripts/docs.sh build [--out DIR] | serve [--port N]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOF'
Usage: scripts/docs.sh build [--out DIR]
       scripts/docs.sh serve [--port N]

  build       writes the site into DIR (default: build/site). Links that lead nowhere are errors
  serve       serves it at http://127.0.0.1:N/ (default: 8000), and builds again after each change

The site loads nothing from other servers. It is built by mkdocs-material and mkdocstrings, which scripts/setup.sh --for docs installs.

Examples:
  scripts/docs.sh build && python3 -m http.server --bind 127.0.0.1 --directory build/site 8000
EOF
}
what="${1:-}"
[ $# -eq 0 ] || shift
out=build/site
port=8000
while [ $# -gt 0 ]; do
  case "$what $1" in
    "build --out") out="${2:?--out takes a folder}"; shift 2 ;;
    "serve --port") port="${2:?--port takes a number}"; shift 2 ;;
    *" -h" | *" --help") usage; exit 0 ;;
    *) echo "docs.sh: unknown argument '$1'; see scripts/docs.sh --help" >&2; exit 2 ;;
  esac
done
case "$what" in
  -h | --help) usage; exit 0 ;;
  build | serve) ;;
  *) echo "docs.sh: expected build or serve, found '$what'; see scripts/docs.sh --help" >&2; exit 2 ;;
esac

python=.venv/bin/python
if ! "$python" -c 'import material, mkdocstrings' 2>/dev/null; then
  echo "docs.sh: build the site: mkdocs-material and mkdocstrings are not in .venv; run scripts/setup.sh --for docs first" >&2
  exit 3
fi
export NO_MKDOCS_2_WARNING=1 # about later versions of mkdocs, which setup.sh does not install
case "$what" in
  build)
    mkdir -p "$(dirname "$out")"
    out="$(cd "$(dirname "$out")" && pwd)/$(basename "$out")" # mkdocs takes it from its own folder
    # Not --quiet, with which mkdocs does not count warnings.
    log="$("$python" -m mkdocs build --strict --site-dir "$out" 2>&1)" || {
      grep -v '^INFO' <<<"$log" >&2
      echo "docs.sh: build the site: mkdocs found what is above; expected no warning; mend the pages" >&2
      exit 1
    }
    echo "$out"
    ;;
  serve) exec "$python" -m mkdocs serve --strict --dev-addr "127.0.0.1:$port" --watch README.md --watch agent/python --watch client/python ;;
esac
