#!/usr/bin/env bash
# Feeds a real dataset to this machine's device and says where the time went: Debian's Fashion-MNIST, or the
# files, the directory or the dataset's name in DATA. Needs the build.
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra sources <<<"${DATA:-}"
if [ ${#sources[@]} -eq 0 ]; then
  if ! tools/setup.sh demo; then
    echo "To feed other data instead, name IDX or .npy files: make demo DATA='images.idx labels.idx'" >&2
    exit 1
  fi
  sources=(fashion-mnist)
fi

command=build/release/penstock
mkdir -p build/demo
"$command" info --device auto
feed=(feed "${sources[@]}" --device auto --batch 256 --epochs 3 --shuffle --to float32 --verify --step-ms 0.5
  --report build/demo/report.html)
printf '\n$ penstock %s\n' "${feed[*]}"
"$command" "${feed[@]}"
