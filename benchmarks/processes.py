#!/usr/bin/env python3
"""Several processes of a host, a device each, feed from one copy of a dataset: do they reach the sum of their links?

    processes.py --devices host:0,link=0.75 host:1,link=0.75
    processes.py --devices cuda:0 cuda:1 --mib 16384

One process makes the samples, all share them by a SharedDataset, and each feeds its share to its device by a Loader,
shuffled. Each compares an epoch's samples with those in memory. Then all measure at once, from a common start:

- raw copies: pinned memory to the device, by PyTorch (on GPUs alone)
- the first epoch of a new Loader, from its first batch on, and the time until that batch (locking is in it)
- later epochs
- the same batches in all processes: each brings all of them by a Loader of its own, and by a Loader of a ProcessGroup,
  which brings each byte over one link

A rate counts the bytes of all processes from the common start until the last of them has ended. What a Loader has ahead
at the start counts, too: take a dataset that is large beside a few batches. Memory is the
proportional set size of the shared pages, summed over the processes, and the largest resident size of the process that
made them. Prints a table, with each rate as a multiple of all raw copies together. groups.py has relays, and
all-reduces beside them.
`--json FILE` writes the figures, too; `--json -` prints them in place of the table.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", required=True, help="a device for each process")
    parser.add_argument("--mib", type=int, default=384, help="size of the dataset in MiB, default %(default)s")
    parser.add_argument("--sample-kib", type=int, default=48, help="size of a sample in KiB, default %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="samples of a batch, default %(default)s")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement, default %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="of each Loader that gather; default: its own choice")
    parser.add_argument("--json", metavar="FILE", help="write the figures here; -: print them in place of the table")
    return parser.parse_args()


def make_samples(count: int, sample_bytes: int) -> np.ndarray:
    """Samples of random bytes. Each begins with its number."""
    samples = np.random.default_rng(1).integers(0, 256, (count, sample_bytes), np.uint8)
    samples[:, :8] = np.arange(count, dtype=np.uint64)[:, None].view(np.uint8)
    return samples


def verified(loader: Any, samples: np.ndarray, to_host: Any) -> np.ndarray:
    """The numbers of an epoch's samples, each of which is compared with the one in memory."""
    numbers = []
    for batch in loader:
        for sample in np.asarray(to_host(batch)):
            number = int(sample[:8].view(np.uint64)[0])
            if not np.array_equal(sample, samples[number]):
                raise SystemExit(f"sample {number} arrived with other bytes than memory holds")
            numbers.append(number)
    return np.array(numbers)


def shared_bytes() -> int:
    """This process's share of the shared pages."""
    inside, share = False, 0
    with open("/proc/self/smaps") as maps:
        for line in maps:
            words = line.split()
            if not words[0].endswith(":"):
                inside = "penstock-pages" in line
            elif inside and words[0] == "Pss:":
                share += int(words[1]) << 10
    return share


def largest_resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))


