#!/usr/bin/env python3
"""Rows that are sampled while processes write them: penstock.ReplayBuffer beside the usual buffers.

    replay.py --device host --rows 4000
    replay.py --device cuda --rows 1700000 --json replay.json

Rows are pixels of 4x84x84 and a number. Processes write them, `--at-once` by each call. Measured are, for `--seconds`
each, in GB/s: what the writers write alone, what is sampled alone, and both at once. Before that, each row is written
once, and the rows of 50 batches are checked while they are written: a row is torn if its pixels are of two numbers.
Beside it: TorchRL's buffer, shared, over memory-mapped tensors, if TorchRL is installed; and shared tensors, which are
written and indexed at random places without any order, pinned and copied to the device. The table is Markdown.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import penstock

SHAPE = (4, 84, 84)
ROW_BYTES = 4 * 84 * 84 + 8


class Penstock:
    def __init__(self, count: int, device: str):
        fields = {"obs": (SHAPE, "uint8"), "action": ((), "int64")}
        self.buffer = penstock.ReplayBuffer(fields, count, device=device)
        self.add, self.sample = self.buffer.add, self.buffer.sample


class Tensors:
    def __init__(self, count: int, device: str):
        self.count, self.device = count, device
        self.fields = {"obs": torch.zeros((count, *SHAPE), dtype=torch.uint8), "action": torch.zeros(count).long()}
        for field in self.fields.values():
            field.share_memory_()

    def add(self, rows: dict[str, torch.Tensor]) -> None:
        begin = int(torch.randint(self.count - len(rows["action"]), ()))
        for name, field in self.fields.items():
            field[begin : begin + len(rows[name])] = rows[name]

    def sample(self, batch: int) -> dict[str, torch.Tensor]:
        chosen = torch.randint(self.count, (batch,))
        return {name: self.to_device(field[chosen]) for name, field in self.fields.items()}

    def to_device(self, field: torch.Tensor) -> torch.Tensor:
        return field.pin_memory().to(self.device, non_blocking=True) if self.device != "cpu" else field


class TorchRL(Tensors):
    def __init__(self, count: int, device: str):
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

        self.device = device
        self.buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(count), shared=True)

    def add(self, rows: dict[str, torch.Tensor]) -> None:
        from tensordict import TensorDict

        self.buffer.extend(TensorDict(rows, [len(rows["action"])]))

    def sample(self, batch: int) -> dict[str, torch.Tensor]:
        rows = self.buffer.sample(batch)
        return {name: self.to_device(rows[name]) for name in ("obs", "action")}


def rows_of(number: int, count: int) -> dict[str, torch.Tensor]:
    return {"obs": torch.full((count, *SHAPE), number % 256, dtype=torch.uint8), "action": torch.full((count,), number)}


def write(way: Any, writer: int, at_once: int, begin: Any, end: Any, written: Any) -> None:
    torch.set_num_threads(1)
    rows = [rows_of(writer * 16 + i, at_once) for i in range(16)]
    begin.wait()
    while not end.is_set():
        way.add(rows[written[writer] // at_once % 16])
        written[writer] += at_once


def while_writing(way: Any, arguments: argparse.Namespace, work: Callable[[], Any]) -> tuple[float, Any]:
    """Bytes a second that the writers write while `work` runs, and what it gives."""
    begin, end = multiprocessing.Event(), multiprocessing.Event()
    written = multiprocessing.Array("q", arguments.writers, lock=False)
    shared = (arguments.at_once, begin, end, written)
    writers = [
        multiprocessing.Process(target=write, args=(way, writer, *shared)) for writer in range(arguments.writers)
    ]
    for process in writers:
        process.start()
    begin.set()
    while not all(written):
        time.sleep(0.01)
    before, began = sum(written), time.perf_counter()
    result = work()
    rate = (sum(written) - before) * ROW_BYTES / (time.perf_counter() - began)
    end.set()
    for process in writers:
        process.join()
    return rate, result


def sampled(way: Any, arguments: argparse.Namespace) -> float:
    """Bytes a second."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < arguments.seconds:
        batch = way.sample(arguments.batch)
        count += arguments.batch
    batch["action"].sum().item()  # waits for the device
    return count * ROW_BYTES / (time.perf_counter() - began)


def torn(batch: Any) -> int:
    numbers = (batch["action"] % 256).to(torch.uint8)
    return int((batch["obs"].flatten(1) != numbers[:, None]).any(1).sum())


def measure(way: Any, arguments: argparse.Namespace) -> dict[str, float]:
    for first in range(0, arguments.rows, arguments.at_once):
        way.add(rows_of(first, arguments.at_once))
    _, bad = while_writing(way, arguments, lambda: sum(torn(way.sample(arguments.batch)) for _ in range(50)))
    if bad and isinstance(way, Penstock):
        sys.exit(f"replay.py: {bad} rows were torn")
    written_alone, _ = while_writing(way, arguments, lambda: time.sleep(arguments.seconds))
    sampled_alone = sampled(way, arguments)
    written, both = while_writing(way, arguments, lambda: sampled(way, arguments))
    rates = {"written alone": written_alone, "sampled alone": sampled_alone, "written": written, "sampled": both}
    return {name: rate / 1e9 for name, rate in rates.items()} | {"torn rows": bad}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help="host or cuda, default %(default)s")
    for name, value in {"rows": 20_000, "batch": 512, "at-once": 16, "writers": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement, default %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    arguments = parser.parse_args()
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["torch", "penstock"])
    ways: dict[str, Any] = {"penstock.ReplayBuffer": Penstock, "TorchRL": TorchRL, "shared tensors": Tensors}
    figures = {}
    for name, way in ways.items():
        if name == "TorchRL" and importlib.util.find_spec("torchrl") is None:
            print("TorchRL is not installed", file=sys.stderr)
            continue
        # The rows of one way are gone before those of the next are made.
        figures[name] = measure(way(arguments.rows, arguments.device.replace("host", "cpu")), arguments)
        print(name, figures[name], file=sys.stderr)
        if arguments.json:  # also if a later one does not end
            with open(arguments.json, "w") as file:
                json.dump({"arguments": vars(arguments), "gbps": figures}, file, indent=1)
    columns = list(figures["penstock.ReplayBuffer"])
    print(f"| GB/s | {' | '.join(columns)} |\n| --- |{' ---: |' * len(columns)}")
    for name, rates in figures.items():
        print(f"| {name} | {' | '.join(f'{rates[column]:.3g}' for column in columns)} |")


if __name__ == "__main__":
    main()
