#!/usr/bin/env bash
# Runs the benchmarks on the host device, beside PyTorch if there is a Python with torch (PYTHON=..., .venv,
# python3).
set -euo pipefail
cd "$(dirname "$0")/.."

has_torch() { "$1" -c 'import torch' >/dev/null 2>&1; }

python=
for candidate in ${PYTHON:-} .venv/bin/python python3; do
  if has_torch "$candidate"; then
    python=$candidate
    break
  fi
done

build/release/benchmarks/bench_engine --device host --json build/bench.json
build/release/benchmarks/bench_group --devices host:0,link=0.5,peer=4 host:1,link=0.5,peer=4 --chunk-kib 4096 \
  --json build/group.json
rm -f build/torch-loader.json
if [ -n "$python" ]; then
  "$python" benchmarks/torch_loader.py --images 4096 --json build/torch-loader.json
else
  echo "PyTorch's DataLoader: not measured, no Python with torch (set PYTHON=...)"
fi
build/release/benchmarks/bench_loader --device host --images 4096 --beside build/torch-loader.json \
  --json build/loader.json
