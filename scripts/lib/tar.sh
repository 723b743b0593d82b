#!/usr/bin/env bash
# scripts/lib/tar.sh FOLDER ARCHIVE.tar.gz: the folder, with the same bytes for the same files: sorted, no owners, one time.
set -euo pipefail
tar --create --directory "$(dirname "$1")" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu \
  --mtime="@${SOURCE_DATE_EPOCH:-0}" "$(basename "$1")" | gzip -9n >"$2.part"
mv "$2.part" "$2"
