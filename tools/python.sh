#!/usr/bin/env bash
# The Python package:
# python.sh install | test | one TESTS | differ | environment [--new] | docs | test-frameworks | beside | gpu-test | train |
# format [--check] | tool, [ARGS]
#
# install          into .venv; the packages that the build needs come from the package index
# test             builds the wheel, around the library of the finished build in PENSTOCK_BUILT if that is set; installs it
#                  into a new virtual environment with the pinned test requirements, runs pytest
# one TESTS        runs these with the sources as they lie here and a module that is built around build/ci, without a
# wheel. TESTS is what pytest takes; names of files without a folder are in python/tests
# differ [OPTIONS]  runs differ.py, of the tests, in the same way
# environment      makes that virtual environment if there is none; --new: in any case
# docs             makes the site, build/site, of the pages and of what is installed there
# test-frameworks  the same for python/tests/frameworks; its virtual environment is kept until its requirements change
# beside           builds with this Python's packages, without a network, into build/python/beside
# gpu-test FOLDER TESTS  runs those tests on what lies there, with the PyTorch, CuPy, JAX and frameworks of this Python.
# What pytest says and its results go to the folder
# train            runs examples/train_fashion_mnist.py, with this Python's PyTorch if it has one, otherwise
# in .venv
# tool ARGS        runs Python with the packages of tools/requirements.txt
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/quietly.sh

build=$PWD/build/python
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Makes a virtual environment in $1 unless a working one is there.
make_environment() {
  "$1/bin/python" -c 'import pip' 2>/dev/null || { rm -rf "$1"; "${PYTHON:-python3}" -m venv "$1"; }
}

make_wheel() {
  make_environment "$build/tools"
  quietly "$build/tools/bin/python" -m pip install -r python/build-requirements.txt
  rm -rf "$build/wheels"
  quietly "$build/tools/bin/python" -m pip wheel --no-deps --no-build-isolation --wheel-dir "$build/wheels" "$@" .
}

