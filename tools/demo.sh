#!/usr/bin/env bash
# Feeds a real dataset to this machine's device and says where the time went: Debian's Fashion-MNIST, or the
# files or the directory in DATA. Needs the build.
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra sources <<<"${DATA:-}"
if [ ${#sources[@]} -eq 0 ]; then
  if ! tools/setup.sh demo; then
    echo "To feed other data instead, name .npy files: make demo DATA='images.npy labels.npy'" >&2
    exit 1
  fi
  mkdir -p build/demo
  python3 - <<'END'
import gzip, pathlib, struct

for name, axes in (("images", 3), ("labels", 1)):
    data = gzip.open(f"/usr/share/datasets/fashion-mnist/train-{name}-idx{axes}-ubyte.gz").read()
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    pathlib.Path(f"build/demo/{name}.npy").write_bytes(magic + header.encode() + data[4 + 4 * axes :])
END
  sources=(build/demo/images.npy build/demo/labels.npy)
fi

command=build/release/penstock
mkdir -p build/demo
"$command" info --device auto
feed=(feed "${sources[@]}" --device auto --batch 256 --epochs 3 --shuffle --to float32 --verify --step-ms 0.5
  --report build/demo/report.html)
printf '\n$ penstock %s\n' "${feed[*]}"
"$command" "${feed[@]}"
