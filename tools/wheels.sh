#!/usr/bin/env bash
# Makes wheels that need no other package, in build/wheels: wheels.sh build | check | release
#
# build  one for 3.10, one for 3.11, and one for 3.12 and newer (VERSIONS='3.12' makes only that one), compiled by
#        Zig for a glibc that is older than this machine's, with libraries from the package index
# check  audits them, and tries each in new environments: alone in 3.10, 3.12 and the newest Python that is here, and
#        with PyTorch (TORCH_VERSIONS='3.11') under the whole of python/tests
# release  gathers what is published in build/release-files: these wheels, the sdist, which is tried as well,
#        checksums, and the notes of the changelog
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/quietly.sh

wheels=$PWD/build/wheels
tools=$wheels/tools
glibc=2.28
policy=manylinux_${glibc/./_}_$(uname -m)
most_bytes=2800000  # half of it is the doctor and the command, which users get in no other way; libjpeg-turbo and penstock run, a quarter
export PIP_DISABLE_PIP_VERSION_CHECK=1

stop() { echo "wheels.sh: $1" >&2; exit 1; }

# Prints the interpreter of version $1, on the path or pyenv's, that can make virtual environments and has headers.
find_python() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c "import ensurepip, os, sys, sysconfig, venv
here = os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))
sys.exit('%d.%d' % sys.version_info[:2] != '$1' or not here or bool(sysconfig.get_config_var('Py_GIL_DISABLED')))" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

make_tools() {
  "$tools/bin/python" -c 'import pip' 2>/dev/null || { rm -rf "$tools"; "${PYTHON:-python3}" -m venv "$tools"; }
  quietly "$tools/bin/python" -m pip install -r python/wheel-requirements.txt
  local packages zig kind
  packages=$("$tools/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  zig=$packages/ziglang/zig
  headers=$packages/pgm_build_deps  # which pip brings along from 3.11 on only
  # Of the decoders, only libjpeg-turbo runs with that old a glibc. Its headers lie beside those of a newer one.
  mkdir -p "$tools/jpeg"
  local header
  for header in jpeglib.h jmorecfg.h jerror.h jconfig.h; do
    cp "$(find /usr/include -name $header -print -quit)" "$tools/jpeg/"
  done
  for kind in cc c++; do
    printf '#!/bin/sh\nexec "%s" %s -target %s-linux-gnu.%s "$@"\n' "$zig" "$kind" "$(uname -m)" "$glibc" >"$tools/bin/$kind"
    chmod +x "$tools/bin/$kind"
  done
}

build() {
  local version python unwinder jpeg
  local versions=${VERSIONS:-3.10 3.11 3.12}
  for version in $versions; do
    find_python "$version" >/dev/null || stop "there is no Python $version with its headers here"
  done
  unwinder=$("cc" -print-file-name=libgcc_s.so.1)
  [ -e "$unwinder" ] || stop "libgcc_s.so.1, which unwinds frames, is not here"
  jpeg=$(cc -print-file-name=libjpeg.so)
  [ -e "$jpeg" ] || stop "libjpeg-turbo is not here: install libjpeg-dev"
  make_tools
  rm -rf "$wheels/raw" "$wheels"/*.whl
  for version in $versions; do
    python=$(find_python "$version")
    # nanobind uses <cstdio> without saying so, and libc++ does not bring it along. Frames are unwound by the system's
    # library: glibc uses it to end a thread, and its notes cannot be read by another one that is linked in.
    CC=$tools/bin/cc CXX=$tools/bin/c++ CXXFLAGS="-include cstdio" LDFLAGS="$unwinder -Wl,--allow-shlib-undefined" CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} quietly \
      "$python" -m pip wheel --no-deps --wheel-dir "$wheels/raw" \
      --config-settings "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" \
      --config-settings "cmake.define.PENSTOCK_DECODERS=JPEG" \
      --config-settings "cmake.define.PENSTOCK_JPEG_DIR=$tools/jpeg" \
      --config-settings "cmake.define.PENSTOCK_JPEG_LIBRARY=$jpeg" \
      --config-settings "cmake.define.CLI11_ROOT=$headers/cli11" \
      --config-settings "cmake.define.nlohmann_json_ROOT=$headers/nlohmann_json" \
      --config-settings "build-dir=$wheels/cmake/$version" .
  done
  for version in "$wheels"/raw/*.whl; do
    PATH=$tools/bin:$PATH quietly "$tools/bin/auditwheel" repair --plat "$policy" --wheel-dir "$wheels" "$version"
  done
  ls "$wheels"/*.whl
}

# Prints the wheel that pip takes for version $1.
wheel_for() {
  case $1 in
    3.10 | 3.11) ls "$wheels/"*"-cp${1/./}-cp${1/./}-"*.whl ;;
    *) ls "$wheels/"*-cp312-abi3-*.whl ;;
  esac
}

newest_python() {
  local minor
  for minor in 20 19 18 17 16 15 14 13 12; do
    if find_python "3.$minor" >/dev/null; then
      echo "3.$minor"
      return
    fi
  done
}

audit() {
  local wheel=$1 minor
  minor=$("$tools/bin/auditwheel" show "$wheel" | sed -n 's/.*"manylinux_2_\([0-9]*\)_.*/\1/p' | head -n 1)
  [ "${minor:-99}" -le "${glibc#2.}" ] || stop "$(basename "$wheel") needs a glibc newer than $glibc"
  [[ $wheel != *-abi3-* ]] || quietly "$tools/bin/abi3audit" --strict --report "$wheel"
  [ "$(stat -c %s "$wheel")" -le $most_bytes ] || stop "$(basename "$wheel") has more than $most_bytes bytes"
  local contents part
  contents=$("$tools/bin/python" -m zipfile --list "$wheel")
  for part in dist-info/licenses/LICENSE dist-info/licenses/python/LICENSES-bundled.txt \
    penstock/libpenstock_recorder.so penstock/libpenstock_run.so penstock/py.typed penstock/_core.pyi; do
    grep -q "$part" <<<"$contents" || stop "$(basename "$wheel") has no $part"
  done
}

# Makes a new environment of version $1 with the wheel and the other named packages.
make_environment() {
  local version=$1 folder=$wheels/try-$1
  shift
  rm -rf "$folder"
  "$(find_python "$version")" -m venv "$folder"
  quietly "$folder/bin/python" -m pip install "$(wheel_for "$version")" "$@"
}

# Tests what must work with only the wheel installed.
try_alone() {
  local bin=$wheels/try-$1/bin work
  work=$(mktemp -d)
  "$bin/python" - "$work/samples.npy" <<'END'
import os, struct, sys
header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1024, 1024), }".ljust(117) + b"\n"
with open(sys.argv[1], "wb") as file:
    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + os.urandom(1 << 20))
