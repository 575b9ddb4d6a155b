#!/usr/bin/env bash
# Runs clang-tidy over the library, the command, the doctor, the tests and the benchmarks: lint.sh [FILE-REGEX...]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/build.sh dev
run-clang-tidy-19 -quiet -p build/dev -j "${JOBS:-$(nproc)}" "${@:-^$PWD/(src|cli|doctor|tests|benchmarks)/}"
