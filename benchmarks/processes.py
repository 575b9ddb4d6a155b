#!/usr/bin/env python3
"""Several processes, a device each, feed from one file: do they reach the sum of their links?

    processes.py --devices host:0,link=0.75 host:1,link=0.75
    processes.py --devices cuda:0 cuda:1 --mib 4096

Each process maps the same .npy file and feeds its share of the samples to its device by a Loader, shuffled. First every
process feeds an epoch alone, while the others wait, and compares each sample with the file. Then all of them feed for
`--seconds`, from a common start. The sum counts the bytes of all from that start until the last of them has ended.
Prints a table, or with `--json -` the figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np

SAMPLE_BYTES = 48 << 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", required=True, help="a device for each process")
    parser.add_argument("--mib", type=int, default=384, help="size of the file in MiB, default %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="samples of a batch, default %(default)s")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement, default %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="of each Loader that gather; default: its own choice")
    parser.add_argument("--json", choices=["-"], help="print the figures as JSON")
    return parser.parse_args()


def write_file(path: str, count: int) -> None:
    """Samples of random bytes. Each begins with its number."""
    random = np.random.default_rng(1)
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, SAMPLE_BYTES))
    for number in range(count):
        array[number] = np.frombuffer(random.bytes(SAMPLE_BYTES), np.uint8)
        array[number, :8] = np.frombuffer(np.uint64(number).tobytes(), np.uint8)


def verified(loader: Any, array: Any, to_host: Any) -> np.ndarray:
    """The numbers of an epoch's samples, each of which is compared with the file."""
    numbers = []
    for batch in loader:
        for sample in np.asarray(to_host(batch)):
            number = int(sample[:8].view(np.uint64)[0])
            if not np.array_equal(sample, array[number]):
                raise SystemExit(f"sample {number} arrived with other bytes than the file holds")
            numbers.append(number)
    return np.array(numbers)


def feed_for(loader: Any, seconds: float) -> tuple[int, float]:
    """The bytes that arrived from now on, and the seconds that they took."""
    import penstock

    begin, fed, waited = time.perf_counter(), 0, None
    while time.perf_counter() - begin < seconds:
        for batch in loader:
            fed += batch.shape[0] * SAMPLE_BYTES
            waited = batch[:1]
            if time.perf_counter() - begin >= seconds:
                break
    penstock.to_host(waited)
    return fed, time.perf_counter() - begin


def work(rank: int, arguments: argparse.Namespace, path: str, barrier: Any, answers: Any) -> None:
    import penstock

    array = np.load(path, mmap_mode="r")
    loader = penstock.Loader(
        array,
        arguments.batch,
        shuffle=True,
        device=arguments.devices[rank],
        rank=rank,
        world_size=len(arguments.devices),
        threads=arguments.threads,
    )
    alone = 0.0
    for turn in range(len(arguments.devices)):
        if turn == rank:
            numbers = verified(loader, array, penstock.to_host)
            fed, seconds = feed_for(loader, arguments.seconds)
            alone = fed / seconds
        barrier.wait()
    begin = time.monotonic()
    fed, _ = feed_for(loader, arguments.seconds)
    answers.put((rank, numbers, alone, fed, begin, time.monotonic()))


def main() -> int:
    arguments = parse()
    count = (arguments.mib << 20) // SAMPLE_BYTES
    processes = len(arguments.devices)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(processes), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples.npy")
        write_file(path, count)
        workers = [
            context.Process(target=work, args=(rank, arguments, path, barrier, answers)) for rank in range(processes)
        ]
        for worker in workers:
            worker.start()
        gathered = []
        while len(gathered) < processes:
            if any(worker.exitcode for worker in workers):
                for worker in workers:
                    worker.terminate()
                sys.exit("processes.py: a process failed")
            if not answers.empty():
                gathered.append(answers.get())
            time.sleep(0.01)
        for worker in workers:
            worker.join()
    gathered.sort(key=lambda answer: answer[0])
    # As DistributedSampler does, the shares are made equal by repeating a few samples.
    if set(np.concatenate([answer[1] for answer in gathered]).tolist()) != set(range(count)):
        sys.exit("processes.py: the processes together did not get every sample")
    alone = [answer[2] / 1e9 for answer in gathered]
    begin, end = min(answer[4] for answer in gathered), max(answer[5] for answer in gathered)
    together = sum(answer[3] for answer in gathered) / (end - begin) / 1e9
    share = together / sum(alone)
    if arguments.json:
        print(json.dumps({"devices": arguments.devices, "alone_gbps": alone, "together_gbps": together}))
    else:
        print("| feeding | GB/s |\n| --- | ---: |")
        for device, rate in zip(arguments.devices, alone, strict=True):
            print(f"| {device}, alone | {rate:.3f} |")
        print(f"| all at once | {together:.3f} |")
        print(f"\nThe sum is reached to {share:.1%}; the bytes of an epoch were right.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