END
  env -i "$bin/python" -c 'import penstock; print("penstock", penstock.__version__, penstock.devices()[-1])'
  env -i "$bin/penstock" --version
  env -i "$bin/penstock" info >/dev/null
  env -i "$bin/penstock" run -- "$bin/python" -c 'import os; assert "libpenstock_run.so" in os.environ["LD_PRELOAD"]'
  env -i "$bin/penstock" feed "$work/samples.npy" --shuffle --verify --report "$work/report.html" >/dev/null 2>&1
  grep -q 'class="lane"' "$work/report.html" || stop "the report of $1 has no pictures"
  # Python ends the thread in mid-call: its frames are unwound through those of the wheel.
  for _ in 1 2 3 4 5 6; do
    env -i "$bin/python" - <<'END' || stop "a program of $1 that ends while a daemon thread is in to_device crashes"
import threading, time, penstock
data = memoryview(bytearray(64 << 20))
def send():
    while True:
        penstock.to_device(data, "host:link=1")
threading.Thread(target=send, daemon=True).start()
time.sleep(0.4)
END
  done
  rm -rf "$work"
}

# Prints what the changelog says of version $1.
notes_of() { awk -v title="## $1" '/^## /{here = index($0, title) == 1; next} here' CHANGELOG.md; }

release() {
  local version files=$PWD/build/release-files
  version=$(sed -n 's/^project(penstock VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  [ -z "$(git status --porcelain)" ] || stop "commit all changes first: a release is made of a commit"
  [ -d "python/tests/kept/$version" ] || stop "keep this version's files first: python python/tests/test_kept.py"
  make_tools
  rm -rf "$files" "$wheels/try-source"
  mkdir -p "$files"
  notes_of "$version" >"$files/NOTES.md"
  [ -s "$files/NOTES.md" ] || stop "CHANGELOG.md says nothing of $version"
  grep -q "^ *version: $version$" CITATION.cff && grep -q "^ *version: $version$" conda/recipe.yaml ||
    stop "CITATION.cff or conda/recipe.yaml is not for $version"
  quietly "$tools/bin/python" -m build --sdist --outdir "$files" .
  "${PYTHON:-python3}" -m venv "$wheels/try-source"
  quietly "$wheels/try-source/bin/python" -m pip install "$files/penstock-$version.tar.gz"
  try_alone source
  cp "$wheels"/penstock-"$version"-*.whl "$files"
  (cd "$files" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
}

case "${1:-}" in
  build) build ;;
  check)
    make_tools
    for wheel in "$wheels"/*.whl; do audit "$wheel"; done
    for version in $(printf '3.10\n3.12\n%s\n' "$(newest_python)" | sort -uV); do
      make_environment "$version" --no-deps --no-index
      try_alone "$version"
    done
    for version in ${TORCH_VERSIONS-3.11}; do
      make_environment "$version" -r python/tests/requirements.txt
      "$wheels/try-$version/bin/python" -m pytest -q
    done
    ;;
  release) release ;;
  *)
    echo "usage: wheels.sh build | check | release" >&2
    exit 2
    ;;
esac
