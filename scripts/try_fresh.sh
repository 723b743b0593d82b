#!/usr/bin/env bash
# Runs the README's first command in a bare system, which has only the packages of debootstrap's smallest variant.
# Usage: scripts/try_fresh.sh [demo|test] [options]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=demo
suite=""
mirror=""
keep=0
share_caches=1
usage() {
  cat <<'EOF'
Usage: scripts/try_fresh.sh [demo|test] [--suite NAME] [--mirror URL] [--no-caches] [--keep]

Makes a bare Debian in a temporary folder with debootstrap, clones this repository's HEAD into it, enters it by
chroot and runs scripts/demo.sh (default) or scripts/test.sh there. Needs root. Everything is removed at the end, even after an
interruption. The exit code is that of the command.

  --suite NAME   release of Debian: bookworm, trixie, ... (default: this machine's)
  --mirror URL   mirror of its packages (default: that of this machine's apt)
  --no-caches    download every package again; otherwise apt's and pip's downloads are shared with this machine
  --keep         keep the folder, and print its path

Examples:
  scripts/try_fresh.sh
  scripts/try_fresh.sh test
  scripts/try_fresh.sh --suite trixie --mirror http://deb.debian.org/debian
EOF
}
while [ $# -gt 0 ]; do
  case "$1" in
    demo | test) what="$1"; shift ;;
    --suite) suite="${2:?--suite takes a name}"; shift 2 ;;
    --mirror) mirror="${2:?--mirror takes an address}"; shift 2 ;;
    --no-caches) share_caches=0; shift ;;
    --keep) keep=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "try_fresh.sh: unknown argument '$1'; see scripts/try_fresh.sh --help" >&2; exit 2 ;;
  esac
done
if [ "$(id -u)" != 0 ]; then
  echo "try_fresh.sh: making a bare system needs root (debootstrap, chroot, mount); run it with sudo" >&2
  exit 2
fi
# In namespaces of its own: mounts and processes end with it, however it ends.
if [ -z "${TRY_FRESH_INSIDE:-}" ]; then
  arguments=("$what")
  [ -z "$suite" ] || arguments+=(--suite "$suite")
  [ -z "$mirror" ] || arguments+=(--mirror "$mirror")
  [ "$share_caches" = 1 ] || arguments+=(--no-caches)
  root="$(mktemp -d "${TMPDIR:-/tmp}/statcollect-fresh.XXXXXX")"
  finish() {
    status=$?
    trap - EXIT
    trap '' HUP INT TERM
    if [ -n "$inner" ] && kill -KILL "$inner" 2>/dev/null; then wait "$inner" 2>/dev/null || true; fi
    if [ "$keep" = 1 ]; then
      echo "try_fresh: kept in $root"
    else # processes of the namespace may still be ending
      for _ in 1 2 3 4 5; do rm -rf --one-file-system "$root" 2>/dev/null && break || sleep 1; done
    fi
    exit "$status"
  }
  inner=""
  trap finish EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  TRY_FRESH_INSIDE="$root" unshare --mount --pid --fork --kill-child=SIGKILL "$PWD/scripts/try_fresh.sh" "${arguments[@]}" &
  inner=$!
  code=0
  wait "$inner" || code=$?
  inner=""
  exit "$code"
fi

root="$TRY_FRESH_INSIDE"
started=$SECONDS
say() { printf '\n### %s (%d s)\n' "$*" $((SECONDS - started)); }

if ! command -v debootstrap >/dev/null; then
  say "installing debootstrap"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends debootstrap >/dev/null
fi
# shellcheck source=/dev/null
. /etc/os-release
suite="${suite:-${VERSION_CODENAME:-bookworm}}"
if [ -z "$mirror" ]; then
  # shellcheck disable=SC2016 # apt's variables, not the shell's
  mirror="$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Codename: $suite" "Component: main" | sed -n 1p)"
fi
if [ -z "$mirror" ]; then
  echo "try_fresh.sh: find a mirror of $suite: this machine's apt has none; name one with --mirror URL" >&2
  exit 2
fi

say "bare $suite"
mkdir -p "$root/var/cache/apt/archives" "$root/root/.cache/pip"
if [ "$share_caches" = 1 ]; then
  mkdir -p /root/.cache/pip
  mount --bind /var/cache/apt/archives "$root/var/cache/apt/archives"
  mount --bind /root/.cache/pip "$root/root/.cache/pip"
fi
if ! debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" >"$root/debootstrap.out" 2>&1; then
  tail -n 20 "$root/debootstrap.out" >&2
  echo "try_fresh.sh: make a bare $suite from $mirror failed; its last messages are above" >&2
  exit 1
fi
# How this machine reaches its packages: proxies, certificates, indexes.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /root/.npmrc; do
  [ ! -e "$file" ] || cp -L "$file" "$root$file"
done
if [ "$suite" = "${VERSION_CODENAME:-}" ]; then
  cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  rm -f "$root"/etc/apt/apt.conf.d/docker-clean
  [ ! -d /etc/apt/auth.conf.d ] || cp -a /etc/apt/auth.conf.d/. "$root/etc/apt/auth.conf.d/"
fi
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"

say "clone"
git clone -q --no-hardlinks "$PWD" "$root/root/statcollect"
settings=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}")
while IFS= read -r variable; do
  case "$variable" in
    http_proxy=* | https_proxy=* | no_proxy=* | HTTP_PROXY=* | HTTPS_PROXY=* | NO_PROXY=* | PIP_* | SSL_CERT_* | REQUESTS_CA_BUNDLE=* | NODE_EXTRA_CA_CERTS=*)
      settings+=("$variable") ;;
  esac
done < <(env)

say "scripts/$what.sh"
code=0
env -i "${settings[@]}" chroot "$root" /bin/bash -c "cd /root/statcollect && exec scripts/$what.sh" </dev/null || code=$?
say "scripts/$what.sh on a bare $suite: exit code $code after $((SECONDS - started)) s"
exit "$code"
