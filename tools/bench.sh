#!/usr/bin/env bash
# Runs the benchmarks in C++ on the host device.
set -euo pipefail
cd "$(dirname "$0")/.."

build/release/benchmarks/bench_engine --device host --json build/bench.json
build/release/benchmarks/bench_group --devices host:0,link=0.5,peer=4 host:1,link=0.5,peer=4 --chunk-kib 4096 \
  --json build/group.json
build/release/benchmarks/bench_loader --device host --images 4096 --json build/loader.json
