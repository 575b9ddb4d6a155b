#!/usr/bin/env bash
# The checks after each edit. Builds build/ci, runs the unit tests and the contract of the backends on the
# host device and over the fake driver, and lints the files that differ from the commit before (BASE=REV: from
# REV).
set -euo pipefail
cd "$(dirname "$0")/.."

tools/build.sh ci -DPENSTOCK_UNITY=OFF
ctest --preset ci --parallel "${JOBS:-$(nproc)}" --output-on-failure --label-exclude slow
tools/check_layers.py
tools/python.sh format --check
tools/python.sh tool tools/mutants.py --check

changed() {
  git diff --name-only --diff-filter=d "${BASE:-HEAD}" -- "$@"
  git ls-files --others --exclude-standard -- "$@"
}
mapfile -t sources < <(changed 'src/*.cpp' 'cli/*.cpp' 'doctor/*.cpp' 'tests/*.cpp' 'benchmarks/*.cpp')
if [ ${#sources[@]} -gt 0 ]; then
  run-clang-tidy-19 -quiet -p build/ci -j "${JOBS:-$(nproc)}" "${sources[@]/#/$PWD/}"
fi
