#!/usr/bin/env bash
# Provides the needs of a target: setup.sh GROUP...
#
# Groups: build, test, python, lint, tsan, demo, pages. Installs missing packages with apt-get if that
# is allowed. Otherwise names them and exits with a non-zero status. A build goes on without the optional ones.
set -euo pipefail
cd "$(dirname "$0")/.."

has_command() { command -v "$1" >/dev/null 2>&1; }

has_compiler() {
  printf '#include <source_location>\n#include <stop_token>\nstatic_assert(__cplusplus >= 202002L);\n' |
    "${CXX:-c++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null
}

has_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
  [ -n "$version" ] && [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

has_generator() { has_command ninja || has_command make; }

has_header() {
  local prefix flags=() search=${CMAKE_PREFIX_PATH:-}
  for prefix in ${search//[:;]/ }; do flags+=("-I$prefix/include"); done
  printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" |
    "${CXX:-c++}" -std=c++20 "${flags[@]}" -fsyntax-only -x c++ - 2>/dev/null
}

has_thread_sanitizer() {
  local program
  program=$(mktemp)
  printf '#include <vector>\nint main() {}\n' |
    clang++-19 -std=c++20 -fsanitize=thread -x c++ - -o "$program" >/dev/null 2>&1
  local status=$?
  rm -f "$program"
  return $status
}

has_python() { python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

has_python_headers() {
  python3 -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' >/dev/null 2>&1
}

has_browser() { has_command chromium-headless-shell || has_command chromium || has_command google-chrome; }

has_files() { [ -e "$1" ]; }

# group | name | apt packages | a command that succeeds if it is there
needs='
build  | a C++20 compiler (g++ 12 or newer)  | g++                          | has_compiler
build  | CMake 3.25 or newer                 | cmake                        | has_cmake
build  | ninja or make                       | ninja-build                  | has_generator
build  | fmt                                 | libfmt-dev                   | has_header fmt/format.h
build  | nlohmann-json                       | nlohmann-json3-dev           | has_header nlohmann/json.hpp
build  | CLI11                               | libcli11-dev                 | has_header CLI/CLI.hpp
build  | zlib                                | zlib1g-dev                   | has_header zlib.h
build  | optional, for JPEG: libjpeg-turbo   | libjpeg-dev                  | has_header jpeglib.h
build  | optional, for PNG: libspng          | libspng-dev                  | has_header spng.h
build  | optional, for WebP: libwebp         | libwebp-dev                  | has_header webp/decode.h
test   | GoogleTest                          | libgtest-dev                 | has_header gtest/gtest.h
test   | GoogleMock                          | libgmock-dev                 | has_header gmock/gmock.h
python | Python 3.10 or newer, with venv     | python3 python3-venv         | has_python
python | the headers of Python                 | python3-dev                  | has_python_headers
lint   | clang-format 19                     | clang-format-19              | has_command clang-format-19
lint   | clang-tidy 19                       | clang-tidy-19                | has_command run-clang-tidy-19
tsan   | clang 19 with its thread sanitizer  | clang-19 libclang-rt-19-dev  | has_thread_sanitizer
demo   | Python 3                            | python3                      | has_command python3
demo   | the Fashion-MNIST dataset           | dataset-fashion-mnist        | has_files /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
pages  | a browser without a window          | chromium-headless-shell      | has_browser
'

trim() { local text="$*"; text="${text#"${text%%[![:space:]]*}"}"; printf '%s' "${text%"${text##*[![:space:]]}"}"; }

# Fills missing_names and missing_packages with the missing needs of the groups "$@".
find_missing() {
  missing_names=()
  missing_packages=()
  local group name packages check
  while IFS='|' read -r group name packages check; do
    group=$(trim "$group")
    [[ -n $group && " $* " == *" $group "* ]] || continue
    if ! $(trim "$check"); then
      missing_names+=("$(trim "$name")")
      # shellcheck disable=SC2206  # several packages are several words
      missing_packages+=($packages)
    fi
  done <<<"$needs"
}

stop() {
  echo "$1" >&2
  printf '  %s\n' "${missing_names[@]}" >&2
  [ -z "${2:-}" ] || echo "$2" >&2
  local name
  for name in "${missing_names[@]}"; do
    [[ $name == optional,* ]] || exit 1
  done
  exit 0
}

for group in "$@"; do
  [[ $group =~ ^(build|test|python|lint|tsan|demo|pages)$ ]] || { echo "setup.sh: no group '$group'" >&2; exit 2; }
done

find_missing "$@"
[ ${#missing_names[@]} -gt 0 ] || exit 0

by_hand="Install them with: sudo apt-get install ${missing_packages[*]}"
if ! has_command apt-get; then
  stop "Missing, and there is no apt-get here to install it:" "On Debian and Ubuntu these are: ${missing_packages[*]}"
elif [ "$(id -u)" = 0 ]; then
  elevate=()
elif has_command sudo && sudo -n true 2>/dev/null; then
  elevate=(sudo)
else
  stop "Missing, and this user may not install packages:" "$by_hand"
fi

echo "Installing ${missing_packages[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${elevate[@]}" apt-get update -qq &&
    "${elevate[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${missing_packages[@]}"
}
if ! install >"$log" 2>&1 </dev/null; then
  tail -n 20 "$log" >&2
  stop "Missing, and apt-get could not install it:" "$by_hand"
fi

hash -r
find_missing "$@"
[ ${#missing_names[@]} -eq 0 ] || stop "Still missing after apt-get install; this system's packages may be too old:"
