#!/usr/bin/env python3
"""A DataLoader's workers beside the model of them (`loader_seconds`): measured and predicted seconds of a batch.

    workers.py --seconds 1 --json workers.json > workers.md

Planted datasets wait or compute for each sample, and their batches are of several sizes. As `penstock.diagnose` does,
it measures the stages of each loader with one worker. From them alone the model predicts each number of workers. Then
each is measured. All of that is done in several rounds, and medians count. The table goes to standard output as
Markdown, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import warnings
from dataclasses import asdict, dataclass

import torch
from torch.utils.data import DataLoader, Dataset

from penstock import _core
from penstock._doctor.examination import Watch, _Examination
from penstock._doctor.timings import loader_seconds

BATCH = 16


@dataclass
class Plan:
    """Milliseconds of a batch, and its size."""

    name: str
    waits: float = 0.0  # in fetch, for nothing
    computes: float = 0.0  # in fetch, on one processor
    collates: float = 0.0  # in collate, on one processor
    kib: int = 64


PLANS = [
    Plan("waits 8 ms", waits=8),
    Plan("waits 40 ms", waits=40),
    Plan("waits 40 ms, 4 MiB", waits=40, kib=4096),
    Plan("computes 8 ms", computes=8),
    Plan("computes 40 ms", computes=40),
    Plan("computes 40 ms, 4 MiB", computes=40, kib=4096),
    Plan("waits 30 ms, computes 10 ms", waits=30, computes=10),
    Plan("waits 20 ms, computes 20 ms", waits=20, computes=20),
    Plan("computes 10 ms, collates 30 ms", computes=10, collates=30),
    Plan("waits 30 ms, collates 10 ms, 1 MiB", waits=30, collates=10, kib=1024),
    Plan("only copies, 1 MiB", kib=1024),
    Plan("only copies, 16 MiB", kib=16384),
]


def compute(seconds: float) -> None:
    """Work of that much processor time: a busy machine makes it longer, as it does with other work."""
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


class Planted(Dataset):
    def __init__(self, plan: Plan):
        self.plan = plan

    def __len__(self) -> int:
        return BATCH << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.plan.waits:
            time.sleep(self.plan.waits / 1e3 / BATCH)
        compute(self.plan.computes / 1e3 / BATCH)
        return torch.full((self.plan.kib * 1024 // BATCH,), index % 256, dtype=torch.uint8)


class Collate:
    def __init__(self, plan: Plan):
        self.plan = plan

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        compute(self.plan.collates / 1e3)
        return torch.utils.data.default_collate(samples)


def spin(seconds: float) -> float:
    begin, busy = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        pass
    return (time.process_time() - busy) / seconds


def free_processors() -> float:
    """How many processors as many busy processes get beside the machine's other work."""
    with multiprocessing.Pool(_core.processors()) as pool:
        return sum(pool.map(spin, [1.0] * _core.processors(), chunksize=1))


def stages(examination: _Examination, processors: int) -> dict[str, float]:
    """Of the loader with one worker: what loader_seconds takes."""
    times = examination.run("fetch and collate", examination.staged(1, {"transport"})).batches
    fetch, collate, busy = (statistics.mean(each) for each in zip(*times, strict=True))
    receive = examination.run("1 worker", examination.clone(1)).busy
    made = fetch + collate
    return {"made": made, "computing": min(made, busy), "receive": receive, "processors": processors}


def measure(plan: Plan, workers: list[int], seconds: float, rounds: int, processors: int) -> list[dict[str, float]]:
    loader = DataLoader(Planted(plan), BATCH, num_workers=1, collate_fn=Collate(plan))
    examination = _Examination(loader, seconds, "cpu", Watch())
    predicted: dict[int, list[float]] = {number: [] for number in workers}
    measured: dict[int, list[float]] = {number: [] for number in workers}
    for _ in range(rounds):
        known = stages(examination, processors)
        for number in workers:
            predicted[number].append(loader_seconds(workers=number, **known))
            measured[number].append(examination.run(f"{number} workers", examination.clone(number)).seconds)
    rows = []
    for number in workers:
        model, clock = (statistics.median(found[number]) for found in (predicted, measured))
        rows.append({"workers": number, "predicted": model, "measured": clock, "ratio": model / clock})
    return rows


def share_within(rows: list[dict[str, float]], part: float) -> str:
    near = sum(1 / (1 + part) <= row["ratio"] <= 1 + part for row in rows)
    return f"{near} of {len(rows)} within {100 * part:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="0,1,2,4", help="numbers of workers, with commas between")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measured run")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each number")
    parser.add_argument("--processors", type=int, default=_core.processors(), help="that the model counts on")
    parser.add_argument("--only", default="", metavar="TEXT", help="plans whose names have it")
    parser.add_argument("--json", help="write all figures here")
    arguments = parser.parse_args()
    workers = [int(number) for number in arguments.workers.split(",")]
    warnings.filterwarnings("ignore", "This DataLoader will create")
    torch.set_num_threads(1)
    print(f"{platform.machine()}, {_core.processors()} processors, PyTorch {torch.__version__}")
    print(f"Busy processes get {free_processors():.1f} processors; the model counts on {arguments.processors}.\n")
    print("| a batch | workers | predicted ms | measured ms | ratio |\n| --- | --- | --- | --- | --- |")
    results, rows = [], []
    for plan in PLANS:
        if arguments.only not in plan.name:
            continue
        print(f"{plan.name}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        measured = measure(plan, workers, arguments.seconds, arguments.rounds, arguments.processors)
        for row in measured:
            cells = [plan.name, row["workers"], f"{1e3 * row['predicted']:.2f}", f"{1e3 * row['measured']:.2f}"]
            print("|", " | ".join(map(str, [*cells, f"{row['ratio']:.2f}"])), "|", flush=True)
        rows += measured
        results.append({"plan": asdict(plan), "workers": measured})
    if rows:
        print(f"\n{share_within(rows, 0.25)}, {share_within(rows, 0.1)}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
