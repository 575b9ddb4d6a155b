#!/bin/sh
# Compiles the kernels to the PTX that is committed: tools/make_kernels.sh. Needs nvcc (or NVCC=...).
# With --check it only compares. Exit status 77 if there is no nvcc, or if another version made the PTX.
# The ISA version is lowered from what nvcc writes to about the oldest that sm_75 needs, so that older drivers take
# it; comments and a hint that only newer versions know go with it, and so does what nvcc puts into internal names from
# the path of the source.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
kernels=$root/src/device/cuda
nvcc=${NVCC:-nvcc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*, V\([0-9.]*\)$/\1/p') || true
if [ -z "$version" ]; then
  echo "waived: $nvcc does not run here, so kernels.ptx cannot be made from kernels.cu" >&2
  if [ "${1:-}" = --check ]; then exit 77; else exit 1; fi
fi
header="// Made from kernels.cu by tools/make_kernels.sh with nvcc $version."
if [ "${1:-}" = --check ] && [ "$(head -n 1 "$kernels/kernels.ptx")" != "$header" ]; then
  echo "waived: kernels.ptx was not made by nvcc $version, whose text may differ" >&2
  exit 77
fi
"$nvcc" -ptx -arch=compute_75 -O3 -std=c++17 -I "$root/src" "$kernels/kernels.cu" -o "$work/kernels.ptx"
{
  echo "$header"
  sed -e 's/\(_INTERNAL_\|_GLOBAL__N__\)[0-9a-f]\{8\}_/\100000000_/g' -e '/^[[:space:]]*\/\//d' -e '/\.pragma "used_bytes_mask/d' -e 's/^\.version .*/.version 6.4/' \
    "$work/kernels.ptx"
} > "$work/lowered.ptx"
if [ "${1:-}" = --check ]; then
  cmp "$work/lowered.ptx" "$kernels/kernels.ptx" || { echo "run 'make kernels' and commit kernels.ptx" >&2; exit 1; }
else
  cp "$work/lowered.ptx" "$kernels/kernels.ptx"
fi
