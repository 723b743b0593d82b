#!/bin/sh
# installed_consumer.sh BUILD_DIR CONSUMER_DIR COMPILER: installs the agent into a temporary prefix, builds a program that knows only that
# prefix, with find_package and with pkg-config, and runs it.
set -eu
build=$1 consumer=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" --component agent >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake -S "$consumer" -B "$work/build" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1 &&
  cmake --build "$work/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/build/consumer"

pc=$(find "$work/prefix" -name statagent.pc)
flags=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs statagent)
# shellcheck disable=SC2086
"$compiler" -std=c++20 "$consumer/main.cc" -o "$work/with_pkg_config" $flags
LD_LIBRARY_PATH=$(dirname "$(find "$work/prefix" -name libstatagent.so)") "$work/with_pkg_config"
