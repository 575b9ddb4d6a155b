#!/usr/bin/env bash
# Formats the C++ sources. With --check, fails if one is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
if [ "${1:-}" = --check ]; then
  mode=(--dry-run -Werror)
fi
folders=()
for folder in include src cli run doctor tests benchmarks fuzz python examples; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
find "${folders[@]}" \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' \) -print0 |
  xargs -0 clang-format-19 "${mode[@]}"