class Rank:
    """One of the processes."""

    def __init__(self, rank: int, arguments: argparse.Namespace, barrier: Any):
        import penstock

        self.rank, self.arguments, self.barrier = rank, arguments, barrier
        self.device = arguments.devices[rank]
        self.is_gpu = self.device.startswith("cuda")
        self.figures: dict[str, Any] = {}
        self.sample_bytes = arguments.sample_kib << 10
        count = (arguments.mib << 20) // self.sample_bytes
        begin = time.monotonic()
        self.shared = penstock.SharedDataset(lambda: make_samples(count, self.sample_bytes))
        self.figures["made_seconds"] = time.monotonic() - begin
        self.samples = self.shared.data
        self.samples.sum(dtype=np.uint64)  # has all pages
        barrier.wait()
        self.figures["memory"] = [shared_bytes(), largest_resident_bytes() if self.shared.made_here else 0]
        barrier.wait()

    def loader(self) -> Any:
        import penstock

        return penstock.Loader(
            self.shared,
            self.arguments.batch,
            shuffle=True,
            device=self.device,
            rank=self.rank,
            world_size=len(self.arguments.devices),
            tuning=self.tuning(),
        )

    def tuning(self) -> Any:
        import penstock

        return penstock.Tuning(threads=self.arguments.threads)

    def wait_for(self, batch: Any) -> None:
        import penstock

        penstock.to_host(batch[:1])

    def together(self, name: str, feed: Callable[[], int]) -> None:
        """Notes the bytes of `feed`, which all processes begin at once."""
        self.barrier.wait()
        begin = time.monotonic()
        fed = feed()
        self.figures[name] = (fed, begin, time.monotonic())

    def feed_epochs(self, batches: Callable[[], Any], times: int) -> int:
        """As many in each process."""
        fed, batch = 0, None
        for _ in range(times):
            for batch in batches():
                fed += batch.shape[0] * self.sample_bytes
        self.wait_for(batch)
        return fed

    def feed_for(self, batches: Any) -> int:
        end, fed, batch = time.monotonic() + self.arguments.seconds, 0, None
        while time.monotonic() < end:
            for batch in batches:
                fed += batch.shape[0] * self.sample_bytes
                if time.monotonic() >= end:
                    break
        self.wait_for(batch)
        return fed

    def first_epoch(self) -> None:
        begin = time.monotonic()
        loader = self.loader()
        batches = iter(loader)
        self.wait_for(next(batches))
        self.figures["set_up_seconds"] = time.monotonic() - begin

        self.together("first epoch", lambda: self.feed_epochs(lambda: batches, 1))
        self.figures["numbers"] = verified(loader, self.samples, loader_to_host)
        self.together("later epochs", lambda: self.feed_for(loader))

    def same_batches(self) -> None:
        """All samples for each process, as ranks of tensor parallelism need them. What arrives counts in each."""
        import penstock

        arguments = self.arguments
        options = {"shuffle": True, "device": self.device, "tuning": self.tuning()}

        def loader_of(**more: Any) -> Any:
            return penstock.Loader(self.shared, arguments.batch, **options, **more)

        ways: dict[str, Callable[[], Any]] = {
            "each brings all": lambda: loader_of(rank=0, world_size=1),
            "once": lambda: loader_of(group=penstock.ProcessGroup()),
        }
        for name, make in ways.items():
            loader = make()
            numbers = verified(loader, self.samples, loader_to_host)
            if not np.array_equal(np.sort(numbers), np.arange(len(self.samples))):
                raise SystemExit(f"the same batches, {name}: not every sample came once")
            epochs = functools.partial(self.feed_epochs, functools.partial(iter, loader), 4)
            self.together(f"the same batches for all, {name}", epochs)
            if self.rank == 0:
                print(f"{name}: {loader.describe()[0]}", file=sys.stderr)
            self.barrier.wait()
            loader.close()

    def raw_copies(self) -> None:
        import torch

        pinned = torch.from_numpy(self.samples[: (256 << 20) // self.sample_bytes].copy()).pin_memory()
        on_device = torch.empty_like(pinned, device=self.device)

        def copy() -> int:
            end, fed = time.monotonic() + self.arguments.seconds, 0
            while time.monotonic() < end:
                for _ in range(4):
                    on_device.copy_(pinned, non_blocking=True)
                torch.cuda.synchronize()
                fed += 4 * pinned.nbytes
            return fed

        copy()
        self.together("raw copies", copy)


def loader_to_host(batch: Any) -> Any:
    import penstock

    return penstock.to_host(batch)


def work(rank: int, arguments: argparse.Namespace, port: int, barrier: Any, answers: Any) -> None:
    count = str(len(arguments.devices))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=count, LOCAL_WORLD_SIZE=count)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    device = arguments.devices[rank]
    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(device)
    here = Rank(rank, arguments, barrier)
    if here.is_gpu:
        here.raw_copies()
    here.first_epoch()
    here.same_batches()
    answers.put((rank, here.figures))


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of each process."""
    processes = len(arguments.devices)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(processes), context.Queue()
    port = free_port()
    workers = [
        context.Process(target=work, args=(rank, arguments, port, barrier, answers)) for rank in range(processes)
    ]
    for worker in workers:
        worker.start()
    gathered: dict[int, dict[str, Any]] = {}
    while len(gathered) < processes:
        if any(worker.exitcode for worker in workers):
            for worker in workers:
                worker.terminate()
            sys.exit("processes.py: a process failed")
        if not answers.empty():
            rank, figures = answers.get()
            gathered[rank] = figures
        time.sleep(0.01)
    for worker in workers:
        worker.join()
    return [gathered[rank] for rank in range(processes)]


def main() -> int:
    arguments = parse()
    ranks = run(arguments)
    sample_bytes = arguments.sample_kib << 10
    count = (arguments.mib << 20) // sample_bytes
    # As DistributedSampler does, the shares are made equal by repeating a few samples.
    if set(np.concatenate([rank["numbers"] for rank in ranks]).tolist()) != set(range(count)):
        sys.exit("processes.py: the processes together did not get every sample")
    rates = {}
    for name, value in ranks[0].items():
        if isinstance(value, tuple):
            begin, end = min(rank[name][1] for rank in ranks), max(rank[name][2] for rank in ranks)
            rates[name] = sum(rank[name][0] for rank in ranks) / (end - begin) / 1e9
    dataset = count * sample_bytes
    figures = {
        "devices": arguments.devices,
        "dataset_bytes": dataset,
        "gbps": rates,
        "made_seconds": max(rank["made_seconds"] for rank in ranks),
        "set_up_seconds": max(rank["set_up_seconds"] for rank in ranks),
        "shared_bytes": sum(rank["memory"][0] for rank in ranks),
        "largest_resident_bytes": max(rank["memory"][1] for rank in ranks),
    }
    if arguments.json == "-":
        print(json.dumps(figures))
        return 0
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=2)
    print(f"{', '.join(arguments.devices)}: {dataset / 1e9:.2f} GB, samples of {sample_bytes} bytes\n")
    print("| all processes at once | GB/s in sum | x raw copies |\n| --- | ---: | ---: |")
    for name, rate in rates.items():
        times = f"{rate / rates['raw copies']:.3f}" if "raw copies" in rates else ""
        print(f"| {name} | {rate:.3f} | {times} |")
    print(
        "\nThe bytes of an epoch were right. Making the dataset took {made_seconds:.2f} s, a Loader's first batch "
        "{set_up_seconds:.2f} s.".format(**figures)
    )
    print(
        f"The shared pages take {figures['shared_bytes'] / dataset:.3f} x the dataset in all processes together. "
        f"The one that made them had {figures['largest_resident_bytes'] / dataset:.2f} x at most."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
