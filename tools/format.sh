#!/usr/bin/env bash
# Formats the C++ sources, or with --check fails where one is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
if [ "${1:-}" = --check ]; then
  mode=(--dry-run -Werror)
fi
find include src cli tests benchmarks python \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' \) -print0 2>/dev/null |
  xargs -0 clang-format-19 "${mode[@]}"