# Makes a new environment of the tests, so that it holds only the wheel and its requirements. pip's cache
# makes it fast.
make_test_environment() {
  # Compiling takes a fifth less time so, and no test asks for speed. Tests in frameworks take the wheel of users.
  make_wheel --config-settings "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" \
    --config-settings "cmake.define.PENSTOCK_BUILT=${PENSTOCK_BUILT:-OFF}" \
    --config-settings "build-dir=$build/tested/{wheel_tag}"
  rm -rf "$build/venv"
  make_environment "$build/venv"
  quietly "$build/venv/bin/python" -m pip install -r python/tests/requirements.txt "$build"/wheels/*.whl
}

# Builds the module around build/ci, beside links to the sources of the package: build/python/here.
link_here() {
  TARGETS="penstock penstock_command penstock_recorder penstock_run fake_cuda" quietly tools/build.sh ci
  quietly cmake -S python -B "$build/module" -DPENSTOCK_BUILT="$PWD/build/ci" -DPython_EXECUTABLE="$1" \
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"
  quietly cmake --build "$build/module" --parallel "${JOBS:-$(nproc)}"
  rm -rf "$build/here"
  mkdir -p "$build/here/penstock"
  ln -s "$PWD"/python/penstock/* "$build/here/penstock"
  ln -sf "$build"/module/_core{*.so,.pyi} "$PWD"/build/ci/libpenstock_{recorder,run}.so "$build/here/penstock"
}

# Makes the environment of the frameworks (1.7 GB) if there is none for these requirements. timm has a folder in it.
make_frameworks() {
  local wanted=python/tests/frameworks/requirements.txt timm=python/tests/frameworks/timm.txt
  cat "$wanted" "$timm" | cmp -s - "$1/requirements.txt" || rm -rf "$1"
  make_environment "$1"
  [ ! -e "$1/requirements.txt" ] || return 0
  quietly "$1/bin/python" -m pip install -r "$wanted"
  quietly "$1/bin/python" -m pip install --no-deps --target "$1/timm" -r "$timm"
  cat "$wanted" "$timm" >"$1/requirements.txt"
}

install_beside() {
  local unity=ON
  # On many processors, many small files are compiled sooner than a few large ones.
  if [ "$(nproc)" -gt 8 ]; then unity=OFF; fi
  rm -rf "$build/beside"
  quietly "${PYTHON:-python3}" -m pip install --no-build-isolation --no-deps --no-index \
    --config-settings="cmake.define.PENSTOCK_UNITY=$unity" --target "$build/beside" .
}

# Runs the tests of $2... in processes beside each other, without a plugin for it. Each says what it has in the
# folder $1.
run_in_parts() {
  local results=$1 parts=$(($(nproc) < 32 ? 8 : 16)) part runs=() status=0
  shift
  export PYTHONPATH="$build/beside${PYTHONPATH:+:$PYTHONPATH}"
  # As many threads of PyTorch in each as there are cores would wait for each other.
  export OMP_NUM_THREADS=$((($(nproc) + parts - 1) / parts))
  for ((part = 0; part < parts; part++)); do
    # One that hangs says where, and the others' results are still told.
    PENSTOCK_TEST_PART=$part/$parts timeout 500 "${PYTHON:-python3}" -m pytest -q --disable-warnings \
      -o faulthandler_timeout=180 --junit-xml="$results/python-$part.xml" "$@" >"$results/python-$part.log" 2>&1 &
    runs+=($!)
  done
  for ((part = 0; part < parts; part++)); do
    wait "${runs[part]}" || { status=1; tail -n 40 "$results/python-$part.log"; }
  done
  return $status
}

case "${1:-}" in
  install)
    make_environment .venv
    quietly .venv/bin/python -m pip install .
    .venv/bin/python -c 'import penstock; print("penstock", penstock.__version__, "in .venv:", penstock.devices())'
    ;;
  test)
    shift
    make_test_environment
    for driver in build/ci build/release; do
      driver=$PWD/$driver/tests/fake_driver/libfake_cuda.so
      if [ -e "$driver" ]; then export PENSTOCK_FAKE_DRIVER=${PENSTOCK_FAKE_DRIVER:-$driver}; fi
    done
    # As many threads of PyTorch in each process as there are cores would spin for each other.
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    "$build/venv/bin/python" -m pytest --numprocesses "${TEST_JOBS:-${JOBS:-$(nproc)}}" "$@"
    ;;
  one | differ)
    tool=(-m pytest -q -p no:cacheprovider)
    [ "$1" = one ] || tool=(differ.py)
    shift
    python=$(command -v "${PYTHON:-python3}")
    if ! "$python" -c 'import nanobind, numpy, pytest, torch' 2>/dev/null; then
      python=$build/tests/bin/python
      make_environment "$build/tests"
      quietly "$python" -m pip install -r python/tests/requirements.txt
    fi
    link_here "$python"
    export PYTHONPATH="$build/here${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    export PENSTOCK_FAKE_DRIVER=${PENSTOCK_FAKE_DRIVER:-$PWD/build/ci/tests/fake_driver/libfake_cuda.so}
    cd python/tests
    exec "$python" "${tool[@]}" "$@"
    ;;
  environment)
    [[ ${2:-} != --new && -e $build/venv/bin/pytest ]] || make_test_environment
    ;;
  docs)
    [ -e "$build/venv/bin/penstock" ] || make_test_environment
    make_environment "$build/docs"
    quietly "$build/docs/bin/python" -m pip install -r docs/requirements.txt
    "$build/docs/bin/python" -B tools/make_site.py "$build"/venv/bin/penstock "$build"/venv/lib/python3*/site-packages
    ;;
  test-frameworks)
    shift
    make_wheel
    make_frameworks "$build/frameworks"
    quietly "$build/frameworks/bin/python" -m pip install --no-deps --force-reinstall "$build"/wheels/*.whl
    # Most of these files' tests need a framework, too, and are skipped by `make test`.
    "$build/frameworks/bin/python" -m pytest python/tests/frameworks \
      python/tests/test_{columns,foreign_arrays,loader_data,packs,parquet}.py "$@"
    ;;
  beside)
    install_beside
    ;;
  gpu-test)
    shift
    run_in_parts "$@"
    ;;
  train)
    shift
    python=${PYTHON:-python3}
    if "$python" -c 'import torch, nanobind, scikit_build_core' 2>/dev/null; then
      install_beside
      export PYTHONPATH="$build/beside${PYTHONPATH:+:$PYTHONPATH}"
    else
      make_environment .venv
      quietly .venv/bin/python -m pip install . "$(grep ^torch== python/tests/requirements.txt)" numpy tqdm
      python=.venv/bin/python
    fi
    "$python" examples/train_fashion_mnist.py "$@"
    ;;
  format)
    make_environment "$build/tools"
    quietly "$build/tools/bin/python" -m pip install -r python/build-requirements.txt
    if [ "${2:-}" = --check ]; then
      "$build/tools/bin/ruff" check --quiet python examples benchmarks
      "$build/tools/bin/ruff" format --quiet --check python examples benchmarks
    else
      "$build/tools/bin/ruff" check --quiet --fix python examples benchmarks
      "$build/tools/bin/ruff" format --quiet python examples benchmarks
    fi
    ;;
  tool)
    shift
    make_environment "$build/tools"
    cmp -s tools/requirements.txt "$build/tools/requirements.txt" || {
      # 77: what ctest takes for a test that cannot run here
      quietly "$build/tools/bin/python" -m pip install -r tools/requirements.txt || exit 77
      cp tools/requirements.txt "$build/tools/requirements.txt"
    }
    exec "$build/tools/bin/python" -B "$@"
    ;;
  *)
    echo "usage: python.sh install | test | one | differ | environment | docs | test-frameworks | beside | gpu-test | train | format | tool" >&2
    exit 2
    ;;
esac
