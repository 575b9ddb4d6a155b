#!/usr/bin/env bash
# Runs each fuzzer of the file parsers on its corpus: fuzz.sh SECONDS. New inputs, and those that fail, stay in build/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf build/fuzz/corpus
python3 fuzz/make_corpus.py build/fuzz/corpus
for program in build/fuzz/fuzz/fuzz_*; do
  [ -x "$program" ] && [ -f "$program" ] || continue
  name=${program##*/fuzz_}
  mkdir -p "build/fuzz/found/$name"
  echo "$name: $1 s"
  if ! "$program" -max_total_time="$1" -artifact_prefix="build/fuzz/found/$name-" \
    "build/fuzz/found/$name" "build/fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1; then
    tail -n 40 "build/fuzz/$name.log"
    exit 1
  fi
  tail -n 1 "build/fuzz/$name.log"
done
