#!/usr/bin/env bash
# Runs the benchmarks in C++ on the host device.
set -euo pipefail
cd "$(dirname "$0")/.."

build/release/benchmarks/bench_engine --device host --json build/bench.json
build/release/benchmarks/bench_loader --device host --images 4096 --json build/loader.json
