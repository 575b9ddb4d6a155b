#!/usr/bin/env bash
# Runs all tests that need no GPU: the concurrent layers under each sanitizer, then all others.
set -uo pipefail
cd "$(dirname "$0")/.."

mkdir -p build/logs
rm -rf build/*/ctest.xml build/*/results
failures=0

step() {
  local name=$1 log=build/logs/$1.log start=$SECONDS
  shift
  printf '%-12s ' "$name"
  if "$@" >"$log" 2>&1; then
    echo "ok, $((SECONDS - start)) s"
  else
    echo "FAILED, $((SECONDS - start)) s"
    [[ $name == test-* && -e build/${name#test-}/ctest.xml ]] || sed 's/^/    /' "$log" | tail -n 100
    failures=$((failures + 1))
    return 1
  fi
}

# Many tests wait for modelled links and other processes, so there are three for two processors.
export TEST_JOBS=${JOBS:-$((($(nproc) * 3 + 1) / 2))}
run_tests() { ctest --preset "$1" --parallel "$TEST_JOBS" --output-junit ctest.xml; }

step build-asan tools/build.sh asan && step test-asan run_tests asan
step build-tsan tools/build.sh tsan && step test-tsan run_tests tsan
# The files of a folder are compiled as one here, and each by itself in `make check`. `make check` and `make repeat` also run
# the concurrent layers without a sanitizer. Python's module links to what is built; `make test-frameworks` compiles all of
# the wheel.
step build-ci tools/build.sh ci -DPENSTOCK_UNITY=ON "-DPENSTOCK_TEST_LAYERS=link;failures" && export PENSTOCK_BUILT=$PWD/build/ci && step test-ci run_tests ci
step format-python tools/python.sh format --check
mkdir -p build/python
step test-python tools/python.sh test --junit-xml=build/python/ctest.xml && step docs tools/python.sh docs

python3 -B tools/summarize_tests.py build/*/ctest.xml build/*/results/*.xml || failures=$((failures + 1))
[ "$failures" -eq 0 ]
