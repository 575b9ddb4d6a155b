#!/usr/bin/env bash
# Configures and builds a preset, or of it only what TARGETS names: build.sh PRESET [CMAKE-OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then
  export CMAKE_GENERATOR=Ninja
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" ${TARGETS:+--target $TARGETS}
