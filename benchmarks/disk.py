"""Random samples of a file that is read from a disk: a Loader with a budget of memory, NumPy's memory map, and bare
reads past the page cache (O_DIRECT) by as many threads as give the most.

    disk.py --file big.bin --gib 8 --json disk.json

Each way begins with a file that the page cache has forgotten, and runs in a process of its own. The last number is the
processor's time for a sample, in µs, in which the Loader copies each sample to the host device as well.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import pathlib
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import penstock

SAMPLES = {"150 KB": (153_600, 256), "4 KiB": (4096, 2048)}  # bytes, batch
DEPTHS = (16, 32, 64, 128)


def forget(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def bare(path: str, size: int, depth: int, seconds: float) -> int:
    """Reads by `depth` threads. Samples begin at blocks, as those of the file do."""
    file, count = os.open(path, os.O_RDONLY | os.O_DIRECT), os.path.getsize(path) // size
    done, end = [0] * depth, time.monotonic() + seconds

    def read(thread: int) -> None:
        buffer, random = mmap.mmap(-1, size), np.random.default_rng(thread)
        while time.monotonic() < end:
            for sample in random.integers(0, count, 64).tolist():
                os.preadv(file, [buffer], sample * size)
            done[thread] += 64

    with ThreadPoolExecutor(depth) as threads:
        list(threads.map(read, range(depth)))
    return sum(done)


def loaded(array: np.ndarray, batch: int, memory: str | int | None, seconds: float) -> tuple[int, float, float]:
    batches = iter(penstock.Loader(array, batch, shuffle=True, device="host", drop_last=True, memory=memory))
    for _ in range(8):  # its slots get their pages
        next(batches)
    begin, end, done = (time.monotonic(), used()), time.monotonic() + seconds, 0
    while time.monotonic() < end and next(batches, None) is not None:
        done += batch
    return done, time.monotonic() - begin[0], used() - begin[1]


def indexed(array: np.ndarray, batch: int, seconds: float) -> int:
    out, random = np.empty((batch, array.shape[1]), np.uint8), np.random.default_rng(0)
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        # A batch would outlast the time.
        np.take(array, random.integers(0, len(array), 32), axis=0, out=out[:32], mode="clip")
        done += 32
    return done


def used() -> float:
    times = resource.getrusage(resource.RUSAGE_SELF)
    return times.ru_utime + times.ru_stime


def measure(path: str, sample: str, way: str, seconds: float) -> dict[str, float]:
    size, batch = SAMPLES[sample]
    count = os.path.getsize(path) // size
    array = np.memmap(path, np.uint8, "r", shape=(count, size))
    begin, cpu = time.monotonic(), used()
    if way.startswith("Loader"):
        done, taken, cpu = loaded(array, batch, 0 if "past" in way else None, seconds)
    else:
        done = indexed(array, batch, seconds) if way == "numpy.memmap" else bare(path, size, int(way[5:]), seconds)
        taken, cpu = time.monotonic() - begin, used() - cpu
    return {"samples_per_s": done / taken, "mb_per_s": done * size / taken / 1e6, "us": cpu / done * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", required=True, help="made if it is missing")
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--json")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # sample and way
    asked = parser.parse_args()
    if asked.one:
        return print(json.dumps(measure(asked.file, *asked.one, asked.seconds)))
    if not os.path.exists(asked.file):
        with open(asked.file, "wb") as file:
            file.writelines([np.random.default_rng(0).bytes(1 << 28)] * (asked.gib * 4))
    rows = []
    for sample in SAMPLES:
        for way in ["Loader, past the page cache", "Loader", "numpy.memmap", *(f"bare {depth}" for depth in DEPTHS)]:
            forget(asked.file)
            command = [sys.executable, __file__, "--file", asked.file, "--seconds", str(asked.seconds)]
            rows.append({"sample": sample, "way": way})
            rows[-1] |= json.loads(subprocess.check_output([*command, "--one", sample, way]))
            print(
                "| {sample} | {way} | {mb_per_s:.0f} | {samples_per_s:.0f} | {us:.1f} |".format(**rows[-1]), flush=True
            )
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
