#!/bin/sh
# Compiles the kernels to PTX: tools/make_kernels.sh [OUTPUT]. Needs nvcc (or NVCC=...).
# The ISA version is lowered from what nvcc writes to about the oldest that sm_75 needs, so that older drivers take
# it; comments and a hint that only newer versions know go with it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
kernels=$root/src/device/cuda
output=${1:-$kernels/kernels.ptx}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${NVCC:-nvcc}" -ptx -arch=compute_75 -O3 -std=c++17 -I "$root/src" "$kernels/kernels.cu" -o "$work/kernels.ptx"
{
  printf '// Made from kernels.cu by tools/make_kernels.sh.\n'
  sed -e '/^[[:space:]]*\/\//d' -e '/\.pragma "used_bytes_mask/d' -e 's/^\.version .*/.version 6.4/' "$work/kernels.ptx"
} > "$work/lowered.ptx"
cp "$work/lowered.ptx" "$output"
