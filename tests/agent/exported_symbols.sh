#!/bin/sh
# exported_symbols.sh LIBRARY: fails if the library defines a dynamic symbol other than the C ABI's and the C++ interface's. Anything else
# (gRPC, type information, STB_GNU_UNIQUE statics) could clash with another copy in the same process.
set -eu
library=$1
symbols=$(nm -D --defined-only --demangle "$library")
foreign=$(printf '%s\n' "$symbols" | grep -vE '^[0-9a-f]+ [TW] (statagent_[a-z_]+$|statagent::)' || true)
if [ -n "$foreign" ]; then
  echo "$library exports what is not its interface:"
  printf '%s\n' "$foreign" | head -20
  exit 1
fi
for expected in statagent_start statagent_compute 'statagent::Agent::Start('; do
  if ! printf '%s\n' "$symbols" | grep -qF "$expected"; then
    echo "$library does not export $expected"
    exit 1
  fi
done
if nm -D --undefined-only "$library" | grep -q protobuf; then
  echo "$library uses protobuf; expected none (agent/export/wire.h)"
  exit 1
fi
