#!/usr/bin/env python3
"""The first batches of a DataLoader with workers, alone and with penstock.feed around it.

    starts.py --device cuda --workers 8 --json starts.json > starts.md

Each run is a process of its own, in which PyTorch has used the device before the clock starts. It starts at `iter()`:
the start of the workers counts, and whatever else comes before the first batch. Each batch is waited for on the device.
The two take turns. Figures are medians of samples a second: over the first second, over the first 56 batches, and from
there to the end. The last lines say how long the first batch took. The bytes of each batch are compared, in a run of
their own. The table goes to standard output as Markdown, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

import penstock

FIRST = 56
WAYS = ("DataLoader", "penstock.feed")


class Images(Dataset):
    """Samples of 3x224x224 float32, 77 MB a batch of 128: rows of random memory, which collate copies."""

    def __init__(self, batches: int, batch: int = 128):
        self.count = batches * batch
        self.pool = torch.randn(2 * batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pool[index % len(self.pool)], index


class Batches(Dataset):
    """Whole batches of a dict: each of `columns` has `batch` samples of `shape`."""

    def __init__(self, batches: int, columns: int, batch: int, *shape: int):
        self.count, self.columns, self.batch = batches, columns, batch
        self.pool = torch.randint(0, 50_000, (64 + batch, *shape), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            f"column {number}": self.pool[(index + number) % 64 :][: self.batch].clone()
            for number in range(self.columns)
        }


class Program(NamedTuple):
    about: str
    samples: int  # of a batch
    batches: int
    arguments: Callable[[int], dict[str, Any]]  # of the DataLoader, for so many batches


PROGRAMS = {
    "images": Program("128 images of 3x224x224 float32", 128, 150, lambda n: {"dataset": Images(n), "batch_size": 128}),
    "columns": Program(
        "a dict of 28 columns of 2048 int64",
        2048,
        3000,
        lambda n: {"dataset": Batches(n, 28, 2048), "batch_size": None},
    ),
    "text": Program(
        "a dict of 3 x 32 texts of 512 int64",
        32,
        3000,
        lambda n: {"dataset": Batches(n, 3, 32, 512), "batch_size": None},
    ),
}


def tensors_of(batch: Any) -> list[torch.Tensor]:
    return list(batch.values() if isinstance(batch, dict) else batch)


def iterable(loader: DataLoader, way: str, device: str) -> Iterable[list[torch.Tensor]]:
    if way == "DataLoader":
        target = device if device == "cuda" else "cpu"
        for batch in loader:
            yield [tensor.to(target, non_blocking=True) for tensor in tensors_of(batch)]
        return
    for batch in penstock.feed(loader, device, native=False):
        yield tensors_of(batch)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def run(name: str, way: str, arguments: argparse.Namespace) -> None:
    """In a process of its own: prints when each batch was there, or compares all."""
    program, device = PROGRAMS[name], arguments.device
    given = program.arguments(program.batches // (10 if arguments.quick else 1))
    pin = way == "DataLoader" and device == "cuda"
    loader = DataLoader(**given, num_workers=arguments.workers, pin_memory=pin)
    torch.ones(1).to("cuda" if device == "cuda" else "cpu")
    synchronize(device)
    if arguments.check:
        for ours, theirs in zip(iterable(loader, way, device), DataLoader(**given), strict=True):
            for a, b in zip(ours, tensors_of(theirs), strict=True):
                assert torch.equal(a.cpu(), b), "a batch has other bytes"
        return
    times = []
    begin = time.perf_counter()
    for _ in iterable(loader, way, device):
        synchronize(device)
        times.append(time.perf_counter() - begin)
    print(json.dumps(times))


def figures(times: list[float], samples: int) -> dict[str, float]:
    first = min(FIRST, len(times) // 2)
    return {
        "first second": samples * sum(at <= 1 for at in times),
        f"first {first} batches": samples * first / times[first - 1],
        "later": samples * (len(times) - first) / (times[-1] - times[first - 1]),
        "first batch, s": times[0],
    }


def measure(program: str, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:

    def start(way: str, *more: str) -> str:
        fixed = ["--device", arguments.device, "--workers", str(arguments.workers)] + ["--quick"] * arguments.quick
        command = [sys.executable, __file__, "--run", program, way, *fixed, *more]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    start("penstock.feed", "--check")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(arguments.rounds):
        for way in WAYS[:: 1 if turn % 2 == 0 else -1]:
            found[way].append(figures(json.loads(start(way)), PROGRAMS[program].samples))
            print(f"{program}, {way}: {found[way][-1]}", file=sys.stderr)
    return {
        way: {name: statistics.median(each[name] for each in runs) for name in runs[0]} for way, runs in found.items()
    }


def table(program: str, found: dict[str, dict[str, float]]) -> str:
    names = list(found[WAYS[0]])
    lines = [f"{PROGRAMS[program].about}:", "", "| | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for way in WAYS:
        lines.append(f"| {way} | " + " | ".join(f"{found[way][name]:,.4g}" for name in names) + " |")
    ratios = (found[WAYS[1]][name] / found[WAYS[0]][name] if found[WAYS[0]][name] else 0 for name in names)
    lines.append("| feed beside DataLoader | " + " | ".join(f"{ratio:.2f} x" for ratio in ratios) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda" if torch.cuda.is_available() else "host")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="a tenth of the batches: does it run?")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, with commas between")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(*arguments.run, arguments)
        return
    found = {}
    for program in arguments.only.split(","):
        found[program] = measure(program, arguments)
        print(table(program, found[program]), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": arguments.device, "workers": arguments.workers, "samples_per_second": found}, file)


if __name__ == "__main__":
    main()
