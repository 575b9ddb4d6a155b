#!/usr/bin/env bash
# The Python package: python.sh install | test [ARGS] | gpu-test [ARGS] | train [ARGS] | format [--check] | stubs
#
# install   into .venv, with what it finds on the package index to build with
# test      builds the wheel, installs it into a new virtual environment with the pinned test requirements, runs pytest
# gpu-test  builds with what this Python has already, without a network, and runs pytest with its PyTorch, CuPy and JAX
# train     runs examples/train_fashion_mnist.py, with this Python's PyTorch where it has one, otherwise in .venv
# stubs     writes python/penstock/_core.pyi anew
set -euo pipefail
cd "$(dirname "$0")/.."

build=$PWD/build/python
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Makes a virtual environment of $1 where there is none that works.
make_environment() {
  "$1/bin/python" -c 'import pip' 2>/dev/null || { rm -rf "$1"; "${PYTHON:-python3}" -m venv "$1"; }
}

# Quiet, but for what fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || { status=$?; tail -n 60 "$log" >&2; }
  rm -f "$log"
  return $status
}

make_wheel() {
  rm -rf "$build/wheels"
  quietly "$1/bin/python" -m pip wheel --no-deps --no-build-isolation --wheel-dir "$build/wheels" .
}

# Builds with what this Python has, without a network, and puts the package on its path.
install_beside() {
  rm -rf "$build/beside"
  quietly "${PYTHON:-python3}" -m pip install --no-build-isolation --no-deps --no-index --target "$build/beside" .
  export PYTHONPATH="$build/beside${PYTHONPATH:+:$PYTHONPATH}"
}

case "${1:-}" in
  install)
    make_environment .venv
    quietly .venv/bin/python -m pip install .
    .venv/bin/python -c 'import penstock; print("penstock", penstock.__version__, "in .venv:", penstock.devices())'
    ;;
  test)
    shift
    make_environment "$build/tools"
    quietly "$build/tools/bin/python" -m pip install -r python/build-requirements.txt
    make_wheel "$build/tools"
    # New each time, so that nothing but the wheel and what it asks for is there; pip's cache makes it quick.
    rm -rf "$build/venv"
    make_environment "$build/venv"
    quietly "$build/venv/bin/python" -m pip install -r python/tests/requirements.txt "$build"/wheels/*.whl
    for driver in build/ci build/release; do
      driver=$PWD/$driver/tests/fake_driver/libfake_cuda.so
      if [ -e "$driver" ]; then export PENSTOCK_FAKE_DRIVER=${PENSTOCK_FAKE_DRIVER:-$driver}; fi
    done
    "$build/venv/bin/python" -m pytest "$@"
    ;;
  gpu-test)
    shift
    install_beside
    "${PYTHON:-python3}" -m pytest "$@"
    ;;
  train)
    shift
    python=${PYTHON:-python3}
    if "$python" -c 'import torch, nanobind, scikit_build_core' 2>/dev/null; then
      install_beside
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
  stubs)
    "$build/venv/bin/python" -m nanobind.stubgen -q -m penstock._core -o python/penstock/_core.pyi
    ;;
  *)
    echo "usage: python.sh install | test [ARGS] | gpu-test [ARGS] | train [ARGS] | format [--check] | stubs" >&2
    exit 2
    ;;
esac
